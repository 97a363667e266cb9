"""All sizes, one after the other, and the versions of what they ran on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from bench.cluster import looks, report
from bench.cluster.scenario import Measured
from bench.cluster.scenario import measure as measure_size
from bench.page import Section
from bench.size import Size
from nodeside.errors import DeadlinePassed

# Nodes, and seconds of idling. A whole rollout is made at one size: its length is that of the
# nodes' work times the number of turns, whatever the size.
_SIZES = {
    Size.FULL: ((100, 60.0), (1000, 60.0), (5000, 300.0)),
    Size.QUICK: ((50, 15.0), (200, 15.0)),
    Size.SMALLEST: ((25, 1.0),),
}
_WHOLE_ROLLOUT = (1000, 200, 25)
_LOOKS = {  # Drivers, and the nodes of each
    Size.FULL: ((10, 50), 5000),
    Size.QUICK: ((4, 8), 200),
    Size.SMALLEST: ((1, 2), 40),
}

_GO_MOD = Path("tests/controlplane/go.mod")
_MODULES = {"k8s.io/kubernetes": "Kubernetes", "sigs.k8s.io/kwok": "KWOK"}


def measure(say: Callable[[str], None], size: Size) -> tuple[Section, Mapping[str, str]]:
    """The section, and names and versions for the table of the machine."""
    every: list[Measured] = []
    missing: list[str] = []
    for nodes, idle in _SIZES[size]:
        try:
            every.append(measure_size(nodes, idle, full=nodes in _WHOLE_ROLLOUT, say=say))
        except DeadlinePassed as error:
            if not every:
                raise
            missing.append(str(error))
            say(f"not measured: {missing[-1]}")
    drivers, nodes = _LOOKS[size]
    say(f"looks at {drivers[-1]} Drivers on {nodes} nodes")
    found = [looks.measure(each, nodes) for each in drivers]
    found += [looks.measure(drivers[0], nodes, each) for each in looks.OPTIONS if each != "none"]
    return report.section(every, found, missing), _versions()


def _versions() -> Mapping[str, str]:
    required = dict(
        words[:2]
        for line in _GO_MOD.read_text().splitlines()
        if len(words := line.removeprefix("require ").split()) >= 2
    )
    found = {name: required.get(module, "?") for module, name in _MODULES.items()}
    return found | {"Python's kubernetes": version("kubernetes")}
