"""The driver's side of the shared directory: requests builds from a toolkit sidecar.

    provide               put the sidecar's program and Python into the shared directory
    zipapp                the sidecar's program as one file
    relocatable_python    a Python that runs wherever it is unpacked
    source, source_tree   which files are source; their digest; their copy for the sidecar
    request               build requests: publish, withdraw, read the answer
    listener              the caller's callbacks and timeouts
    result                wait for the sidecar and its answer
    log_follower          stream the build's output
    artifacts             copy the built modules before they are used
    local_sidecar         a sidecar without a pod, for engineers

The sidecar's side is `nodeside.toolkit_sidecar`; both sides share `nodeside.protocol`. Everything
the sidecar writes is untrusted.
"""
