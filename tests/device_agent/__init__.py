"""The device agent with a kubelet that is played; tests/lab/test_devices.py has a real one."""
