"""A node made of files: /proc and /sys as a kernel shows them with a driver loaded.

This machine's kernel may have no modules at all, and emulation is slow; so what the driver process
does when its modules are loaded is measured here at full speed. To it, the modules are loaded.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

from nodeside.driver.bundle.bundle import Bundle, read_bundle
from nodeside.driver.bundle.manifest import BundleManifest
from nodeside.driver.node.loaded_record import LoadedModule, LoadedRecord
from nodeside.driver.node.run_directory import write_loaded
from nodeside.protocol.node_status import Rung
from nodeside.system.host import Host, Kernel

_BUILD_ID = 3  # NT_GNU_BUILD_ID, elf(5)


class FileNode:
    """`root` is what a pod has at /host."""

    def __init__(self, root: Path, kernel: Kernel) -> None:
        self.root = root
        self.host = Host(root)
        _write(root / "proc/sys/kernel/osrelease", kernel.release)
        _write(root / "proc/sys/kernel/version", kernel.version)
        _write(root / "proc/sys/kernel/random/boot_id", Host().boot_id)
        _write(root / "proc/modules", "")
        self.host.sys_module.mkdir(parents=True)
        self.host.cache.mkdir(parents=True)

    def bundle(self) -> Bundle:
        """The one bundle in the cache."""
        (manifest,) = self.host.cache.glob("*/*/manifest.json")
        return read_bundle(manifest.parent)

    def show_symbols(self, symvers: Path) -> None:
        """The kernel's symbol list, where some distributions have it: the checks read it."""
        boot = self.root / "boot"
        boot.mkdir()
        shutil.copyfile(symvers, boot / f"symvers-{self.host.kernel.release}")

    def show_loaded(self) -> None:
        """As if nodeside had loaded the bundle in the cache."""
        manifest = self.bundle().manifest
        rows = [
            f"{module.name} 16384 0 - Live 0x0000000000000000 (OE)" for module in manifest.modules
        ]
        _write(self.root / "proc/modules", "\n".join(rows))
        for module in manifest.modules:
            directory = self.host.sys_module / module.name
            _write(directory / "initstate", "live")
            _write(directory / "refcnt", "0")
            notes = directory / "notes" / ".note.gnu.build-id"
            notes.parent.mkdir(parents=True)
            notes.write_bytes(_note(module.build_id))
        write_loaded(self.host, _record(manifest))


def _record(manifest: BundleManifest) -> LoadedRecord:
    return LoadedRecord(
        driver=manifest.driver,
        version=manifest.version,
        key=manifest.key,
        boot_id=Host().boot_id,
        source=Rung.BUILT,
        modules=tuple(LoadedModule(m.name, m.build_id, {}) for m in manifest.modules),
    )


def _note(build_id: str) -> bytes:
    """An ELF note: sizes of name and content, type, name, content (elf(5))."""
    content = bytes.fromhex(build_id)
    return struct.pack("<III", 4, len(content), _BUILD_ID) + b"GNU\0" + content


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n" if text else "")
