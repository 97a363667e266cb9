"""What `install` waits for before it applies anything; the API server is played."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from cluster.install.install import install
from cluster.kube.client import Api
from cluster.kube.errors import NotFound

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nodeside"}}


class GoingNamespace:
    """A namespace that is gone after a few looks, and takes no apply before."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def get(self, *_: object, **__: object) -> dict[str, Any]:
        self.looks -= 1
        if self.looks < 0:
            raise NotFound("gone", status=404)
        return {**NAMESPACE, "metadata": {"name": "nodeside", "deletionTimestamp": "now"}}

    def apply(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self.looks < 0, "the API server takes nothing into a namespace that goes"
        return {**document, "metadata": {"name": "nodeside", "resourceVersion": "2"}}


def test_a_namespace_that_is_still_being_deleted_is_waited_for() -> None:
    api = cast(Api, GoingNamespace(3))

    said = list(install(api, [NAMESPACE], pause=lambda _: None))

    assert said == [
        "Namespace nodeside is still being deleted: waiting for that",
        "Namespace nodeside created",
    ]


def test_one_that_is_not_there_is_made_without_a_word() -> None:
    api = cast(Api, GoingNamespace(0))

    assert list(install(api, [NAMESPACE], pause=lambda _: None)) == ["Namespace nodeside created"]
