"""Drafts a driver.yaml for a source that has none.

A dkms tree tells most of it in its dkms.conf. For a kbuild tree, or a source with a Makefile of its
own, the modules are those that a build produces.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from nodeside.driver.handoff.request import ToolkitBuildFailed
from nodeside.driver.module.elf import NotAModule
from nodeside.driver.module.modulefile import ModuleFile
from nodeside.errors import NodesideError, UsageError
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.spec.bare_source import (
    NO_VERSION,
    name_of,
    named_modules,
    plain_version,
    says_nothing,
    smallest_document,
)
from nodeside.trial.errors import TargetError
from nodeside.trial.target.candidates import (
    DEEPEST,
    Candidate,
    candidate_named,
    candidates_of,
    choose_likeliest,
    directories_in_words,
)
from nodeside.trial.target.dkms_tree import Evaluator, describe
from nodeside.values import frozen

Builder = Callable[[Path, BuildSettings], tuple[ModuleFile, ...]]

_CONFIGURED = './configure && make -C "$NODESIDE_KERNEL_DIR" M="$PWD"/{} modules'

_COMMANDS = 3  # shown in a hint, which is one line


@frozen
class Draft:
    """A driver.yaml in the making.

    `files` are the modules as built for one kernel. If the build failed, they are empty, and
    `problem` tells why. `guesses` has the fields that the source does not tell, each with the
    reason for its value.
    """

    name: str
    version: str
    build: BuildSettings
    files: tuple[ModuleFile, ...] = ()
    problem: str = ""
    guesses: Mapping[str, str] = field(default_factory=dict)
    candidates: tuple[str, ...] = ()  # directories in which kbuild finds a list of modules

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


def draft_of(
    tree: Path, source: Path, evaluate: Evaluator, build: Builder, directory: str = ""
) -> Draft:
    """Return the draft for `tree`, a copy of what the user calls `source`.

    `directory` is the directory to build in, "" if the user named none.

    Raises TargetError if the tree has no module, or several drivers and no sign which one is meant.
    Raises ToolkitBuildFailed if it does not compile and does not name its modules either.
    """
    if (tree / "dkms.conf").is_file():
        if directory:
            raise UsageError(f"--directory {directory}: a dkms tree is built as its dkms.conf says")
        return _of_dkms_tree(tree, evaluate, build)
    return _of_makefiles(tree, source, build, directory)


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


def _of_makefiles(tree: Path, source: Path, build: Builder, directory: str) -> Draft:
    candidates = candidates_of(tree)
    chosen: Candidate | None = None
    why = ""
    if directory:
        chosen = candidate_named(tree, directory)
    elif candidates:
        chosen, why = choose_likeliest(tree, candidates)
    ways = _likely_settings(tree, chosen)[: 1 if directory else None]
    if not ways and not candidates:
        raise TargetError(
            f"{source.resolve().name} has no kernel module to build: expected a dkms.conf, or a "
            f"Kbuild or Makefile with obj-m, at most {DEEPEST} directories deep",
            hint="write a driver.yaml with build.kind: command, see docs/packaging-a-driver.md",
        )
    draft = _draft_that_builds(
        tree, source, ways, build, undecided=bool(candidates) and chosen is None
    )
    if draft is None:
        raise _undecided_error(source, candidates)
    guess = _guess_of_build(draft.build, why, chosen)
    guesses = {**draft.guesses, **({"build": guess} if guess else {})}
    names = tuple(each.directory for each in candidates)
    return replace(draft, guesses=guesses, candidates=names)


def _draft_that_builds(
    tree: Path, source: Path, ways: Sequence[BuildSettings], build: Builder, *, undecided: bool
) -> Draft | None:
    """Return the draft of the first way that builds modules.

    If none does, returns the draft of the first way without a build, or None if it is `undecided`
    what to build. Raises ToolkitBuildFailed, NotAModule.
    """
    failures: list[NodesideError] = []
    for settings in ways:
        try:
            files = build(tree, settings)
        except (ToolkitBuildFailed, NotAModule) as error:
            failures.append(error)
        else:
            listed = named_modules(tree / settings.directory)
            files = tuple(sorted(files, key=lambda file: file.name not in listed))
            return _make_draft(source, settings, files)
    if undecided:
        return None
    named = named_modules(tree / ways[0].directory)
    if not named:
        raise failures[0]
    return _make_draft(source, ways[0], (), named, str(failures[0]))


def _guess_of_build(settings: BuildSettings, why: str, chosen: Candidate | None) -> str:
    """Return why the source is built in this way; "" if no other way is likely."""
    several = f"; {why}" if ":" in why else ""
    if settings.kind is BuildKind.KBUILD:
        return why if several or settings.directory != "." else ""
    if chosen is not None and chosen.configured:
        return f"a configure makes the Makefile of {chosen.directory}{several}"
    guess = f"the source has no Kbuild or Makefile that kbuild can use by itself{several}"
    if "configure" in settings.command[-1]:
        guess += "; a configure with an option for headers: $NODESIDE_KERNEL_DIR"
    return guess


def _undecided_error(source: Path, candidates: Sequence[Candidate]) -> TargetError:
    name = source.resolve().name
    init = f"nodeside init {shlex.quote(str(source))} --directory"
    commands = [f"{init} {shlex.quote(each.directory)}" for each in candidates[:_COMMANDS]]
    more = ", or another" if len(candidates) > _COMMANDS else ""
    return TargetError(
        f"{name} has several drivers, and nothing in it speaks for one of them: kbuild finds "
        f"modules in {directories_in_words(candidates)}",
        hint="say which one is meant: " + ", or ".join(commands) + more,
    )


def _likely_settings(tree: Path, chosen: Candidate | None) -> list[BuildSettings]:
    """Return the ways in which the source may be built, the likeliest first."""
    if chosen is not None and chosen.configured:
        script = _CONFIGURED.format(shlex.quote(chosen.directory))
        return [BuildSettings(BuildKind.COMMAND, (), command=("sh", "-c", script))]
    ways = []
    if chosen is not None:
        ways.append(BuildSettings(BuildKind.KBUILD, (), directory=chosen.directory))
    if any((tree / name).is_file() for name in ("Makefile", "makefile", "GNUmakefile")):
        ways.append(BuildSettings(BuildKind.COMMAND, (), command=("make",)))
    if (tree / "configure").is_file():
        command = ("sh", "-c", "./configure && make")
        ways.append(BuildSettings(BuildKind.COMMAND, (), command=command))
    return ways


def _make_draft(
    source: Path,
    settings: BuildSettings,
    files: tuple[ModuleFile, ...],
    named: tuple[str, ...] = (),
    problem: str = "",
) -> Draft:
    directory = source.resolve().name
    modules = tuple(file.name for file in files) or named
    guesses: dict[str, str] = {}
    if problem:
        guesses["modules"] = "as the Makefile lists them: the source did not compile"
    versions = {plain_version(file.version) for file in files if file.version}
    version = versions.pop() if len(versions) == 1 else NO_VERSION
    if version == NO_VERSION:
        guesses["version"] = "the modules have no MODULE_VERSION, or several"
    name = name_of(modules, directory)
    if len(modules) > 1:
        is_generic = says_nothing(directory)
        guesses["name"] = "that of the first module" if is_generic else "the directory's"
    return Draft(name, version, replace(settings, modules=modules), files, problem, guesses)
