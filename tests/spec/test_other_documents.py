"""A document of another tool is named, with what to type; so are the words of other tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeside.errors import SpecError
from nodeside.spec import load, parse
from nodeside.spec.model import Driver
from nodeside.spec.other_documents import list_mentioned_fields
from nodeside.spec.schema import ListOf, Section, Shape, shape_of
from tests.spec.documents import document

GPU = "NVIDIA's GPU Operator, which brings a driver of its own"
INIT = "make a driver.yaml from the driver's source: nodeside init DIRECTORY"


@pytest.mark.parametrize(
    ("group", "kind", "words", "remedy"),
    [
        (
            "kmm.sigs.x-k8s.io/v1beta1",
            "Module",
            "expected kind Driver, got Module of Kernel Module Management",
            "make a Driver of it: nodeside-cluster import {} > driver.yaml",
        ),
        (
            "kmm.sigs.k8s.io/v1beta1",  # the host of its web page, seen in documents
            "Module",
            "got Module of Kernel Module Management",
            "nodeside-cluster import {} > driver.yaml",
        ),
        (
            "hub.kmm.sigs.x-k8s.io/v1beta1",
            "ManagedClusterModule",
            "a Module for other clusters",
            "put its spec.moduleSpec into a Module",
        ),
        (
            "kmm.sigs.x-k8s.io/v1beta2",
            "PreflightValidation",
            "asks whether Modules build",
            "spec.preflight of a Driver",
        ),
        ("kmm.sigs.x-k8s.io/v1beta1", "NodeModulesConfig", "writes it for itself", "kubectl get"),
        ("nvidia.com/v1", "ClusterPolicy", GPU, INIT),
        ("nvidia.com/v1alpha1", "NVIDIADriver", "got NVIDIADriver of NVIDIA's GPU Operator", INIT),
        ("mellanox.com/v1alpha1", "NicClusterPolicy", "of NVIDIA's Network Operator", INIT),
        ("amd.com/v1alpha1", "DeviceConfig", "got DeviceConfig of AMD's GPU Operator", INIT),
        ("sro.openshift.io/v1beta1", "SpecialResource", "Special Resource Operator", "see docs/"),
        ("nodeside.io/v1alpha1", "NodeDriver", "a node writes about a driver", "get nodedrivers"),
    ],
)
def test_a_document_of_another_tool_is_named_and_nothing_else_is_said_of_it(
    tmp_path: Path, group: str, kind: str, words: str, remedy: str
) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(f"apiVersion: {group}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{a: b}}\n")

    with pytest.raises(SpecError) as caught:
        load(path)

    assert str(caught.value).startswith(f"{path}: expected kind Driver, got {kind} ")
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert remedy.format(path) in caught.value.hint


@pytest.mark.parametrize(
    ("kinds", "mistake"),
    [
        ({"apiVersion": "v1"}, "$.apiVersion: expected nodeside.io/v1alpha1"),
        ({"kind": "Module"}, "$.kind: expected Driver"),
        ({"apiVersion": "apps/v1", "kind": "DaemonSet"}, "$.kind: expected Driver"),
        ({"apiVersion": ["nvidia.com/v1"], "kind": {}}, "$.kind: expected Driver"),
    ],
)
def test_a_kind_that_nobody_knows_is_a_mistake_like_any_other(
    kinds: dict[str, Any], mistake: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse(document() | kinds)
    assert mistake in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ({"selector": {"a": "b"}}, "nodes are selected by spec.hardware.nodeSelector"),
        ({"moduleLoader": {"container": {}}}, "nodeside-cluster import FILE"),
        ({"usePrecompiled": True}, "come from spec.prebuilt.sources"),
        ({"repository": "nvcr.io/nvidia"}, "spec.image has all of it: REGISTRY/REPOSITORY:TAG"),
        ({"imageRepoSecret": {"name": "x"}}, "--pull-secret NAME"),
        ({"modules": [{"name": "edu", "inTreeModulesToRemove": ["a"]}]}, "spec.conflicts.modules"),
        ({"modules": [{"name": "edu", "moduleName": "a"}]}, "it is name"),
    ],
)
def test_a_field_of_another_tool_says_what_ours_is(spec: dict[str, Any], remedy: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(document(**spec))
    assert re.search(f"unknown field; .*{re.escape(remedy)}", str(caught.value))
    assert "known fields" not in str(caught.value)


def test_the_fields_that_are_named_instead_are_there() -> None:
    assert len(list_mentioned_fields()) > 15
    assert list_mentioned_fields() <= set(fields_of(shape_of(Driver).fields[1].shape))


def fields_of(shape: Shape, above: str = "") -> Iterator[str]:
    if isinstance(shape, ListOf):
        yield from fields_of(shape.entry, above)
    for field in shape.fields if isinstance(shape, Section) else ():
        name = f"{above}{field.json_name}"
        yield name
        yield from fields_of(field.shape, f"{name}.")
