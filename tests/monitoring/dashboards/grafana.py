"""A dashboard as JSON for Grafana, by its own SDK.

The schema is the first version, which every Grafana takes from a file; the SDK calls it deprecated,
since the second one follows. What provisions it chooses no data source: the variable does.
"""

from __future__ import annotations

import itertools
import json
import warnings
from typing import assert_never

from tests.monitoring.dashboards.model import (
    ANY,
    COLUMNS,
    NODE_UID,
    Colors,
    Dashboard,
    Kind,
    Panel,
    Query,
    Variable,
    ref,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import dashboard as grafana
    from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
    from grafana_foundation_sdk.builders.common import ReduceDataOptions, StackingConfig
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common
    from grafana_foundation_sdk.models import dashboard as models
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat

KINDS = ("row", "stat", "table", "timeseries")
SOURCE = common.DataSourceRef("prometheus", "${datasource}")

_HEIGHTS = {Kind.STAT: 4, Kind.GRAPH: 8, Kind.TABLE: 8}
_TO_NODE = {
    "title": "This node",
    "url": f"/d/{NODE_UID}?var-datasource=${{datasource}}&var-node=${{__value.raw}}",
}
_Builder = stat.Panel | table.Panel | timeseries.Panel


def as_json(wanted: Dashboard) -> str:
    """The text of a file."""
    made = (
        grafana.Dashboard(wanted.title)
        .uid(wanted.uid)
        .description(wanted.words)
        .tags(["nodeside"])
        .refresh("1m")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(grafana.DatasourceVariable("datasource").label("Source").type("prometheus"))
    )
    for variable in wanted.variables:
        made.with_variable(_variable(variable))
    numbers = itertools.count(1)
    for row in wanted.rows:
        made.with_row(grafana.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            made.with_panel(_panel(panel).id(next(numbers)))
    return json.dumps(made.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _variable(wanted: Variable) -> grafana.QueryVariable:
    made = grafana.QueryVariable(wanted.name).label(wanted.name.capitalize()).datasource(SOURCE)
    made.query(wanted.query).refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    made.sort(models.VariableSort.ALPHABETICAL_ASC).multi(wanted.all).include_all(wanted.all)
    if wanted.all:
        everything = models.VariableOption(selected=True, text="All", value="$__all")
        made.all_value(ANY).current(everything)
    return made


def _panel(wanted: Panel) -> _Builder:
    made: _Builder
    match wanted.kind:
        case Kind.STAT:
            made = _stat(wanted)
        case Kind.GRAPH:
            made = _graph(wanted)
        case Kind.TABLE:
            made = _table(wanted)
        case _:
            assert_never(wanted.kind)
    for index, query in enumerate(wanted.queries):
        made.with_target(_target(wanted.kind, query).ref_id(ref(index)))
    made.title(wanted.title).description(wanted.words).datasource(SOURCE).unit(wanted.unit)
    return made.span(wanted.width * 24 // COLUMNS).height(_HEIGHTS[wanted.kind])


def _target(kind: Kind, query: Query) -> prometheus.Dataquery:
    """What is shown of now is asked of now only."""
    made = prometheus.Dataquery().expr(query.text).datasource(SOURCE)
    match kind:
        case Kind.STAT:
            return made.instant()
        case Kind.GRAPH:
            return made.range().legend_format(query.title)
        case Kind.TABLE:
            return made.instant().format(PromQueryFormat.TABLE)
        case _:
            assert_never(kind)


def _stat(wanted: Panel) -> stat.Panel:
    below, above = wanted.colors.value
    steps = [models.Threshold(None, below), models.Threshold(1, above)]
    made = (
        stat.Panel()
        .thresholds(grafana.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
    )
    yes_no = wanted.queries[0].yes_no
    return made.mappings([_words(yes_no)]) if yes_no else made


def _words(colors: Colors) -> models.ValueMap:
    no, yes = colors.value
    return models.ValueMap(
        {
            "0": models.ValueMappingResult(text="no", color=no),
            "1": models.ValueMappingResult(text="yes", color=yes),
        }
    )


def _graph(wanted: Panel) -> timeseries.Panel:
    made = timeseries.Panel().min(0)
    if wanted.stacked:
        made.fill_opacity(30).stacking(StackingConfig().mode(common.StackingMode.NORMAL))
    return made


def _table(wanted: Panel) -> table.Panel:
    """Rows that have the same labels become one. A value without a heading is not shown."""
    several = len(wanted.queries) > 1
    values = {f"Value #{ref(i)}" if several else "Value": q for i, q in enumerate(wanted.queries)}
    headings = dict(wanted.labels) | {name: query.title for name, query in values.items()}
    made = (
        table.Panel()
        .with_transformation(models.DataTransformerConfig("merge", options={}))
        .with_transformation(
            models.DataTransformerConfig(
                "organize",
                options={
                    "excludeByName": dict.fromkeys(
                        ["Time", *(name for name, title in headings.items() if not title)], True
                    ),
                    "indexByName": {name: index for index, name in enumerate(headings)},
                    "renameByName": {name: title for name, title in headings.items() if title},
                },
            )
        )
    )
    for query in values.values():
        if query.yes_no:
            words = models.DynamicConfigValue("mappings", [_words(query.yes_no)])
            colored = models.DynamicConfigValue("custom.cellOptions", {"type": "color-text"})
            made.override_by_name(query.title, [words, colored])
    if node := wanted.labels.get("node"):
        made.override_by_name(node, [models.DynamicConfigValue("links", [_TO_NODE])])
    return made
