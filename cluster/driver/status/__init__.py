"""The status of a Driver.

inputs                what a status is made of; counts for metrics
conditions, progress  Ready, Progressing, Degraded, and their messages
pools                 a row for each pool
part                  what an option adds
problems              what the controller met, which outranks what it sees on nodes
messages              phrases shared by several messages
"""
