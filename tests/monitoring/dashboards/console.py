"""A dashboard as JSON for OpenShift's console, which draws panels as Grafana had them long ago.

What its source reads is written, and nothing else: `web/src/components/dashboards/legacy` of
https://github.com/openshift/monitoring-plugin. It leaves panels of newer kinds blank, and finds
its own data source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, assert_never

from tests.monitoring.dashboards.model import Dashboard, Kind, Panel, Query, Row, Variable, ref

KINDS = ("graph", "singlestat", "table")


def as_json(wanted: Dashboard) -> str:
    """The text of a file."""
    numbers = iter(range(1, 1000))
    document = {
        "uid": wanted.uid,
        "title": wanted.title,
        "description": wanted.words,
        "tags": ["nodeside"],
        "schemaVersion": 16,
        "templating": {"list": [_variable(each) for each in wanted.variables]},
        "rows": [_row(row, [next(numbers) for _ in row.panels]) for row in wanted.rows],
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _variable(wanted: Variable) -> Mapping[str, Any]:
    """It is hidden unless it says that it is not."""
    return {
        "type": "query",
        "name": wanted.name,
        "label": wanted.name.capitalize(),
        "query": wanted.query,
        "includeAll": wanted.all,
        "hide": 0,
    }


def _row(wanted: Row, numbers: list[int]) -> Mapping[str, Any]:
    panels = [
        {"id": number, **_panel(panel)}
        for number, panel in zip(numbers, wanted.panels, strict=True)
    ]
    return {"title": wanted.title, "showTitle": True, "collapse": False, "panels": panels}


def _panel(wanted: Panel) -> Mapping[str, Any]:
    targets = [_target(query, ref(index)) for index, query in enumerate(wanted.queries)]
    return {
        "title": wanted.title,
        "description": wanted.words,
        "span": wanted.width,
        "targets": targets,
        **_drawn(wanted),
    }


def _target(query: Query, name: str) -> Mapping[str, Any]:
    return {"refId": name, "expr": query.text, "legendFormat": query.title}


def _drawn(wanted: Panel) -> Mapping[str, Any]:
    match wanted.kind:
        case Kind.STAT:
            return {"type": "singlestat", **_number(wanted)}
        case Kind.GRAPH:
            return {
                "type": "graph",
                "stack": wanted.stacked,
                "legend": {"show": True},
                "yaxes": [{"format": wanted.unit}, {"format": "short"}],
            }
        case Kind.TABLE:
            return {"type": "table", "transform": "table", "styles": _columns(wanted)}
        case _:
            assert_never(wanted.kind)


def _number(wanted: Panel) -> Mapping[str, Any]:
    """A number has the color of the last threshold below it. Seconds are a number as any other."""
    yes_no = wanted.queries[0].yes_no
    below, above = (yes_no or wanted.colors).value
    thresholds = [{"value": -1, "color": below}, {"value": 0.5, "color": above}]
    words = [("0", "no"), ("1", "yes")] if yes_no else []
    return {
        "format": wanted.unit,
        "postfix": " s" if wanted.unit == "s" else "",
        "decimals": 0,
        "options": {"fieldOptions": {"thresholds": thresholds}},
        "valueMaps": [{"op": "=", "value": value, "text": text} for value, text in words],
    }


def _columns(wanted: Panel) -> list[Mapping[str, Any]]:
    """One without an alias is not shown."""
    labels = [
        {"pattern": label, "alias": heading, "type": "string"}
        for label, heading in wanted.labels.items()
    ]
    values = [
        {"pattern": f"Value #{ref(i)}", "alias": query.title, "type": "number", "decimals": 0}
        for i, query in enumerate(wanted.queries)
        if query.title
    ]
    return [*labels, *values]
