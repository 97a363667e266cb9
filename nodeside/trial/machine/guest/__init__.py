"""The part of the trial that runs inside the machine: PID 1 of the node, driven from the host.

`agent` is PID 1, `container` starts containers as a kubelet does, `syscalls` has the system calls
that Python lacks. Stdlib only. It runs on the Python of the driver's root file system, outside
every container.
"""

PORT = "nodeside.agent"  # the name of the virtio serial port that the agent answers on
