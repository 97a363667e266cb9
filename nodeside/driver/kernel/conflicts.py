"""Clears the way for a load: unbinds devices and removes modules that driver.yaml names.

`plan_clear` is pure, `clear_conflicts` carries out its plan and returns what it did, and
`restore_cleared` undoes that after a failed load. A second `clear_conflicts` does nothing. Only
declared in-tree modules are removed: other modules that use one of them are reported and left
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nodeside import log
from nodeside.driver.kernel.errors import InUse, RebootRequired
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.kernel.unload import (
    Blocked,
    ModulesToUnload,
    Obstacle,
    UnloadPlan,
    obstacle_error,
    plan_unload,
    remove_all,
    settled_plan,
)
from nodeside.driver.node.modules import LoadedState
from nodeside.errors import ExitCode, NodesideError, SystemRefused
from nodeside.protocol.module_names import kernel_name
from nodeside.spec.model import Conflicts
from nodeside.system import sysfs
from nodeside.system.pci import PciDevice, pci_devices
from nodeside.values import frozen


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
    def words(self) -> tuple[str, ...]:
        """The planned actions, one line each."""
        lines = [f"unbind {item.address} from {item.driver}" for item in self.unbind]
        return (*lines, *(f"remove the module {name}" for name in self.remove.order))


@frozen
class Cleared:
    """The completed actions: devices unbound, with their previous drivers, and modules removed."""

    unbound: tuple[PciDevice, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The completed actions, one line each."""
        lines = [f"unbound {item.address} from {item.driver}" for item in self.unbound]
        return (*lines, *(f"removed the module {name}" for name in self.removed))


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
    """Reload removed modules and reprobe unbound devices. Returns a message for each failure."""
    problems = []
    for name in reversed(cleared.removed):
        try:
            loader.load_in_tree(name)
        except NodesideError as exc:
            problems.append(str(exc))
    probe = loader.host.sys / "bus" / "pci" / "drivers_probe"
    bound = {item.address for item in pci_devices(loader.host) if item.driver}
    for device in cleared.unbound:
        try:
            if device.address not in bound:
                write(probe, device.address)
        except NodesideError as exc:
            problems.append(str(exc))
    return tuple(problems)


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
    plan = settled_plan(ModulesToUnload(conflicts.modules), loader)
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
