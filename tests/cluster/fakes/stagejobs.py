"""Jobs of stages in the model: their manifests, and how they end."""

from __future__ import annotations

from typing import Any

from cluster.model.snapshot import StageJob
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.stagedriver import up, with_stages

_JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
  annotations: {{nodeside.io/run: {run}}}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: registry.example.com/{name}:1
"""


def job(name: str = "selftest", run: str = "perNode") -> str:
    return _JOB.format(name=name, run=run)


def with_job(nodes: int = 2, text: str = "", **spec: Any) -> Model:
    """The first of two stages is a Job, on each node if nothing else is said."""
    model = with_stages(nodes, **spec)
    model.config_map("one", job_yaml=text or job())
    return model


def running(model: Model) -> dict[str, str]:
    """The Jobs of stages that run, by node ("" for any)."""
    found = [each for each in model.stage_jobs() if not each.finished]
    nodes = {each.run.node: each.name for each in found}
    assert len(nodes) == len(found), "two at once"
    return nodes


def complete(model: Model) -> Model:
    """All that run come to a good end, also those that begin then."""
    up(model)
    while running(model):
        for name in running(model).values():
            model.end_job(name)
        up(model)
    return model


def of_node(model: Model, node: str) -> StageJob:
    [found] = [each for each in model.stage_jobs() if each.run.node == node]
    return found
