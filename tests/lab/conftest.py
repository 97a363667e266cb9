"""One lab for all tests, and another one for the files of the long story."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.progress import Progress
from nodeside.trial.workshop import Workshop
from tests import TOP
from tests.lab import tour
from tests.lab.commands import serving
from tests.lab.lab import Lab, two_kernels
from tests.lab.node import LabNode
from tests.lab.story import Story
from tests.lab.tour import PASSED, Chapter, Record, Setting

IN_THE_LAB = ("test_story.py", "test_dra.py", "test_stack.py")  # the first one has to build


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs no lab comes first, since there is one lab at a time."""
    directory = f"{Path(__file__).parent}{os.sep}"
    here = [number for number, item in enumerate(items) if str(item.path).startswith(directory)]
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


@pytest.fixture(scope="package")
def kernels(workshop: Workshop) -> Sequence[KernelDisk]:
    """Of the nodes of the long story; of the upgrade that comes; for real time."""
    newest, *earlier = two_kernels(workshop)
    pair = (*earlier, newest) if earlier else (newest, workshop.kernel("6.12-cloud-amd64"))
    return (*pair, workshop.kernel("rt-amd64"))


@pytest.fixture(scope="package")
def pair(
    request: pytest.FixtureRequest, workshop: Workshop, kernels: Sequence[KernelDisk]
) -> Iterator[Lab]:
    """With two nodes, for the files of the long story."""
    with started(request, workshop, kernels, nodes=2) as lab:
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
            progress.print_step(text)

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


# --- the long story ------------------------------------------------------------------------------


@pytest.fixture
def one(story: Story) -> LabNode:
    return story.lab.node("node-1")


@pytest.fixture
def two(story: Story) -> LabNode:
    return story.lab.node("node-2")


@pytest.fixture
def outage(request: pytest.FixtureRequest) -> float:
    """Seconds."""
    return float(request.config.getoption("--outage"))


@pytest.fixture(scope="package")
def setting(request: pytest.FixtureRequest, kernels: Sequence[KernelDisk]) -> Setting:
    releases = ", ".join(kernel.release for kernel in kernels)
    outage = f"outages of {request.config.getoption('--outage'):g} s"
    return Setting.of(f"{os.cpu_count()} cores, kernels {releases}, {outage}", TOP)


@pytest.fixture
def told(request: pytest.FixtureRequest, story: Story, setting: Setting) -> Iterator[None]:
    """Each test is a chapter; the page gets its figures if it went well."""
    story.waits.clear()
    story.remarks.clear()
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    page = request.config.getoption("--tour")
    if page and request.node.stash.get(PASSED, False):
        waits, remarks = list(story.waits), list(story.remarks)
        chapter = Chapter(_title(request.node.originalname), took, waits, setting, remarks)
        titles = [_title(name) for name in _chapters()]
        chapters = Record(Path(page).with_suffix(".json")).keep(chapter, titles)
        told = {chapter.title for chapter in chapters}
        tour.write(Path(page), chapters, [title for title in titles if title not in told])


def _chapters() -> Iterator[str]:
    """The names of the tests that tell them, in order."""
    for module in ("long_story", "long_claims", "long_programs", "long_neighbours"):
        names = vars(import_module(f"tests.lab.{module}"))
        yield from (name for name in names if name.startswith("test_"))


def _title(name: str) -> str:
    """Of the chapter that a test tells."""
    return name.removeprefix("test_").replace("_", " ").capitalize()
