"""The driver container: decides, fetches or asks to build, loads, proves, and announces."""
