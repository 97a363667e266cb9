"""The custom resource definitions: Driver, written by users, and NodeDriver, written by nodes.

Their schemas come from the shared definition of driver.yaml. This file adds what only a cluster
has: the status that the controller writes, the columns of `kubectl get`, short names. Pure.

Driver has a status subresource, so that users who may write Drivers cannot write their status.
NodeDriver has none: a node would need a second request for it, and only one identity writes it.
"""

from __future__ import annotations

from cluster.model.status_schema import STATUS, Schema
from nodeside.protocol.labels import API_GROUP, API_VERSION
from nodeside.spec import node_driver_schema, openapi_schema

VERSION = API_VERSION.removeprefix(f"{API_GROUP}/")
CATEGORY = "nodeside"  # `kubectl get nodeside` shows both


def crd_documents() -> tuple[Schema, ...]:
    """Return both definitions, as documents to apply."""
    return driver_crd(), node_driver_crd()


def driver_crd() -> Schema:
    schema = openapi_schema()
    schema["properties"] |= {"status": STATUS}
    return _definition(
        kind="Driver",
        short_name="drv",
        schema=schema,
        columns=[
            _column("Version", "string", ".spec.version", "Version that is wanted"),
            _column("Nodes", "integer", ".status.nodes.wanted", "Nodes with the hardware"),
            _column("Updated", "integer", ".status.nodes.updated", "Nodes with this version"),
            _column("Ready", "integer", ".status.nodes.ready", "Nodes where it works"),
            _column("Failed", "integer", ".status.nodes.failed", "Nodes where it failed"),
            _column("Status", "string", _of_ready("reason"), "One word on the whole"),
            _column("Age", "date", ".metadata.creationTimestamp", ""),
            _column("Why", "string", _of_ready("message"), "The same in a sentence"),
        ],
        subresources={"status": {}},
    )


def node_driver_crd() -> Schema:
    return _definition(
        kind="NodeDriver",
        short_name="ndrv",
        schema=node_driver_schema(),
        columns=[
            _column("State", "string", ".status.state", "As the node sees it"),
            _column("Version", "string", ".status.version", "Version of the driver"),
            _column("Kernel", "string", ".status.kernel", "Kernel that it is for"),
            _column("Source", "string", ".status.source", "Where the modules came from"),
            _column("Age", "date", ".metadata.creationTimestamp", ""),
            _column("Reason", "string", ".status.reason", "What keeps it from being ready"),
            _column("Message", "string", ".status.message", "The same in a sentence", wide=True),
        ],
    )


def _definition(
    *,
    kind: str,
    short_name: str,
    schema: Schema,
    columns: list[Schema],
    subresources: Schema | None = None,
) -> Schema:
    plural = f"{kind.lower()}s"
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": columns,
    }
    if subresources is not None:
        version["subresources"] = subresources
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{API_GROUP}",
            "labels": {"app.kubernetes.io/managed-by": "nodeside"},
        },
        "spec": {
            "group": API_GROUP,
            "scope": "Cluster",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short_name],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


def _column(name: str, kind: str, path: str, description: str, *, wide: bool = False) -> Schema:
    """Return a column of `kubectl get`; `wide`: only with `-o wide`."""
    column = {"name": name, "type": kind, "jsonPath": path}
    described = {"description": description} if description else {}
    return column | described | ({"priority": 1} if wide else {})


def _of_ready(field: str) -> str:
    return f'.status.conditions[?(@.type=="Ready")].{field}'
