"""`nodeside-cluster status`: shows the status of each Driver, and whether a controller leads.

Nothing is computed here. The output is what the controller last wrote, with a note if it is about
an older generation of the Driver, and a note at the top if no controller leads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.cli.leader_status import LeaderStatus, leader_status, read_leader
from cluster.kube.client import Api
from cluster.kube.conditions import condition
from cluster.kube.errors import ApiError
from cluster.kube.reflector import Reflector, Selection
from cluster.kube.resources import DRIVERS
from cluster.kube.wakeup import Wakeup
from cluster.model.parse import driver_from
from cluster.model.snapshot import DriverObject
from nodeside.errors import ExitCode, NodesideError
from nodeside.text.table import table

Row = Sequence[str]
Drivers = Mapping[str, DriverObject]

_SYNC = 60.0  # seconds to list all Drivers
_GLANCE = 15.0  # seconds after which to check the leader again
_JOIN = 2.0  # seconds to wait for a thread to end; it is a daemon


class NoSuchObject(NodesideError):
    """A Driver or a node does not exist or cannot be used."""

    exit_code = ExitCode.USAGE
    reason = "NoSuchObject"


@dataclass(frozen=True)
class Overview:
    """All Drivers, or one."""

    drivers: Drivers
    leader: LeaderStatus

    @property
    def ready(self) -> bool:
        """Whether every Driver is ready, and no status is one that an absent controller left."""
        return not self.leader.absent and all(map(_is_ready, self.drivers.values()))

    def table(self) -> str:
        return "\n\n".join(part for part in (self.leader.words, *self._format_tables()) if part)

    def _format_tables(self) -> Iterator[str]:
        if not self.drivers:
            yield "no Driver in this cluster; begin with: kubectl apply -f driver.yaml"
            return
        header = ("DRIVER", "VERSION", "NODES", "UPDATED", "READY", "FAILED", "STATUS", "WHY")
        yield table([row_of(observed) for observed in self.drivers.values()], header=header)
        pools = [row for observed in self.drivers.values() for row in pools_of(observed)]
        columns = ("DRIVER", "OS VERSION", "KERNEL", "NODES", "UPDATED", "READY", "FAILED")
        if pools:
            yield table(pools, header=(*columns, "TOOLKIT", "WHY"))
        resources = [row for observed in self.drivers.values() for row in resources_of(observed)]
        if resources:
            yield table(resources, header=("DRIVER", "RESOURCE", "DEVICES", "HEALTHY", "WHY"))
        stages = [row for observed in self.drivers.values() for row in stages_of(observed)]
        if stages:
            yield table(stages, header=("DRIVER", "STAGE", "NODES", "READY", "STATE", "WHY"))

    def json(self) -> str:
        """Return the statuses by name. The exit code reports whether a controller leads."""
        statuses = {name: dict(observed.status) for name, observed in self.drivers.items()}
        return json.dumps(statuses, indent=2)


def look(api: Api, namespace: str, driver: str = "") -> Overview:
    """Read everything once, and return the overview.

    Raises ControllerNotInstalled, and NoSuchObject if `driver` is given and does not exist.
    """
    who = leader_status(api, namespace)
    drivers = {each.name: each for each in api.list(DRIVERS, driver_from).items}
    return overview(drivers, who, driver)


def overview(drivers: Drivers, who: LeaderStatus, driver: str = "") -> Overview:
    """Return the overview of all Drivers or of one. Raises NoSuchObject."""
    names = [driver] if driver else sorted(drivers)
    return Overview({name: find_driver(drivers, name) for name in names}, who)


def watch_status(
    api: Api, namespace: str, driver: str = "", every: float = 1.0
) -> Iterator[Overview]:
    """Yield the overview now and after each change, at most once per `every` seconds.

    It uses a watch, so it costs little.
    """
    wakes, shown = Wakeup(), None
    with _watch_drivers(api, wakes) as drivers:
        while True:
            wakes.wait(0)  # clears earlier wakeups; changes from here on wake the loop again
            current = overview(drivers.objects() or {}, read_leader(api, namespace), driver)
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
    names = ", ".join(sorted(existing)) or "none"
    return NoSuchObject(f"no Driver {name!r} in this cluster", hint=f"there is: {names}")


def outdated_status_note(observed: DriverObject) -> str:
    """Return why the status is not about the current generation of the Driver; "" if it is."""
    seen = observed.status.get("observedGeneration")
    if not observed.status or seen is None or seen == observed.generation:
        return ""
    return f"the status is about generation {seen}; the Driver has changed since"


def _is_ready(observed: DriverObject) -> bool:
    is_ready = condition(observed.status, "Ready")["status"] == "True"
    return is_ready and not outdated_status_note(observed)


def row_of(observed: DriverObject) -> Row:
    ready = condition(observed.status, "Ready")
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
