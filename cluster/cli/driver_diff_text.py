"""The output of `nodeside-cluster diff`: a head and a table for each Driver, or JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from cluster.cli.driver_diff import (
    DriverDiff,
    FieldChange,
    FileDiff,
    ObjectChange,
    PlannedBuild,
    Presence,
    RevisionKind,
)
from cluster.cli.driver_diff_nodes import CHANGING, NodeGroup, Turn
from cluster.driver.status.messages import few_of, nodes_in_words, revision_name
from cluster.model.states import Phase
from nodeside.log import escape_controls
from nodeside.spec import DriverSpec
from nodeside.spec.mistakes import in_brief
from nodeside.spec.model import Upgrade
from nodeside.text.shortlist import shortlist
from nodeside.text.table import on_terminal, table

_FEW = 3  # names in one place
_FIELDS = 20  # of one kind
# What a change of a field does that no node sees, by its first words.
_EFFECTS = (
    ("spec.rollout", "how changes reach the nodes"),
    ("spec.hardware", "which nodes it is for"),
    ("spec.toolkit", "what builds use"),
    ("spec.preflight", "which builds are tried"),
    ("spec.stages", "what runs after the driver"),
    ("spec.pods", "how pods are made: they are replaced, and modules stay loaded"),
    ("spec.upgrade", "when modules are replaced; no pod is"),
    ("spec.unload", "whether modules are unloaded; no pod is replaced"),
    ("spec.prebuilt", "where builds are published"),
    ("metadata", "nothing on nodes"),
)


def diff_text(found: FileDiff) -> str:
    parts = ["\n".join(_driver_lines(each)) for each in found.drivers]
    if found.others:
        words = f"not compared, since they are no Drivers: {shortlist(found.others, _FEW)}"
        parts.append(escape_controls(words))
    return "\n\n".join(parts)


def _driver_lines(diff: DriverDiff) -> Iterator[str]:
    title = escape_controls(f"{diff.driver}: {headline(diff)}")
    yield click.style(title, bold=True) if on_terminal() else title
    head = [(name, line) for name, line in _head_rows(diff)]
    if head:
        yield table(_without_repeats(head))
    if diff.changes and diff.nodes:
        evicted = diff.spec is not None and _evicts(diff.spec)
        yield ""
        yield table(
            [_node_row(each, evicted=evicted) for each in diff.nodes],
            header=("WHEN", "NODES", "KERNEL", "WHICH"),
        )


def _without_repeats(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the rows; those after the first of the same name have no name."""
    names = ["", *(name for name, _ in rows)]
    return [
        ("" if name == before else name, line)
        for before, (name, line) in zip(names, rows, strict=False)
    ]


# --- the headline --------------------------------------------------------------------------------


def headline(diff: DriverDiff) -> str:
    """Return what an apply does in one line."""
    words = _headline(diff)
    return f"kubectl apply fails; without that: {words}" if diff.admission.refused else words


def _headline(diff: DriverDiff) -> str:
    match diff.presence:
        case Presence.DELETING:
            return "is being deleted, and stays so: what is applied now ends with it"
        case Presence.UNCHANGED:
            return "objects of its stages change" if diff.changes else "nothing changes"
        case Presence.NEW:
            return f"a new Driver, {_where(diff) or 'for no node of this cluster'}"
    assert diff.revision is not None
    where = _where(diff) or "no node changes"
    match diff.revision.kind:
        case RevisionKind.SAME:
            return f"no new revision, {where}"
        case RevisionKind.EARLIER:
            return f"an earlier revision again, {where}"
        case _:
            return f"a new revision, {where}"


def _where(diff: DriverDiff) -> str:
    """Return `on 40 nodes: 1 canary first, then 2 at a time`; "" if no node changes."""
    counts = {turn: sum(len(g.nodes) for g in diff.nodes if g.turn is turn) for turn in Turn}
    changing = sum(counts[turn] for turn in CHANGING)
    parts = []
    if counts[Turn.CANARY]:
        word = "canary" if counts[Turn.CANARY] == 1 else "canaries"
        parts.append(f"{counts[Turn.CANARY]} {word} first")
    if counts[Turn.IN_TURN] and diff.rollout is not None:
        then = "then " if parts else ""
        parts.append(f"{then}{diff.rollout.allowed} at a time")
    words = f"on {nodes_in_words(changing)}" if changing else ""
    if counts[Turn.AT_REBOOT]:
        words += " as they reboot"
    if parts:
        words += f": {', '.join(parts)}"
    if counts[Turn.LEAVES]:
        leaves = f"it leaves {nodes_in_words(counts[Turn.LEAVES])}"
        words = f"{words}; {leaves}" if words else leaves
    return words


