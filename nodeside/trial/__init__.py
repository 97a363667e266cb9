"""The proving ground: a throwaway virtual machine that plays the node (`nodeside try`).

It makes everything it needs out of Debian packages, keeps that in a cache outside the checkout, and
leaves nothing running or mounted. From the bottom to the top:

    cache, scratch, progress, errors     what lasts, what does not, what is said
    archive, debian_version              Debian packages, through apt with private state
    kernels, kernel_disk, initramfs, cpio    which kernels there are; one as files that boot
    root_filesystems, packed_python      the driver's and the toolkit's root file system
    disks, node_disk, payload            ext4 images and overlays
    qemu, machine, link                  one running machine, and the line to the agent in it
    containers                           what a driver or toolkit container sees of the node
    guest/                               the agent: the only part that runs inside the machine
    host_container, host_toolkit, host_build    the same containers on this host; large builds
    workshop                             all of the above behind one door, also for the tests
    target, dkms_tree, dependencies      what is to be tried: a driver.yaml, a tree, a package
    session, pod, shell, result          what `nodeside try` does with it, and what it prints
    cli, privilege                       its command line

Nothing that runs on a real node imports this package.
"""
