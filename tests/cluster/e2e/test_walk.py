"""What docs/cluster.md has a reader do on a control plane of their own, done.

Every command is pasted into a shell as it stands there, and what the document shows is what it
prints. Nothing is known here of what the walk is about.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.kube.client import Api, connect
from cluster.kube.resources import DAEMON_SETS, NODES, Resource
from cluster.model.names import NAMESPACE
from nodeside.system import process
from tests.cluster.e2e.walk import Shell, Step, steps
from tests.patience import patience

pytestmark = pytest.mark.cluster

TOP = Path(__file__).parents[3]
LONG = patience(180.0)  # seconds: a deadline that only a broken test meets
AGAIN = 0.2  # seconds between two looks
MAKE, *WALK = steps((TOP / "docs/cluster.md").read_text(), "A walk on a control plane of your own")


@contextmanager
def made() -> Iterator[str]:
    """What `make control-plane` prints; Ctrl-C ends it, and nothing is left of it."""
    recipe = process.run(["make", "-n", "control-plane"], timeout=LONG, cwd=TOP).output
    start = recipe.splitlines()[-1].split()
    assert start == [".venv/bin/python", "-m", "tests.controlplane"]
    child = process.start([sys.executable, *start[1:]], cwd=TOP, stdout=-1, stderr=process.NOWHERE)
    assert child.stdout is not None
    try:
        printed = child.stdout.readline().decode()
        place = Path(printed.strip().removeprefix("export KUBECONFIG=")).parent
        assert place.is_dir()
        kubectl = child.stdout.readline().decode() if not has_kubectl() else ""
        yield printed + kubectl
        child.send_signal(signal.SIGINT)
        assert child.wait(LONG) == 0
        assert not place.exists()
    finally:
        child.terminate()  # where the test fails; it ends what it has started
        child.wait(LONG)


def has_kubectl() -> bool:
    return process.run(["sh", "-c", "command -v kubectl"], timeout=LONG, check=False).exit_code == 0


def checkout(directory: Path) -> Path:
    """The reader's directory: what they write there is not written into ours."""
    (directory / "examples").symlink_to(TOP / "examples")
    (directory / ".venv").symlink_to(sys.prefix)
    return directory


def follow(step: Step, shell: Shell) -> None:
    """Paste it; a look is repeated, as a reader does who was too fast."""
    printed, deadline = shell.paste(step.command), time.monotonic() + LONG
    while step.is_look and not step.fits(printed) and time.monotonic() < deadline:
        time.sleep(AGAIN)
        printed = shell.paste(step.command)
    assert step.fits(printed), f"$ {step.command}\n{printed}\nthe document has:\n{step.shown}"


class Arrival:
    """When the first object of a kind was there that was not there before, in monotonic seconds."""

    def __init__(self, api: Api, kind: Resource, namespace: str = "") -> None:
        self.at = 0.0
        version = api.list(kind, lambda _: None, namespace=namespace).resource_version
        self._watch = api.watch(kind, version, namespace=namespace)
        self._thread = threading.Thread(target=self._await, daemon=True)
        self._thread.start()

    def _await(self) -> None:
        for event in self._watch:
            if event.kind == "ADDED":
                self.at = time.monotonic()
                return

    def close(self) -> None:
        self._watch.close()
        self._thread.join(LONG)


def test_the_walk_of_the_document_is_what_a_reader_sees(tmp_path: Path) -> None:
    with made() as printed, Shell(checkout(tmp_path), {"HOME": str(tmp_path)}) as shell:
        assert MAKE.command == "make control-plane"
        assert MAKE.fits(printed)
        shell.paste(printed)
        api = connect(Path(printed.splitlines()[0].removeprefix("export KUBECONFIG=")))
        arrivals = Arrival(api, NODES), Arrival(api, DAEMON_SETS, NAMESPACE)
        for step in WALK:
            follow(step, shell)
        for arrival in arrivals:
            arrival.close()
        api.close()

    node, daemonset = (arrival.at for arrival in arrivals)
    assert 0 < node < daemonset
    print(f"node to DaemonSet: {daemonset - node:.2f} s")  # noqa: T201


def test_the_walk_is_the_one_that_newcomers_are_promised() -> None:
    pasted = [step.command for step in WALK]

    order = [
        next(i for i, command in enumerate(pasted) if command.startswith(wanted))
        for wanted in (
            "nodeside-cluster install ",
            "kubectl apply -f examples/edu/driver.yaml",
            "nodeside-cluster run ",
            "kubectl apply -f examples/edu/cluster/image-stream.yaml",
            "kubectl apply -f examples/edu/cluster/node.yaml",
            "kubectl -n nodeside get daemonsets",
        )
    ]
    assert order == sorted(order)
