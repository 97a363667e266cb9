"""What KWOK plays: its own stages, but a pod may take its time to end, builds are left alone, and
an image that nobody has pushed cannot be pulled.

https://kwok.sigs.k8s.io/docs/user/stages-configuration/
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# On a pod: how long it is still there after its deletion, as Go says a duration.
LINGER = "tests.nodeside.io/linger"
# On a pod of a Job: a test says how it ends.
UNENDED = "tests.nodeside.io/unended"
# The tag of images that are in no registry, and on a pod: now they are.
UNPUSHED = "9.9.9"
PUSHED = "tests.nodeside.io/pushed"
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


# Pods of build Jobs, and others that say so, run until a test says how they end.
_NO_BUILDS = f"""  matchExpressions:
    - key: '.metadata.annotations["{UNENDED}"]'
      operator: 'DoesNotExist'
    - key: '.metadata.labels["app.kubernetes.io/managed-by"]'
      operator: 'NotIn'
      values:
      - 'nodeside-build'
      - 'nodeside-preflight'
"""
# Neither do those run whose image cannot be had; the kubelet tries the init containers first.
_MISSING = f"""    - key: >-
        select(.metadata.annotations["{PUSHED}"] == null)
        | .spec.containers[].image | select(endswith(":{UNPUSHED}"))
      operator: '"""
_ONLY_PUSHED = f"  matchExpressions:\n{_MISSING}DoesNotExist'\n"
_CANNOT_PULL = f"""apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata:
  name: pod-cannot-pull
spec:
  resourceRef:
    apiGroup: v1
    kind: Pod
  selector:
    matchExpressions:
{_MISSING}Exists'
    - key: '.metadata.deletionTimestamp'
      operator: 'DoesNotExist'
    - key: '.status.phase'
      operator: 'In'
      values: ['Pending']
    - key: '.status.containerStatuses[].name'
      operator: 'DoesNotExist'
  next:
    statusTemplate: |
      phase: Pending
      initContainerStatuses:
      {{{{ range .spec.initContainers }}}}
      - name: {{{{ .name | Quote }}}}
        image: {{{{ .image | Quote }}}}
        imageID: ""
        ready: false
        restartCount: 0
        state:
          waiting:
            reason: ImagePullBackOff
            message: 'Back-off pulling image "{{{{ .image }}}}": ErrImagePull: not found'
      {{{{ end }}}}
      containerStatuses:
      {{{{ range .spec.containers }}}}
      - name: {{{{ .name | Quote }}}}
        image: {{{{ .image | Quote }}}}
        imageID: ""
        ready: false
        restartCount: 0
        state:
          waiting:
            reason: PodInitializing
      {{{{ end }}}}
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
    changed = {"pod-complete": _NO_BUILDS, "pod-ready": _ONLY_PUSHED}
    kept = [
        _narrowed(path, changed[path.stem]) if path.stem in changed else path.read_text()
        for path in shipped
        if path.stem != "pod-delete"
    ]
    return "---\n".join([_PACE, *kept, _LINGERING, _CANNOT_PULL])


def _narrowed(path: Path, expressions: str) -> str:
    """A stage of fewer pods."""
    text = path.read_text()
    changed = text.replace("  matchExpressions:\n", expressions, 1)
    assert changed != text, f"KWOK's stage {path.stem} is another one than we know"
    return changed
