"""The devices of a node: `devices` of driver.yaml against what sysfs shows.

    discovery    all devices of a resource, each with its id, device nodes, attributes and health
    health       what a device's health file must say
    identity     ids that are the same after a reboot

Only reads. The driver's commands and the device agent share it.
"""
