"""The trial: a throwaway virtual machine that plays the node (`nodeside try`).

It makes everything it needs from Debian packages, caches the results outside the checkout, and
leaves nothing running or mounted. From the bottom to the top:

    cache, progress, errors              the cache, progress on stderr, exceptions
    archive, debian_version              Debian packages, through apt with private state
    kernels, kernel_disk, initramfs, cpio    the available kernels; one of them as bootable files
    root_filesystems, packed_python      the root file systems of the driver and the toolkit
    disks, node_disk, payload            ext4 images and overlays
    qemu, machine, link                  one running machine, and the connection to its agent
    containers                           what a driver or toolkit container sees of the node
    guest/                               the agent: the only part that runs inside the machine
    host_container, host_toolkit, host_build    the same containers on this host; large builds
    workshop                             the interface to all of the above, also for the tests
    target, dkms_tree, dependencies      what to try: a driver.yaml, a tree, a package
    session, pod, shell, result          the steps of `nodeside try`, and its output
    cli, privilege                       its command line

Nothing that runs on a real node imports this package.
"""
