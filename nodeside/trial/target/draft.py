"""Drafts a driver.yaml for a source that has none, or one that says how to build it.

A dkms tree tells most of it in its dkms.conf. For a kbuild tree, or a source with a Makefile of its
own, the modules are those that a build produces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from nodeside.driver.handoff.request import ToolkitBuildFailed
from nodeside.driver.module.elf import NotAModule
from nodeside.driver.module.modulefile import ModuleFile
from nodeside.errors import NodesideError, UsageError
from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.spec.bare_source import (
    NO_VERSION,
    driver_name_of,
    is_common_name,
    plain_version,
    smallest_document,
)
from nodeside.trial.target.candidates import Candidate
from nodeside.trial.target.dkms_tree import DkmsTree, Evaluator, is_placeholder
from nodeside.trial.target.plan import (
    NO_WISHES,
    Need,
    Plan,
    Source,
    Wishes,
    plan_of,
    undecided_error,
)
from nodeside.trial.target.ways import OF_THE_WAY, configures_first, further_ways, way_in_words
from nodeside.values import frozen

# What make says of a Makefile that is for kbuild only, or where the vendor's is not: a dkms.conf
# that a release script moves to the top.
_NO_TARGET = re.compile(r"\*\*\* (No targets|No rule to make target '[\w-]+'\.)")

Builder = Callable[[Path, BuildSettings], tuple[ModuleFile, ...]]


@frozen
class Failure:
    """A way in which the source did not build, and why."""

    way: BuildSettings
    error: NodesideError

    @property
    def line(self) -> str:
        """Return the first error in one line."""
        first = self.error.first_error if isinstance(self.error, ToolkitBuildFailed) else ""
        return first or str(self.error).partition("\n")[0]

    @property
    def built_nothing(self) -> bool:
        """Return whether this way found nothing to build, as in a Makefile for kbuild only."""
        return isinstance(self.error, ToolkitBuildFailed) and (
            self.error.result.failure is FailureKind.NO_MODULE
            or _NO_TARGET.search(self.error.first_error) is not None
        )


@frozen
class Built:
    """A way to build, and the modules it has built; if it failed, `named` has the source's."""

    way: BuildSettings
    files: tuple[ModuleFile, ...]
    named: tuple[str, ...] = ()


@frozen
class Draft:
    """A driver.yaml in the making.

    `files` are the modules as built for one kernel. If the build failed, they are empty, and
    `problem` tells why. `failures` are all ways that failed, the one that says most first.
    `guesses` has the fields that the source does not tell, each with the reason for its value.
    `given_build` is the `spec.build` that the user wrote. `needs` are of other drivers.
    """

    name: str
    version: str
    build: BuildSettings
    files: tuple[ModuleFile, ...] = ()
    problem: str = ""
    guesses: Mapping[str, str] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = ()
    failures: tuple[Failure, ...] = ()
    given_build: Mapping[str, Any] | None = None
    needs: tuple[Need, ...] = ()

    @property
    def modules(self) -> tuple[str, ...]:
        return self.build.modules

    def build_document(self) -> dict[str, Any]:
        """Return `spec.build`, as values."""
        if self.given_build is not None:
            return {"kind": self.build.kind.value, **self.given_build}
        build: dict[str, Any] = {"kind": self.build.kind.value}
        if self.build.directory != ".":
            build["directory"] = self.build.directory
        if self.build.command:
            build["command"] = list(self.build.command)
        return build

    def document(self, source: str) -> dict[str, Any]:
        """Return the smallest driver.yaml, as values. `source` is the path of the source."""
        build = self.build_document()
        return smallest_document(self.name, self.version, source, build, self.modules)


def draft_of(
    tree: Path,
    source: Path,
    evaluate: Evaluator,
    build: Builder,
    wishes: Wishes = NO_WISHES,
) -> Draft:
    """Return the draft for `tree`, a copy of what the user calls `source`.

    Raises TargetError if the tree has no module, or several drivers and no sign which one is meant.
    Raises ToolkitBuildFailed if it does not compile and does not name its modules either.
    """
    if wishes.version and wishes.version != plain_version(wishes.version):
        raise UsageError(
            f"--version {wishes.version}: expected at most 40 letters, digits and _.+~-",
            hint=f"--version {plain_version(wishes.version)}",
        )
    place = Source(tree, source, evaluate)
    plan = plan_of(place, wishes)
    built, failures = _build_first(tree, plan.ways, build)
    if built is not None:
        return _make_draft(place.name, plan, wishes, built, failures)
    if plan.undecided:
        raise undecided_error(place, plan, wishes, _failures_in_lines(_sort_failures(failures)))
    return _draft_of_failure(place.name, plan, wishes, failures)


def _build_first(
    tree: Path, ways: Sequence[BuildSettings], build: Builder
) -> tuple[Built | None, list[Failure]]:
    """Return the first way that builds modules, with them, and those that failed before."""
    failures: list[Failure] = []
    waiting = list(ways)
    while waiting:
        way = waiting.pop(0)
        try:
            return Built(way, build(tree, way)), failures
        except (ToolkitBuildFailed, NotAModule) as error:
            failures.append(Failure(way, error))
            if isinstance(error, ToolkitBuildFailed) and error.result.failure not in OF_THE_WAY:
                break  # the kernel is excluded, a disk is full: no other way does better
        if failures[-1].built_nothing:
            waiting[:0] = further_ways(tree, way)
    return None, failures


