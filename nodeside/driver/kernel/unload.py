"""Unloads a set of modules, leaf first; reports known obstacles before touching any module.

Leaf first: a module goes after the modules that use it.

`plan_unload` is pure: it decides from the modules in the kernel. `unload_modules` carries out a
plan. `plan.py` decides whether modules may be replaced at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import assert_never

from nodeside.driver.kernel.errors import CannotUnload, InUse, RebootRequired
from nodeside.driver.kernel.loader import Loader, in_use_error, stuck_error
from nodeside.driver.node.holders import who_holds
from nodeside.driver.node.loaded_record import LoadedRecord
from nodeside.driver.node.modules import LoadedState
from nodeside.protocol.module_names import kernel_name
from nodeside.values import frozen

_PAUSE = 0.05  # seconds between checks of a module that is still held


class Obstacle(Enum):
    """A reason why a module cannot be unloaded now."""

    PERMANENT = "permanent"
    COMING_OR_GOING = "coming-or-going"
    NEEDED = "needed"  # by a module that is not ours to remove
    HELD = "held"  # by open files, mounts or the like

    @property
    def may_pass(self) -> bool:
        """Whether a short wait may help: udev closes a new device, or a module finishes going."""
        match self:
            case Obstacle.HELD | Obstacle.COMING_OR_GOING:
                return True
            case Obstacle.PERMANENT | Obstacle.NEEDED:
                return False
        assert_never(self)


@frozen
class Blocked:
    """A module that cannot be unloaded; `by` are the modules that need it, if any."""

    module: str
    obstacle: Obstacle
    by: tuple[str, ...] = ()


@frozen
class ModulesToUnload:
    """The modules to unload, by name, and their devices.

    `devices` are the device numbers recorded at load time (`devices.device_numbers`).
    """

    names: tuple[str, ...]
    devices: frozenset[str] = frozenset()


def modules_to_unload(
    wanted: Sequence[str], record: LoadedRecord | None, loaded: Iterable[str]
) -> ModulesToUnload:
    """Return the modules to unload: the wanted and the loaded ones, the last loaded first."""
    names = dict.fromkeys((*reversed(wanted), *reversed(tuple(loaded))))
    return ModulesToUnload(tuple(names), frozenset(record.devices if record else ()))


@frozen
class UnloadPlan:
    """An unload plan. `order` is leaf first. If anything is `blocked`, nothing may be removed."""

    order: tuple[str, ...]
    blocked: tuple[Blocked, ...] = ()


def plan_unload(what: ModulesToUnload, states: Mapping[str, LoadedState]) -> UnloadPlan:
    """Return which modules to remove, in order. Names that are not in the kernel are ignored."""
    may_go = {kernel_name(name) for name in what.names}
    order: dict[str, None] = {}
    for name in what.names:
        _add_leaves_first(kernel_name(name), states, may_go, order)
    blocked = [_find_obstacle(states[name], frozenset(order)) for name in order]
    return UnloadPlan(tuple(order), tuple(item for item in blocked if item is not None))


def unload_modules(
    what: ModulesToUnload, loader: Loader, *, begin: Callable[[], None] = lambda: None
) -> tuple[str, ...]:
    """Unload modules. Returns the removed names in order.

    Calls `begin` before it touches a module, if no obstacle is known. Raises InUse, which names the
    holders, RebootRequired or UnloadFailed. The exception's `removed` lists the modules already
    unloaded: none if an obstacle was known beforehand.
    """
    plan = plan_settled_unload(what, loader)
    for item in plan.blocked:
        raise obstacle_error(item, loader, what.devices)
    begin()
    return remove_all(plan.order, loader, what.devices)


def remove_all(
    order: Iterable[str], loader: Loader, devices: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Remove modules in this order. If one fails, the exception lists those already removed."""
    removed: list[str] = []
    for name in order:
        try:
            if loader.remove_module(name, devices=devices):
                removed.append(name)
        except CannotUnload as exc:
            exc.removed = tuple(removed)
            raise
    return tuple(removed)


def obstacle_error(
    item: Blocked, loader: Loader, devices: frozenset[str] = frozenset()
) -> InUse | RebootRequired:
    """Return the exception for a blocked module."""
    match item.obstacle:
        case Obstacle.PERMANENT | Obstacle.COMING_OR_GOING:
            return stuck_error(item.module, loader.modules.state(item.module))
        case Obstacle.NEEDED | Obstacle.HELD:
            return in_use_error(who_holds(item.module, loader.host, devices))
    assert_never(item.obstacle)


def plan_settled_unload(what: ModulesToUnload, loader: Loader) -> UnloadPlan:
    """Return the plan; wait for a short time first if all obstacles may pass."""
    until = loader.clock.now() + loader.deadlines.idle
    while True:
        plan = plan_unload(what, loader.modules.rows())
        passing = plan.blocked and all(item.obstacle.may_pass for item in plan.blocked)
        if not passing or loader.clock.now() >= until:
            return plan
        loader.clock.sleep(_PAUSE)


def _add_leaves_first(
    name: str,
    states: Mapping[str, LoadedState],
    may_go: set[str],
    order: dict[str, None],
) -> None:
    """Add to `order` the modules that use `name` and may go, then `name` itself."""
    if name in order or name not in states:
        return
    for user in states[name].holders:
        if user in may_go:
            _add_leaves_first(user, states, may_go, order)
    order[name] = None


def _find_obstacle(state: LoadedState, going: frozenset[str]) -> Blocked | None:
    if state.permanent:
        return Blocked(state.name, Obstacle.PERMANENT)
    if state.initstate != "live":
        return Blocked(state.name, Obstacle.COMING_OR_GOING)
    staying = tuple(user for user in state.holders if user not in going)
    if staying:
        return Blocked(state.name, Obstacle.NEEDED, staying)
    if state.refcnt > len(state.holders):
        return Blocked(state.name, Obstacle.HELD)
    return None
