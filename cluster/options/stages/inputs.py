"""What the stages of a Driver depend on, from the rest of its plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.driver.nodes import DriverNode
from cluster.model.snapshot import Assignment, DriverObject, Pool, Snapshot
from cluster.model.stages import FramedDocuments, Rendered
from nodeside.spec import Driver


@dataclass(frozen=True)
class StageInputs:
    """Plain values, so that stages know no other option.

    `owner` is the Driver without its status. `drivers` has the Driver as of each revision, and
    `revision` is the one that new nodes get: a canary must not replace all stages. `members` are
    its nodes as observed, `announced` its nodes as this plan leaves them. `ending` are members that
    keep their revision until their stages have ended, `occupied` the names of all nodes with pods
    of stages. `desired` are the assignments by DaemonSet, `toolkits` the images of the pools.
    `framed` keeps the documents of stages, with the inputs they were made from.
    """

    snapshot: Snapshot
    resource: DriverObject
    owner: DriverObject
    driver: Driver
    drivers: Mapping[str, Driver]
    revision: str
    members: Sequence[DriverNode]
    announced: Sequence[DriverNode]
    ending: Sequence[DriverNode]
    occupied: frozenset[str]
    desired: Mapping[str, Assignment]
    toolkits: Mapping[Pool, str]
    framed: dict[str, tuple[Rendered | None, object, FramedDocuments]]
