"""The wait for all Drivers to be gone: what it says, and when it gives up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.install.uninstall import delete_drivers, uninstall
from cluster.kube.resources import DRIVERS, EVENTS, Resource
from nodeside.errors import DeadlinePassed

HELD = "modules are held: n1 (cannot unload edu: edu is held by 1 open file of dd (pid 4711))"
LAST = "driver edu: modules stay loaded until a reboot: n2 (unload.policy: never)"


@dataclass
class Page:
    items: list[Any]


@dataclass
class Cluster:
    """Drivers that say one thing after another, look by look, and then are gone."""

    says: list[str]
    last: str = ""
    deleted: list[str] = field(default_factory=list)
    time: float = 0.0

    def list(self, resource: Resource, trim: Callable[[Any], Any], **_: str) -> Page:
        found = self._events() if resource is EVENTS else self._drivers()
        return Page([item for each in found if (item := trim(each)) is not None])

    def delete(self, resource: Resource, name: str) -> None:
        assert resource is DRIVERS
        self.deleted.append(name)

    def now(self) -> float:
        return self.time

    def pause(self, _: float) -> None:
        self.time += 10.0

    def _drivers(self) -> Sequence[Mapping[str, Any]]:
        metadata: dict[str, Any] = {"name": "edu", "uid": "uid-edu"}
        if not self.deleted:
            return [{"metadata": metadata}]
        if not self.says:
            return []
        words = self.says.pop(0)
        metadata["deletionTimestamp"] = "2026-11-21T12:00:00Z"
        ready = {"type": "Ready", "status": "False", "reason": "Deleting", "message": words}
        return [{"metadata": metadata, "status": {"conditions": [ready] if words else []}}]

    def _events(self) -> Sequence[Mapping[str, Any]]:
        says = {"reason": "ModulesStay", "note": "no", "eventTime": "3"}
        other = {"regarding": {"kind": "Driver", "uid": "another"}, **says}
        nodes = {"regarding": {"kind": "Node", "uid": "uid-edu"}, **says}  # a driver pod's
        about = {"kind": "Driver", "uid": "uid-edu"}
        mine = {"regarding": about, "reason": "ModulesStay", "note": self.last, "eventTime": "2"}
        return [other, nodes, mine] if self.last else [other, nodes]


def farewell(cluster: Cluster, deadline: float = 600.0) -> list[str]:
    api: Any = cluster
    return list(delete_drivers(api, deadline=deadline, pause=cluster.pause, now=cluster.now))


def test_what_is_waited_for_is_said_when_it_changes_and_the_last_word_at_the_end() -> None:
    cluster = Cluster(["", "pods are terminating: n1", HELD, HELD], last=LAST)

    assert farewell(cluster) == [
        "driver edu: to be deleted; its modules are unloaded first",
        "driver edu: pods are terminating: n1",
        f"driver edu: {HELD}",
        LAST,
    ]


def test_a_driver_without_a_last_word_is_just_gone() -> None:
    assert farewell(Cluster([]))[-1] == "driver edu deleted"


def test_the_last_word_cannot_write_to_the_terminal() -> None:
    assert farewell(Cluster([], last="gone\x1b]52;c;eA==\x07"))[-1] == r"gone\x1b]52;c;eA==\x07"


def test_a_message_of_a_node_is_one_line_that_cannot_write_to_the_terminal() -> None:
    said = farewell(Cluster(["held: n1 (\x1b]52;c;eA==\x07\ndriver other deleted)"]))

    assert said[1] == r"driver edu: held: n1 (\x1b]52;c;eA==\x07\ndriver other deleted)"


def test_a_module_that_is_held_for_too_long_is_named_with_the_way_out() -> None:
    with pytest.raises(DeadlinePassed) as caught:
        farewell(Cluster([HELD] * 100), deadline=60.0)

    assert str(caught.value) == f"waited 60 s for all Drivers to be gone: edu ({HELD})"
    assert "kubectl annotate driver NAME nodeside.io/leave-modules=true" in caught.value.hint


def test_where_nobody_says_anything_the_controller_is_asked_for() -> None:
    with pytest.raises(DeadlinePassed) as caught:
        farewell(Cluster([""] * 100), deadline=60.0)

    assert str(caught.value) == "waited 60 s for all Drivers to be gone: edu"
    assert "is a controller running that cleans up?" in caught.value.hint


def test_the_controller_is_asked_for_in_the_namespace_of_the_installation() -> None:
    api: Any = Cluster([""] * 100)
    elsewhere = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "drivers"}}

    with pytest.raises(DeadlinePassed) as caught:
        list(uninstall(api, [elsewhere], deadline=-1.0))

    assert "kubectl -n drivers get pods" in caught.value.hint
