"""How a driver is, told to the node and the cluster.

    documents             node label, NodeDriver and Event, as values
    api                   the few requests to the API server that a driver pod may make
    delivery              when each of them is sent, and again after a failure
    announcer             ready file and marker at once; the cluster in the background

Never in the way of the driver: it retries, and no error reaches the caller.
"""
