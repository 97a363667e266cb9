"""The tests run with the versions of constraints.txt, and with all that pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions

from tests import TOP

PINNED = dict(
    line.split("==")
    for line in (TOP / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
)


def canonical(name: str) -> str:
    """As in PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_is_installed_is_what_the_constraints_say() -> None:
    pinned = {canonical(name): version for name, version in PINNED.items()}
    found = {canonical(each.name): each.version.removeprefix("v") for each in distributions()}
    other = {name: found.get(name) for name in pinned if found.get(name) != pinned[name]}
    assert other == {}, "scripts/setup test installs them; scripts/setup lock renews them"


def test_every_dependency_has_a_version() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    asked = [*project["dependencies"], *(each for extra in extras for each in extra)]
    names = {canonical(re.split(r"[<>=]", each)[0]) for each in asked}
    assert names <= {canonical(name) for name in PINNED}
