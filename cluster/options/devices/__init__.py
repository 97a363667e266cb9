"""What offers a driver's devices to the kubelets.

agent_manifests       the objects of the stage `devices`
status                a row of the status for each resource
"""
