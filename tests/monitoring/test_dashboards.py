"""The files of the dashboards: made of the model, and such that their readers can draw them.

What their queries answer is shown in tests/cluster/e2e/test_dashboards.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.manager.metrics import HISTOGRAMS
from cluster.model.names import NAMESPACE
from tests import yaml_in_c as yaml
from tests.monitoring.dashboards import console, grafana
from tests.monitoring.dashboards.files import CONSOLE, DASHBOARDS, GRAFANA, asked, files, read
from tests.monitoring.dashboards.model import COLUMNS, Kind, Panel, ref
from tests.monitoring.exposed import exposed, known
from tests.monitoring.rules import DIRECTORY

METRIC = re.compile(r"\b(?:nodeside|process)_[a-z_]+|\bALERTS\b")
VALUES = re.compile(r'(\w+)=~?"([a-z|-]+)"')
PANELS = [panel for board in DASHBOARDS for row in board.rows for panel in row.panels]
by_uid = pytest.mark.parametrize("uid", [board.uid for board in DASHBOARDS])
every_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)


# --- the model -----------------------------------------------------------------------------------


@every_panel
def test_each_metric_is_one_that_is_exposed(panel: Panel, tmp_path: Path) -> None:
    served = exposed(tmp_path) | {f"{name}_bucket" for name in HISTOGRAMS}
    prometheus = {"ALERTS", "process_resident_memory_bytes"}
    for query in panel.queries:
        asked = set(METRIC.findall(query.text))
        assert asked
        assert asked <= served | prometheus


@every_panel
def test_each_value_of_a_label_is_one_that_it_can_have(panel: Panel) -> None:
    values = known() | {"alertstate": {"pending", "firing"}}
    for query in panel.queries:
        for label, wanted in VALUES.findall(query.text):
            assert set(wanted.split("|")) <= values[label]


@every_panel
def test_a_panel_is_one_that_both_can_draw(panel: Panel) -> None:
    assert panel.unit in ("short", "s", "bytes")
    assert 3 <= panel.width <= COLUMNS, "the console draws nothing narrower"
    titles = [query.title for query in panel.queries]
    match panel.kind:
        case Kind.STAT:
            assert titles == [""]
        case Kind.GRAPH:
            assert all(titles)
        case Kind.TABLE:
            assert panel.labels
            assert all(titles) or len(titles) == 1


def test_titles_are_unique_and_no_variable_begins_like_another() -> None:
    for board in DASHBOARDS:
        titles = [panel.title for row in board.rows for panel in row.panels]
        assert len({*titles}) == len(titles)
        names = [variable.name for variable in board.variables]
        assert not [a for a in names for b in names if a != b and b.startswith(a)]


# --- the files -----------------------------------------------------------------------------------


def test_the_files_are_those_of_the_model() -> None:
    made = files()
    there = {path: path.read_text() for path in GRAFANA.rglob("*.json")}

    assert there.keys() == made.keys()
    assert there == made, "write them again: python -m tests.monitoring.dashboards"


@by_uid
def test_grafana_is_given_what_it_can_draw(uid: str) -> None:
    found = read(GRAFANA, uid)
    panels: list[dict[str, Any]] = found["panels"]

    assert found["uid"] == uid
    assert found["title"]
    assert not found.keys() & {"__inputs", "__requires", "id"}
    assert {panel["type"] for panel in panels} <= {*grafana.KINDS}
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [cell for panel in panels for cell in occupied(panel["gridPos"])]
    assert len({*cells}) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    for source in datasources(found):
        assert source == {"type": "prometheus", "uid": "${datasource}"}
    assert found["templating"]["list"][0]["type"] == "datasource"


def occupied(place: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        yield from ((x, y) for y in range(place["y"], place["y"] + place["h"]))


def datasources(value: Any) -> Iterator[Any]:
    """All of them, however deep."""
    if isinstance(value, dict):
        yield from ([value["datasource"]] if "datasource" in value else [])
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from datasources(each)


@by_uid
def test_the_console_is_given_what_it_can_draw(uid: str) -> None:
    found = read(CONSOLE, uid)
    panels: list[dict[str, Any]] = [panel for row in found["rows"] for panel in row["panels"]]

    assert found["uid"] == uid
    assert found["title"]
    assert not found.keys() & {"__inputs", "__requires", "panels"}
    assert {panel["type"] for panel in panels} <= {*console.KINDS}
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert not [*datasources(found)], "it has its own"
    for panel in panels:
        columns = {column["pattern"] for column in panel.get("styles", ())}
        assert columns or panel["type"] != "table"
        values = {f"Value #{target['refId']}" for target in panel["targets"]}
        assert {name for name in columns if name.startswith("Value")} <= values
    for variable in found["templating"]["list"]:
        assert (variable["type"], variable["hide"]) == ("query", 0)
        assert re.fullmatch(r"label_values\((.*), (.*)\)", variable["query"])


@by_uid
def test_both_ask_what_the_model_asks(uid: str) -> None:
    [board] = [board for board in DASHBOARDS if board.uid == uid]
    wanted = [
        (panel.title, [(ref(i), query.text) for i, query in enumerate(panel.queries)])
        for row in board.rows
        for panel in row.panels
    ]

    for place in (GRAFANA, CONSOLE):
        assert [*asked(read(place, uid))] == wanted


# --- how they are found --------------------------------------------------------------------------


def generated(directory: Path) -> tuple[str, list[dict[str, Any]]]:
    """The namespace of a kustomization, and what it makes of files."""
    found = yaml.safe_load((directory / "kustomization.yaml").read_text())
    return found["namespace"], found["configMapGenerator"]


def test_every_file_is_in_a_config_map() -> None:
    names = [f"{board.uid}.json" for board in DASHBOARDS]
    namespace, [made] = generated(DIRECTORY)
    assert namespace == NAMESPACE
    assert made["files"] == [f"{GRAFANA.name}/{name}" for name in names]
    namespace, several = generated(CONSOLE)
    assert namespace == "openshift-config-managed"
    assert [made["files"] for made in several] == [[name] for name in names]
