"""What runs in a container on this machine ends with us, however we end and whatever it does."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nodeside.protocol.shared_directory import SharedDir
from nodeside.system import process
from nodeside.trial.host.container import ENVIRONMENT, UNPRIVILEGED, make_entrance
from nodeside.trial.progress import Progress
from nodeside.trial.workshop import Workshop
from tests.toolkit_sidecar.faketoolkit import LONG, until

pytestmark = pytest.mark.toolkit

# Leaves the process group and clears its death signal: prctl(PR_SET_PDEATHSIG, 0).
STAY = "exec setsid perl -e 'syscall(157, 1, 0, 0, 0, 0); sleep 600' {token}"

RUN = """
import sys
from pathlib import Path
from nodeside.system import process
from nodeside.trial.host.container import ENVIRONMENT, UNPRIVILEGED, make_entrance
scratch, script, *layers = sys.argv[1:]
with make_entrance([Path(layer) for layer in layers], Path(scratch), {}) as enter:
    argv = [*UNPRIVILEGED, "bash", "-c", script]
    process.run(argv, env=ENVIRONMENT, wrapper=enter, timeout=600)
"""

SIDECAR = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from nodeside.trial.host.toolkit import HostToolkit
scratch, python, tree, root = map(Path, sys.argv[1:])
with HostToolkit(SimpleNamespace(tree=tree), root, scratch, python=python):
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    with Workshop(Progress(quiet=True)) as workshop:
        yield workshop


@pytest.fixture(scope="module")
def layers(workshop: Workshop) -> tuple[Path, ...]:
    disk = workshop.kernel("cloud-amd64")
    return (disk.tree, workshop.roots.toolkit(disk.compiler))


@pytest.fixture
def token() -> str:
    return uuid.uuid4().hex


def staying(token: str) -> bool:
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = cmdline.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"perl" and token.encode() in words:
            return True
    return False


def run(
    script: str, layers: Sequence[Path], scratch: Path, timeout: float = LONG
) -> process.Completed:
    with make_entrance(layers, scratch, {}) as enter:
        argv = [*UNPRIVILEGED, "bash", "-c", script]
        return process.run(argv, env=ENVIRONMENT, wrapper=enter, timeout=timeout, check=False)


def program(code: str, *words: str | Path) -> process.Child:
    return process.start(
        [sys.executable, "-c", code, *words],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=2,
    )


def test_what_a_command_leaves_behind_ends_with_it(
    layers: tuple[Path, ...], tmp_path: Path, token: str
) -> None:
    stay = STAY.format(token=token)
    script = f"({stay}) & sleep 1; exit 7"
    done = run(script, layers, tmp_path)

    assert done.exit_code == 7
    until(lambda: not staying(token), "the end of what was left behind", LONG)


def test_a_command_that_leaves_its_group_ends_at_its_deadline(
    layers: tuple[Path, ...], tmp_path: Path, token: str
) -> None:
    with pytest.raises(process.ToolTimeout):
        run(STAY.format(token=token), layers, tmp_path, timeout=2)

    until(lambda: not staying(token), "the end of the command", LONG)


def test_a_command_dies_with_whoever_runs_it(
    layers: tuple[Path, ...], tmp_path: Path, token: str
) -> None:
    child = program(RUN, tmp_path, STAY.format(token=token), *layers)
    until(lambda: staying(token), "the start of the command", LONG)

    child.kill()
    child.wait()

    until(lambda: not staying(token), "the end of the command", LONG)


def test_a_sidecar_dies_with_whoever_runs_it(
    workshop: Workshop, layers: tuple[Path, ...], tmp_path: Path
) -> None:
    child = program(SIDECAR, tmp_path, workshop.packed_python(), *layers)
    shared = SharedDir(tmp_path / "shared")
    until(shared.sidecar_lives, "a sidecar", LONG)

    child.kill()
    child.wait()

    until(lambda: not shared.sidecar_lives(), "the end of the sidecar", LONG)


def test_what_runs_in_a_container_is_killed_before_anything_else_if_memory_runs_out(
    layers: tuple[Path, ...], tmp_path: Path
) -> None:
    """A dkms.conf may fill any number of variables, in any number of processes."""
    done = run("cat /proc/self/oom_score_adj", layers, tmp_path)

    assert done.output == "1000\n"


def test_the_memory_of_a_container_is_limited(layers: tuple[Path, ...], tmp_path: Path) -> None:
    script = "df -B1 --output=size / /dev/shm | tail -n 2; ulimit -u"
    done = run(script, layers, tmp_path)

    assert done.output.split() == [str(1 << 30), str(64 << 20), "8192"]
