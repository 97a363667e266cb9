"""The three labels of a node that is drained, from which any later controller continues.

`nodeside.io/<driver>.draining=<since>`: this node is being drained. If the Driver evicts, consumers
are evicted, and the node stays cordoned until the driver works again; else only stages end.
`nodeside.io/cordoned=true`: the node was schedulable and we cordoned it; the label is set and
removed in the same request as the cordon. Two Drivers may drain one node: each removes its own
label, and our cordon is removed once no Driver holds the node.
`nodeside.io/<driver>.undrained=<revision>`: the consumers did not leave in time.

Pure.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterator, Mapping

from cluster.driver.drain_state import IDLE, DrainState
from cluster.kube.timestamps import distrust_far_future
from cluster.model.names import CORDONED, draining_label, driver_of_draining, undrained_label

_STAMP = "%Y%m%dT%H%M%SZ"  # ISO 8601 without characters that a label value forbids
_RFC3339 = "%Y-%m-%dT%H:%M:%SZ"


def hold_of(labels: Mapping[str, str], driver: str) -> DrainState:
    """Return a Driver's hold on the node with these labels."""
    since, given_up = (
        labels.get(draining_label(driver), ""),
        labels.get(undrained_label(driver), ""),
    )
    ending = CORDONED in labels and not any(holds_on(labels))
    return DrainState(since, given_up, ending) if since or given_up or ending else IDLE


def timestamp_value(now: float) -> str:
    """Return a time as a label value."""
    return time.strftime(_STAMP, time.gmtime(now))


def seconds_since(since: str, now: float) -> float:
    """Return the seconds since the timestamp of a label; 0 if it is not a time."""
    try:
        return now - distrust_far_future(calendar.timegm(time.strptime(since, _STAMP)), now)
    except ValueError:
        return 0.0


def timestamp_to_rfc3339(since: str) -> str:
    """Return the timestamp of a label in the format used in a status."""
    try:
        return time.strftime(_RFC3339, time.strptime(since, _STAMP))
    except ValueError:
        return since


def holds_on(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the label and the Driver of each hold on a node."""
    for key in labels:
        if driver := driver_of_draining(key):
            yield key, driver
