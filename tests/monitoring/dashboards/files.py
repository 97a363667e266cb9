"""The files of the dashboards: where they are, what is to be in them, what they ask."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.monitoring.dashboards import console, grafana
from tests.monitoring.dashboards.fleet import FLEET
from tests.monitoring.dashboards.node import NODE
from tests.monitoring.rules import DIRECTORY

DASHBOARDS = (FLEET, NODE)
GRAFANA = DIRECTORY / "dashboards"
CONSOLE = GRAFANA / "openshift"


def files() -> Mapping[Path, str]:
    """What is to be in which file."""
    return {
        place / f"{each.uid}.json": made(each)
        for place, made in ((GRAFANA, grafana.as_json), (CONSOLE, console.as_json))
        for each in DASHBOARDS
    }


def read(place: Path, uid: str) -> dict[str, Any]:
    return dict(json.loads((place / f"{uid}.json").read_text()))


def asked(document: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """For each panel of a file its title, and its queries by their names."""
    for panel in document.get("panels") or [p for row in document["rows"] for p in row["panels"]]:
        if panel["type"] != "row":
            yield panel["title"], [(each["refId"], each["expr"]) for each in panel["targets"]]