# --- the head ------------------------------------------------------------------------------------


def _head_rows(diff: DriverDiff) -> Iterator[tuple[str, str]]:
    admission = diff.admission
    if admission.refused:
        yield "refused", admission.refused
    for words in admission.warnings:
        yield "warning", words
    if admission.not_asked:
        yield "not asked", f"what the API server would say: {admission.not_asked}"
    if diff.presence is Presence.DELETING:
        yield "wait", f"kubectl wait --for=delete driver/{diff.driver} --timeout=10m"
    yield from _revision_rows(diff)
    yield from _field_rows("stays", diff.stays, "not in the file, and set by another hand: ")
    if diff.changes:
        yield from _rollout_rows(diff)
        for build in diff.builds:
            yield "build", _build_words(build)
        for words in diff.unloads:
            yield "unload", words
        yield from _object_rows(diff.objects)
    elif waiting := sum(len(g.nodes) for g in diff.nodes if g.turn in CHANGING):
        yield "under way", f"{nodes_in_words(waiting)} yet: nodeside-cluster explain {diff.driver}"
    for words in diff.notes if diff.changes else ():
        yield "note", words


def _revision_rows(diff: DriverDiff) -> Iterator[tuple[str, str]]:
    change = diff.revision
    if change is not None and diff.changes:
        old = revision_name(change.before, change.before_version)
        new = revision_name(change.after, change.after_version)
        if change.kind is RevisionKind.SAME:
            yield "revision", f"{old}, as it is: no changed field is seen by nodes"
        elif not change.before:
            yield "revision", new
        else:
            yield "revision", f"{old} -> {new}"
    seen = [each for each in diff.fields if each.makes_revision]
    rest = [each for each in diff.fields if not each.makes_revision]
    yield from _field_rows("because of", seen)
    for words in _grouped_by_effect(rest):
        yield "also", words


def _field_rows(
    name: str, fields: Sequence[FieldChange], before: str = ""
) -> Iterator[tuple[str, str]]:
    for each in fields[:_FIELDS]:
        words = _state_in_words(each) if before else _change_in_words(each)
        yield name, before + words
    if len(fields) > _FIELDS:
        yield name, f"and {len(fields) - _FIELDS} more fields"


def _grouped_by_effect(fields: Sequence[FieldChange]) -> Iterator[str]:
    for each in fields[:_FIELDS]:
        found = (words for start, words in _EFFECTS if each.path.startswith(start))
        effect = next(found, "")
        yield _change_in_words(each) + (f" ({effect})" if effect else "")
    if len(fields) > _FIELDS:
        yield f"and {len(fields) - _FIELDS} more fields"


def _change_in_words(change: FieldChange) -> str:
    return f"{change.path}: {_value(change.before, change)} -> {_value(change.after, change)}"


def _state_in_words(change: FieldChange) -> str:
    return f"{change.path}: {_value(change.after, change)}"


def _value(value: Any, change: FieldChange) -> str:
    """Return a value in brief, without passwords; a list of texts in full."""
    if value is None:
        return (
            "nothing" if change.default is None else f"{_value(change.default, change)} (default)"
        )
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return f"[{shortlist(map(_text, value), _FEW)}]"
    if isinstance(value, list):
        return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
    if isinstance(value, Mapping) and not value:
        return "{}"
    return _text(value)


def _text(value: Any) -> str:
    """Return a scalar as YAML has it where that is plain."""
    words = in_brief(value)
    if isinstance(value, str) and words == f'"{value}"' and value and " " not in value:
        return value
    return words


def _rollout_rows(diff: DriverDiff) -> Iterator[tuple[str, str]]:
    state, spec = diff.rollout, diff.spec
    changing = [group for group in diff.nodes if group.turn in CHANGING]
    if state is None or spec is None or not changing:
        return
    at_a_time = (
        f"{nodes_in_words(state.allowed)} of {state.nodes} without a working driver at a time"
    )
    yield "budget", f"maxUnavailable {spec.rollout.max_unavailable}: {at_a_time}"
    if state.unavailable:
        yield "", f"without one by now: {few_of(state.unavailable)}"
    stops = "1 failed node stops" if state.limit == 1 else f"{state.limit} failed nodes stop"
    yield "", f"maxFailed {spec.rollout.max_failed}: {stops} it"
    if state.phase is Phase.FIRST and not any(g.turn is Turn.CANARY for g in diff.nodes):
        yield "", "no canary: rollout.canary is 0, and no revision was ever good"
    elif state.phase is Phase.CANARY and not any(g.turn is Turn.CANARY for g in diff.nodes):
        yield "", f"canary: the first {state.canaries} of them"
    elif state.phase in (Phase.STOPPED, Phase.FIRST_STOPPED):
        yield "", f"the rollout is stopped by failures: {few_of(state.failed)}"


