"""Lanes: each is a sequence of actions that rest on each other; what fails stops the rest of it.

A Driver has one, each of its stages has one, and so have its status, its cordons, and each node of
which something was refused.
"""

from __future__ import annotations


def lane_of(driver: str, content: str) -> str:
    """The lane in which objects of stages are written: what is refused there stops no rollout.

    `content` is a hash of what there is to write: something else is tried at once.
    """
    return f"{driver}/stages.{content}"


def driver_of(lane: str) -> str:
    """The Driver that an action is about, in whatever lane."""
    return lane.partition("/")[0]


def is_stage_lane(lane: str) -> bool:
    return "/stages." in lane


def cordon_lane_of(driver: str) -> str:
    """The lane in which our cordons are ended: nothing of the Driver rests on it."""
    return f"{driver}/cordons"


def status_lane_of(driver: str) -> str:
    """By this name a refused status is remembered: it holds up no other action of the Driver."""
    return f"{driver}/status"


def node_lane_of(lane: str, node: str) -> str:
    """By this name is remembered what was refused of one node: others do not wait for it."""
    return f"{lane}{_OF_NODE}{node}"


def whole_lane_of(lane: str) -> str:
    """The lane itself, of one of its nodes."""
    return lane.partition(_OF_NODE)[0]


def is_node_lane(lane: str) -> bool:
    return _OF_NODE in lane


_OF_NODE = "/nodes/"
