"""`make lab`, `make lab-down`, and what people do to the nodes of a running lab."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import click

from nodeside.errors import DeadlinePassed, Locked, NodesideError
from nodeside.system.scratch import remove_abandoned
from nodeside.trial.progress import Progress
from nodeside.trial.workshop import Workshop
from tests.lab import network
from tests.lab.commands import ask, serving
from tests.lab.lab import KERNEL, Lab, end_lab, only_lab, two_kernels
from tests.patience import patience

_DOWN = patience(120.0)  # seconds
_LOOK = 0.2  # seconds
_SETTINGS = {"help_option_names": ["-h", "--help"]}

_TOUR = """\
A cluster of {count} nodes is up. In another shell, as root:

  export KUBECONFIG={kubeconfig} PATH={programs}:$PATH
  kubectl get nodes --label-columns feature.node.kubernetes.io/pci-00ff_1234.present
  kubectl apply --kustomize examples/edu/stack    # the example driver, and what follows it
  .venv/bin/nodeside-cluster status --watch
  kubectl logs deployment/edu-workload
  kubectl --namespace nodeside logs --follow --all-containers --selector nodeside.io/driver=edu
  buildah push --tls-verify=false IMAGE docker://{registry}/NAME:TAG
                                  # an image of yours; for the nodes registry.example.com/NAME:TAG
  .venv/bin/python -m tests.lab node reboot node-1 {other}
  .venv/bin/python -m tests.lab node --help               # all that can befall a node

Ctrl-C here, or `make lab-down`, ends all of it.
"""


@click.group(context_settings=_SETTINGS)
def main() -> None:
    """A real cluster on this machine: nodes in QEMU, with the edu device."""


@main.command()
@click.argument("nodes", default=2, type=click.IntRange(1, network.MOST_NODES))
@click.option("--kernel", default=KERNEL, help="Of the nodes, as for `nodeside try`.")
def up(nodes: int, kernel: str) -> None:
    """Start it with so many NODES, until Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    progress = Progress()
    try:
        with (
            Workshop(progress) as workshop,
            Lab(workshop, progress.print_step, two_kernels(workshop, kernel)) as lab,
            serving(lab),
        ):
            lab.start(nodes)
            click.echo(_tour(lab))
            while True:
                signal.pause()
    except KeyboardInterrupt:
        pass
    progress.print_step("stopped, and nothing is left")


def _tour(lab: Lab) -> str:
    return _TOUR.format(
        count=len(lab.nodes),
        kubeconfig=lab.plane.kubeconfig,
        programs=lab.plane.binaries["kubectl"].parent,
        registry=lab.registry,
        other=lab.kernels[-1].release,
    )


@main.command()
def down() -> None:
    """End the lab that runs, and remove what a killed one left."""
    with suppress(OSError, ValueError):  # there is none, or it is ending
        end_lab()
    deadline = time.monotonic() + _DOWN
    while True:
        try:
            with only_lab():
                network.remove()
                remove_abandoned(Path(tempfile.gettempdir()))
                return
        except Locked:
            if time.monotonic() > deadline:
                raise DeadlinePassed(f"the lab has not ended within {_DOWN:g} s") from None
            time.sleep(_LOOK)


@main.group()
def node() -> None:
    """What befalls a node of the lab that runs."""


def _command(name: str, about: str, *arguments: click.Argument) -> None:
    def call(**given: str | tuple[str, ...] | None) -> None:
        words: list[str] = []
        for value in given.values():
            words += value if isinstance(value, tuple) else [value] if value else []
        answer = ask(name, *words)
        if "error" in answer:
            _fail(answer["error"], answer["hint"], answer["exit"])
        click.echo(answer["output"])

    node.add_command(click.Command(name, callback=call, params=list(arguments), help=about))


def _name() -> click.Argument:
    return click.Argument(["name"])


def _kernel() -> click.Argument:
    return click.Argument(["kernel"], required=False)


_command("list", "All nodes.")
_command("add", "One more, with a KERNEL as for `nodeside try`.", _kernel())
_command("boot", "Switch it on.", _name())
_command("reboot", "Shut it down, and boot the same or another KERNEL.", _name(), _kernel())
_command("power-cut", "Off at once: what was not written is lost.", _name())
_command("unplug-network", "Pull its cable.", _name())
_command("plug-network", "Put its cable back.", _name())
_command("delete", "Off for good, and out of the cluster.", _name())
_command(
    "run",
    "A command on the node, after --.",
    _name(),
    click.Argument(["argv"], nargs=-1, required=True),
)


def _fail(error: str, hint: str, code: int) -> None:
    sys.stderr.write(f"error: {error}\n" + (f"hint: {hint}\n" if hint else ""))
    sys.exit(code)


if __name__ == "__main__":
    try:
        main()
    except NodesideError as error:
        _fail(str(error), error.hint, int(error.exit_code))
