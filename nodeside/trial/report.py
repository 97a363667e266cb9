"""Reads the node side's report. Whoever owns the machine may have written it, so it is data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

_LONGEST = 1 << 20  # characters; a true report has some thousands. In memory it takes far more
_LONGEST_DEVICES = 4 << 20  # characters; 4096 devices without attributes are one million
_DEEPEST = 20  # levels; a true report has eight
_LARGEST = 2**53  # of a number, so that every reader of JSON can hold it

# Each field that the trial looks into, and its type. `None` and a missing field are no mistakes.
_FIELDS: Mapping[str, type] = {
    "rungs": list,
    "checks": list,
    "services": list,
    "modules": list,
    "notes": list,
    "stages": dict,
    "announced": dict,
}
_ANNOUNCED: Mapping[str, type] = {"labels": dict, "nodeDriver": dict}
_NODE_DRIVER: Mapping[str, type] = {"metadata": dict, "status": dict}


def read_report(text: str) -> Mapping[str, Any]:
    """Return the JSON document that `run --once` printed; empty if it ended before that.

    If the document cannot be one of ours, return a report that says so.
    """
    if len(text) > _LONGEST:
        return _unbelieved_report()
    try:
        document = json.loads(text)
    except RecursionError:
        return _unbelieved_report()
    except ValueError:
        return {}
    if not isinstance(document, dict):
        return {}
    return document if _is_moderate(document) and _is_report(document) else _unbelieved_report()


def read_devices(text: str) -> Mapping[str, Any] | None:
    """Return the document of `driver devices`; None if it is not one."""
    if len(text) > _LONGEST_DEVICES:
        return None
    try:
        document = json.loads(text)
    except (RecursionError, ValueError):
        return None
    if not isinstance(document, dict) or not _is_moderate(document):
        return None
    return document if _is_list_of(document.get("resources"), _is_resource) else None


def _is_resource(found: object) -> bool:
    return (
        isinstance(found, dict)
        and isinstance(found.get("resource"), str)
        and _is_list_of(found.get("devices"), _is_device)
        and _is_list_of(found.get("notes"), _is_text)
    )


def _is_device(device: object) -> bool:
    return (
        isinstance(device, dict)
        and all(isinstance(device.get(name), str) for name in ("id", "why"))
        and _is_list_of(device.get("nodes"), _is_text)
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list_of(values: object, holds: Callable[[object], bool]) -> bool:
    return isinstance(values, list) and all(map(holds, values))


def _unbelieved_report() -> Mapping[str, Any]:
    return {
        "state": "failed",
        "message": "the machine's report is not one of nodeside, so it is not believed",
    }


def _is_moderate(value: object, depth: int = 0) -> bool:
    """Return whether a document is neither too deep nor has numbers that cannot be shown."""
    if isinstance(value, int | float):
        return abs(value) <= _LARGEST  # false for NaN
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < _DEEPEST and all(_is_moderate(item, depth + 1) for item in items)


def _is_report(report: Mapping[str, Any]) -> bool:
    if not _has_types(report, _FIELDS):
        return False
    announced = report.get("announced") or {}
    return (
        all(isinstance(seconds, int | float) for seconds in (report.get("stages") or {}).values())
        and all(isinstance(name, str) for name in report.get("modules") or ())
        and all(isinstance(check, dict) for check in report.get("checks") or ())
        and all(_is_service(service) for service in report.get("services") or ())
        and all(_is_rung(rung) for rung in report.get("rungs") or ())
        and _has_types(announced, _ANNOUNCED)
        and _has_types(announced.get("nodeDriver") or {}, _NODE_DRIVER)
    )


def _is_service(service: object) -> bool:
    return isinstance(service, dict) and all(
        isinstance(service.get(name), str) for name in ("name", "message")
    )


def _is_rung(rung: object) -> bool:
    return isinstance(rung, dict) and {"rung", "served", "why"} <= rung.keys()


def _has_types(document: Mapping[str, Any], fields: Mapping[str, type]) -> bool:
    return all(
        document.get(name) is None or isinstance(document[name], kind)
        for name, kind in fields.items()
    )
