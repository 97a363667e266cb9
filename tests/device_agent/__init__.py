"""The device agent with a kubelet that is played; the lab has a real one."""