def _sort_failures(failures: Sequence[Failure]) -> tuple[Failure, ...]:
    """Return the failures, first that of the vendor's own way to build: it got furthest."""
    ranks = {BuildKind.DKMS: 0, BuildKind.COMMAND: 1, BuildKind.KBUILD: 2}
    return tuple(sorted(failures, key=lambda each: (each.built_nothing, ranks[each.way.kind])))


def _failures_in_lines(failures: Sequence[Failure]) -> list[str]:
    return [f"also tried {way_in_words(each.way)}: {each.line}" for each in failures]


def _draft_of_failure(
    directory: str, plan: Plan, wishes: Wishes, failures: Sequence[Failure]
) -> Draft:
    """Return the draft of a source that did not build, with the modules that it names.

    Raises the first error if it names none, or if there is no way to try.
    """
    ordered = _sort_failures(failures)
    named = wishes.own.modules
    listed = plan.chosen.modules if plan.chosen is not None else ()
    if plan.conf is not None and not plan.template:
        named = plan.conf.modules
    elif listed and (wishes.directory or not named):  # driver.yaml may be of another directory
        named = listed
    named = tuple(name for name in named if not is_placeholder(name))
    if not named:
        error = ordered[0].error
        notes = [plan.template] if plan.template else []
        error.args = ("\n".join((str(error), *_failures_in_lines(ordered[1:]), *notes)),)
        raise error
    draft = _make_draft(directory, plan, wishes, Built(ordered[0].way, (), named), ordered)
    return replace(draft, problem=str(ordered[0].error))


def _make_draft(
    directory: str, plan: Plan, wishes: Wishes, built: Built, failures: Sequence[Failure]
) -> Draft:
    own, way = wishes.own, built.way
    conf = plan.conf if way.kind is BuildKind.DKMS and not plan.template else None
    first = own.modules or (plan.chosen.modules if plan.chosen else ())
    files = tuple(sorted(built.files, key=lambda file: _position_in(file.name, first)))
    modules = conf.modules if conf else tuple(file.name for file in files) or built.named
    guesses: dict[str, str] = {}
    if not files and conf is None:
        guesses["modules"] = "as the source lists them: it did not compile"
    version, why = _version_of(files, plan, conf, wishes)
    if why:
        guesses["version"] = why
    name = own.name or (conf.name if conf else driver_name_of(modules, directory))
    if len(modules) > 1 and not own.name and conf is None:
        is_generic = is_common_name(directory)
        guesses["name"] = "that of the first module" if is_generic else "the directory's"
    given = own.settings is not None and way == replace(own.settings, modules=())
    if (guess := _guess_of_build(way, plan)) and not given and not wishes.command:
        guesses["build"] = guess
    return Draft(
        name,
        version,
        replace(way, modules=modules),
        files,
        guesses=guesses,
        candidates=plan.candidates,
        failures=tuple(failures),
        given_build=own.build if given else None,
        needs=plan.needs if conf is not None else (),
    )


def _position_in(name: str, order: Sequence[str]) -> int:
    names = [each.replace("-", "_") for each in order]
    return names.index(name) if name in names else len(names)


def _version_of(
    files: Sequence[ModuleFile], plan: Plan, conf: DkmsTree | None, wishes: Wishes
) -> tuple[str, str]:
    """Return the version, and why it is a guess, "" if it is none."""
    if wishes.version:
        return wishes.version, ""
    if conf is not None:
        return conf.version, ""
    versions = {file.version for file in files if not is_placeholder(file.version)}
    if len(versions) == 1:
        version = versions.pop()
        return plain_version(version), _guess_of_kernels_version(version, files)
    if wishes.own.version not in ("", NO_VERSION):
        return wishes.own.version, ""
    why = "the modules have no MODULE_VERSION, or several"
    return NO_VERSION, f"{plan.template}, and {why}" if plan.template else why


def _guess_of_kernels_version(version: str, files: Sequence[ModuleFile]) -> str:
    """Return why a version is a guess that is the kernel's, such as 6 for 6.1.0-56; "" if not.

    kbuild sets VERSION, which a Makefile may set too, and exports KERNELVERSION, KERNELRELEASE.
    """
    for release in {file.vermagic.partition(" ")[0] for file in files}:
        if re.match(rf"{re.escape(version)}(?![0-9A-Za-z])", release):
            return f"MODULE_VERSION begins the kernel's release, {release}: kbuild may have set it"
    return ""


def _guess_of_build(way: BuildSettings, plan: Plan) -> str:
    """Return why the source is built in this way; "" if no other way is likely."""
    several = f"; {plan.why}" if ":" in plan.why else ""
    notes = "; not by its dkms.conf, which is a template" if plan.template else ""
    if way.kind is not BuildKind.COMMAND:
        guess = plan.why if several or way.directory != "." else ""
        return f"{guess}{notes}".removeprefix("; ")
    if plan.chosen is not None and plan.chosen.configured:
        where = plan.chosen.directory
        return f"it is configured first: a configure makes the Makefile of {where}{several}{notes}"
    if configures_first(way):
        return f"kbuild alone cannot build it, and it is configured first{several}{notes}"
    guess = f"the source has no Kbuild or Makefile that kbuild can use by itself{several}"
    return f"{guess}{notes}"
