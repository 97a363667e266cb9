"""The histories of histories.py, of a Driver that is built once for each kernel.

Builds end at any time and in any way, and their Jobs vanish by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from cluster.model.actions import LabelNode
from cluster.model.snapshot import Node
from cluster.model.states import BuildProgress
from cluster.plan.context.context import DriverContext
from cluster.plan.plan_driver import desired_builds
from nodeside.protocol.build_job import BuildVerdict
from tests.cluster.plan.histories import ASSIGNED, History, often

STORE = {"oci": "registry.example.com/bundles/edu", "publish": True}
_VERDICT = st.sampled_from(
    [*[BuildVerdict.PUBLISHED] * 4, BuildVerdict.REFUSED, BuildVerdict.BROKEN]
)


class BuiltOnce(History):
    """`built` are the Jobs that have published, of which none is made twice unless deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.spec: dict[str, Any] = {"prebuilt": {"sources": [STORE]}}

    @rule(data=st.data(), decision=_VERDICT)
    def a_build_ends(self, data: st.DataObject, decision: BuildVerdict) -> None:
        running = sorted(name for name, job in self.model.jobs.items() if not job.finished)
        if running:
            self._end(data.draw(st.sampled_from(running)), decision)

    a_build_ends_too = rule(data=st.data(), decision=_VERDICT)(
        lambda self, data, decision: self.a_build_ends(data, decision)
    )

    @rule(data=st.data())
    def delete_a_job_by_hand(self, data: st.DataObject) -> None:
        if self.model.jobs:
            name = data.draw(st.sampled_from(sorted(self.model.jobs)))
            del self.model.jobs[name]
            self.model.build_pods.pop(name, None)

    def no_node_loses_its_assignment(self) -> None:
        """It does, for as long as nothing is built for the kernel that it came to."""

    def _check_gifts(self, changed: list[LabelNode], before: Mapping[str, Node]) -> None:
        """Those that wait for a build are given nothing."""
        super()._check_gifts([each for each in changed if each.labels[ASSIGNED]], before)

    def _check_daemonsets(self) -> None:
        """One that is new has no sidecar if there is something to fetch."""
        super()._check_daemonsets()
        for at, found in self._case().supply.builds.items():
            there = [
                d
                for d in self.model.daemonsets.values()
                if (d.pool, d.revision) == (at.pool, at.revision)
            ]
            if found.progress is BuildProgress.BROKEN:
                assert all(each.toolkit for each in there)

    def _case(self) -> DriverContext:
        found = self.model.drivers["edu"]
        assert found.driver is not None
        return DriverContext(self.model.snapshot, found, found.driver)

    def _end(self, name: str, decision: BuildVerdict) -> None:
        build = desired_builds(self._case()).get(name)
        self.model.end_build(decision, name, kernel=build.kernel if build else "")

    def _settle_ready(self) -> None:
        """What failed is tried again, and goes well."""
        for name, job in list(self.model.jobs.items()):
            if job.finished:
                del self.model.jobs[name]
                self.model.build_pods.pop(name, None)
        for _ in range(100):
            actions = self.model.plan().actions
            self.model.carry_out(actions)
            running = [name for name, job in self.model.jobs.items() if not job.finished]
            for name in running:
                self._end(name, BuildVerdict.PUBLISHED)
            self.model.report_all()
            if not actions and not running and not self.model.plan().actions:
                return
        raise AssertionError("never settled")


TestBuiltOnce = BuiltOnce.TestCase
TestBuiltOnce.settings = settings(often(24), stateful_step_count=30)
