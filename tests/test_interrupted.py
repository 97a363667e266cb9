"""A run of the tests that ends in the middle leaves nothing, by Ctrl-C or by SIGKILL.

For each tier, a run of one of its tests is stopped as soon as a program is there that the tier
starts; what it then had is looked for. A directory that SIGKILL leaves goes with the next run.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from nodeside.system import process
from nodeside.system.scratch import remove_abandoned
from tests import TOP
from tests.console import LONG, until
from tests.patience import patience

_FILLED = patience(3600.0)  # seconds: a cache may have to be filled first
_LOOK = 0.1  # seconds between two looks: each costs a hundredth
# What the fixtures of a test made is there, and the test does nothing with it.
_HELD = """
import signal
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call():
    signal.pause()
"""


@dataclass
class Run:
    """Of one test, in temporary directories of its own."""

    child: process.Child
    temporary: Path
    base: Path
    log: Path

    def family(self) -> list[psutil.Process]:
        """All that it has started and that is still its own."""
        try:
            return psutil.Process(self.child.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def await_program(self, name: str) -> None:
        deadline = time.monotonic() + _FILLED
        while not any(name_of(each).startswith(name) for each in self.family()):
            assert self.child.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"no {name}: {self.log.read_text()}"
            time.sleep(_LOOK)

    def strays(self) -> list[str]:
        """What runs with a word that names its directories, whoever started it."""
        running = (each.info["cmdline"] or () for each in psutil.process_iter(["cmdline"]))
        return [" ".join(words) for words in running if str(self.base.parent) in " ".join(words)]

    def mounts(self) -> list[str]:
        """In its directories, as this process has them."""
        mounted = Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in mounted if str(self.base.parent) in line]


def name_of(each: psutil.Process) -> str:
    try:
        return "" if each.status() == psutil.STATUS_ZOMBIE else each.name()
    except psutil.NoSuchProcess:
        return ""


@pytest.fixture
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """A run of the words that the test has as parameter; killed if the test fails."""
    (tmp_path / "held.py").write_text(_HELD)
    temporary, base, log = (tmp_path / name for name in ("tmp", "base", "log"))
    temporary.mkdir()
    words = ["--basetemp", base, "-p", "held", *request.param]
    with log.open("wb") as output:
        child = process.start(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
            cwd=TOP,
            env={"TMPDIR": str(temporary), "PYTHONPATH": str(tmp_path)},
            stdout=output,
            stderr=process.INTO_STDOUT,
        )
    run = Run(child, temporary, base, log)
    try:
        yield run
    finally:
        child.kill()
        child.wait(LONG)


def tier(name: str, program: str, *words: str) -> object:
    return pytest.param(words, program, marks=getattr(pytest.mark, name), id=name)


TIERS = [
    tier(
        "registry",
        "docker-registry",
        "tests/driver/store/test_oci.py::test_skopeo_understands_and_copies_what_we_publish",
        "--numprocesses=1",  # as in `make test`, which gives tests to others
    ),
    tier(
        "toolkit",
        "loader",
        "tests/toolkit_sidecar/test_real_toolkit.py"
        "::test_a_module_is_built_for_exactly_this_kernel",
    ),
    tier(
        "cluster",
        "etcd",
        "tests/cluster/test_controlplane.py::test_killed_it_takes_its_programs_along",
    ),
    tier(
        "vm",
        "qemu-system",
        "tests/vm/test_machine.py::test_it_runs_the_kernel_that_was_asked_for",
    ),
]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize(("started", "program"), TIERS, indirect=["started"])
def test_nothing_is_left_of_a_run_that_ends_in_the_middle(
    started: Run, program: str, number: signal.Signals
) -> None:
    started.await_program(program)
    family = started.family()
    if number == signal.SIGINT:  # a terminal sends it to all of the group
        os.killpg(started.child.pid, number)
    else:
        started.child.send_signal(number)

    assert started.child.wait(LONG) == {signal.SIGINT: 2, signal.SIGKILL: -9}[number]
    until(lambda: not list(filter(name_of, family)), f"the end of {family}")
    assert (started.strays(), started.mounts()) == ([], [])
    if number == signal.SIGKILL:
        age(started.temporary)
        remove_abandoned(started.temporary)  # as who makes the next one does
    assert list(started.temporary.iterdir()) == []
    if started.base.exists():  # of tmp_path: nothing in it is a mount, or kept by anybody
        shutil.rmtree(started.base)


@pytest.mark.toolkit
def test_a_program_and_a_mount_that_are_left_are_found(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    base = tmp_path / "base"
    base.mkdir()
    left = process.start([sys.executable, "-c", "import signal; signal.pause()", str(base)])
    process.run(["mount", "-t", "tmpfs", "left", base], timeout=LONG)
    try:
        run = Run(left, tmp_path, base, tmp_path)
        until(run.strays, "the program to be found")
        assert len(run.strays()) == len(run.mounts()) == 1
    finally:
        process.run(["umount", base], timeout=LONG)
        left.kill()
        left.wait(LONG)
    assert (run.strays(), run.mounts()) == ([], [])


def age(parent: Path) -> None:
    """An hour later."""
    for left in parent.iterdir():
        os.utime(left, (left.stat().st_mtime - 3600,) * 2)
