"""What a Driver's status says.

report                everything a status is made of; counts for metrics
conditions, progress  Ready, Progressing, Degraded, and their sentences
pool_rows, drains, stages   the rows
messages              phrases that several sentences have in common
"""
