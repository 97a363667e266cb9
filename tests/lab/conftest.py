"""One lab for the tests of a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from nodeside.trial.progress import Progress
from nodeside.trial.workshop import Workshop
from tests.lab.commands import serving
from tests.lab.lab import Lab, two_kernels
from tests.lab.story import STAGES, Story
from tests.vm.hostbuilds import HostBuilds


@pytest.fixture(scope="module")
def nodes() -> int:
    """With how many nodes a file's lab starts."""
    return 1


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest, nodes: int) -> Iterator[Lab]:
    """Nodes that are Ready, and a controller that leads; says what it does as it goes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    progress = Progress()

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            progress.stream = sys.stderr
            progress.say(text)

    with (
        Workshop(Progress(quiet=True)) as workshop,
        Lab(workshop, say, two_kernels(workshop)) as lab,
        serving(lab),
    ):
        lab.start(nodes)
        yield lab
        lab.check()


@pytest.fixture(scope="module")
def story(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with HostBuilds(lab.workshop, tmp_path_factory.mktemp("host-builds")) as builds:
        yield Story(lab, tmp_path_factory.mktemp("drivers"), builds, {"stages": STAGES})


@pytest.fixture
def shown_if_it_fails(lab: Lab, request: pytest.FixtureRequest) -> Iterator[None]:
    """What everybody said last."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        print(lab.last_words())  # noqa: T201
