"""The kustomize base: the output of `nodeside-cluster manifests`, split into files as deploy/ is.

    kustomization.yaml
    crds.yaml, namespace.yaml, accounts.yaml, …
    another-namespace/       transformers for an overlay with `namespace: …`

The objects name the namespace only in their namespace fields and in host names: the controller's
command line reads it from the pod, and the admission policies match the accounts by name.
"""

from __future__ import annotations

from cluster.install.crds import crd_documents
from cluster.install.manifests import (
    FILES,
    InstallSettings,
    manifests_by_file,
    text_of,
    to_yaml,
)

KUSTOMIZATION = "kustomization.yaml"
_ELSEWHERE = "another-namespace"
_TRANSFORMERS = f"{_ELSEWHERE}/transformers.yaml"

# Every file that a base can have; the InstallSettings decides which of them it has.
NAMES = frozenset(
    {
        *(f"{name}.yaml" for name in ("crds", *FILES)),
        *(KUSTOMIZATION, f"{_ELSEWHERE}/{KUSTOMIZATION}", _TRANSFORMERS),
    }
)
_HEAD = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
"""


def base_files(installation: InstallSettings) -> dict[str, str]:
    """Return the files of the base by their paths in its directory."""
    parts = {"crds": crd_documents(), **manifests_by_file(installation)}
    transformers = text_of(_TRANSFORMERS)
    if installation.openshift and installation.service_monitor:
        transformers += "---\n" + text_of(f"{_ELSEWHERE}/openshift-monitor.yaml")
    return {
        KUSTOMIZATION: _HEAD + "".join(f"  - {name}.yaml\n" for name in parts),
        **{f"{name}.yaml": to_yaml(part) for name, part in parts.items()},
        f"{_ELSEWHERE}/{KUSTOMIZATION}": text_of(f"{_ELSEWHERE}/{KUSTOMIZATION}"),
        _TRANSFORMERS: transformers,
    }
