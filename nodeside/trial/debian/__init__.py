"""Debian's packages: fetched, compared, unpacked, and made into root file systems.

    version             the order of version strings
    archive             packages, through apt with private state
    kernels             the available kernels, and which one a user means
    root_filesystems    the root file systems of the driver and the toolkit, by mmdebstrap

Everything fetched is cached. Knows nothing of machines and drivers.
"""
