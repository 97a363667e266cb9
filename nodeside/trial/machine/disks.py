"""Makes disk images without mounting: ext4 from a directory, and qcow2 overlays on top."""

from __future__ import annotations

from pathlib import Path

from nodeside.system import process
from nodeside.trial.cache import MIB

_INODE_COST = 512  # bytes per inode in the file system's tables, with room to spare


def make_ext4(tree: Path, image: Path, *, label: str, free_mib: int = 16) -> None:
    """Make an ext4 image with the files and owners of `tree`, and `free_mib` MiB free.

    The image is sparse, so its free space takes no space on the host.
    """
    used, count = _measure_tree(tree)
    size = (used + count * _INODE_COST) * 11 // 10 + (free_mib + 16) * MIB
    inodes = count + 1024 + free_mib * MIB // 16384
    image.touch()
    process.run(
        [
            "mke2fs", "-q", "-F", "-t", "ext4", "-L", label, "-m", "0", "-N", str(inodes),
            "-O", "^has_journal" if free_mib <= 16 else "has_journal",
            "-E", "lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0",
            "-d", tree, image, f"{size // 1024}k",
        ],
        timeout=900,
    )  # fmt: skip


def make_overlay(base: Path, image: Path, *, kind: str = "raw") -> None:
    """Make a qcow2 image on top of `base`, whose format is `kind`; it stores all writes itself."""
    process.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", kind, "-b", base.resolve(), image],
        timeout=60,
    )


def _measure_tree(tree: Path) -> tuple[int, int]:
    """Return how many bytes a tree takes in blocks of 4 KiB, and how many files it has."""
    used = count = 0
    for path in tree.rglob("*"):
        status = path.lstat()
        used += -(-status.st_size // 4096) * 4096
        count += 1
    return used, count
