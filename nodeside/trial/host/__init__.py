"""The node's containers on this host: faster than in an emulated machine.

    container        a container on this host: namespaces and a root file system
    toolkit          the toolkit container
    build            a build in it, by the same sidecar
    discovery        a build that tells what modules a source has
    packed_python    the sidecar's Python, packed from the driver's root file system

Needs root. Only what has to run a kernel boots a machine.
"""
