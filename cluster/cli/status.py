"""`nodeside-cluster status`: shows the status of each Driver, and whether a controller leads.

The first line is a verdict; then there is a line for each Driver, and on request a row for each of
its pools, resources and stages. All of it is what the controller last wrote, with a note if it is
about an older generation of the Driver. If no controller leads, the first line says that instead.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from cluster.cli.leader_status import LeaderStatus, leader_status, read_leader
from cluster.cli.near_names import did_you_mean
from cluster.kube.client import Api
from cluster.kube.conditions import find_condition
from cluster.kube.errors import ApiError
from cluster.kube.reflector import Reflector, Selection
from cluster.kube.resources import DRIVERS
from cluster.kube.wakeup import Wakeup
from cluster.model.parse import driver_from
from cluster.model.snapshot import DriverObject
from nodeside.errors import ExitCode, NodesideError
from nodeside.text.table import Colored, bad, busy, good, table

Row = Sequence[str]
Drivers = Mapping[str, DriverObject]

_SYNC = 60.0  # seconds to list all Drivers
_SAME = 100  # characters of a sentence that tell it from others
_GLANCE = 15.0  # seconds after which to check the leader again
_JOIN = 2.0  # seconds to wait for a thread to end; it is a daemon


class NoSuchObject(NodesideError):
    """A Driver or a node does not exist or cannot be used."""

    exit_code = ExitCode.USAGE
    reason = "NoSuchObject"


class Need(Enum):
    """What a Driver needs: nothing, time, or a person."""

    NOTHING = "nothing"
    TIME = "time"
    YOU = "you"


_COLORED: Mapping[Need, Callable[[str], Colored]] = {
    Need.NOTHING: good,
    Need.TIME: busy,
    Need.YOU: bad,
}
_STAGE_NEEDS = {
    "Ready": Need.NOTHING,
    **dict.fromkeys(("Invalid", "Failed"), Need.YOU),
}


@dataclass(frozen=True)
class Overview:
    """All Drivers, or one. With `detailed`, their pools, resources and stages are shown, too."""

    drivers: Drivers
    leader: LeaderStatus
    detailed: bool = False

    @property
    def ready(self) -> bool:
        """Whether every Driver is ready, and no status is one that an absent controller left."""
        return not self.leader.absent and all(map(_is_ready, self.drivers.values()))

    def table(self) -> str:
        return "\n\n".join(
            part for part in (*self._format_start(), *self._format_details()) if part
        )

    def _format_start(self) -> Iterator[str]:
        """Yield what an absent controller means, or the verdict; then the Drivers."""
        if not self.drivers:
            yield self.leader.words
            yield "no Driver in this cluster; begin with: kubectl apply -f driver.yaml"
            return
        rows = [_colored_row(observed) for observed in self.drivers.values()]
        why = "WHY" if any(row[-1] for row in rows) else ""
        header = ("DRIVER", "VERSION", "NODES", "UPDATED", "READY", "FAILED", "STATUS", why)
        drivers = table(rows, header=header, below=True)
        if self.leader.absent:
            yield self.leader.words
            yield drivers
            return
        needs = {observed.name: need_of(observed) for observed in self.drivers.values()}
        worst = max(needs.values(), key=list(Need).index)
        start = (_COLORED[worst](verdict(needs)).painted(), self.leader.words)
        yield "\n".join((*filter(None, start), drivers))

    def _format_details(self) -> Iterator[str]:
        """Yield the tables of what Drivers have several of. What was said above is not repeated."""
        if not self.detailed:
            return
        drivers = list(self.drivers.values())
        columns: Row
        columns = ("OS VERSION", "KERNEL", "NODES", "UPDATED", "READY", "FAILED", "TOOLKIT", "WHY")
        yield self._format_rows(columns, [row for each in drivers for row in _new_pools(each)])
        columns = ("RESOURCE", "DEVICES", "HEALTHY", "WHY")
        yield self._format_rows(columns, [row for each in drivers for row in resources_of(each)])
        columns = ("STAGE", "NODES", "READY", "STATE", "WHY")
        yield self._format_rows(columns, [row for each in drivers for row in _new_stages(each)])

    def _format_rows(self, columns: Row, rows: Sequence[Row]) -> str:
        """Return the table, "" without rows. With one Driver, its name is no column."""
        if len(self.drivers) > 1:
            columns = ("DRIVER", *columns)
        return table([row[-len(columns) :] for row in rows], header=columns) if rows else ""

    def json(self) -> str:
        """Return the statuses by name. The exit code reports whether a controller leads."""
        statuses = {name: dict(observed.status) for name, observed in self.drivers.items()}
        return json.dumps(statuses, indent=2)


def look(api: Api, namespace: str, driver: str = "", *, detailed: bool = False) -> Overview:
    """Read everything once, and return the overview.

    Raises ControllerNotInstalled, and NoSuchObject if `driver` is given and does not exist.
    """
    who = leader_status(api, namespace)
    drivers = {each.name: each for each in api.list(DRIVERS, driver_from).items}
    return overview(drivers, who, driver, detailed=detailed)


def overview(
    drivers: Drivers, who: LeaderStatus, driver: str = "", *, detailed: bool = False
) -> Overview:
    """Return the overview of all Drivers, or of one with its details. Raises NoSuchObject."""
    names = [driver] if driver else sorted(drivers)
    found = {name: find_driver(drivers, name) for name in names}
    return Overview(found, who, detailed or bool(driver))


def watch_status(
    api: Api, namespace: str, driver: str = "", every: float = 1.0, *, detailed: bool = False
) -> Iterator[Overview]:
    """Yield the overview now and after each change, at most once per `every` seconds.

    It uses a watch, so it costs little.
    """
    wakes, shown = Wakeup(), None
    with _watch_drivers(api, wakes) as drivers:
        while True:
            wakes.wait(0)  # clears earlier wakeups; changes from here on wake the loop again
            who = read_leader(api, namespace)
            current = overview(drivers.objects() or {}, who, driver, detailed=detailed)
            if current != shown:
                yield current
                shown = current
                time.sleep(every)
            wakes.wait(_GLANCE)


@contextmanager
def _watch_drivers(api: Api, wakes: Wakeup) -> Iterator[Reflector[DriverObject]]:
    drivers = Reflector(api, Selection(DRIVERS, driver_from), wakes.wake)
    drivers.start()
    try:
        if not drivers.wait_synced(_SYNC):
            trouble = drivers.health().trouble or "no answer"
            raise ApiError(f"the Drivers could not be read in {_SYNC:g} s: {trouble}")
        yield drivers
    finally:
        drivers.stop()
        drivers.join(_JOIN)


def find_driver(drivers: Drivers, name: str) -> DriverObject:
    """Return one Driver. Raises NoSuchObject, which lists the existing ones."""
    if name not in drivers:
        raise no_driver(name, drivers)
    return drivers[name]


def no_driver(name: str, existing: Iterator[str] | Drivers | Sequence[str]) -> NoSuchObject:
    names = sorted(existing)
    there = f"{did_you_mean(name, names)}there is: {', '.join(names) or 'none'}"
    return NoSuchObject(f"no Driver {name!r} in this cluster", hint=there)


def outdated_status_note(observed: DriverObject) -> str:
    """Return why the status is not about the current generation of the Driver; "" if it is."""
    seen = observed.status.get("observedGeneration")
    if not observed.status or seen is None or seen == observed.generation:
        return ""
    return f"the status is about generation {seen}; the Driver has changed since"


def _is_ready(observed: DriverObject) -> bool:
    is_ready = find_condition(observed.status, "Ready")["status"] == "True"
    return is_ready and not outdated_status_note(observed)


def need_of(observed: DriverObject) -> Need:
    """Return what a Driver needs by its conditions, which the controller wrote.

    What goes on by itself needs time, such as a rollout, and so does what no controller has seen.
    """
    ready, degraded, progressing = (
        find_condition(observed.status, kind) for kind in ("Ready", "Degraded", "Progressing")
    )
    if not observed.status or outdated_status_note(observed):
        return Need.TIME
    if degraded["status"] == "True":
        return Need.YOU
    if ready["status"] == "True":
        return Need.NOTHING if ready["reason"] == "Ready" else Need.TIME
    return Need.TIME if progressing["status"] == "True" else Need.YOU


def verdict(needs: Mapping[str, Need]) -> str:
    """Return one sentence about all Drivers, by their names."""
    counts, every = Counter(needs.values()), len(needs)
    yours, moving = counts[Need.YOU], counts[Need.TIME]
    if every == 1:
        [(name, need)] = needs.items()
        return {
            Need.NOTHING: f"driver {name} is ready",
            Need.TIME: f"driver {name} is on its way; nothing to do",
            Need.YOU: f"driver {name} needs you",
        }[need]
    if yours:
        rest = f"; {moving} {'is' if moving == 1 else 'are'} on the way" if moving else ""
        return f"{yours} of {every} drivers {'needs' if yours == 1 else 'need'} you{rest}"
    if moving:
        return f"{moving} of {every} drivers {'is' if moving == 1 else 'are'} on the way"
    return f"all {every} drivers are ready"


def _colored_row(observed: DriverObject) -> Row:
    *cells, state, why = row_of(observed)
    return (*cells, _COLORED[need_of(observed)](state), f"-> {why}" if why else "")


def _new_pools(observed: DriverObject) -> Iterator[Row]:
    """Yield rows with the reason alone where the message is known already."""
    known = [row_of(observed)[-1]]
    for row, pool in zip(pools_of(observed), observed.status.get("pools", ()), strict=False):
        *cells, why = row
        yield (*cells, pool["reason"] if _is_known(why, known) else why)
        known.append(why)


def _new_stages(observed: DriverObject) -> Iterator[Row]:
    known = [row_of(observed)[-1]]
    for row in stages_of(observed):
        *cells, state, why = row
        need = _STAGE_NEEDS.get(state, Need.TIME)
        yield (*cells, _COLORED[need](state), "" if _is_known(why, known) else why)
        known.append(why)


def _is_known(why: str, known: Sequence[str]) -> bool:
    """Return whether a sentence was said, perhaps in a longer one that was cut at its end."""
    return bool(why) and any(why[:_SAME] in each for each in known)


def row_of(observed: DriverObject) -> Row:
    ready = find_condition(observed.status, "Ready")
    version = observed.driver.spec.version if observed.driver else "?"
    # A true Ready with another reason is about the stages.
    well = ready["status"] == "True" and ready["reason"] == "Ready"
    why = "" if well else ready["message"]
    if old := outdated_status_note(observed):
        why = f"{old}; {why}" if why else old
    return (
        observed.name,
        version,
        *counts_of(observed.status.get("nodes", {})),
        ready["reason"],
        why,
    )


def pools_of(observed: DriverObject) -> Iterator[Row]:
    """Yield the rows of a Driver; none if it is being deleted.

    The same goes for `resources_of` and `stages_of`.
    """
    if observed.deleting:
        return
    for row in observed.status.get("pools", ()):
        where = (observed.name, row["osVersion"], row["kernel"])
        good = row["reason"] == "Ready"
        why = row["message"] or ("" if good else row["reason"])
        yield (*where, *counts_of(row["nodes"]), row["link"], why)


def resources_of(observed: DriverObject) -> Iterator[Row]:
    if observed.deleting:
        return
    for row in observed.status.get("resources", ()):
        counts = (str(row.get(key, 0)) for key in ("devices", "healthy"))
        yield (observed.name, row["name"], *counts, row["message"])


def stages_of(observed: DriverObject) -> Iterator[Row]:
    if observed.deleting:
        return
    for row in observed.status.get("stages", ()):
        counts = (str(row["nodes"].get(key, 0)) for key in ("wanted", "ready"))
        yield (observed.name, row["name"], *counts, row["state"], row["message"])


def counts_of(nodes: Mapping[str, int]) -> Row:
    return [str(nodes.get(key, 0)) for key in ("wanted", "updated", "ready", "failed")]
