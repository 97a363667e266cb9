"""Who holds a module: other modules, open files, mounts, disks.

`who_holds` observes, and `Holding.in_words` formats the result. The kernel does not list the
holders of a reference, so the result is put together from sysfs and the host's /proc. The sentence
reports references that remain unexplained.
"""

from __future__ import annotations

from nodeside.driver.node.capabilities import Capability, effective_capabilities
from nodeside.driver.node.devices import DeviceFile, devices_of
from nodeside.driver.node.modules import KernelModules, LoadedState
from nodeside.driver.node.processes import Process, find_users_and_mounts
from nodeside.protocol.module_names import kernel_name
from nodeside.protocol.pod_mentions import mention_pod
from nodeside.system import sysfs
from nodeside.system.host import Host
from nodeside.text.shortlist import shortlist
from nodeside.values import frozen

_NAMED = 3  # processes, mounts or modules that a sentence names


@frozen
class Holding:
    """The holders of a module.

    `unseen` describes what could not be inspected and which capability is missing; "" if everything
    was seen.
    """

    name: str
    refcnt: int = 0
    modules: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    mounts: tuple[str, ...] = ()
    disks: tuple[str, ...] = ()
    unseen: str = ""

    def in_words(self) -> str:
        """Return `vpoll is held by 1 open file of python3 (pid 4711, pod 12345678…)`."""
        holders = [*_modules_in_words(self.modules), *_processes_in_words(self.processes)]
        holders += [f"the mount {path}" for path in self.mounts[:_NAMED]]
        holders += [f"the disk {name} on top of it" for name in self.disks[:_NAMED]]
        unseen = f" ({self.unseen})" if self.unseen else ""
        if holders:
            return f"{self.name} is held by {_join_with_and(holders)}{unseen}"
        if self.refcnt == 0:
            return f"{self.name} is not held by anything"
        references = "1 reference" if self.refcnt == 1 else f"{self.refcnt} references"
        return f"{self.name} has {references} that no module, open file or mount explains{unseen}"


def who_holds(name: str, host: Host, recorded: frozenset[str] = frozenset()) -> Holding:
    """Find everything that may hold a module.

    `recorded` are device numbers (`devices.device_numbers`) that appeared at its load.
    """
    module = kernel_name(name)
    state = KernelModules(host).state(module) or LoadedState(module)
    devices = devices_of(module, host, recorded)
    numbers = frozenset(device.number for device in devices)
    nodes = frozenset(device.node for device in devices)
    search = find_users_and_mounts(module, numbers, nodes, host)
    return Holding(
        name=module,
        refcnt=state.refcnt,
        modules=state.holders,
        processes=search.users.processes,
        mounts=search.mounts,
        disks=_stacked_disks(devices, host),
        unseen=_inspection_problem_in_words(search.problem)
        or _unseen_in_words(search.users.unseen, host),
    )


def _stacked_disks(devices: tuple[DeviceFile, ...], host: Host) -> tuple[str, ...]:
    """Return the users stacked on the block devices: device mapper, RAID, swap."""
    above = [name for device in devices for name in sysfs.list_entries(device.path / "holders")]
    swaps = (sysfs.read(host.proc / "swaps") or "").split()
    return (*above, *(f"{d.node} (swap)" for d in devices if f"/dev/{d.node}" in swaps))


def _inspection_problem_in_words(problem: str) -> str:
    return problem and f"the open files of processes could not be inspected: {problem}"


def _unseen_in_words(count: int, host: Host) -> str:
    """Describe how many processes could not be inspected, and the missing privilege."""
    if count == 0:
        return ""
    needed = {Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH} - effective_capabilities(host)
    missing = " and ".join(sorted(item.name for item in needed))
    why = f"the capability {missing} is missing" if missing else "AppArmor or SELinux denies it"
    processes = "1 process" if count == 1 else f"{count} processes"
    return f"the open files of {processes} could not be seen: {why}"


def _modules_in_words(names: tuple[str, ...]) -> list[str]:
    if not names:
        return []
    noun = "the module" if len(names) == 1 else "the modules"
    return [f"{noun} {shortlist(names, _NAMED)}"]


def _processes_in_words(processes: tuple[Process, ...]) -> list[str]:
    parts = [_process_in_words(process) for process in processes[:_NAMED]]
    more = len(processes) - _NAMED
    if more > 0:
        parts.append("1 more process" if more == 1 else f"{more} more processes")
    return parts


def _process_in_words(process: Process) -> str:
    files = "1 open file" if process.files == 1 else f"{process.files} open files"
    where = f", {mention_pod(process.pod)}" if process.pod else ""
    if process.container and not process.pod:
        where = f", container {process.container[:12]}"
    return f"{files} of {process.program} (pid {process.pid}{where})"


def _join_with_and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
