"""A cpio archive in the "newc" format, which the kernel unpacks as its initramfs.

https://www.kernel.org/doc/html/latest/driver-api/early-userspace/buffer-format.html
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field

_TRAILER = "TRAILER!!!"


@dataclass
class CpioArchive:
    """An archive under construction. Every entry belongs to root and has the time zero."""

    _parts: list[bytes] = field(default_factory=list)
    _directories: set[str] = field(default_factory=set)

    def add_file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        self._add_parents(name)
        self._add_entry(name, stat.S_IFREG | mode, data)

    def add_directory(self, name: str) -> None:
        self._add_parents(f"{name}/")

    def add_link(self, name: str, target: str) -> None:
        self._add_parents(name)
        self._add_entry(name, stat.S_IFLNK | 0o777, target.encode())

    def add_device(self, name: str, major: int, minor: int) -> None:
        """Add a character device."""
        self._add_parents(name)
        self._add_entry(name, stat.S_IFCHR | 0o600, b"", device=(major, minor))

    def to_bytes(self) -> bytes:
        return b"".join(
            [*self._parts, _encode_entry(_TRAILER, 0, b"", (0, 0), len(self._parts) + 1)]
        )

    def _add_parents(self, name: str) -> None:
        words = name.split("/")[:-1]
        for count in range(1, len(words) + 1):
            parent = "/".join(words[:count])
            if parent not in self._directories:
                self._directories.add(parent)
                self._add_entry(parent, stat.S_IFDIR | 0o755, b"")

    def _add_entry(
        self, name: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)
    ) -> None:
        self._parts.append(_encode_entry(name, mode, data, device, len(self._parts) + 1))


def _encode_entry(name: str, mode: int, data: bytes, device: tuple[int, int], inode: int) -> bytes:
    path = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    header = b"070701" + b"".join(b"%08X" % value for value in fields)
    return _pad_to_four(header + path) + _pad_to_four(data)


def _pad_to_four(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
