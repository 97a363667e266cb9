"""One lab for all tests; the long story has one of its own."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.progress import Progress
from nodeside.trial.workshop import Workshop
from tests.lab.commands import serving
from tests.lab.lab import Lab, two_kernels
from tests.lab.tour import PASSED

IN_THE_LAB = ("test_story.py", "test_dra.py", "test_stack.py")  # the first one has to build


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs no lab comes first, since there is one lab at a time."""
    here = [
        number for number, item in enumerate(items) if Path(__file__).parent in item.path.parents
    ]
    ours = sorted((items[number] for number in here), key=_turn)
    for number, item in zip(here, ours, strict=True):
        items[number] = item


def _turn(item: pytest.Item) -> int:
    return IN_THE_LAB.index(item.path.name) + 1 if item.path.name in IN_THE_LAB else 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outage", default=600.0, type=float, help="seconds of an outage in a lab")
    parser.addoption("--tour", help="the page that gets the figures of each chapter of the story")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Whether a test passed, for its fixtures; one that was interrupted did not."""
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture(scope="package")
def workshop() -> Iterator[Workshop]:
    with Workshop(Progress(quiet=True)) as workshop:
        yield workshop


@pytest.fixture(scope="package")
def lab(request: pytest.FixtureRequest, workshop: Workshop) -> Iterator[Lab]:
    """With one node, for one file after the other; each leaves no driver there."""
    with started(request, workshop, two_kernels(workshop), 1) as lab:
        yield lab


@contextmanager
def started(
    request: pytest.FixtureRequest, workshop: Workshop, kernels: Sequence[KernelDisk], nodes: int
) -> Iterator[Lab]:
    """A lab whose nodes are Ready, whose controller leads; says what it does as it goes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    progress = Progress()

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            progress.stream = sys.stderr
            progress.say(text)

    with Lab(workshop, say, kernels) as lab, serving(lab):
        lab.start(nodes)
        yield lab
        lab.check()


@pytest.fixture
def shown_if_it_fails(lab: Lab, request: pytest.FixtureRequest) -> Iterator[None]:
    """What everybody said last."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        print(lab.last_words())  # noqa: T201
