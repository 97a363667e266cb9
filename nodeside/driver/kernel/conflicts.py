"""Clears the way for a load: unbinds devices and removes modules that driver.yaml names.

`plan_clear` is pure, `clear_conflicts` carries out its plan and returns what it did.
`restore_cleared` undoes that after a failed load, `restore_at_removal` after an unload. A second
`clear_conflicts` does nothing. Only declared in-tree modules are removed: other modules that use
one of them are reported and left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from nodeside import log
from nodeside.driver.kernel.errors import InUse, RebootRequired
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.kernel.sequence import problem_in_words
from nodeside.driver.kernel.unload import (
    Blocked,
    ModulesToUnload,
    Obstacle,
    UnloadPlan,
    obstacle_error,
    plan_settled_unload,
    plan_unload,
    remove_all,
)
from nodeside.driver.node.loaded_record import Cleared, LoadedRecord
from nodeside.driver.node.modules import LoadedState
from nodeside.errors import ExitCode, NodesideError, SystemRefused
from nodeside.protocol.module_names import kernel_name
from nodeside.spec.model import Conflicts, DriverSpec
from nodeside.system import sysfs
from nodeside.system.pci import PciDevice, pci_devices
from nodeside.text.shortlist import shortlist
from nodeside.values import frozen

_NAMED = 8  # modules and devices in a message
_LONGEST = 64  # characters of such a name
_PROBE = "/sys/bus/pci/drivers_probe"


class ConflictBuiltIn(NodesideError):
    """A conflicting driver that is built into the kernel image and cannot be removed."""

    exit_code = ExitCode.REFUSED
    reason = "ConflictBuiltIn"


@frozen
class ClearPlan:
    """The devices to unbind, then the modules to remove."""

    unbind: tuple[PciDevice, ...]
    remove: UnloadPlan

    @property
    def steps_in_words(self) -> tuple[str, ...]:
        """The planned actions, one line each."""
        lines = [f"unbind {item.address} from {item.driver}" for item in self.unbind]
        return (*lines, *(f"remove the module {name}" for name in self.remove.order))


def plan_clear(
    conflicts: Conflicts,
    states: Mapping[str, LoadedState],
    devices: Sequence[PciDevice],
    ours: Iterable[str] = (),
) -> ClearPlan:
    """Return what has to be cleared. Devices already bound to one of `ours` stay bound."""
    own = {kernel_name(name) for name in ours}
    return ClearPlan(
        unbind=tuple(
            item
            for item in devices
            if item.driver
            and not own & {kernel_name(item.driver), kernel_name(item.module)}
            and any(item.is_of(pci.vendor, pci.device) for pci in conflicts.unbind)
        ),
        remove=plan_unload(ModulesToUnload(conflicts.modules), states),
    )


def foresee_cleared(conflicts: Conflicts, loader: Loader, *, ours: Iterable[str] = ()) -> Cleared:
    """Return what `clear_conflicts` would clear now, and the devices that lose a driver by it."""
    plan = plan_clear(conflicts, loader.modules.rows(), pci_devices(loader.host), ours)
    removed = foresee_removed(plan.remove.order, loader)
    return Cleared(tuple(dict.fromkeys((*plan.unbind, *removed.unbound))), removed.removed)


def foresee_removed(names: Sequence[str], loader: Loader) -> Cleared:
    """Return these loaded modules, and the devices that lose a driver when they are removed."""
    lose = (item for item in pci_devices(loader.host) if kernel_name(item.module) in names)
    return Cleared(tuple(lose), tuple(names))


def clear_conflicts(
    conflicts: Conflicts,
    loader: Loader,
    *,
    ours: Iterable[str] = (),
    write: sysfs.Write = sysfs.write,
) -> Cleared:
    """Clear the conflicts. Raises InUse, RebootRequired, ConflictBuiltIn, SystemRefused.

    If it fails partway, the completed actions are undone first.
    """
    _refuse_built_in(conflicts, loader)
    plan = plan_clear(conflicts, loader.modules.rows(), pci_devices(loader.host), ours)
    _refuse_what_unbinding_cannot_free(plan.remove.blocked, loader)
    unbound: list[PciDevice] = []
    try:
        for device in plan.unbind:
            _unbind_device(device, loader, write)
            unbound.append(device)
        removed = _remove_modules(conflicts, loader)
    except Exception as exc:  # also after a bug, devices must have their drivers back
        gone = getattr(exc, "removed", ())
        restore_cleared(Cleared(tuple(unbound), gone), loader, write=write)
        raise
    return Cleared(tuple(unbound), removed)


def restore_cleared(
    cleared: Cleared, loader: Loader, *, write: sysfs.Write = sysfs.write
) -> tuple[str, ...]:
    """Reload removed modules and reprobe unbound devices.

    Returns a message for each failure, with the command to repeat it by hand.
    """
    problems = []
    for name in reversed(cleared.removed):
        try:
            loader.load_in_tree(name)
        except Exception as exc:  # not even a bug may leave the other devices without a driver
            problems.append(f"{problem_in_words(exc)}; by hand: modprobe {name}")
    probe = loader.host.sys / "bus" / "pci" / "drivers_probe"
    try:
        bound = {item.address for item in pci_devices(loader.host) if item.driver}
    except Exception as exc:  # the kernel leaves bound devices as they are
        log.warning("the PCI devices cannot be read", why=problem_in_words(exc))
        bound = set()
    for device in cleared.unbound:
        try:
            if device.address not in bound:
                write(probe, device.address)
        except Exception as exc:
            problems.append(f"{problem_in_words(exc)}; {_probe_command(device)}")
    return tuple(problems)


@frozen
class RestorePlan:
    """The modules to load, in order, then the devices to bind.

    The devices `taken`, and the modules `idle`, which had no other devices, are left alone; so are
    the modules in `awaited`, each with the loaded driver that conflicts with it. `kept` is what the
    removal of another driver is to bring back. `unnamed` are the modules and devices that
    driver.yaml does not name.
    """

    load: tuple[str, ...] = ()
    bind: tuple[PciDevice, ...] = ()
    taken: tuple[PciDevice, ...] = ()
    idle: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()
    awaited: tuple[tuple[str, str], ...] = ()
    kept: Cleared = Cleared()

    @property
    def steps_in_words(self) -> tuple[str, ...]:
        """The planned actions, and what is left alone, one line each."""
        return (
            *(f"load the module {name} again" for name in self.load),
            *(f"bind {item.address} to a driver again" for item in self.bind),
            *self.left,
        )

    @property
    def left(self) -> tuple[str, ...]:
        """What is left as it is, and why, one line each."""
        short = (name for name in self.unnamed if name.isprintable() and len(name) <= _LONGEST)
        unnamed = shortlist(short, _NAMED)
        return (
            *(f"leave {item.address} to {item.driver}, which has it now" for item in self.taken),
            *(f"leave {name} unloaded: other drivers have its devices" for name in self.idle),
            *(
                f"leave {name} unloaded: driver {driver}, which is loaded, conflicts with it"
                for name, driver in self.awaited
            ),
            *([f"leave alone what driver.yaml does not name: {unnamed}"] if unnamed else []),
        )


@frozen
class Restored:
    """The result of a restore: what is back, what was left as it is, a message for each failure.

    `kept` is what the removal of another driver is to bring back.
    """

    modules: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    kept: Cleared = Cleared()

    def followed_by(self, later: Restored) -> Restored:
        """Return the result of both; what is kept, and was left as it is, is that of the later."""
        return Restored(
            self.modules + later.modules,
            self.devices + later.devices,
            later.left,
            tuple(dict.fromkeys(self.problems + later.problems)),
            later.kept,
        )


def plan_restore(
    cleared: Cleared,
    spec: DriverSpec,
    loaded: Iterable[str],
    devices: Sequence[PciDevice],
    *,
    leaving: Iterable[str] = (),
    others: Mapping[str, LoadedRecord] | None = None,
    freed: Collection[str] = (),
) -> RestorePlan:
    """Return how to bring back what was cleared, once the modules `leaving` are gone.

    Only what driver.yaml names comes back, whatever the record says, and the devices `freed` by the
    driver that is removed (their addresses). A module is not loaded if other drivers have all the
    devices that it had, or if one of the `others`, the loaded drivers of nodeside by name,
    conflicts with it.
    """
    named, others = named_in(cleared, spec, freed), others or {}
    gone, before = set(leaving), {item.address: item for item in named.unbound}
    theirs = {module.name for record in others.values() for module in record.modules}
    in_tree = set(loaded) - gone - theirs
    rivals = {name: driver for driver, each in others.items() for name in each.replaces}
    awaited = [(name, rivals[name]) for name in named.removed if name in rivals.keys() - in_tree]
    waiting = {name for name, _ in awaited}
    kept = {item.address for item in named.unbound if kernel_name(item.module) in waiting}
    there = [item for item in devices if item.address in before]
    unbound = [item for item in there if not item.driver or kernel_name(item.module) in gone]
    free = [item for item in unbound if item.address not in kept]
    left = [item for item in there if item not in unbound and kernel_name(item.module) in theirs]
    taken = [
        item
        for item in there
        if item in left or (item not in unbound and item.driver != before[item.address].driver)
    ]
    kept |= {item.address for item in left}
    lost = {item.address for item in taken}
    load: list[str] = []
    idle: list[str] = []
    for name in reversed(named.removed):
        devices_had = {item.address for item in named.unbound if kernel_name(item.module) == name}
        if name not in waiting and (name not in loaded or name in gone):
            (idle if devices_had and devices_had <= lost else load).append(name)
            if name in idle and devices_had & kept:
                waiting.add(name)
    unnamed = [name for name in cleared.removed if name not in named.removed]
    unnamed += [item.address for item in cleared.unbound if item not in named.unbound]
    return RestorePlan(
        *(tuple(load), tuple(free), tuple(taken), tuple(idle), tuple(unnamed), tuple(awaited)),
        kept=Cleared(
            tuple(item for item in named.unbound if item.address in kept),
            tuple(name for name in named.removed if name in waiting),
        ),
    )


def named_in(cleared: Cleared, spec: DriverSpec, freed: Collection[str] = ()) -> Cleared:
    """Return the part of a record of what was cleared that driver.yaml names.

    Beside its conflicts, these are modules of the tree that have the name of one of the driver's,
    and the devices `freed` by it (their addresses).
    """
    own = (module.name for module in spec.modules)
    names = {kernel_name(name) for name in (*spec.conflicts.modules, *own)}
    return Cleared(
        tuple(
            item
            for item in cleared.unbound
            if item.address in freed
            or kernel_name(item.module) in names
            or any(item.is_of(pci.vendor, pci.device) for pci in spec.conflicts.unbind)
        ),
        tuple(name for name in cleared.removed if name in names),
    )


def restore_at_removal(
    cleared: Cleared,
    spec: DriverSpec,
    loader: Loader,
    *,
    others: Mapping[str, LoadedRecord] | None = None,
    freed: Collection[str] = (),
    write: sysfs.Write = sysfs.write,
) -> Restored:
    """Bring back what was cleared for a driver that is unloaded, see `plan_restore`.

    Failures are returned.
    """
    if cleared.is_empty:
        return Restored()
    try:
        rows, devices = loader.modules.rows(), pci_devices(loader.host)
        plan = plan_restore(cleared, spec, rows, devices, others=others, freed=freed)
    except Exception as exc:
        return failed_restore_result(exc, cleared, spec, freed)
    problems = restore_cleared(Cleared(plan.bind, tuple(reversed(plan.load))), loader, write=write)
    modules: tuple[str, ...] = ()
    after: list[PciDevice] = []
    try:
        rows = loader.modules.rows()
        modules = tuple(name for name in plan.load if name in rows)
        wanted = {item.address for item in plan.bind}
        after = [item for item in pci_devices(loader.host) if item.address in wanted]
    except Exception as exc:
        problems += (f"{problem_in_words(exc)}; see what is back: lspci -k",)
    unbound = (
        f"{item.address} has no driver; {_probe_command(item)}"
        for item in after
        if not item.driver and not any(_probe_command(item) in problem for problem in problems)
    )
    return Restored(
        modules,
        tuple(item.address for item in after if item.driver),
        plan.left,
        (*problems, *unbound),
        plan.kept,
    )


def failed_restore_result(
    exc: Exception, cleared: Cleared, spec: DriverSpec, freed: Collection[str] = ()
) -> Restored:
    """Return the result of a restore that failed before it began."""
    named = named_in(cleared, spec, freed)
    by_hand = "" if named.is_empty else f"; {_commands_by_hand(named)}"
    return Restored(problems=(f"{problem_in_words(exc)}{by_hand}",), kept=cleared)


def _commands_by_hand(cleared: Cleared) -> str:
    loads = (f"modprobe {name}" for name in reversed(cleared.removed))
    probes = (f"echo {item.address} > {_PROBE}" for item in cleared.unbound)
    return f"by hand: {'; '.join((*loads, *probes))}"


def _probe_command(device: PciDevice) -> str:
    return _commands_by_hand(Cleared((device,)))


def _refuse_built_in(conflicts: Conflicts, loader: Loader) -> None:
    for name in conflicts.modules:
        if loader.modules.state(name) is None and loader.modules.is_built_in(name):
            raise ConflictBuiltIn(
                f"the conflicting driver {name} is built into this kernel and cannot be removed",
                hint="name its devices under conflicts.unbind instead, or boot with "
                f"initcall_blacklist for {name}",
            )


def _refuse_what_unbinding_cannot_free(blocked: Iterable[Blocked], loader: Loader) -> None:
    """Raise for obstacles that unbinding cannot remove. Runs before anything is changed."""
    for item in blocked:
        if not item.obstacle.may_pass:
            raise _conflict_error(item, loader)


def _remove_modules(conflicts: Conflicts, loader: Loader) -> tuple[str, ...]:
    plan = plan_settled_unload(ModulesToUnload(conflicts.modules), loader)
    for item in plan.blocked:
        raise _conflict_error(item, loader)
    return remove_all(plan.order, loader)


def _conflict_error(item: Blocked, loader: Loader) -> InUse | RebootRequired:
    if item.obstacle is not Obstacle.NEEDED:
        return obstacle_error(item, loader)
    users = ", ".join(item.by)
    return InUse(
        f"cannot remove the conflicting module {item.module}: it is used by {users}, "
        "which driver.yaml does not list under conflicts.modules",
        hint=f"add {users} to conflicts.modules, if it may be removed",
    )


def _unbind_device(device: PciDevice, loader: Loader, write: sysfs.Write) -> None:
    """Unbind a device from its driver. Blocks until the driver has released it."""
    path = loader.host.sys / "bus" / "pci" / "devices" / device.address / "driver"
    write(path / "unbind", device.address)
    if sysfs.link_name(path):
        raise SystemRefused(
            f"{device.address} is still bound to {sysfs.link_name(path)} after the unbind",
            hint="see the kernel log: dmesg | tail",
        )
    log.fact("device unbound", device=device.address, driver=device.driver)
