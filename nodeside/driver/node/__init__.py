"""The observed node: /sys, /proc, the kernel log, system calls, and /run/nodeside.

    syscalls              access to the kernel; calls that may hang run in a child
    modules, devices      the loaded modules and the devices they serve
    holders, processes    what holds a module: modules, devices, processes, mounts
    intree                in-tree modules
    exports               where the running kernel has some symbols
    command_line          what the kernel's command line says of modules
    modprobe_d            what the host's modprobe.d says of them
    facts, capabilities   what the kernel accepts; the capabilities of this process
    kernel_log            the kernel's messages since a mark
    last_words            what pstore has of a kernel that died
    load_mark             the mark of a load on the node's disk, until the validation has passed
    node_lock             node-wide locks
    loaded_record         the modules that nodeside loaded in this boot
    run_directory         /run/nodeside and /run/nodeside-locks: loaded.json, the locks of a driver

Only observes, and writes nothing but these two directories and the mark. Code that changes the
kernel is in `driver.kernel`.
"""
