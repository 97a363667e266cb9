"""What holds for every test.

Tiers: a test is of the tier its mark names (`vm`, `cluster`, `toolkit`, `registry`), else of the
tier `unit`. At the end it is said what ran where, and which unit tests are slow without the mark
that leaves them out of `make unit`. With `--all-tiers`, as in `make test`, a tier that did not run
or a test that was skipped is a failure, since nothing passes by not being tried; and it is said
what the run cost (tests/costs). Before the first test it is measured how long deadlines are
(tests/patience.py), and looked at whether there is room (tests/room.py).

A shell starts what it puts into the background with SIGINT ignored, and children
inherit that: it is undone, for the tests of Ctrl-C.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir
from xdist.remote import Producer

from nodeside.system import process
from nodeside.trial.cache import default_directory
from tests.costs.cold import as_table, built_since
from tests.costs.memory import Watch
from tests.costs.meter import Meter
from tests.costs.record import (
    Costs,
    by_file,
    by_process,
    by_tier,
    commit_of,
    default_path,
    read,
    write,
)
from tests.lanes import Lanes, lane, niceness, turn
from tests.patience import measured
from tests.tries import register_profiles

register_profiles()


def keep_bytecode(directory: Path) -> None:
    """Keep what Python compiles outside the checkout, where it is told to keep none inside.

    To compile all tests takes twenty seconds of a processor, in each process that collects them.
    Only this process does so: what its children import may lie in a directory of one test.
    """
    if sys.dont_write_bytecode and sys.pycache_prefix is None:
        sys.pycache_prefix, sys.dont_write_bytecode = str(directory), False


keep_bytecode(default_path().with_name("bytecode"))

# What Hypothesis knows of Unicode takes four seconds of a processor to make, in each checkout.
set_hypothesis_home_dir(default_path().with_name("hypothesis"))

# What helpers assert is shown as in a test.
pytest.register_assert_rewrite(
    *(
        f"tests.{each.name}"
        for each in iter_modules([str(Path(__file__).parent)])
        if each.ispkg and each.name != "costs"
    )
)

_WHERE = {
    "unit": "this process, temporary directories",
    "registry": "a real registry on loopback",
    "toolkit": "root file systems on this host",
    "cluster": "a real Kubernetes control plane on loopback",
    "vm": "real kernels in throwaway machines",
}

_MMAP_THRESHOLD = -3  # malloc.h
_LARGE = 4 << 20  # bytes

_GARBAGE = 50_000  # new objects after which Python looks for garbage: tests are short-lived

_SLOW = 1.0  # seconds of a processor: a unit test that uses more is to be marked


def _last_costs(config: pytest.Config) -> dict[str, float]:
    """Seconds by lane of the last run. All processes of a run have them from the first one."""
    given = getattr(config, "workerinput", {}).get("last_costs")
    if given is not None:
        return dict(given)
    last = read(default_path())
    return last.by_lane if last else {}


def return_large_blocks() -> None:
    """Have malloc map each large block by itself, so that it is unmapped when it is freed.

    By default glibc learns to keep such blocks. A test that needs 600 MB then leaves them to the
    process, and each fork after it copies their page tables: 30 ms of a processor, not 5.
    """
    ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


class Tiers:
    """Counts outcomes by tier."""

    def __init__(self, config: pytest.Config, *, required: bool) -> None:
        self.config = config
        self.required = required
        self.in_memory = False  # the files of tests: they go at the end, unless one failed
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.seconds: Counter[str] = Counter()  # by tier
        self.processor: Counter[str] = Counter()  # seconds of a processor, by unmarked unit test
        self.costs = Costs(time.time())
        self.last = _last_costs(config)
        self._meter = Meter(by_kind=required)
        self._memory = Watch()
        if required and not hasattr(config, "workerinput"):
            self._memory.begin()

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Nearly all objects that collecting makes stay: no garbage is looked for meanwhile.

        That took a fifth of its processor time.
        """
        gc.disable()
        try:
            return (yield)
        finally:
            gc.enable()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """By mark only: a directory may be called as a tier is, and hold tests of two.

        The tier, and whether it is slow, travel with the reports of the test, which may run in
        another process. The order is that in which tests are given away.
        """
        self._leave_out_long(items)
        items.sort(key=lambda item: turn(item.nodeid, self.last))
        for item in items:
            marked = (name for name in _WHERE if item.get_closest_marker(name))
            item.user_properties.append(("tier", next(marked, "unit")))
            item.user_properties.append(("slow", item.get_closest_marker("slow") is not None))

    def pytest_collection_finish(self) -> None:
        """Collecting is no cost of the first test. What it made stays until the end.

        So Python need not look through it again and again for garbage, and a child that is forked
        shares it.
        """
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GARBAGE)
        self._meter.take()

    def _leave_out_long(self, items: list[pytest.Item]) -> None:
        """`make test` has to end in half an hour."""
        if not self.config.getoption("--every-chapter"):
            long = [item for item in items if item.get_closest_marker("long")]
            self.config.hook.pytest_deselected(items=long)
            items[:] = [item for item in items if item not in long]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """What this process and its children, as far as they have ended, used since the last.

        Of a test as a whole, unless the run is to say what it cost: to ask takes time, too.
        """
        report = yield
        if self.required or report.when == "teardown":
            report.user_properties.append(("used", self._meter.take()))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A process that died tells no tier: the test that it died in is none's, and has failed."""
        properties: dict[str, Any] = dict(report.user_properties)
        tier = properties.get("tier", "none")
        self.seconds[tier] += int(report.duration * 1000)
        used = properties.get("used", {})
        if self.required:
            self._add_costs(report, tier, used)
        if tier == "unit" and not properties["slow"]:
            self.processor[report.nodeid] += sum(used.values())
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[tier][report.outcome] += 1
        if report.failed and self.required:
            self._show(report)

    def _add_costs(self, report: pytest.TestReport, tier: str, used: dict[str, float]) -> None:
        node = getattr(report, "node", None)  # the process that ran it, where there are several
        self.costs.add(
            report.nodeid.partition("::")[0],
            tier=tier,
            lane=lane(report.nodeid),
            process=node.gateway.id if node is not None else "main",
            began=report.start,
            ended=report.stop,
            used=used,
            counts=report.when == "call",
        )

    def _show(self, report: pytest.TestReport) -> None:
        """A failure is shown when it happens, not only at the end, which may be an hour away."""
        terminal = self.config.pluginmanager.getplugin("terminalreporter")
        if terminal is not None:  # a process that runs lanes has none
            terminal.section(f"{report.nodeid} ({report.when})", red=True)
            terminal.write_line(report.longreprtext)

    @property
    def missing(self) -> list[str]:
        """Why not every tier was really tried."""
        reasons = [f"tier {tier} did not run" for tier in _WHERE if not self.outcomes[tier]]
        reasons += [
            f"tier {tier}: {count['skipped']} skipped"
            for tier, count in self.outcomes.items()
            if count["skipped"]
        ]
        return reasons if self.required else []

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK and self.missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if exitstatus == pytest.ExitCode.OK and self.in_memory:
            made = self.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
            process.run(["rm", "-rf", made], timeout=600, check=False)  # quicker than Python

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("what ran where")
        for tier, where in _WHERE.items():
            count = self.outcomes[tier]
            words = ", ".join(f"{n} {outcome}" for outcome, n in sorted(count.items()))
            seconds = self.seconds[tier] / 1000
            terminalreporter.line(f"{tier:9} {words or 'not run':32} {seconds:7.1f} s  {where}")
        terminalreporter.line(str(measured()))
        self._name_slow(terminalreporter)
        if self.required:
            self._show_costs(terminalreporter)
        for reason in self.missing:
            terminalreporter.line(f"FAILED {reason}", red=True)

    def _name_slow(self, terminalreporter: Any) -> None:
        slow = [(test, used) for test, used in self.processor.most_common() if used > _SLOW]
        for test, used in slow:
            terminalreporter.line(f"slow: {used:.1f} CPU-seconds, a unit test: {test}")
        if slow and settings.get_current_profile_name() == "quick":  # of `make unit`
            terminalreporter.line("hint: make them cheaper, or mark them: @pytest.mark.slow")

    def _show_costs(self, terminalreporter: Any) -> None:
        from tests.controlplane.binaries import cache_directory  # late: it is to be rewritten

        terminalreporter.section("what it cost")
        tables = (by_tier(self.costs, _WHERE), by_file(self.costs), by_process(self.costs))
        for text in tables:
            terminalreporter.write(f"{text}\n\n")
        caches = (cache_directory(), default_directory())
        terminalreporter.write(f"{as_table(built_since(self.costs.began, caches))}\n\n")
        peak = self._memory.end()
        terminalreporter.line(str(peak))
        path = Path(self.config.getoption("--costs") or default_path())
        self.costs.memory = peak.total
        self.costs.commit = commit_of(Path(__file__).parent)
        write(path, self.costs)
        terminalreporter.line(f"written to {path}; compare two: python -m tests.costs OLD NEW")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Only root may come forward again; others stay where they are."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness(item.nodeid))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-tiers", action="store_true", help="fail if a tier does not run or a test is skipped"
    )
    parser.addoption("--every-chapter", action="store_true", help="also what is marked `long`")
    parser.addoption("--costs", metavar="FILE", help="where --all-tiers writes what the run cost")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes:
    return Lanes(config, log)


def pytest_configure_node(node: Any) -> None:
    node.workerinput["last_costs"] = node.config.pluginmanager.get_plugin("tiers").last


def pytest_configure(config: pytest.Config) -> None:
    return_large_blocks()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("COLUMNS", None)  # of the processes of `make test`, which have no terminal
    measured()  # before the processes start that run the tests: it is in their environment
    required = config.getoption("--all-tiers") and not config.getoption("collectonly")
    tiers = Tiers(config, required=required)
    config.pluginmanager.register(tiers, "tiers")
    from tests.room import Room, place_in_memory  # late: what it imports is to be rewritten

    if config.getoption("--hypothesis-profile") == "quick" and (place := place_in_memory()):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(place))  # of pytest's tmp_path
        tiers.in_memory = os.environ["PYTEST_DEBUG_TEMPROOT"] == str(place)
    config.pluginmanager.register(Room(config), "room")


@pytest.fixture
def profile_kept() -> Iterator[None]:
    """The profile of Hypothesis, whatever a test loads."""
    before = settings.get_current_profile_name()
    yield
    settings.load_profile(before)
