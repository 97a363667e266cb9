"""The kustomize base: the output of `nodeside-cluster manifests`, with one file for each template.

    kustomization.yaml
    crds.yaml, namespace.yaml, accounts.yaml, …
    another-namespace/       transformers for an overlay with `namespace: …`

The objects name the namespace only in their namespace fields and in host names: the controller's
command line reads it from the pod, and the admission policies match the accounts by name. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cluster.install.crds import crds
from cluster.install.manifests import (
    TEMPLATES,
    InstallSettings,
    file_text,
    manifests_by_template,
    to_yaml,
)
from cluster.model.names import CONTROLLER

KUSTOMIZATION = "kustomization.yaml"
_ELSEWHERE = "another-namespace"
_TRANSFORMERS = "transformers.yaml"

# Every file that a base can have; the InstallSettings decides which of them it has.
NAMES = frozenset(
    {
        *(f"{name}.yaml" for name in ("crds", *TEMPLATES)),
        KUSTOMIZATION,
        *(f"{_ELSEWHERE}/{name}" for name in (KUSTOMIZATION, _TRANSFORMERS)),
    }
)

Document = Mapping[str, Any]


def base(installation: InstallSettings) -> dict[str, str]:
    """Return the files of the base by their paths in its directory."""
    parts = {"crds": list(crds()), **manifests_by_template(installation)}
    listed = "".join(f"  - {name}.yaml\n" for name in parts)
    documents = [document for part in parts.values() for document in part]
    return {
        KUSTOMIZATION: _HEAD + listed,
        **{f"{name}.yaml": to_yaml(part) for name, part in parts.items()},
        f"{_ELSEWHERE}/{KUSTOMIZATION}": file_text(f"kustomize/{KUSTOMIZATION}"),
        f"{_ELSEWHERE}/{_TRANSFORMERS}": to_yaml(_transformers(documents, installation.namespace)),
    }


_HEAD = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
"""


def _transformers(documents: Iterable[Document], home: str) -> Iterator[Document]:
    """Yield the fixes needed after `namespace: …` has moved everything into one namespace.

    - Objects of other namespaces are moved back. Their subjects get the namespace of the accounts,
      because kustomize updates subjects only within one namespace.
    - A host name (`metrics.nodeside.svc`) gets the new namespace as its second part.
    - kustomize wrongly adds a namespace to cluster-scoped kinds that it does not know. It is
      removed after an `add`, so that the removal works for the kinds that it does know as well.
    """
    documents = tuple(documents)
    for document in documents:
        place = document["metadata"].get("namespace", home)
        if place != home:
            put_back = {"op": "replace", "path": "/metadata/namespace", "value": place}
            yield _patch(f"back-to-{place}", _target(document), put_back)
            if any(each["namespace"] == home for each in document.get("subjects", ())):
                yield _replacement("subjects", document, f"subjects.[namespace={home}].namespace")
        for path in _paths(document, f".{home}.svc"):
            yield _replacement("host", document, path, delimiter=".", index=1)
    kinds = {d["kind"] for d in documents if "namespace" not in d["metadata"]} - {"Namespace"}
    where = {"path": "/metadata/namespace"}
    target = {"kind": f"({'|'.join(sorted(kinds))})"}
    yield _patch(
        "no-namespace", target, {"op": "add", **where, "value": "-"}, {"op": "remove", **where}
    )


def _target(document: Document) -> dict[str, str]:
    return {"kind": document["kind"], "name": document["metadata"]["name"]}


def _patch(name: str, target: Document, *operations: Document) -> Document:
    what = "-".join([name, *target.values()]).lower() if "name" in target else name
    return _transformer("PatchTransformer", what, target=target, patch=json.dumps(operations))


def _replacement(what: str, document: Document, path: str, **options: Any) -> Document:
    """Return a transformer that sets a field to the namespace of our accounts."""
    source = {"kind": "ServiceAccount", "name": CONTROLLER, "fieldPath": "metadata.namespace"}
    target = {"select": _target(document), "fieldPaths": [path]}
    if options:
        target["options"] = options
    name = f"{what}-of-{document['metadata']['name']}"
    return _transformer(
        "ReplacementTransformer", name, replacements=[{"source": source, "targets": [target]}]
    )


def _paths(value: Any, ending: str, path: str = "") -> Iterator[str]:
    """Yield the kustomize field paths of all strings with this ending."""
    if isinstance(value, str) and value.endswith(ending):
        yield path
    below = dict(enumerate(value)) if isinstance(value, list) else value
    for key, each in below.items() if isinstance(below, Mapping) else ():
        yield from _paths(each, ending, f"{path}.{key}" if path else str(key))


def _transformer(kind: str, name: str, **more: Any) -> Document:
    return {"apiVersion": "builtin", "kind": kind, "metadata": {"name": name}, **more}
