"""One throwaway machine: its disks, its kernel, QEMU, and the agent inside.

    disks, cpio            ext4 images, qcow2 overlays, cpio archives
    initramfs              busybox, a few modules and `/init`
    busybox                the machine's busybox: this host's, or one of its architecture
    kernel_disk            one kernel as files that a machine can boot
    node_disk, payload     the host's disk; the disk with nodeside and the driver to try
    containers             what a driver or toolkit container sees of the node
    qemu                   QEMU's command line and the choice of an accelerator
    link                   the connection to the agent
    machine                one running machine
    shell                  a shell in it, for `--keep`
    guest/                 the agent: the only part that runs inside the machine

Knows nothing of targets and sessions.
"""
