"""The loop: snapshot, plan, carry out, wait.

controller, pacing    the loop, and how much of a processor it may take
executor              a plan's actions as requests, lane by lane
node_labels, drain_requests       requests that must not overwrite another's change
failures              what is refused is told in the status, and tried ever later
contention, eviction_backoff, status_throttle    the other kinds of waiting
"""
