"""The driver container: decides, fetches or requests builds, loads, validates and announces."""
