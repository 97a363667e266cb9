"""The processes on the node that have a device open or mapped, and the mounts of a filesystem.

psutil does not serve here. It lists open regular files only, so no devices, and calls stat(2) on
all of them without a deadline. And it knows no mounts of another process.

Inspecting the open files of another user's process takes SYS_PTRACE and DAC_READ_SEARCH; processes
that cannot be inspected are counted. A file on a dead filesystem (NFS, FUSE) may hang in stat(2),
which no signal ends, so a child process does the work, for a limited processor time. Any process
can have as many open files, mappings and mounts, and as long a command line, as it likes: they are
read one by one, or in part. Only reads.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from nodeside import log
from nodeside.errors import DeadlinePassed, NodesideError
from nodeside.log import escape_controls
from nodeside.protocol.module_names import kernel_name
from nodeside.protocol.records import decode, encode
from nodeside.system import sysfs
from nodeside.system.child import ChildDied, ChildRaised, run_in_child
from nodeside.system.host import Host
from nodeside.values import frozen

_SECONDS = 10.0  # inspecting every process of a node takes less than one
_PROCESSOR_LIMITS = (10, 10)  # seconds, for a child that is left behind
_READ_LIMIT = 1 << 14  # bytes of a command line or a cgroup
_COMMAND_LIMIT = 200  # characters
_PROGRAM_LIMIT = 64
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")


@frozen
class Process:
    """A process that has `files` open files (or mappings), such as `path`.

    `pod` is the uid of its pod, `container` the id of its container; "" outside of one.
    """

    pid: int
    program: str
    command: str
    path: str
    files: int = 1
    pod: str = ""
    container: str = ""


@frozen
class Users:
    """The processes found, and the number of processes whose open files are not readable."""

    processes: tuple[Process, ...] = ()
    unseen: int = 0


@frozen
class Search:
    """The users and mounts found; `problem` is the reason if the search failed, else ""."""

    users: Users = Users()
    mounts: tuple[str, ...] = ()
    problem: str = ""


def find_users_and_mounts(
    module: str, numbers: frozenset[str], device_names: frozenset[str], host: Host
) -> Search:
    """Find the processes that use the devices, and mounts of them or of the module's filesystem.

    Ends within 10 s, regardless of the files that the processes have open.
    """

    def look() -> bytes:
        with suppress(ValueError):  # a lower limit is in force
            resource.setrlimit(resource.RLIMIT_CPU, _PROCESSOR_LIMITS)
        search = Search(users_of(numbers, device_names, host), mounts_of(module, numbers, host))
        return json.dumps(encode(search)).encode()

    try:
        return decode(Search, json.loads(run_in_child(look, _SECONDS, alone="look for holders")))
    except DeadlinePassed:
        return Search(problem="a filesystem that one of them uses does not answer")
    except (ChildDied, ChildRaised, NodesideError, OSError) as problem:
        log.warning("cannot inspect the open files of processes", why=problem)
        return Search(problem=str(problem).strip().splitlines()[-1])


def users_of(numbers: frozenset[str], device_names: frozenset[str], host: Host) -> Users:
    """Return the processes that have a device open or mapped.

    `numbers` are device numbers (c10:123). `device_names` are the devices' names below /dev, the
    only way to identify a mapping.
    """
    processes = []
    unseen = 0
    for pid in _list_pids(host):
        try:
            paths = _open_paths(host.proc / str(pid), numbers, device_names)
        except PermissionError:
            unseen += 1
            continue
        if paths:
            processes.append(_describe_process(host, pid, paths))
    return Users(tuple(processes), unseen)


def mounts_of(module: str, numbers: frozenset[str], host: Host) -> tuple[str, ...]:
    """Return the mount points of these block devices and of filesystems named like the module.

    Searches every mount namespace it can distinguish, since a pod's mounts are in its own.
    """
    points: dict[str, None] = {}
    namespaces = set()
    for pid in _list_pids(host):
        directory = host.proc / str(pid)
        namespace = sysfs.link_name(directory / "ns" / "mnt")
        if namespace not in namespaces:
            namespaces.add(namespace)
            with suppress(OSError):  # the process has exited meanwhile
                found = parse_mountinfo(_read_lines(directory / "mountinfo"), module, numbers)
                points.update((_printable_name(point), None) for point in found)
    return tuple(points)


def parse_mountinfo(lines: Iterable[str], module: str, numbers: frozenset[str]) -> Iterator[str]:
    """Yield the mount points in /proc/PID/mountinfo that use the module, proc(5)."""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        if f"b{fields[2]}" in numbers or kernel_name(right.split()[0]) == module:
            yield fields[4]


def pod_and_container(cgroup: str) -> tuple[str, str]:
    """Return the pod uid and the container id in /proc/PID/cgroup; "" for a missing one.

    kubelet writes kubepods-burstable-pod<uid with _>.slice (systemd) or pod<uid> (cgroupfs);
    containerd, CRI-O and docker put the container's 64 hex digits below it.
    """
    pod = _POD.search(cgroup)
    container = _CONTAINER.search(cgroup)
    return (
        pod.group(1).replace("_", "-") if pod else "",
        container.group(1) if container else "",
    )


def _list_pids(host: Host) -> list[int]:
    return sorted(int(name) for name in sysfs.list_entries(host.proc) if name.isdecimal())


def _open_paths(process: Path, numbers: frozenset[str], device_names: frozenset[str]) -> list[str]:
    """Return the paths of these devices that the process has open. Raises PermissionError.

    Only if it has none open, returns the paths that it has mapped.
    """
    try:
        with os.scandir(process / "fd") as entries:
            paths = [
                path for entry in entries if (path := _device_of_link(Path(entry.path), numbers))
            ]
        return paths or _mapped_devices(process, device_names)
    except (FileNotFoundError, ProcessLookupError):  # the process has exited meanwhile
        return []


def _device_of_link(link: Path, numbers: frozenset[str]) -> str:
    """Return the path of an open file if it is one of the devices, else "".

    Calls stat(2) only on paths that look like devices: it would hang on a dead network mount.
    """
    try:
        target = str(link.readlink())
        if "/dev/" not in target:
            return ""
        return target if _device_number(link.stat()) in numbers else ""
    except FileNotFoundError:  # closed meanwhile
        return ""


def _device_number(status: os.stat_result) -> str:
    kind = "c" if stat.S_ISCHR(status.st_mode) else "b" if stat.S_ISBLK(status.st_mode) else ""
    return f"{kind}{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if kind else ""


def _mapped_devices(process: Path, device_names: frozenset[str]) -> list[str]:
    """Return devices that are mapped though no longer open; each counts once."""
    rows = (
        line.split(maxsplit=5) for line in (_read_lines(process / "maps") if device_names else ())
    )
    paths = (fields[5] for fields in rows if len(fields) == 6)
    return sorted({path for path in paths if path.removeprefix("/dev/") in device_names})


def _read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file in /proc; the kernel limits the length of each."""
    with open(path, errors="replace", newline="\n") as lines:
        yield from (line.rstrip("\n") for line in lines)


def _read_head(path: Path) -> str:
    """Return the beginning of a file in /proc; "" if it cannot be read."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read(_READ_LIMIT).decode(errors="replace").strip()
    return ""


def _describe_process(host: Host, pid: int, paths: list[str]) -> Process:
    directory = host.proc / str(pid)
    arguments = _read_head(directory / "cmdline").strip("\0").split("\0")
    program = Path(arguments[0]).name or _read_head(directory / "comm") or "?"
    command = shlex.join(arguments) if arguments[0] else program
    pod, container = pod_and_container(_read_head(directory / "cgroup"))
    texts = (
        _printable_name(program, _PROGRAM_LIMIT),
        _printable_name(command, _COMMAND_LIMIT),
        _printable_name(paths[0]),
    )
    return Process(pid, *texts, len(paths), pod, container)


def _printable_name(text: str, limit: int = _COMMAND_LIMIT) -> str:
    """Escape and shorten an untrusted name of a process or mount, to embed in a single line."""
    text = escape_controls(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
