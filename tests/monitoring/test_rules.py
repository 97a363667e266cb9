"""What the alerts ask for is there: metrics, labels, runbooks, and commands to type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cli.main import root
from cluster.manager.metrics import FAMILIES
from cluster.model.names import CONTROLLER, DRIVER_LABEL, METRICS, NAMESPACE, STAGE_LABEL
from cluster.options.devices.agent_manifests import METRICS_PORT
from nodeside.spec.fleet import DEVICES_STAGE
from nodeside.system import process
from tests import TOP
from tests import yaml_in_c as yaml
from tests.monitoring.exposed import exposed, known
from tests.monitoring.rules import ALERTS, DIRECTORY, RULE, SCRAPE, program, write_rules
from tests.patience import patience

LONG = patience(60.0)  # seconds: a deadline that only a broken test meets
DOCUMENT = TOP / "docs" / "monitoring.md"
METRIC = re.compile(r"\bnodeside_[a-z_]+")
MATCHER = re.compile(r'(nodeside_\w+)\{(\w+)=~?"([^"]*)"\}')
every_alert = pytest.mark.parametrize("name", ALERTS)


def words_of(name: str) -> str:
    return "\n".join(ALERTS[name]["annotations"].values())


def commands(text: str) -> Iterator[str]:
    """The commands of nodeside in a text whose templates are filled in."""
    filled = re.sub(r"\{\{ \$\w+(\.\w+)? \}\}", "x", text)
    yield from re.findall(r"nodeside-cluster \w+(?: x)*", filled)


@every_alert
def test_each_metric_of_an_expression_is_one_that_is_exposed(name: str, tmp_path: Path) -> None:
    asked = set(METRIC.findall(ALERTS[name]["expr"]))

    assert asked
    assert asked - exposed(tmp_path) == set()


def test_each_label_of_an_expression_is_one_of_its_metric_and_can_have_its_values() -> None:
    labels, values = {family.name: family.labels for family in FAMILIES}, known()
    for rule in ALERTS.values():
        for metric, label, asked in MATCHER.findall(rule["expr"]):
            assert label in labels[metric], rule["alert"]
            assert set(asked.split("|")) <= values[label], rule["alert"]


def test_each_state_of_a_node_but_ready_is_one_that_an_alert_asks_for() -> None:
    text = "".join(rule["expr"] for rule in ALERTS.values())
    asked = [states.split("|") for _, label, states in MATCHER.findall(text) if label == "state"]

    assert {state for states in asked for state in states} == known()["state"] - {"ready"}


@every_alert
def test_each_alert_waits_has_a_severity_and_says_what_to_type(name: str) -> None:
    rule = ALERTS[name]

    assert re.fullmatch(r"\d+m", rule["for"])
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    said = words_of(name)
    assert "kubectl " in said or "nodeside-cluster " in said
    for labels in re.findall(r"by \(([^)]*)\)", rule["expr"])[:1]:
        for label in labels.split(", "):
            assert f"$labels.{label} " in said, f"nobody is told which {label}"
    for command in commands(said):
        verb, *words = command.split()[1:]
        found = root.commands[verb]
        found.make_context(verb, words)


def test_each_alert_has_a_runbook_and_a_row_and_no_other_is_told_of() -> None:
    text = DOCUMENT.read_text()
    rows = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \| (\w+) \| (\w+) \|", text, re.MULTILINE)

    assert rows == [
        (name, name.lower(), rule["labels"]["severity"], rule["for"])
        for name, rule in ALERTS.items()
    ]
    assert re.findall(r"^### (Nodeside\w+)$", text, re.MULTILINE) == list(ALERTS)
    for name, rule in ALERTS.items():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert TOP / page == DOCUMENT
        assert anchor == name.lower()


def test_the_rules_are_where_the_controller_is() -> None:
    kustomization = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text())

    assert RULE["apiVersion"] == "monitoring.coreos.com/v1"
    assert RULE["kind"] == "PrometheusRule"
    assert kustomization["namespace"] == NAMESPACE
    assert [(DIRECTORY / name).exists() for name in kustomization["resources"]] == [True]


def test_a_prometheus_without_the_operator_looks_for_what_the_controller_makes() -> None:
    controller, devices = SCRAPE["scrape_configs"]
    kept = [job["relabel_configs"][0]["regex"] for job in (controller, devices)]

    assert METRICS.startswith(CONTROLLER)
    assert kept == [f"{METRICS};metrics", f"{DEVICES_STAGE};metrics"]
    assert METRICS_PORT  # its container port has the name `metrics`, as the Service's has
    for key in (STAGE_LABEL, DRIVER_LABEL):
        assert f"_label_{re.sub('[./]', '_', key)}" in str(devices)


def test_what_the_page_says_to_type_makes_the_rules_of_a_plain_prometheus(tmp_path: Path) -> None:
    [command] = re.findall(r"sed -n '([^']*)'", DOCUMENT.read_text())
    argv = ["sed", "-n", command, str(DIRECTORY / "prometheusrule.yaml")]
    made = yaml.safe_load(process.run(argv, timeout=LONG).output)

    assert made == RULE["spec"]


@pytest.mark.slow
def test_promtool_finds_no_fault(tmp_path: Path) -> None:
    checked = process.run(
        [program("promtool"), "check", "rules", "--lint-fatal", write_rules(tmp_path)],
        timeout=LONG,
    )

    assert f"{len(ALERTS)} rules found" in checked.output
