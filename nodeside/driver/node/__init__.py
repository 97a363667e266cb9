"""The node as the kernel shows it: /sys, /proc, the kernel log, system calls, /run/nodeside.

    syscalls, sysfs       the doors to the kernel; calls that may hang run in a child
    modules, devices      which modules are loaded, and which devices they serve
    holders, processes    who holds a module: modules, devices, processes, mounts
    pci, intree           PCI devices and their drivers; modules of the distribution
    facts, capabilities   what this kernel accepts, what this process may do
    kernel_log            the kernel's messages since a mark
    node_lock, leases     one actor at a time on a node; records that a reader cannot block
    run_directory         /run/nodeside: the ready file and loaded.json

Looks, and writes nothing but /run/nodeside. Whoever changes the kernel is in `driver.kernel`.
"""
