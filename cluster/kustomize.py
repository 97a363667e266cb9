"""The kustomize base: what `nodeside-cluster manifests` prints, a file for each template.

    kustomization.yaml
    crds.yaml, namespace.yaml, accounts.yaml, …
    another-namespace/       transformers that an overlay with `namespace: …` takes along

Nothing in the objects but their own fields names the namespace: the controller's command line reads
it from the pod, and the admission policies know the accounts by their names. Pure.
"""

from __future__ import annotations

from cluster.crds import crds
from cluster.manifests import TEMPLATES, Installation, file_text, manifests_by_template, to_yaml

KUSTOMIZATION = "kustomization.yaml"
_ELSEWHERE = "another-namespace"

# Every file that a base can have; which of them it has, the Installation decides.
NAMES = frozenset(
    {
        *(f"{name}.yaml" for name in ("crds", *TEMPLATES)),
        KUSTOMIZATION,
        f"{_ELSEWHERE}/kustomization.yaml",
        f"{_ELSEWHERE}/transformers.yaml",
    }
)


def base(installation: Installation) -> dict[str, str]:
    """The files of the base, by their paths in its directory."""
    parts = {"crds": list(crds()), **manifests_by_template(installation)}
    listed = "".join(f"  - {name}.yaml\n" for name in parts)
    files = {f"{name}.yaml": to_yaml(documents) for name, documents in parts.items()}
    for name in ("kustomization.yaml", "transformers.yaml"):
        files[f"{_ELSEWHERE}/{name}"] = file_text(f"kustomize/{name}")
    return {KUSTOMIZATION: _HEAD + listed} | files


_HEAD = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
"""
