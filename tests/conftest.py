"""What holds for every test.

Tiers: a test is of the tier its mark names (`vm`, `cluster`, `toolkit`, `registry`), else of the
tier `unit`. At the end it is said what ran where. With `--all-tiers`, as in `make test`, a tier
that did not run or a test that was skipped is a failure: nothing passes by not being tried.

Hypothesis measures no times: a busy machine is no failure. A shell starts what it puts into the
background with SIGINT ignored, and children inherit that: it is undone, for the tests of Ctrl-C.
"""

from __future__ import annotations

import os
import signal
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import settings
from xdist.remote import Producer

from tests.lanes import Lanes, turn

# The same examples in each run: a change is judged by what it does. `make chaos` looks for new
# ones, and so does `make test ARGS="--hypothesis-profile random"`.
settings.register_profile("nodeside", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("nodeside")

_WHERE = {
    "unit": "this process, temporary directories",
    "registry": "a real registry on loopback",
    "toolkit": "root file systems on this host",
    "cluster": "a real Kubernetes control plane on loopback",
    "vm": "real kernels in throwaway machines",
}


class Tiers:
    """Counts outcomes by tier."""

    def __init__(self, config: pytest.Config, *, required: bool) -> None:
        self.config = config
        self.required = required
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.seconds: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """By mark only: a directory may be called as a tier is, and hold tests of two.

        The tier travels with the reports of the test, which may run in another process. The order
        is that in which tests are given away.
        """
        items.sort(key=lambda item: turn(item.nodeid))
        for item in items:
            marked = (name for name in _WHERE if item.get_closest_marker(name))
            item.user_properties.append(("tier", next(marked, "unit")))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A process that died tells no tier: the test that it died in is none's, and has failed."""
        tier = str(dict(report.user_properties).get("tier", "none"))
        self.seconds[tier] += int(report.duration * 1000)
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
        for reason in self.missing:
            terminalreporter.line(f"FAILED {reason}", red=True)


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
