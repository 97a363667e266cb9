"""The kustomize base: what `nodeside-cluster manifests` prints, a file for each template.

    kustomization.yaml
    crds.yaml, namespace.yaml, accounts.yaml, …
    another-namespace/       transformers that an overlay with `namespace: …` takes along

Nothing in the objects but their own fields names the namespace: the controller's command line reads
it from the pod, and the admission policies know the accounts by their names. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cluster.crds import crds
from cluster.manifests import TEMPLATES, Installation, file_text, manifests_by_template, to_yaml

KUSTOMIZATION = "kustomization.yaml"
_ELSEWHERE = "another-namespace"
_TRANSFORMERS = "transformers.yaml"

# Every file that a base can have; which of them it has, the Installation decides.
NAMES = frozenset(
    {
        *(f"{name}.yaml" for name in ("crds", *TEMPLATES)),
        KUSTOMIZATION,
        *(f"{_ELSEWHERE}/{name}" for name in (KUSTOMIZATION, _TRANSFORMERS)),
    }
)

Document = Mapping[str, Any]


def base(installation: Installation) -> dict[str, str]:
    """The files of the base, by their paths in its directory."""
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
    """What is to be put right after `namespace: …` has put everything into one namespace.

    What is in a namespace that is not ours goes back there, and its subjects, which kustomize finds
    only within a namespace, are told where the accounts are. Kinds without a namespace that it does
    not know get one by mistake. That is taken away, by `add` first: there is then something to
    remove, whatever kustomize knows.
    """
    documents = tuple(documents)
    for document in documents:
        place = document["metadata"].get("namespace", home)
        if place != home:
            put_back = {"op": "replace", "path": "/metadata/namespace", "value": place}
            yield _patch(f"back-to-{place}", _target(document), put_back)
            subjects = document.get("subjects", ())
            if accounts := [each["name"] for each in subjects if each["namespace"] == home]:
                yield _subjects(document, accounts[0], home)
    kinds = {d["kind"] for d in documents if "namespace" not in d["metadata"]} - {"Namespace"}
    path = {"path": "/metadata/namespace"}
    target = {"kind": f"({'|'.join(sorted(kinds))})"}
    yield _patch(
        "no-namespace", target, {"op": "add", **path, "value": "-"}, {"op": "remove", **path}
    )


def _target(document: Document) -> dict[str, str]:
    return {"kind": document["kind"], "name": document["metadata"]["name"]}


def _patch(name: str, target: Document, *operations: Document) -> Document:
    what = "-".join([name, *target.values()]).lower() if "name" in target else name
    return _transformer("PatchTransformer", what, target=target, patch=json.dumps(operations))


def _subjects(document: Document, account: str, home: str) -> Document:
    """All accounts of ours are where this one is found."""
    source = {"kind": "ServiceAccount", "name": account, "fieldPath": "metadata.namespace"}
    target = {
        "select": _target(document),
        "fieldPaths": [f"subjects.[namespace={home}].namespace"],
    }
    name = f"subjects-of-{document['metadata']['name']}"
    return _transformer(
        "ReplacementTransformer", name, replacements=[{"source": source, "targets": [target]}]
    )


def _transformer(kind: str, name: str, **more: Any) -> Document:
    return {"apiVersion": "builtin", "kind": kind, "metadata": {"name": name}, **more}
