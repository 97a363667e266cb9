"""When each alert fires and when it does not, by promtool: its engine, its clock, its templates.

A case has series, a sample a minute, and says at which minute which alerts fire; no other may. The
words of an alert must be those of the rules with its labels filled in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodeside.system import process
from tests import yaml_in_c as yaml
from tests.monitoring.rules import ALERTS, program, write_rules
from tests.patience import patience

pytestmark = pytest.mark.slow

LONG = patience(60.0)  # seconds: a deadline that only a broken test meets
HOURS = 180  # samples of a series that does not change
LEADS = {'nodeside_leader{pod="c-0"}': f"1x{HOURS}"}

EDU = {"driver": "edu"}
ON_NODE = {"driver": "edu", "node": "n1"}
OFFERED = {**ON_NODE, "resource": "example.com/edu"}
DEVICE = {**OFFERED, "device": "00:05.0"}


@dataclass(frozen=True)
class Fires:
    """An alert, with the labels that its expression gives it and its value."""

    alert: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: int = 0

    def as_expected(self) -> dict[str, Any]:
        rule = ALERTS[self.alert]
        texts = {name: self._filled(text) for name, text in rule["annotations"].items()}
        return {"exp_labels": {**self.labels, **rule["labels"]}, "exp_annotations": texts}

    def _filled(self, text: str) -> str:
        text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: self.labels[found[1]], text)
        return text.replace("{{ $value }}", str(self.value))


@dataclass(frozen=True)
class Case:
    words: str
    series: Mapping[str, str]
    at: Mapping[int, Sequence[Fires]]  # by the minute

    def as_test(self) -> dict[str, Any]:
        checks = [
            {
                "eval_time": f"{minute}m",
                "alertname": alert,
                "exp_alerts": [each.as_expected() for each in fires if each.alert == alert],
            }
            for minute, fires in self.at.items()
            for alert in ALERTS
        ]
        series = [{"series": name, "values": values} for name, values in self.series.items()]
        return {"interval": "1m", "input_series": series, "alert_rule_test": checks}


def of(metric: str, labels: Mapping[str, str], values: str) -> dict[str, str]:
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return {f"{metric}{{{pairs}}}": values}


def nodes(state: str, values: str, pod: str = "c-0") -> dict[str, str]:
    return of("nodeside_nodes", {**EDU, "state": state, "pod": pod}, values)


def phase(name: str, values: str) -> dict[str, str]:
    return of("nodeside_rollout_phase", {**EDU, "phase": name, "pod": "c-0"}, values)


def builds(progress: str, values: str) -> dict[str, str]:
    return of("nodeside_builds", {**EDU, "progress": progress, "pod": "c-0"}, values)


def degraded(values: str, pod: str = "c-0") -> dict[str, str]:
    labels = {**EDU, "condition": "Degraded", "pod": pod}
    return of("nodeside_driver_condition", labels, values)


def ready(values: str, pod: str = "edu-devices-1") -> dict[str, str]:
    return of("nodeside_driver_ready", {**ON_NODE, "version": "1.0.0", "pod": pod}, values)


def healthy(values: str, pod: str = "edu-devices-1") -> dict[str, str]:
    return of("nodeside_device_healthy", {**DEVICE, "pod": pod}, values)


def watched(values: str) -> dict[str, str]:
    return of("nodeside_device_plugin_watched", {**OFFERED, "pod": "edu-devices-1"}, values)


def holders(values: str) -> dict[str, str]:
    return of("nodeside_device_holders_known", {**OFFERED, "pod": "edu-devices-1"}, values)


def again(*minutes: int) -> str:
    return " ".join(str(each) for each in minutes * 20)


ON, OFF = f"1x{HOURS}", f"0x{HOURS}"
NOT_READY = "NodesideDriverNotReady"
UNHEALTHY = Fires("NodesideDeviceUnhealthy", DEVICE)

CONTROLLER = (
    Case("no controller is scraped", {}, {9: [], 10: [Fires("NodesideControllerAbsent")]}),
    Case(
        "all controllers restart, for five minutes",
        {'nodeside_leader{pod="c-0"}': "1x10 stale _x4 1x40"},
        {minute: [] for minute in (9, 12, 16, 30)},
    ),
    Case(
        "none of two controllers leads",
        {'nodeside_leader{pod="c-0"}': OFF, 'nodeside_leader{pod="c-1"}': OFF},
        {4: [], 5: [Fires("NodesideWithoutLeader")]},
    ),
    Case(
        "another controller takes over after two minutes",
        {
            'nodeside_leader{pod="c-0"}': "1x10 0x2 stale",
            'nodeside_leader{pod="c-1"}': f"0x12 1x{HOURS}",
        },
        {minute: [] for minute in (9, 12, 14, 20)},
    ),
)

DRIVERS = (
    Case(
        "a driver fails on two nodes, and is repaired",
        LEADS | nodes("failed", "0x4 2x30 0x60") | degraded("0x4 1x30 0x60") | phase("settled", ON),
        {
            14: [],
            15: [Fires(NOT_READY, EDU | {"state": "failed"}, 2)],
            34: [Fires(NOT_READY, EDU | {"state": "failed"}, 2)],
            45: [],
        },
    ),
    Case(
        "a driver tries again every few minutes, and fails",
        LEADS | nodes("failed", again(1, 1, 1, 0, 0)) | nodes("loading", again(0, 0, 0, 1, 1)),
        {9: [], 20: [Fires(NOT_READY, EDU | {"state": "failed"}, 1)]},
    ),
    Case(
        "a driver fails for two minutes",
        LEADS | nodes("failed", "0x4 3x1 0x60"),
        {minute: [] for minute in range(4, 30)},
    ),
    Case(
        "a node needs a reboot",
        LEADS | nodes("reboot-required", ON) | degraded(ON),
        {
            9: [],
            10: [Fires(NOT_READY, EDU | {"state": "reboot-required"}, 1)],
            60: [Fires(NOT_READY, EDU | {"state": "reboot-required"}, 1)],
        },
    ),
    Case(
        "a rollout takes an hour, one node after the other",
        LEADS
        | phase("open", "1x60 0x60")
        | phase("settled", "0x60 1x60")
        | nodes("building", "1x60 0x60")
        | nodes("loading", "1x60 0x60")
        | nodes("waiting", "1x60 0x60")
        | nodes("unloading", "2x60 0x60"),
        {minute: [] for minute in range(0, 90, 5)},
    ),
    Case(
        "a node fails in a rollout that goes on",
        LEADS | phase("open", ON) | nodes("failed", ON) | degraded(ON),
        {
            10: [Fires(NOT_READY, EDU | {"state": "failed"}, 1)],
            60: [Fires(NOT_READY, EDU | {"state": "failed"}, 1)],
        },
    ),
    Case(
        "nodes wait though nothing is rolled out",
        LEADS | phase("settled", ON) | phase("open", OFF) | nodes("waiting", f"2x{HOURS}"),
        {9: [], 10: [Fires(NOT_READY, EDU | {"state": "waiting"}, 2)]},
    ),
    Case(
        "the first build takes 25 minutes",
        LEADS | phase("first", ON) | nodes("building", "0 3x25 0x60") | nodes("ready", "0x26 3x60"),
        {minute: [] for minute in range(0, 60, 5)},
    ),
    Case(
        "a build takes more than half an hour",
        LEADS | phase("first", ON) | nodes("building", f"0 3x{HOURS}"),
        {29: [], 35: [Fires(NOT_READY, EDU | {"state": "building"}, 3)]},
    ),
    Case(
        "an upgrade of the system reboots one node after the other",
        LEADS
        | phase("settled", ON)
        | nodes("silent", again(1, 1, 0, 0, 0))
        | nodes("loading", again(0, 0, 1, 0, 0))
        | nodes("waiting", again(0, 0, 1, 0, 0)),
        {minute: [] for minute in range(0, 90, 5)},
    ),
    Case(
        "two nodes report nothing",
        LEADS | phase("settled", ON) | nodes("silent", f"2x{HOURS}") | degraded(ON),
        {14: [], 15: [Fires("NodesideNodesSilent", EDU, 2)]},
    ),
    Case(
        "a node boots for ten minutes",
        LEADS | phase("settled", ON) | nodes("silent", "0x4 1x10 0x60"),
        {minute: [] for minute in (10, 15, 20, 40)},
    ),
    Case(
        "nodes wait for a shared build of 40 minutes",
        LEADS | phase("first", ON) | nodes("silent", f"5x40 0x{HOURS}") | builds("running", "1x40"),
        {minute: [] for minute in (15, 30, 39, 60)},
    ),
    Case(
        "a Driver is paused before its first revision",
        LEADS | phase("held", ON) | nodes("silent", f"5x{HOURS}"),
        {minute: [] for minute in (15, 30, 60)},
    ),
    Case(
        "nodes wait for the canary of the first version, and then it fails",
        LEADS
        | phase("first_canary", "1x40 0x60")
        | phase("first_stopped", "0x40 1x60")
        | nodes("silent", f"5x{HOURS}")
        | nodes("building", "1x40 0x60"),
        {15: [], 40: [], 60: [Fires("NodesideRolloutStopped", EDU, 1)]},
    ),
    Case(
        "a rollout stops",
        LEADS | phase("stopped", ON) | nodes("failed", ON) | degraded(ON),
        {
            4: [],
            5: [Fires("NodesideRolloutStopped", EDU, 1)],
            30: [
                Fires("NodesideRolloutStopped", EDU, 1),
                Fires(NOT_READY, EDU | {"state": "failed"}, 1),
            ],
        },
    ),
    Case(
        "a rollout was stopped by a node that has been deleted since",
        LEADS | phase("stopped", ON) | degraded(ON),
        {60: [Fires("NodesideRolloutStopped", EDU, 1)]},
    ),
    Case(
        "a rollout stops, and the old version is applied again at once",
        LEADS | phase("stopped", "0x4 1x3 0x60") | degraded("0x4 1x3 0x60"),
        {minute: [] for minute in (5, 8, 10, 20)},
    ),
    Case(
        "a driver does not compile for two kernels",
        LEADS | builds("refused", f"2x{HOURS}") | builds("done", ON) | degraded(ON),
        {
            4: [],
            5: [Fires("NodesideBuildFailing", EDU | {"progress": "refused"}, 2)],
            60: [Fires("NodesideBuildFailing", EDU | {"progress": "refused"}, 2)],
        },
    ),
    Case(
        "a build Job cannot push",
        LEADS | builds("broken", ON),
        {4: [], 5: [Fires("NodesideBuildFailing", EDU | {"progress": "broken"}, 1)]},
    ),
    Case("a build runs", LEADS | builds("running", ON) | builds("refused", OFF), {5: [], 60: []}),
    Case(
        "a Driver is Degraded, and another controller takes over",
        LEADS | degraded("1x8 stale") | degraded(f"_x8 1x{HOURS}", "c-1") | nodes("ready", ON),
        {14: [], 15: [Fires("NodesideDriverDegraded", EDU, 1)]},
    ),
    Case(
        "a Driver is Degraded for ten minutes",
        LEADS | degraded("0x4 1x10 0x60"),
        {minute: [] for minute in (10, 15, 20, 40)},
    ),
)

DEVICES = (
    Case(
        "a device does not work, and is repaired",
        LEADS | ready(ON) | healthy("1x4 0x20 1x60"),
        {9: [], 10: [UNHEALTHY], 25: [UNHEALTHY], 26: []},
    ),
    Case(
        "a device is reset, which takes three minutes",
        LEADS | ready(ON) | healthy("1x4 0x2 1x60"),
        {minute: [] for minute in (5, 8, 10, 30)},
    ),
    Case(
        "a device disappears, and then its agent",
        LEADS | ready(ON) | healthy("1x4 0x4 stale"),
        {9: [], 10: [UNHEALTHY], 30: [UNHEALTHY], 45: []},
    ),
    Case(
        "another agent finds that a device works again",
        LEADS
        | ready("1x3 stale")
        | healthy("1 0x2 stale")
        | ready(f"_x4 1x{HOURS}", "edu-devices-2")
        | healthy(f"_x4 1x{HOURS}", "edu-devices-2"),
        {minute: [] for minute in (3, 4, 10, 30)},
    ),
    Case(
        "a driver fails on a node, and all its devices with it",
        LEADS | ready("1x4 0x60") | healthy("1x4 0x60"),
        {
            14: [],
            15: [Fires("NodesideDriverNotReadyOnNode", ON_NODE)],
            30: [Fires("NodesideDriverNotReadyOnNode", ON_NODE)],
        },
    ),
    Case(
        "an agent leaves before its driver changes, and comes back",
        LEADS | ready("1x10 0 stale _x9 1x60") | healthy("1x10 0 stale _x9 1x60"),
        {minute: [] for minute in (10, 16, 20, 40)},
    ),
    Case(
        "a kubelet restarts, for two minutes",
        LEADS | watched("1x4 0x1 1x60") | holders("1x4 0x1 1x60"),
        {minute: [] for minute in (5, 10, 30)},
    ),
    Case(
        "a kubelet is down",
        LEADS | watched(OFF) | holders(OFF),
        {
            4: [],
            5: [Fires("NodesideDevicesNotWatched", OFFERED)],
            60: [Fires("NodesideDevicesNotWatched", OFFERED)],
        },
    ),
    Case(
        "a kubelet does not say who has its devices",
        LEADS | watched(ON) | holders(OFF),
        {14: [], 15: [Fires("NodesideDeviceHoldersUnknown", OFFERED)]},
    ),
)
CASES = (*CONTROLLER, *DRIVERS, *DEVICES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.words)
def test_alerts_fire_for_a_reason(case: Case, tmp_path: Path) -> None:
    document = {
        "rule_files": [str(write_rules(tmp_path))],
        "evaluation_interval": "1m",
        "tests": [case.as_test()],
    }
    test = tmp_path / "test.yaml"
    test.write_text(yaml.safe_dump(document))
    process.run([program("promtool"), "test", "rules", test], timeout=LONG)


def test_each_alert_fires_in_some_case() -> None:
    fired = {each.alert for case in CASES for fires in case.at.values() for each in fires}

    assert fired == ALERTS.keys()
