"""What stands on a node while it is drained: three labels, by which any later controller goes on.

`nodeside.io/<driver>.draining=<since>`: it is this node's turn, its consumers are asked to leave,
and it stays closed until the driver works again. `nodeside.io/cordoned=true`: it was schedulable,
and we cordoned it; it comes and goes in the same request as the cordon. Two Drivers may drain one
node: each takes away its own label, and who finds our cordon without any holder ends it.
`nodeside.io/<driver>.undrained=<revision>`: the consumers did not leave in time.

Pure.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cluster.kube.timestamps import believed
from cluster.model.names import CORDONED, draining_label, undrained_label
from nodeside.contract import API_GROUP

_STAMP = "%Y%m%dT%H%M%SZ"  # ISO 8601 without what a label may not have
_PEOPLE = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class DrainMark:
    """How one Driver holds a node. `since` is "" if it does not.

    `given_up` is the revision for which the node could not be drained in time. `ending`: nobody
    holds it any more, and our cordon is still there.
    """

    since: str = ""
    given_up: str = ""
    ending: bool = False


FREE: Final = DrainMark()


def hold_of(labels: Mapping[str, str], driver: str) -> DrainMark:
    """How a Driver holds the node of these labels."""
    since, given_up = (
        labels.get(draining_label(driver), ""),
        labels.get(undrained_label(driver), ""),
    )
    ending = CORDONED in labels and not any(holders(labels))
    return DrainMark(since, given_up, ending) if since or given_up or ending else FREE


def stamp(now: float) -> str:
    """A time as the value of a label."""
    return time.strftime(_STAMP, time.gmtime(now))


def lasts(since: str, now: float) -> float:
    """Seconds since a stamp; 0 if somebody wrote something else than a time."""
    try:
        return now - believed(calendar.timegm(time.strptime(since, _STAMP)), now)
    except ValueError:
        return 0.0


def for_people(since: str) -> str:
    """A stamp as it stands in a status."""
    try:
        return time.strftime(_PEOPLE, time.strptime(since, _STAMP))
    except ValueError:
        return since


_HOLDER = re.compile(rf"^{re.escape(API_GROUP)}/([a-z0-9-]+)\.draining$")


def holders(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Label and Driver."""
    for key in labels:
        if found := _HOLDER.match(key):
            yield key, found[1]
