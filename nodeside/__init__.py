"""nodeside puts the right out-of-tree kernel module on every node that has the hardware."""

__version__ = "0.1.0"
