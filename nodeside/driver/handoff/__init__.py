"""The driver's side of the shared directory: ask a toolkit sidecar for a build.

    provide               put the sidecar's program and Python into the shared directory
    zipapp                the sidecar's program, packed
    relocatable_python    a Python that runs wherever it is unpacked
    source, source_tree   which files are source; their digest; their copy for the sidecar
    request               the request for a build
    listener              what the caller wants to hear, and how long it waits
    result                wait for the answer
    log_follower          the build's output as it happens
    artifacts             what a build delivered, copied before it is used
    local_sidecar         a sidecar without a pod, for an engineer

The sidecar's side is `nodeside.toolkit_sidecar`; they share `nodeside.contract` and
`nodeside.shared`. Everything the sidecar writes is another party's data.
"""
