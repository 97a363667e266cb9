"""Feature labels of the node: they describe its devices, so that pods can select nodes by them.

    feature.nodeside.io/<driver>.<attribute>   of `label: true`, if the node's devices agree
    feature.nodeside.io/<driver>.version       of the ready driver
    feature.nodeside.io/<driver>.count         of the devices that were found

Labels say what a node has, not whether it works: while the driver is not ready, they stay as they
are. Otherwise each upgrade of a driver would evict the pods that selected the node by its labels. A
thread reads what the agent knows and writes changes to a sink; see feature_sinks.py.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from nodeside import log
from nodeside.device_agent.feature_sinks import Sink, Sinks
from nodeside.device_agent.inventory import ResourceSnapshot
from nodeside.errors import NodesideError
from nodeside.protocol.labels import LABEL_VALUE, feature_prefix
from nodeside.protocol.ready_file import read_ready
from nodeside.spec import Driver
from nodeside.spec.devices import label_names
from nodeside.system.clock import backoff
from nodeside.system.host import Host

FIRST_INTERVAL: Final = 1.0  # seconds between two looks until the labels are known
INTERVAL: Final = 30.0  # seconds between two looks after that
# Seconds between two changes of the labels, which should hardly ever change. For as long after
# the first one, changes are written at once: the devices of a node appear one after the other.
MIN_CHANGE_INTERVAL: Final = 300.0
_LONGEST = 300.0  # seconds between two attempts after failures


def label_value(text: str) -> str:
    """Return a text as the value of a label; "" if it cannot be one.

    Characters that a label must not have become _, as in `Arria 10` → `Arria_10`.
    https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
    """
    value = re.sub(r"[^A-Za-z0-9_.-]+", "_", text.strip()).strip("_")
    return value if LABEL_VALUE.fullmatch(value) else ""


@dataclass
class Features:
    """The labels of a driver. A label that is left out is logged once, with the reason."""

    driver: Driver
    _known: dict[str, str] = field(default_factory=dict)
    _left_out: dict[str, str] = field(default_factory=dict)

    def make_labels(
        self, snapshots: Iterable[ResourceSnapshot], version: str
    ) -> Mapping[str, str] | None:
        """Return all labels by key; None unless all devices were looked for with a ready driver.

        `version` is the driver's; "" if nodeside brings no driver up. An attribute that no device
        reports at the moment keeps its last value.
        """
        seen = {snapshot.resource: snapshot for snapshot in snapshots}
        if seen.keys() != {device.resource for device in self.driver.spec.devices}:
            return None
        if not all(snapshot.known.is_ready for snapshot in seen.values()):
            return None
        devices = [device for snapshot in seen.values() for device in snapshot.devices]
        values = {
            "count": str(len(devices)),
            "version": self._choose_value("version", {version} if version else set()),
        }
        for name in label_names(self.driver.spec.devices):
            texts = (device.attributes.get(name, "") for device in devices)
            values[name] = self._choose_value(name, {text for text in texts if text})
        prefix = feature_prefix(self.driver.name)
        return {prefix + name: value for name, value in sorted(values.items()) if value}

    def _choose_value(self, name: str, texts: set[str]) -> str:
        if not texts:
            return self._known.get(name, "")
        value, why = "", ""
        if len(texts) > 1:
            why = "the node's devices disagree"
        elif not (value := label_value(*texts)):
            why = "what they say cannot be the value of a label"
        if why and self._left_out.get(name) != why:
            self._left_out[name] = why
            key = feature_prefix(self.driver.name) + name
            log.warning(
                "a label is left out", label=key, why=why, says=", ".join(sorted(texts)[:2])
            )
        self._known[name] = value
        return value


@dataclass
class LabelLoop:
    """The work of the thread, in steps.

    `snapshots` returns what the agent knows of each resource.
    """

    driver: Driver
    host: Host
    snapshots: Callable[[], Iterable[ResourceSnapshot]]
    sinks: Sinks
    needs_driver: bool = True
    _labels: Mapping[str, str] | None = None
    _sink: Sink | None = None
    _written: Mapping[str, str] | None = None
    _first: float | None = None
    _changed: float = 0.0
    _again: float = 0.0
    _failures: int = 0
    _trouble: str = ""

    def __post_init__(self) -> None:
        self._features = Features(self.driver)

    def update_labels(self, now: float) -> float:
        """Read the labels; write them if they have changed or have to be renewed.

        Returns the seconds until the next step. `now` is in monotonic seconds.
        """
        ready, version = self._read_ready()
        if ready:
            self._labels = self._features.make_labels(self.snapshots(), version) or self._labels
        if self._labels is None:
            return FIRST_INTERVAL
        sink = self.sinks.choose_sink()
        if sink is not self._sink:
            self._sink, self._written = sink, None
        is_new = self._labels != self._written
        due = self._next_change if is_new else self._again
        if sink is None or (self._written is not None and now < due):
            return INTERVAL
        try:
            sink.write_labels(self._labels)
        except NodesideError as error:
            self._failures += 1
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning("the node's labels are not up to date", why=error, hint=error.hint)
            return backoff(self._failures, INTERVAL, _LONGEST)
        if is_new:
            self._first = now if self._first is None else self._first
            self._written, self._changed = self._labels, now
        self._again = now + sink.renew
        self._failures, self._trouble = 0, ""
        return INTERVAL

    @property
    def _next_change(self) -> float:
        """The monotonic time from which changed labels may be written."""
        appearing = self._first is not None and self._changed < self._first + MIN_CHANGE_INTERVAL
        return self._changed if appearing else self._changed + MIN_CHANGE_INTERVAL

    def _read_ready(self) -> tuple[bool, str]:
        """Return whether the driver is ready, and its version."""
        if not self.needs_driver:
            return True, ""
        record = read_ready(self.host, self.driver.name, Host().boot_id)
        return record is not None, record.version if record else ""


@contextmanager
def label_in_thread(labels: LabelLoop) -> Iterator[None]:
    """Keep the labels of the node up to date in a thread, if the driver asks for some."""
    ended = threading.Event()

    def run() -> None:
        pause, bugs = 0.0, 0
        while not ended.wait(pause):
            try:
                pause, bugs = labels.update_labels(time.monotonic()), 0
            except Exception as exc:  # a bug here must not end the offer of devices, nor the labels
                log.traceback(exc)
                bugs += 1
                pause = backoff(bugs, INTERVAL, _LONGEST)

    if label_names(labels.driver.spec.devices):
        threading.Thread(target=run, name="labels", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
