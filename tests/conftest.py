"""What holds for every test.

Tiers: a test is of the tier its mark names (`vm`, `cluster`, `toolkit`, `registry`), else of the
tier `unit`. At the end it is said what ran where. With `--all-tiers`, as in `make test`, a tier
that did not run or a test that was skipped is a failure, since nothing passes by not being tried;
and it is said which files used most processor time.

Hypothesis measures no times: a busy machine is no failure. A shell starts what it puts into the
background with SIGINT ignored, and children inherit that: it is undone, for the tests of Ctrl-C.
"""

from __future__ import annotations

import os
import resource
import signal
from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from hypothesis import settings
from xdist.remote import Producer

from tests.lanes import Lanes, niceness, turn

# The same examples in each run: a change is judged by what it does. `make chaos` looks for new
# ones, and so does `make test ARGS="--hypothesis-profile random"`.
settings.register_profile("nodeside", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("nodeside")

# What helpers assert is shown as in a test.
pytest.register_assert_rewrite(
    *(f"tests.{each.name}" for each in iter_modules([str(Path(__file__).parent)]) if each.ispkg)
)

_WHERE = {
    "unit": "this process, temporary directories",
    "registry": "a real registry on loopback",
    "toolkit": "root file systems on this host",
    "cluster": "a real Kubernetes control plane on loopback",
    "vm": "real kernels in throwaway machines",
}

_MOST = 20  # files whose use of the processors is said


def _processor() -> float:
    """Seconds that this process has used, and those of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Tiers:
    """Counts outcomes by tier."""

    def __init__(self, config: pytest.Config, *, required: bool) -> None:
        self.config = config
        self.required = required
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.seconds: Counter[str] = Counter()  # by tier
        self.processor: Counter[str] = Counter()  # seconds of a processor, by file
        self._used = _processor()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """By mark only: a directory may be called as a tier is, and hold tests of two.

        The tier travels with the reports of the test, which may run in another process. The order
        is that in which tests are given away.
        """
        items.sort(key=lambda item: turn(item.nodeid))
        for item in items:
            marked = (name for name in _WHERE if item.get_closest_marker(name))
            item.user_properties.append(("tier", next(marked, "unit")))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """What this process and its children, as far as they have ended, used since the last."""
        report = yield
        before, self._used = self._used, _processor()
        report.user_properties.append(("processor", self._used - before))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A process that died tells no tier: the test that it died in is none's, and has failed."""
        properties: dict[str, Any] = dict(report.user_properties)
        tier = properties.get("tier", "none")
        self.seconds[tier] += int(report.duration * 1000)
        self.processor[report.nodeid.partition("::")[0]] += properties.get("processor", 0.0)
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[tier][report.outcome] += 1
        if report.failed and self.required:
            self._show(report)

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

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("what ran where")
        for tier, where in _WHERE.items():
            count = self.outcomes[tier]
            words = ", ".join(f"{n} {outcome}" for outcome, n in sorted(count.items()))
            seconds = self.seconds[tier] / 1000
            terminalreporter.line(f"{tier:9} {words or 'not run':32} {seconds:7.1f} s  {where}")
        if self.required:
            used = sum(self.processor.values())
            terminalreporter.line(f"{used / 60:.0f} minutes of a processor, most of them in:")
            for path, seconds in self.processor.most_common(_MOST):
                terminalreporter.line(f"{seconds:7.0f} s  {path}")
        for reason in self.missing:
            terminalreporter.line(f"FAILED {reason}", red=True)


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


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes:
    return Lanes(config, log)


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("COLUMNS", None)  # of the processes of `make test`, which have no terminal
    required = bool(config.getoption("--all-tiers"))
    config.pluginmanager.register(Tiers(config, required=required), "tiers")
