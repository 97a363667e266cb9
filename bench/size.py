"""How much is measured: all of it, a subset for a first look, or each thing once.

The smallest size says whether a part of the bench still works, and nothing about nodeside.
"""

from __future__ import annotations

from enum import Enum


class Size(Enum):
    FULL = "full"  # what stands on the page
    QUICK = "quick"
    SMALLEST = "smallest"
