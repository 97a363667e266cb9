"""The reconcile loop: snapshot, plan, carry out, wait.

loop, timings         the loop, and its CPU budget
amendments            what earlier rounds change in a plan, in one place and order
executor              a plan's actions as requests, lane by lane
node_labels, drain_requests       requests that must not overwrite someone else's change
failures              reports refused requests in the status and retries them with backoff
reverted_edits, eviction_backoff, status_throttle    the other kinds of waiting
"""
