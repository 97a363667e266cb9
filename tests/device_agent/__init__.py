"""The device agent with a kubelet that is played; tests/lab/test_story_of_devices.py has a real one."""
