"""What a kernel module is called: by the kernel, and as a file.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

SUFFIXES = (".ko", ".ko.gz", ".ko.xz", ".ko.zst")  # of a module file, plain and compressed


def kernel_name(name: str) -> str:
    """The name by which the kernel knows a module: `_` for every `-`."""
    return name.replace("-", "_")


def name_of_file(path: str) -> str:
    """The kernel's name of the module in a file: no directory, no suffix, `_` for `-`."""
    base = path.rsplit("/", 1)[-1]
    suffix = next((end for end in SUFFIXES if base.endswith(end)), "")
    return kernel_name(base.removesuffix(suffix))
