"""One attempt to bring a driver up: observe, climb, install, validate.

    bringup               the order of things, for whoever reads only one file
    observe               what is in the kernel, and what could prove it right
    installation          the way into the kernel: conflicts, unload, firmware, load
    validate              proof that it works: sysfs, devices, kernel log, a command
    journal               what happened, stage by stage

Always under the lock of this driver on this node.
"""