def _build_words(build: PlannedBuild) -> str:
    kernel = build.kernel or "the kernel of the image"
    where = " ".join(filter(None, (kernel, build.architecture, build.os_version)))
    return f"{where}: {build.how}, with {build.toolkit}"


def _object_rows(objects: Sequence[ObjectChange]) -> Iterator[tuple[str, str]]:
    by_place: dict[tuple[str, str], list[str]] = {}
    for each in objects:
        by_place.setdefault((each.stage, each.verb), []).append(f"{each.kind} {each.name}")
    for (stage, verb), names in sorted(by_place.items()):
        where = f"stage {stage}: " if stage else ""
        yield "objects", f"{where}{verb} {shortlist(names, _FEW)}"


def _evicts(spec: DriverSpec) -> bool:
    return spec.rollout.evict is not None and spec.upgrade is Upgrade.LIVE


# --- the table -----------------------------------------------------------------------------------


def _node_row(group: NodeGroup, *, evicted: bool) -> Sequence[str]:
    lines = [shortlist(group.nodes, _FEW), *filter(None, [group.why]), *_pod_lines(group, evicted)]
    return group.turn.value, str(len(group.nodes)), group.pool.kernel or "?", "\n".join(lines)


def _pod_lines(group: NodeGroup, evicted: bool) -> Iterator[str]:
    if group.turn is not Turn.WAITS and group.pods:
        held = [f"{pod} on {node}" for node in group.nodes for pod in group.pods.get(node, ())]
        names = shortlist(held, _FEW, of="pods")
        yield f"evicted first: {names}" if evicted else f"held by {names}"


# --- JSON ----------------------------------------------------------------------------------------


def diff_json(found: FileDiff) -> str:
    document = {
        "changes": any(each.changes for each in found.drivers),
        "drivers": [_driver_document(each) for each in found.drivers],
        "notCompared": list(found.others),
    }
    return json.dumps(document, indent=2)


def _driver_document(diff: DriverDiff) -> dict[str, Any]:
    revision, state, spec = diff.revision, diff.rollout, diff.spec
    return {
        "driver": diff.driver,
        "summary": headline(diff),
        "presence": diff.presence.value,
        "changes": diff.changes,
        "revision": None
        if revision is None
        else {
            "kind": revision.kind.value,
            "before": revision.before,
            "beforeVersion": revision.before_version,
            "after": revision.after,
            "afterVersion": revision.after_version,
        },
        "fields": [_field_document(each) for each in diff.fields],
        "stays": [_field_document(each) for each in diff.stays],
        "admission": {
            "refused": diff.admission.refused,
            "warnings": list(diff.admission.warnings),
            "notAsked": diff.admission.not_asked,
        },
        "rollout": None
        if state is None or spec is None
        else {
            "nodes": state.nodes,
            "canaries": state.canaries,
            "maxUnavailable": spec.rollout.max_unavailable,
            "atATime": state.allowed,
            "maxFailed": spec.rollout.max_failed,
            "stopsAt": state.limit,
            "unavailable": list(state.unavailable),
            "upgrade": spec.upgrade.value,
            "paused": spec.rollout.paused,
        },
        "nodes": [
            {
                "when": group.turn.value,
                "kernel": group.pool.kernel,
                "osVersion": group.pool.os_version,
                "architecture": group.pool.architecture,
                "nodes": list(group.nodes),
                "why": group.why,
                "pods": None
                if group.pods is None
                else {node: list(pods) for node, pods in group.pods.items()},
            }
            for group in diff.nodes
        ],
        "builds": [
            {
                "kernel": build.kernel,
                "architecture": build.architecture,
                "osVersion": build.os_version,
                "toolkit": build.toolkit,
                "job": build.job,
                "how": build.how,
            }
            for build in diff.builds
        ],
        "unloads": list(diff.unloads),
        "objects": [
            {"verb": each.verb, "kind": each.kind, "name": each.name, "stage": each.stage}
            for each in diff.objects
        ],
        "notes": list(diff.notes),
    }


def _field_document(change: FieldChange) -> dict[str, Any]:
    return {
        "path": change.path,
        "before": change.before,
        "after": change.after,
        "default": change.default,
        "makesRevision": change.makes_revision,
    }
