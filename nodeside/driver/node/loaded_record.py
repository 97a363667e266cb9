"""The record of the modules that nodeside loaded in this boot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from nodeside.protocol.node_status import Rung
from nodeside.system.pci import PciDevice
from nodeside.values import frozen


@frozen
class LoadedModule:
    """A module that we loaded. `parameters` are as requested: sysfs cannot show them all."""

    name: str
    build_id: str
    parameters: Mapping[str, str]


@frozen
class Cleared:
    """Devices unbound, with their previous drivers, and modules removed, in that order."""

    unbound: tuple[PciDevice, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was unbound or removed."""
        return not self.unbound and not self.removed

    @property
    def done_in_words(self) -> tuple[str, ...]:
        """The completed actions, one line each."""
        lines = [f"unbound {item.address} from {item.driver}" for item in self.unbound]
        return (*lines, *(f"removed the module {name}" for name in self.removed))

    def followed_by(self, later: Cleared) -> Cleared:
        """Return both as one. A device keeps the driver that it had first."""
        unbound = {item.address: item for item in (*later.unbound, *self.unbound)}
        return Cleared(
            tuple(unbound.values()), tuple(dict.fromkeys((*later.removed, *self.removed)))
        )

    def without(self, part: Cleared) -> Cleared:
        """Return the rest, without the devices and modules of a part."""
        devices = {item.address for item in part.unbound}
        return Cleared(
            tuple(item for item in self.unbound if item.address not in devices),
            tuple(name for name in self.removed if name not in part.removed),
        )


class HooksRun(Enum):
    """The last hooks that have run for loaded modules, so that none is repeated."""

    NONE = ""
    AFTER_LOAD = "afterLoad"
    BEFORE_UNLOAD = "beforeUnload"


@frozen
class LoadedRecord:
    """`/run/nodeside-locks/<driver>.loaded.json`: the modules nodeside loaded, in load order.

    The record is valid in the boot `boot_id` only. `devices` are the device numbers (c10:123) that
    appeared at the load: they identify open files that hold the modules. `after` are the drivers
    that this one comes after: it has to leave before them, unless it `stays` until a reboot.
    Without modules, it `awaits` those of them that it has left for. `trust` is the mark of the
    `spec.prebuilt.trust` at the load, to detect a change; "" for none.
    `mark` is the end of the kernel log before the load, kept until the modules have passed
    validation once. `splat` is the kernel's complaint since then, kept permanently. `hooks` says
    which hooks have run. `hook` is the one, such as hooks.afterLoad[0], that has begun or comes
    next and has not ended; "" otherwise. `cleared` is what was cleared for the driver in this boot,
    by this load or an earlier one: its removal brings that back. `conflicts` are the in-tree
    modules that driver.yaml names as conflicting, as the kernel names them.
    """

    driver: str
    version: str
    key: str
    boot_id: str
    source: Rung
    modules: tuple[LoadedModule, ...]
    devices: tuple[str, ...] = ()
    trust: str = ""
    mark: tuple[str, ...] | None = None
    splat: str = ""
    hooks: HooksRun = HooksRun.NONE
    hook: str = ""
    after: tuple[str, ...] = ()
    stays: bool = False
    cleared: Cleared = Cleared()
    conflicts: tuple[str, ...] = ()
    awaits: tuple[str, ...] = ()

    @property
    def replaces(self) -> frozenset[str]:
        """The in-tree modules that must stay away while this driver is loaded."""
        return frozenset((*self.conflicts, *(module.name for module in self.modules)))

    @property
    def of_cleared_only(self) -> LoadedRecord:
        """Return the record of a driver without loaded modules: only what was cleared for it."""
        return LoadedRecord(
            self.driver, self.version, "", self.boot_id, self.source, (), cleared=self.cleared
        )

    def is_within(self, moment: str) -> bool:
        """Return whether a hook of this moment has not ended."""
        return self.hook.startswith(f"hooks.{moment}[")

    def has_one_of(self, modules: Iterable[LoadedModule]) -> bool:
        """Return whether the record contains one of these builds."""
        ours = {module.build_id for module in self.modules if module.build_id}
        return any(module.build_id in ours for module in modules)

    def has_all_of(self, modules: Iterable[LoadedModule]) -> bool:
        """Return whether the record contains all of these builds; False if there are none."""
        ours = {module.build_id for module in self.modules if module.build_id}
        asked = [module.build_id for module in modules]
        return bool(asked) and ours.issuperset(asked)
