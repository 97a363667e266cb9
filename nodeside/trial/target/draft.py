"""What can be known of a source that has no driver.yaml: a draft of one.

A dkms tree says most of it in its dkms.conf. Of a kbuild tree, or of a source with a Makefile of
its own, the modules are what a build of it produces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nodeside.contract import BuildKind, BuildSettings
from nodeside.driver.handoff.request import ToolkitBuildFailed
from nodeside.driver.module.elf import NotAModule
from nodeside.driver.module.modulefile import ModuleFile
from nodeside.errors import NodesideError
from nodeside.spec.bare_source import (
    NO_VERSION,
    lists_modules,
    name_of,
    named_modules,
    plain_version,
    says_nothing,
    smallest_document,
)
from nodeside.trial.errors import TargetError
from nodeside.trial.target.dkms_tree import Evaluator, describe

Builder = Callable[[Path, BuildSettings], tuple[ModuleFile, ...]]

_DEEPEST = 4  # directories below the source in which a Kbuild or Makefile is looked for


@dataclass(frozen=True)
class Draft:
    """A driver.yaml in the making.

    `files` are the modules as built for one kernel; empty, with `problem`, if they could not be.
    `guesses` tells by field what nothing in the source says, and why it is as it is.
    """

    name: str
    version: str
    build: BuildSettings
    files: tuple[ModuleFile, ...] = ()
    problem: str = ""
    guesses: Mapping[str, str] = field(default_factory=dict)

    @property
    def modules(self) -> tuple[str, ...]:
        return self.build.modules

    def document(self, source: str) -> dict[str, Any]:
        """Return the smallest driver.yaml, as values. `source` is the path of the source."""
        build: dict[str, Any] = {"kind": self.build.kind.value}
        if self.build.directory != ".":
            build["directory"] = self.build.directory
        if self.build.command:
            build["command"] = list(self.build.command)
        return smallest_document(self.name, self.version, source, build, self.modules)


def draft_of(tree: Path, name: str, evaluate: Evaluator, build: Builder) -> Draft:
    """Return the draft of a source; `name` is that of its directory.

    Raises TargetError if no module is found in it, and ToolkitBuildFailed if it does not compile
    and does not say what its modules are called either.
    """
    if (tree / "dkms.conf").is_file():
        return _of_dkms_tree(tree, evaluate, build)
    return _of_makefiles(tree, name, build)


def _of_dkms_tree(tree: Path, evaluate: Evaluator, build: Builder) -> Draft:
    document = describe(tree, evaluate)
    spec = document["spec"]
    modules = tuple(module["name"] for module in spec["modules"])
    settings = BuildSettings(BuildKind.DKMS, modules)
    draft = Draft(document["metadata"]["name"], spec["version"], settings)
    try:
        return replace(draft, files=build(tree, settings))
    except (ToolkitBuildFailed, NotAModule) as error:
        return replace(draft, problem=str(error))


def _of_makefiles(tree: Path, name: str, build: Builder) -> Draft:
    ways = list(_ways(tree))
    if not ways:
        raise TargetError(
            f"{name} has no kernel module to build: expected a dkms.conf, or a Kbuild or Makefile "
            f"with obj-m, at most {_DEEPEST} directories deep",
            hint="write a driver.yaml with build.kind: command, see docs/packaging-a-driver.md",
        )
    failures: list[NodesideError] = []
    for settings in ways:
        try:
            files = build(tree, settings)
        except (ToolkitBuildFailed, NotAModule) as error:
            failures.append(error)
        else:
            return _draft(name, settings, files)
    named = named_modules(tree / ways[0].directory)
    if not named:
        raise failures[0]
    return _draft(name, ways[0], (), named, str(failures[0]))


def _ways(tree: Path) -> Iterator[BuildSettings]:
    """Yield the ways in which the source may be built, the likeliest first."""
    directory = next(_kbuild_directories(tree), None)
    if directory is not None:
        yield BuildSettings(BuildKind.KBUILD, (), directory=directory)
    if any((tree / name).is_file() for name in ("Makefile", "makefile", "GNUmakefile")):
        yield BuildSettings(BuildKind.COMMAND, (), command=("make",))
    if (tree / "configure").is_file():
        yield BuildSettings(BuildKind.COMMAND, (), command=("sh", "-c", "./configure && make"))


def _kbuild_directories(tree: Path) -> Iterator[str]:
    """Yield the directories whose Kbuild or Makefile lists modules, the highest first."""
    waiting = [(tree, 0)]
    while waiting:
        directory, depth = waiting.pop(0)
        if lists_modules(directory):
            yield str(directory.relative_to(tree))
        if depth < _DEEPEST:
            with os.scandir(directory) as entries:
                names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
            waiting += [(directory / name, depth + 1) for name in names if name[0] != "."]


def _draft(
    directory: str,
    settings: BuildSettings,
    files: tuple[ModuleFile, ...],
    named: tuple[str, ...] = (),
    problem: str = "",
) -> Draft:
    modules = tuple(file.name for file in files) or named
    guesses: dict[str, str] = {}
    if problem:
        guesses["modules"] = "as the Makefile lists them: the source did not compile"
    versions = {plain_version(file.version) for file in files if file.version}
    version = versions.pop() if len(versions) == 1 else NO_VERSION
    if version == NO_VERSION:
        guesses["version"] = "the modules have no MODULE_VERSION, or several"
    if settings.kind is BuildKind.COMMAND:
        guesses["build"] = "the source has no Kbuild or Makefile that kbuild can use by itself"
        if "configure" in settings.command[-1]:
            guesses["build"] += "; a configure with an option for headers: $NODESIDE_KERNEL_DIR"
    elif settings.directory != ".":
        guesses["build"] = "the first directory with obj-m"
    name = name_of(modules, directory)
    if len(modules) > 1:
        first = says_nothing(directory)
        guesses["name"] = "that of the first module" if first else "the directory's"
    return Draft(name, version, replace(settings, modules=modules), files, problem, guesses)
