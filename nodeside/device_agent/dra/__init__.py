"""Dynamic Resource Allocation: offers devices to claims, as a DRA driver on this node (KEP-4381).

    agent        what is found goes to claims and to the publisher
    driver       the lock, and the sockets by which the kubelet finds the driver
    service      what the kubelet asks: to prepare claims, to unprepare them, and health
    publisher    keeps the ResourceSlices of this node as the devices are
    api          the requests to the API server
    slices       devices as ResourceSlices, and what has to be written. Pure
    names        names of devices that resource.k8s.io/v1 allows. Pure
    claims       what a claim was allocated, and its CDI specification. Pure
    prepared     the claims that are prepared, and their CDI files, on disk
    site         the node, the API server, and directories

Only `agent` is imported from outside, and only where devices are claimed.
"""
