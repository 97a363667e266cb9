"""The status of a Driver.

report                the inputs of a status; counts for metrics
conditions, progress  Ready, Progressing, Degraded, and their messages
pool_rows, resources, drains, stages   the rows
messages              phrases shared by several messages
"""
