"""driver.yaml: the single definition of a driver.

Every component that needs this definition imports this package. Startup time on a node counts in
milliseconds, so yaml is imported on the first read of a file, and the code that makes schemas and
documentation on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nodeside.spec.document import (
    dump,
    load,
    node_load,
    node_parse,
    parse,
    peek_driver_name,
    to_document,
)
from nodeside.spec.model import Driver, DriverSpec

if TYPE_CHECKING:
    from nodeside.spec.announced import check_labels, check_node_driver
    from nodeside.spec.editor import json_schema
    from nodeside.spec.openapi import node_driver_schema, openapi_schema
    from nodeside.spec.reference import render_reference

__all__ = [
    "Driver",
    "DriverSpec",
    "check_labels",
    "check_node_driver",
    "dump",
    "json_schema",
    "load",
    "node_driver_schema",
    "node_load",
    "node_parse",
    "openapi_schema",
    "parse",
    "peek_driver_name",
    "render_reference",
    "to_document",
]

_LATE = {
    "check_labels": "announced",
    "check_node_driver": "announced",
    "json_schema": "editor",
    "render_reference": "reference",
    "node_driver_schema": "openapi",
    "openapi_schema": "openapi",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(f"nodeside.spec.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
