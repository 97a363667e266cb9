"""A build that turns against the process that watches over it: nothing survives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.protocol.build_records import FailureKind
from tests.toolkit_sidecar.faketoolkit import FakeToolkit, lives, until
from tests.toolkit_sidecar.warm import children, no_orphans

pytestmark = pytest.mark.slow

_ONCE = "[ -e $HOME/../../once ] || {{ touch $HOME/../../once; {}; sleep 1000; }}\nko straw\n"
# Without the mark, the group and the session of the build, and without its pipe.
_SURVIVOR = """\
env -i setsid sh -c "echo \\$\\$ >$PWD/../../../pid; exec sleep 1000" >/dev/null 2>&1 &
while [ ! -s ../../../pid ]; do sleep 0.01; done; kill -KILL $PPID"""


def test_what_a_build_starts_dies_though_it_kills_the_worker(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", _ONCE.format(_SURVIVOR))
    result = toolkit.answer(toolkit.request())
    assert result.succeeded, result.message
    assert "attempt 2: a process of the previous attempt died" in result.notes
    assert not lives((toolkit.shared.root / "pid").read_text())


def test_what_a_withdrawn_build_leaves_dies_too(toolkit: FakeToolkit) -> None:
    request = toolkit.request()
    withdraw = f"rm {toolkit.shared.request_path(request.id)}; "
    toolkit.vendor("vendor.sh", _SURVIVOR.replace("kill ", withdraw + "kill ") + "; sleep 1000\n")
    with toolkit.sidecar("--once") as sidecar:
        assert sidecar.child.wait(60) == 0
        assert "the worker process died how=" in sidecar.output
    assert not lives((toolkit.shared.root / "pid").read_text())


@pytest.mark.parametrize("forged", ["0", "-5", "none"])
def test_a_build_that_kills_the_worker_and_forges_the_count_is_given_up(
    toolkit: FakeToolkit, forged: str
) -> None:
    toolkit.vendor("vendor.sh", f"echo {forged} >$HOME/begun; kill -KILL $PPID; sleep 1000\n")
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.INTERNAL
    assert result.message == "the worker process of the build died 5 times"


def test_deaths_of_one_build_are_not_counted_against_the_next(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "kill -KILL $PPID; sleep 1000\n")
    bad = toolkit.request(attempt=1)
    toolkit.vendor("deep/Makefile", "obj-m := straw.o\n")
    toolkit.vendor("deep/vendor.sh", _ONCE.format("kill -KILL $PPID"))
    good = toolkit.request(attempt=2, directory="deep")
    with toolkit.sidecar() as sidecar:
        assert not sidecar.result(bad).succeeded
        result = sidecar.result(good)
    assert result.succeeded, result.message
    assert "attempt 2: a process of the previous attempt died" in result.notes


def test_a_build_that_stops_the_worker_stops_nothing_for_long(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", _ONCE.format("kill -STOP $PPID"))
    with toolkit.sidecar() as sidecar:
        assert sidecar.result(toolkit.request()).succeeded
        assert "stopped by SIGSTOP, and therefore killed" in sidecar.output


def test_a_count_that_an_earlier_life_forged_breaks_nothing(toolkit: FakeToolkit) -> None:
    request = toolkit.request()
    out = toolkit.shared.out_dir(request.id)
    out.mkdir()
    (out / "begun").write_text("-5")
    assert toolkit.answer(request).succeeded


def test_what_tests_leave_of_a_sidecar_that_they_kill_is_reaped(toolkit: FakeToolkit) -> None:
    """Its worker comes to this process when it is killed, and what the build has started may."""
    toolkit.vendor("vendor.sh", f"{_SURVIVOR.partition('kill')[0]} sleep 1000\n")
    toolkit.request()
    before = children()
    with no_orphans():
        with toolkit.sidecar():
            until((toolkit.shared.root / "pid").exists, "the build to begin")
        assert children() - before
        pid = (toolkit.shared.root / "pid").read_text().strip()
    assert len(children() - before) <= 1  # what forks sidecars, if this one was the first
    assert not Path(f"/proc/{pid}").exists()
