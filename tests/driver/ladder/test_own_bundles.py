"""A driver image for one kernel brings its own bundle: where it is looked for, and what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.commands.bundles import publish_target
from nodeside.driver.ladder.task import OWN_BUNDLES, Task
from nodeside.errors import UsageError
from nodeside.spec.model import PrebuiltSource
from tests.driver.fakes.node import FakeNode

ELSEWHERE = PrebuiltSource(http="https://example.com/drivers")
IMAGE = "registry.example.com/edu:{version}-{kernel}"


def with_prebuilt(task: Task, image: str = "", *sources: PrebuiltSource) -> Task:
    spec = task.driver.spec
    prebuilt = replace(spec.prebuilt, image=image, sources=sources)
    return replace(task, driver=replace(task.driver, spec=replace(spec, prebuilt=prebuilt)))


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return FakeNode(tmp_path).task()


def test_its_own_bundles_are_looked_for_first(task: Task) -> None:
    made = with_prebuilt(task, IMAGE, ELSEWHERE)

    assert made.sources == (OWN_BUNDLES, ELSEWHERE)
    assert made.wanted.prebuilt
    assert OWN_BUNDLES.directory == "/prebuilt"


def test_a_driver_without_such_images_looks_where_it_says(task: Task) -> None:
    assert with_prebuilt(task, "", ELSEWHERE).sources == (ELSEWHERE,)
    assert not with_prebuilt(task).wanted.prebuilt


def test_nothing_is_published_into_the_directory_of_an_image_unless_asked(task: Task) -> None:
    assert publish_target(with_prebuilt(task, IMAGE, ELSEWHERE), None) == ELSEWHERE
    with pytest.raises(UsageError, match="names no prebuilt sources to publish to"):
        publish_target(with_prebuilt(task, IMAGE), None)
    assert publish_target(with_prebuilt(task, IMAGE), "./prebuilt").directory == "./prebuilt"
