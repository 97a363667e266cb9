"""Image streams that nobody can ask for: what there is stays, and nobody else waits for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cluster.cache.cache import ClusterCache, read_once
from cluster.driver.toolkit_image import CurrentImage, Link, resolve_toolkit_image
from cluster.manager.probes import check_readiness
from cluster.model.snapshot import ImageStream, NotListed, Pool, Settings
from nodeside.spec.fleet import Toolkit
from tests.cluster.fakes.model import KERNEL, Model, document
from tests.cluster.fakes.scripted import Asked, Said, ScriptedServer
from tests.patience import patience

LONG = patience(60.0)  # seconds: a deadline that only a broken test meets
STREAM = "openshift/driver-toolkit"
OS, COMING_OS = "418.94.202501221327-0", "418.94.202503102036-0"
RHCOS = f"Red Hat Enterprise Linux CoreOS {OS}"
WHY = "503 Service Unavailable from the API server: GET /apis/image.openshift.io"
DOWN = NotListed(WHY)
STORE = {"sources": [{"oci": "registry.example.com/bundles/edu", "publish": True}]}


def tags(*versions: str) -> dict[str, ImageStream]:
    return {STREAM: ImageStream(STREAM, {each: f"quay.io/dtk:{each}" for each in versions})}


def running(**spec: Any) -> Model:
    """A driver that works on a node of CoreOS, with a toolkit of the image stream."""
    model = Model(image_streams=tags(OS, COMING_OS))
    model.add(["n0"], os_image=RHCOS)
    model.apply_driver(**{"toolkit": {}, **spec})
    model.settle()
    for job in list(model.jobs):
        model.end_build(name=job)
    model.settle_ready()
    return model


# --- the first look -------------------------------------------------------------------------------


def no_streams(asked: Asked) -> Said:
    """An aggregated API server that is down, behind an API server that is not."""
    if "/apis/image.openshift.io" in asked.path:
        return Said(503, json.dumps({"kind": "Status", "message": "service unavailable"}))
    items = [document()] if asked.path.partition("?")[0].endswith("/drivers") else []
    return Said(body=json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}))


def test_an_api_that_is_down_from_the_start_keeps_nobody_else_from_being_served(
    tmp_path: Path,
) -> None:
    with ScriptedServer() as server:
        server.always = no_streams
        with ClusterCache(server.api(tmp_path, deadline=3.0), Settings(), lambda: None) as view:
            assert view.wait_synced(LONG)
            assert view.refresh_watches(LONG, optional=False)
            found, report = view.make_snapshot(), check_readiness(view.health())

    assert found.drivers.keys() == {"edu"}
    assert isinstance(found.image_streams, NotListed)
    assert report.healthy
    assert "ImageStream: not listed yet" in report.text


def test_a_command_that_looks_once_says_that_it_does_not_know_them(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.always = no_streams
        found = read_once(server.api(tmp_path, deadline=3.0), Settings())

    assert isinstance(found.image_streams, NotListed)
    assert "service unavailable" in found.image_streams.why


# --- what is decided meanwhile --------------------------------------------------------------------


def test_a_driver_that_names_its_toolkit_does_not_need_them() -> None:
    model = Model(image_streams=DOWN)
    model.add(["n0"], os_image=RHCOS)
    model.apply_driver(toolkit={"images": {KERNEL: "example.com/toolkit:1"}})

    model.settle_ready()

    assert model.condition("Ready")["status"] == "True"


def test_a_driver_that_needs_them_says_what_it_waits_for_and_goes_on_by_itself() -> None:
    model = Model(image_streams=DOWN)
    model.add(["n0"], os_image=RHCOS)
    model.apply_driver(toolkit={})
    model.settle()

    said = model.condition("Degraded")
    assert said["reason"] == "ToolkitMissing"
    assert f"the image streams are not known: {WHY}; wait until they are" in said["message"]

    model.image_streams = tags(OS)
    model.settle_ready()
    assert model.condition("Ready")["status"] == "True"


def test_what_an_image_stream_gave_stays_and_nothing_is_written() -> None:
    for spec in ({}, {"toolkit": {"imageTemplate": "example.com/toolkit:{kernel}"}}):
        model = running(**spec)
        model.image_streams = DOWN

        assert model.plan().actions == ()


def test_with_a_store_no_job_is_lost_and_no_daemonset_changes() -> None:
    model = running(prebuilt=STORE, preflight=[{"osVersion": COMING_OS}])
    jobs, daemonsets = dict(model.jobs), dict(model.daemonsets)
    assert len(jobs) == 2

    model.image_streams = DOWN
    model.settle()
    model.image_streams = tags(OS, COMING_OS)
    model.settle()

    assert model.jobs == jobs
    assert model.daemonsets == daemonsets
    assert len(model.made) == 2


def test_with_a_store_a_new_revision_waits_until_it_can_be_built() -> None:
    model = running(prebuilt=STORE)
    before = model.revision("n0")
    model.image_streams = DOWN

    model.apply_driver(version="2.0.0", toolkit={}, prebuilt=STORE)
    model.settle()

    assert model.revision("n0") == before


def test_a_template_serves_a_new_kernel_meanwhile() -> None:
    pool, chain = Pool("x86_64", OS, KERNEL), Toolkit(image_template="example.com/toolkit:{kernel}")

    assert resolve_toolkit_image(pool, chain, DOWN).link is Link.TEMPLATE
    kept = resolve_toolkit_image(
        pool, chain, DOWN, current=CurrentImage("quay.io/dtk:1", "image-stream")
    )
    assert (kept.image, kept.link) == ("quay.io/dtk:1", Link.STREAM)
