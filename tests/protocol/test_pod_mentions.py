"""Pods in the messages of a node, which knows no more of them than their uids."""

from __future__ import annotations

from nodeside.protocol.pod_mentions import mention_pod, mentions_pods, name_pods

UID = "0b1e3c5d-1f6f-4d1c-9a8b-0123456789ab"
OTHER = "ffffffff-1f6f-4d1c-9a8b-0123456789ab"


def test_a_pod_that_was_mentioned_is_named() -> None:
    message = f"held by python3 (pid 7, {mention_pod(UID)}) and sh (pid 8, {mention_pod(OTHER)})"

    assert name_pods(message, {UID: "default/train-0"}) == (
        "held by python3 (pid 7, pod default/train-0) and sh (pid 8, pod ffffffff…)"
    )


def test_a_message_without_pods_stays() -> None:
    assert mentions_pods(mention_pod(UID))
    assert not mentions_pods("its pod cannot start")
    assert name_pods("its pod cannot start", {UID: "default/train-0"}) == "its pod cannot start"
