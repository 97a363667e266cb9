"""Reads feature files as Node Feature Discovery documents it: a stand-in, for it is not run here.

https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/customization-guide.html#feature-files
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nodeside.protocol.timestamps import parse_rfc3339

LIMIT: Final = 64 << 10  # bytes
_EXPIRES: Final = "# +expiry-time="


def read(directory: Path, now: float) -> dict[str, str]:
    """The labels of all files at a Unix time."""
    labels: dict[str, str] = {}
    for path in sorted(directory.iterdir()):
        if path.name.startswith(".") or not path.is_file() or path.stat().st_size > LIMIT:
            continue
        expires = float("inf")
        for line in path.read_text().splitlines():
            if line.startswith(_EXPIRES):
                expires = parse_rfc3339(line.removeprefix(_EXPIRES))
            elif line.startswith("# +"):
                raise AssertionError(f"an unknown directive: {line}")
            elif line and not line.startswith("#") and now < expires:
                key, equals, value = line.partition("=")
                labels[key] = value if equals else "true"
    return labels
