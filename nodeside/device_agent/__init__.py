"""The device agent: offers the devices of one driver on one node to the kubelet.

    cli            nodeside device-agent
    agent          the main thread: what is found goes to the plugins, and is registered
    finder         looks for the devices, in threads of its own
    plugin         one resource on one socket, as the kubelet's device plugin API has it
    registration   says to the kubelet that the plugin is there, again and again
    inventory      what is offered: what was found, and for a while what is gone
    allocation     what a container gets, and which devices it should
    pod_resources  which container has which devices, as the kubelet says
    metrics        Prometheus metrics of the devices
    kept_ids       the ids of devices, over restarts
    dra            the same for claims, as a DRA driver
    features       labels of the node: what its devices are
    feature_sinks  where labels go: to Node Feature Discovery, else to the node
    messages       the messages of the kubelet's APIs
    rpc            gRPC on unix sockets: what they are sent by
    connections    grpclib's connections, within limits

Nothing here changes what runs on the node: it reads /sys, /dev and the ready file, and writes
sockets in the kubelet's directories, its state, labels, and for claims CDI files and
ResourceSlices.
"""
