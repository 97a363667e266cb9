"""One attempt to bring a driver up: observe, climb, install, validate.

    bringup               the control flow; read this file first
    attempt               the task, and what an attempt is made with: it goes from hand to hand
    observe               what is in the kernel, and what could prove that it is right
    installation          the load: conflicts, unload, firmware, load
    teardown              the unload, with hooks and services
    neighbours            drivers that come after one another
    restore               the in-tree drivers that come back when this one is removed
    hooks                 commands of the driver image around both
    validate              proof that the driver works: sysfs, devices, kernel log, a command
    earlier_attempts      what failed earlier and is not repeated
    deaths                a load in which the kernel died is not repeated automatically
    journal               a record of the run, stage by stage

An attempt always holds the lock of this driver on this node.
"""
