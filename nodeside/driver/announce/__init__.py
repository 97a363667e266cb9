"""Reports the state of a driver to the node and the cluster.

    documents             node label, NodeDriver and Event, as values
    api                   the few requests to the API server that a driver pod may make
    delivery              when to send each of them, and when to retry after a failure
    announcer             ready file and marker immediately; the cluster in the background

It never blocks the driver: it retries, and no error reaches the caller.
"""
