"""The status of a Driver.

report                the inputs of a status; counts for metrics
conditions, progress  Ready, Progressing, Degraded, and their messages
pool_rows             a row for each pool
part                  what an option adds: resources, drains, stages, conflicts, leaving
messages              phrases shared by several messages
"""
