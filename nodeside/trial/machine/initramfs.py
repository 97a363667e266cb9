"""The initramfs of a kernel: busybox, the modules for mounting the node disk, and `/init`.

`/init` mounts the three disks and becomes the agent (`guest/`). It runs before anything of ours is
mounted, so it is a busybox shell script.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable
from pathlib import Path

from nodeside.driver.node.intree import InTree, read_tree
from nodeside.system import process
from nodeside.trial.errors import TrialError
from nodeside.trial.machine.cpio import CpioArchive

BUSYBOX = Path("/usr/bin/busybox")  # Debian's busybox-static

# The modules a node needs before modprobe is available; built-in ones are left out.
_NEEDED = ("virtio_pci", "virtio_blk", "virtio_console", "ext4", "crc32c_generic", "overlay")
_NETWORK = ("virtio_net",)  # loaded only where the machine has a network
_APPLETS = ("sh", "mount", "mkdir", "insmod", "switch_root", "cat", "ln")

_INIT = """\
#!/bin/sh
# The kernel starts this; it ends as the agent, with the node disk as root file system.
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
case "$(cat /proc/cmdline)" in *nodeside.network=1*)
  for module in $(cat /modules/network); do insmod /modules/$module; done ;;
esac
mount -t ext4 -o rw,noatime /dev/vda /node || exit 1
mount -t ext4 -o ro /dev/vdb /node/kernel || exit 1
mount -t ext4 -o ro /dev/vdc /node/payload || exit 1
for directory in proc sys dev; do mount -o move /$directory /node/$directory; done
mount -t tmpfs -o mode=0755 run /node/run
mount -t tmpfs -o mode=1777 tmp /node/tmp
exec switch_root /node /bin/sh /payload/agent
"""


def build_initramfs(modules: Path, busybox: Path | None = None) -> bytes:
    """Return the archive for the kernel whose `/lib/modules/<release>` is at `modules`.

    `busybox` is a static one for the machine, by default this host's.
    """
    busybox = busybox or BUSYBOX
    if not busybox.exists():
        raise TrialError(f"{busybox} is missing", hint="apt-get install busybox-static")
    archive = CpioArchive()
    for directory in ("proc", "sys", "dev", "node", "run"):
        archive.add_directory(directory)
    archive.add_device("dev/console", 5, 1)
    archive.add_file("bin/busybox", busybox.read_bytes(), 0o755)
    for applet in _APPLETS:
        archive.add_link(f"bin/{applet}", "busybox")
    archive.add_file("init", _INIT.encode(), 0o755)
    _add_modules(archive, modules)
    return archive.to_bytes()


def _add_modules(archive: CpioArchive, modules: Path) -> None:
    tree = read_tree(modules)
    order = load_order(_NEEDED, tree)
    network = [name for name in load_order(_NETWORK, tree) if name not in order]
    for name in (*order, *network):
        archive.add_file(f"modules/{name}.ko", _read_uncompressed(modules / tree.paths[name]))
    for file, names in (("order", order), ("network", network)):
        archive.add_file(f"modules/{file}", "".join(f"{name}.ko\n" for name in names).encode())


def load_order(names: Iterable[str], tree: InTree) -> list[str]:
    """Return the modules and all their dependencies, each after those it needs.

    A name that is neither a module nor built in is left out, because kernels differ.
    """
    loadable = [name for name in names if name in tree.paths]
    return list(dict.fromkeys(module for name in loadable for module in tree.load_order(name)))


def _read_uncompressed(path: Path) -> bytes:
    """Return a module as the kernel's own loader takes it: uncompressed, signature included."""
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".zst":
        plain = path.with_suffix("")
        process.run(["zstd", "-d", "-q", "-f", path, "-o", plain], timeout=60)
        return plain.read_bytes()
    return path.read_bytes()
