"""What a running lab is asked, over its socket; the lab itself is played."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from nodeside.errors import DeadlinePassed, Locked, UsageError
from tests.lab import __main__ as command_line
from tests.lab import commands
from tests.lab import lab as lab_module
from tests.lab.commands import ask, serving
from tests.lab.lab import Lab
from tests.recipes import follow, recipe


@dataclass
class _Kernel:
    release: str = "6.1.0-50-cloud-amd64"


@dataclass
class _Node:
    name: str
    kernel: _Kernel = field(default_factory=_Kernel)
    is_on: bool = True
    done: list[str] = field(default_factory=list)

    def cut_power(self) -> None:
        self.is_on = False

    def plug(self, *, into: bool) -> None:
        self.done.append("plugged" if into else "unplugged")


class _Lab:
    def __init__(self) -> None:
        self.nodes = {name: _Node(name) for name in ("node-1", "node-2")}

    def node(self, name: str) -> _Node:
        if name not in self.nodes:
            raise UsageError(f"no node is called {name}", hint="there are: node-1, node-2")
        return self.nodes[name]

    def boot(self, node: _Node) -> None:
        raise DeadlinePassed(f"waited 900 s for {node.name} to be Ready")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Lab]:
    monkeypatch.setattr(commands, "SOCKET", tmp_path / "socket")
    lab = _Lab()
    with serving(cast(Lab, lab)):
        yield lab


def _run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(command_line.main, ["node", *words])
    return result.exit_code, result.stdout, result.stderr


def test_a_command_reaches_the_node(lab: _Lab) -> None:
    code, said, _ = _run("power-cut", "node-2")

    assert code == 0
    assert "node boot node-2" in said
    assert [row.split() for row in _run("list")[1].splitlines()] == [
        ["NODE", "POWER", "KERNEL"],
        ["node-1", "on", "6.1.0-50-cloud-amd64"],
        ["node-2", "off", "6.1.0-50-cloud-amd64"],
    ]
    _run("unplug-network", "node-1")
    _run("plug-network", "node-1")
    assert lab.nodes["node-1"].done == ["unplugged", "plugged"]


def test_a_node_that_is_not_there_is_named_with_those_that_are(lab: _Lab) -> None:
    code, said, errors = _run("power-cut", "node-3")

    assert (code, said) == (2, "")
    assert errors == "error: no node is called node-3\nhint: there are: node-1, node-2\n"


def test_what_fails_in_the_lab_is_told_with_its_exit_code(lab: _Lab) -> None:
    code, _, errors = _run("boot", "node-1")

    assert code == 50
    assert "waited 900 s for node-1 to be Ready" in errors


def test_there_is_one_lab_and_down_ends_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_module, "STATE", tmp_path)
    monkeypatch.setattr(lab_module, "_LOCK", tmp_path / "lock")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # the lab; never more of this process than that
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a test of this process may have set it
        try:
            with lab_module.only_lab():
                os.write(writing, b"x")
                signal.pause()
        finally:
            os._exit(1)
    assert os.read(reading, 1) == b"x"
    with pytest.raises(Locked, match="another lab runs"), lab_module.only_lab():
        pass

    lab_module.end_lab()

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    with lab_module.only_lab():
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_without_a_lab_the_command_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "SOCKET", tmp_path / "socket")

    with pytest.raises(UsageError, match="no lab runs on this machine") as caught:
        ask("list")
    assert caught.value.hint == "make lab"


# Where no lab runs, whatever others run on this machine: it would be ended.
_ELSEWHERE = """\
unshare --mount --net sh -euc '
  mount -t tmpfs tmpfs /run
  mount -t sysfs sysfs /sys
  exec "$@"
' sh"""


@pytest.mark.vm
def test_lab_down_without_a_lab_has_nothing_to_do(tmp_path: Path) -> None:
    [line] = recipe("lab-down")
    done = follow(f"{_ELSEWHERE} {line}", env={"TMPDIR": str(tmp_path)})

    assert (done.exit_code, done.output, done.errors) == (0, "", "")
