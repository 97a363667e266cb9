"""Lanes: sequences of dependent actions, in which a failure stops the remaining actions.

Each Driver has a lane. Its stages, its status, its cordons, and each node with a failed action have
lanes of their own.
"""

from __future__ import annotations


def lane_of(driver: str, content: str) -> str:
    """Return the lane for writing stage objects; a failure in it does not stop a rollout.

    `content` is a hash of what is written, so that changed content is tried at once.
    """
    return f"{driver}/stages.{content}"


def driver_of(lane: str) -> str:
    """Return the Driver that any lane belongs to."""
    return lane.partition("/")[0]


def is_stage_lane(lane: str) -> bool:
    return "/stages." in lane


def cordon_lane_of(driver: str) -> str:
    """Return the lane for ending our cordons; no other action of the Driver depends on it."""
    return f"{driver}/cordons"


def status_lane_of(driver: str) -> str:
    """Return the lane for status failures, which block no other action of the Driver."""
    return f"{driver}/status"


def node_lane_of(lane: str, node: str) -> str:
    """Return the lane for failures on one node; other nodes do not wait for it."""
    return f"{lane}{_OF_NODE}{node}"


def whole_lane_of(lane: str) -> str:
    """Return the lane that a node lane belongs to."""
    return lane.partition(_OF_NODE)[0]


def is_node_lane(lane: str) -> bool:
    return _OF_NODE in lane


_OF_NODE = "/nodes/"
