#!/usr/bin/env python3
"""A consumer of the edu driver: factorial.py DEVICE N prints N! modulo 2^32.

It uses /dev/edu0 as any program would, and needs to know nothing about the driver.
"""

from __future__ import annotations

import os
import sys


def factorial(device: str, n: int) -> int:
    """Write the number and read the result through the same open file."""
    file = os.open(device, os.O_RDWR)
    try:
        os.write(file, str(n).encode())
        return int(os.read(file, 16))
    finally:
        os.close(file)


def main() -> None:
    device, n = sys.argv[1], int(sys.argv[2])
    try:
        sys.stdout.write(f"{n}! = {factorial(device, n)} (mod 2^32)\n")
    except OSError as error:
        sys.exit(f"{device}: {error.strerror}")


if __name__ == "__main__":
    main()
