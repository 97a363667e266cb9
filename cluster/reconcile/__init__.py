"""The reconcile loop: snapshot, plan, carry out, wait.

loop, timings         the loop, and its CPU budget
amendments            what earlier rounds tell the next plan, and what has to wait in it
executor              a plan's actions as requests, lane by lane
node_labels, drain_requests       requests that must not overwrite someone else's change
failures              refused requests: the problems they are, and their retries with backoff
reverted_edits, eviction_backoff, status_throttle    the other kinds of waiting
"""
