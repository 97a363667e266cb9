"""The names of kernel modules: in the kernel, and as files.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

SUFFIXES = (".ko", ".ko.gz", ".ko.xz", ".ko.zst")  # of module files, uncompressed and compressed


def kernel_name(name: str) -> str:
    """Return the kernel's name for a module, with `_` instead of `-`."""
    return name.replace("-", "_")


def name_of_file(path: str) -> str:
    """Return the kernel's name for a module file: no directory or suffix, `_` instead of `-`."""
    base = path.rsplit("/", 1)[-1]
    suffix = next((end for end in SUFFIXES if base.endswith(end)), "")
    return kernel_name(base.removesuffix(suffix))
