"""The documents that a plan creates: revisions, DaemonSets, pods, Jobs.

revision, node_policy ConfigMaps: a revision, and the settings that change without a new one
driver_pod, daemonset the driver container, its toolkit sidecar, their DaemonSet
unload_pod            a pod that unloads a driver on one node
device_agent          what offers a driver's devices to the kubelets
build_job             a Job that builds once for all nodes of a pool
"""
