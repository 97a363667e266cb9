"""The part of the trial that runs inside the machine: PID 1 of the node, driven from the host.

Stdlib only. It runs on the Python of the driver's root file system, outside every container.
"""

PORT = "nodeside.agent"  # the name of the virtio serial port that the agent answers on
