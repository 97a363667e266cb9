"""What KWOK plays: its own stages, but a pod may take its time to end, and builds are left alone.

https://kwok.sigs.k8s.io/docs/user/stages-configuration/
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# On a pod: how long it is still there after its deletion, as Go says a duration.
LINGER = "tests.nodeside.io/linger"
# On a node: whoever sets it keeps the node's status, such as a node that is down.
OWN_STATUS = ("kwok.x-k8s.io/status", "custom")

_LINGERING = """apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata:
  name: pod-delete
spec:
  resourceRef:
    apiGroup: v1
    kind: Pod
  selector:
    matchExpressions:
    - key: '.metadata.deletionTimestamp'
      operator: 'Exists'
  delay:
    durationMilliseconds: 0
    durationFrom:
      expressionFrom: '.metadata.annotations["tests.nodeside.io/linger"]'
  next:
    delete: true
"""


# Pods of build Jobs run until a test says how they end.
_NO_BUILDS = """  matchExpressions:
    - key: '.metadata.labels["app.kubernetes.io/managed-by"]'
      operator: 'NotIn'
      values:
      - 'nodeside-build'
      - 'nodeside-preflight'
"""
# Its defaults are 4 of each, which is slow where one request takes long.
_PACE = """apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  podPlayStageParallelism: 16
  nodePlayStageParallelism: 16
  nodeLeaseParallelism: 16
  podsOnNodeSyncParallelism: 16
"""


def stages(shipped: Iterable[Path]) -> str:
    """One YAML file of KWOK's options and all stages."""
    kept = [
        _without_builds(path.read_text()) if path.stem == "pod-complete" else path.read_text()
        for path in shipped
        if path.stem != "pod-delete"
    ]
    return "---\n".join([_PACE, *kept, _LINGERING])


def _without_builds(text: str) -> str:
    changed = text.replace("  matchExpressions:\n", _NO_BUILDS, 1)
    assert changed != text, "KWOK's stage pod-complete is another one than we know"
    return changed
