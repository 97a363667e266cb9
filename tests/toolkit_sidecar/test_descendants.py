"""Processes of a build that do not die, however often they are killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from nodeside.system import process
from nodeside.system.scratch import scratch_directory
from nodeside.toolkit_sidecar import descendants
from nodeside.toolkit_sidecar.descendants import Found
from nodeside.trial.host.container import ENVIRONMENT, make_entrance
from nodeside.trial.workshop import Workshop
from tests.toolkit_sidecar.faketoolkit import LONG

# Several chains of processes: each forks and ends at once, in a session of its own.
COMET = r"""
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
    time_t end = time(0) + 25;
    (void)argc;
    if (fork()) { usleep(300000); return 0; }
    for (int i = 0; i < 7; i++) if (!fork()) break;
    for (long n = 0; time(0) < end; n++) {
        long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid > 0) _exit(0);
        if (pid < 0) { usleep(1000); continue; }
        setsid();
        if (n % 20 == 0) close(open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0644));
    }
    return 0;
}
"""

# Process 1 of a container, whose only child is a worker that runs a step.
CONTAINER = """
import os, sys, time
from pathlib import Path
from nodeside.toolkit_sidecar import descendants
from nodeside.toolkit_sidecar.buildlog import BuildLog
from nodeside.toolkit_sidecar.confinement import BuildWatch, Step, run_confined

place = Path(sys.argv[1])
worker = os.fork()
if worker:
    while os.waitpid(-1, 0)[0] != worker:
        pass
    os._exit(0)
descendants.claim_container(os.getppid())
descendants._PATIENCE = 1.0
request = place / "request"
request.touch()
watch = BuildWatch(seconds=60, request=request, disk=place)
step = Step("make", (f"{place}/comet", f"{place}/alive"), place)
with BuildLog(place / "log", lambda lines: None) as log:
    code = run_confined(step, mark=f"{place}/mark", log=log, watch=watch)
(place / "alive").unlink(missing_ok=True)
time.sleep(1)
left = descendants.find_descendants(1) - {os.getpid()}
print("exit", code, "alive", (place / "alive").exists(), "left", len(left))
"""

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
NOBODY = frozenset(range(1 << 30, (1 << 30) + 5000))  # larger than any pid


def test_of_many_that_do_not_die_some_are_named_and_all_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[dict[str, object]] = []
    monkeypatch.setattr(descendants, "_PATIENCE", 0.0)
    monkeypatch.setattr("nodeside.log.warning", lambda _, **facts: said.append(facts))
    assert descendants._kill_all(lambda: Found(NOBODY)) == (5000, NOBODY)
    (facts,) = said
    assert facts["count"] == 5000
    assert str(facts["pids"]).split() == [str(pid) for pid in sorted(NOBODY)[:20]]


@pytest.mark.parametrize(
    ("keeper", "parent", "killed"), [(1, 1, True), (1, 70, False), (70, 70, False), (70, 1, False)]
)
def test_all_processes_are_killed_only_where_the_sidecar_is_process_1_of_a_container(
    monkeypatch: pytest.MonkeyPatch, keeper: int, parent: int, killed: bool
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(descendants, "_PATIENCE", 0.0)
    monkeypatch.setattr(os, "kill", lambda *signal: sent.append(signal))
    monkeypatch.setattr(os, "getppid", lambda: parent)
    monkeypatch.setattr(descendants._Container, "ours", False)
    descendants.claim_container(keeper)
    assert descendants._kill_all(lambda: Found(NOBODY)).left == NOBODY
    assert ((-1, signal.SIGKILL) in sent) is killed


def test_a_search_that_may_have_missed_a_process_is_repeated() -> None:
    found = [Found(frozenset(), sure=False), Found(frozenset(), sure=False), Found(frozenset())]
    assert descendants._kill_all(lambda: found.pop(0)) == (0, frozenset())
    assert not found


def _compile(directory: Path, name: str, source: str) -> None:
    """Make a static program with the toolkit's compiler, since a host may have none."""
    (directory / name).write_text(source)
    with Workshop() as workshop, scratch_directory("compile") as scratch:
        disk = workshop.kernel("cloud-amd64")
        layers = [workshop.roots.toolkit(disk.compiler)]
        argv = [disk.compiler, "-O2", "-static", "-o", f"/mnt/{Path(name).stem}", f"/mnt/{name}"]
        with make_entrance(layers, scratch, {directory: "/mnt"}) as enter:
            process.run(argv, env=ENVIRONMENT, wrapper=enter, timeout=LONG)


@pytest.mark.toolkit
def test_what_forks_and_ends_faster_than_one_can_look_does_not_outlive_its_step(
    tmp_path: Path,
) -> None:
    _compile(tmp_path, "comet.c", COMET)
    said = process.run(
        [*UNSHARE, sys.executable, "-c", CONTAINER, str(tmp_path)],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=LONG,
    )
    assert said.output.strip() == "exit 0 alive False left 0"
