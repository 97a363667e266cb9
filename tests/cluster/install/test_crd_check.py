"""Definitions in the cluster that are older than the program: said, with the command that helps."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.leader_status import leader_status
from cluster.install.crd_check import REMEDY, find_missing_fields, missing_fields_in_words
from cluster.install.crds import crd_documents
from cluster.kube.errors import ApiError
from nodeside.protocol.labels import API_VERSION
from tests.cluster.fakes.scripted import Said, ScriptedServer

PATH = f"/openapi/v3/apis/{API_VERSION}"


def served() -> dict[str, Any]:
    """What an API server publishes of our definitions."""
    return {
        crd["spec"]["names"]["kind"]: copy.deepcopy(
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        )
        for crd in crd_documents()
    }


def published(schemas: dict[str, Any]) -> Said:
    named = {f"io.nodeside.v1alpha1.{kind}": schema for kind, schema in schemas.items()}
    return Said(body=json.dumps({"components": {"schemas": named}}))


def asked_of(tmp_path: Path, answer: Said) -> tuple[str, ...]:
    with ScriptedServer() as server:
        server.always_said[PATH] = answer
        return find_missing_fields(server.api(tmp_path))


def test_definitions_of_this_program_lack_nothing(tmp_path: Path) -> None:
    assert asked_of(tmp_path, published(served())) == ()
    assert missing_fields_in_words(()) == ""


def test_what_an_older_definition_lacks_is_named_and_not_what_is_below_it(tmp_path: Path) -> None:
    old = served()
    driver = old["Driver"]["properties"]
    del driver["spec"]["properties"]["stages"]
    del driver["status"]["properties"]["pools"]["items"]["properties"]["link"]
    del old["NodeDriver"]["properties"]["status"]["properties"]["bootId"]

    missing = asked_of(tmp_path, published(old))

    assert missing == (
        "Driver.spec.stages",
        "Driver.status.pools[].link",
        "NodeDriver.status.bootId",
    )
    assert missing_fields_in_words((*missing, "and.another")) == (
        "the definitions in the cluster are older than this program and do not have "
        "Driver.spec.stages, Driver.status.pools[].link, NodeDriver.status.bootId and 1 more"
    )


def test_what_cannot_be_read_is_nothing_to_complain_of(tmp_path: Path) -> None:
    for answer in (Said(403), Said(404), Said(body="<html>"), Said(body='{"components": {}}')):
        assert asked_of(tmp_path, answer) == ()


def test_who_looks_is_told_before_everything_else(tmp_path: Path) -> None:
    old = served()
    del old["Driver"]["properties"]["status"]["properties"]["lastGoodRevision"]
    with ScriptedServer() as server:
        server.always_said[PATH] = published(old)
        server.always = lambda _: Said(403, json.dumps({"message": "no"}))
        found = leader_status(server.api(tmp_path), "nodeside")

    unknown, said = found.words.splitlines()
    assert unknown.startswith("whether a controller leads is not known")
    assert said.endswith(f"do not have Driver.status.lastGoodRevision; {REMEDY}")
    assert not found.absent


def test_an_answer_that_is_of_no_api_server_is_said(tmp_path: Path) -> None:
    for answer in (Said(400, "Client sent an HTTP request to an HTTPS server."), Said(body="<p>")):
        with ScriptedServer() as server:
            server.always_said["/version"] = answer
            with pytest.raises(ApiError, match=f"{server.url} is not a Kubernetes API server"):
                server.api(tmp_path).check_reachable()
    for answer in (Said(401), Said(403), Said(503)):
        with ScriptedServer() as server:
            server.always_said["/version"] = answer
            server.api(tmp_path).check_reachable()  # what is asked next says what is wrong
