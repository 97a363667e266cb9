"""What a real API server says of the kind of its objects, and that the fake one says the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.install.manifests import InstallSettings
from cluster.kube.client import Api
from cluster.kube.resources import CONFIG_MAPS, CRDS, DAEMON_SETS, DRIVERS, Resource
from cluster.model.names import NAMESPACE
from tests.cluster.fakes.model import EDU
from tests.cluster.fakes.scripted import Asked
from tests.cluster.fakes.stored import StoredObjects
from tests.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

NAME = "listed-or-alone"
_POD = {
    "metadata": {"labels": {"app": NAME}},
    "spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "a", "image": "a.b/c:1"}]},
}
_BODIES: dict[Resource, dict[str, Any]] = {
    CONFIG_MAPS: {"data": {"a": "b"}},
    DAEMON_SETS: {"spec": {"selector": {"matchLabels": {"app": NAME}}, "template": _POD}},
    DRIVERS: {"spec": EDU},
}
_Kinds = tuple[object, object]


def made(resource: Resource) -> dict[str, Any]:
    metadata = {"name": NAME} | ({"namespace": NAMESPACE} if resource.namespaced else {})
    kinds = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**kinds, "metadata": metadata, **_BODIES[resource]}


def kinds(document: Any) -> _Kinds:
    return document.get("apiVersion"), document.get("kind")


def said(answer: Any, name: str) -> tuple[_Kinds, _Kinds]:
    """What a list says of itself, and what the object of this name in it says."""
    [item] = [each for each in answer["items"] if each["metadata"]["name"] == name]
    return kinds(answer), kinds(item)


def read_both(plane: ControlPlane, path: str, fake: StoredObjects) -> tuple[Any, Any]:
    return plane.do("GET", path), json.loads(fake.answer(Asked("GET", path, {}, "")).body)


@pytest.mark.parametrize("resource", [CONFIG_MAPS, DAEMON_SETS, DRIVERS], ids=lambda r: r.plural)
def test_a_list_says_the_kind_once_or_in_each_object_and_the_fake_one_does_the_same(
    control_plane: ControlPlane, api: Api, installed: InstallSettings, resource: Resource
) -> None:
    namespace = NAMESPACE if resource.namespaced else ""
    document, path = made(resource), resource.path(namespace=namespace)
    fake = StoredObjects([document])
    api.apply(document)
    try:
        real, played = read_both(control_plane, path, fake)
        alone = read_both(control_plane, resource.path(NAME, namespace=namespace), fake)
        found = api.list(resource, lambda item: item, namespace=namespace)
        version = str(int(found.resource_version) - 1)
        labelled = {**document, "metadata": {**document["metadata"], "labels": {"a": "b"}}}
        api.apply(labelled)
        with_watch = next(iter(api.watch(resource, version, namespace=namespace, seconds=20.0)))
    finally:
        api.delete(resource, NAME, namespace=namespace)

    whole = (resource.api_version, resource.kind)
    of_list = (resource.api_version, f"{resource.kind}List")
    item = whole if resource is DRIVERS else (None, None)
    assert said(real, NAME) == said(played, NAME) == (of_list, item)
    assert [kinds(each) for each in alone] == [whole, whole]
    assert kinds(with_watch.object) == whole
    assert {kinds(each) for each in found.items} == {whole}


def test_a_definition_is_an_object_of_a_kind_that_is_compiled_in(
    control_plane: ControlPlane, installed: InstallSettings
) -> None:
    name = f"drivers.{DRIVERS.group}"
    whole = control_plane.do("GET", CRDS.path(name))
    real, played = read_both(control_plane, CRDS.path(), StoredObjects([dict(whole)]))

    assert said(real, name) == said(played, name)
    assert said(real, name)[1] == (None, None)
