"""A container on this machine, for work that needs a root file system but no virtual machine.

`make_entrance` yields the `wrapper` for a command of `nodeside.system.process`. The wrapper moves
the child into namespaces of its own, onto an overlay whose upper layer is in memory. No other
process sees the mounts, and they end with the command. The command dies with this process, and is
killed first if the machine runs out of memory. All this takes root.

    with make_entrance(layers, scratch, binds) as enter:
        process.run(argv, env=ENVIRONMENT, wrapper=enter, timeout=60)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from nodeside.errors import SystemRefused
from nodeside.system.process import WrapperFailed
from nodeside.toolkit_sidecar.memory import be_killed_first
from nodeside.trial.machine.containers import TOOLKIT_UID
from nodeside.trial.machine.guest import syscalls as sc
from nodeside.trial.machine.guest.container import bind_mount, mount_devices

_NAMESPACES = sc.CLONE_NEWNS | sc.CLONE_NEWNET | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS

_UPPER_BYTES = 1 << 30  # in memory; a build writes to its shared directory, not here

ENVIRONMENT = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

# The first process of the PID namespace is this shell. When it dies, so do all others in it, even
# those that left the process group. It dies with `unshare`, which dies with our process. The
# command cannot be the first process: a change of user clears the death signal, and the command
# may clear it too.
OWN_PROCESSES = (
    "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--",
    "sh", "-c", '"$@"; exit', "sh",
)  # fmt: skip

# An ordinary user without any capability. Vendor code runs as this user, here and in a pod. --nproc
# limits all processes of this user together; `make` on 128 processors has about a thousand.
UNPRIVILEGED = (
    *OWN_PROCESSES, "prlimit", "--nproc=8192", "--",
    "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs",
    f"--reuid={TOOLKIT_UID}", f"--regid={TOOLKIT_UID}", "--clear-groups", "--",
)  # fmt: skip


@contextmanager
def make_entrance(
    layers: Sequence[Path],
    scratch: Path,
    binds: Mapping[Path, str],
    *,
    upper_bytes: int = _UPPER_BYTES,
) -> Iterator[Callable[[], None]]:
    """Yield the wrapper: what the child runs between fork and exec. Raises SystemRefused.

    `layers` are directories, topmost first. `scratch` is a directory of ours. `binds` maps
    directories of this machine to paths in the container. What is written elsewhere is in memory,
    at most `upper_bytes`.
    """
    try:
        yield _make_wrapper(layers, scratch, binds, upper_bytes)
    except WrapperFailed as exc:
        raise SystemRefused(
            f"cannot enter a container of {layers[-1]}: a namespace or a mount was refused",
            hint="it takes root on a machine that allows mounts; an ordinary container does not",
        ) from exc


def _make_wrapper(
    layers: Sequence[Path], scratch: Path, binds: Mapping[Path, str], upper_bytes: int
) -> Callable[[], None]:
    layer, root = scratch / "layer", scratch / "root"
    for directory in (layer, root):
        directory.mkdir(parents=True, exist_ok=True)
    lower = ":".join(map(str, layers))
    parent = os.getpid()

    def enter() -> None:
        sc.die_with_parent(parent)
        be_killed_first()  # vendor code cannot take back what root has set (CAP_SYS_RESOURCE)
        sc.unshare(_NAMESPACES)
        sc.mount("none", "/", flags=sc.MS_REC | sc.MS_PRIVATE)
        limits = f"size={upper_bytes},nr_inodes={upper_bytes >> 10}"  # an inode takes memory too
        sc.mount("tmpfs", str(layer), "tmpfs", options=f"mode=755,{limits}")
        (layer / "upper").mkdir()
        (layer / "work").mkdir()
        upper = f"upperdir={layer}/upper,workdir={layer}/work"
        sc.mount("overlay", str(root), "overlay", options=f"lowerdir={lower},{upper}")
        sc.mount("proc", f"{root}/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
        bind_mount("/sys", f"{root}/sys", "ro")
        mount_devices(root)
        for source, target in binds.items():
            bind_mount(str(source), f"{root}{target}", "")
        sc.pivot_root(str(root))

    return enter
