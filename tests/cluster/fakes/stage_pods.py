"""Stages as a watch shows them."""

from __future__ import annotations

from typing import Any

from cluster.model.parse import driver_from
from cluster.model.snapshot import Snapshot
from tests.cluster.fakes.model import document
from tests.patience import patience

STAGES = [{"name": "first", "manifests": "one"}]


LONG = patience(30.0)  # seconds: a deadline that only a broken test meets


def snapshot(**spec: Any) -> Snapshot:
    return Snapshot(drivers={"edu": driver_from(document(**spec))})
