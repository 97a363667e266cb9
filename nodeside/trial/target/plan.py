"""What of a source to build, and in which ways: decided from its files, before any build."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nodeside.errors import UsageError
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.protocol.labels import make_dns_label
from nodeside.spec.kbuild_list import source_text
from nodeside.trial.architecture import AMD64
from nodeside.trial.errors import TargetError
from nodeside.trial.target.candidates import (
    DEEPEST,
    DKMS_CONF,
    Candidate,
    candidate_named,
    candidates_in_words,
    candidates_of,
    choose_likeliest,
    list_likely_drivers,
)
from nodeside.trial.target.dkms_tree import (
    DkmsTree,
    Evaluator,
    read_dkms_tree,
    template_in_words,
)
from nodeside.trial.target.own_driver import NO_OWN_DRIVER, OwnDriver
from nodeside.trial.target.ways import likely_ways
from nodeside.values import frozen

_COMMANDS = 3  # shown in a hint, which is one line
_BESIDE = 100  # files that are read for the names of packages
_PACKAGE_NAME = re.compile(
    r"""^[ \t]*PACKAGE_NAME=["']?([\w.+~-]{1,100})["']?[ \t]*$""", re.MULTILINE
)


def build_options(kernel: str, packages: Sequence[str]) -> tuple[str, ...]:
    """Return the options with which `init` and `try` build for a kernel, with these packages."""
    words = [] if kernel == AMD64.default_kernel else ["--kernel", kernel]
    words += [word for package in packages for word in ("--toolkit-package", package)]
    return tuple(words)


@frozen
class Wishes:
    """What the user says of a source: "" and () for what is left to us.

    `options` are for what it is built, and with which packages: an order to repeat keeps them.
    """

    directory: str = ""
    command: tuple[str, ...] = ()
    version: str = ""
    own: OwnDriver = NO_OWN_DRIVER
    options: tuple[str, ...] = ()


NO_WISHES = Wishes()


@frozen
class Need:
    """A dkms package that BUILD_DEPENDS names.

    `driver` is the usual name of the Driver with its modules, and `directory` that of its source,
    "" unless it is in the same tree.
    """

    package: str
    driver: str
    directory: str = ""


@frozen
class Plan:
    """The ways to try, and what was found before that.

    It is `undecided` if there are several drivers, and nothing speaks for one of them. `template`
    says that the dkms.conf is only a template, "" if it is not.
    """

    ways: tuple[BuildSettings, ...]
    candidates: tuple[Candidate, ...]
    chosen: Candidate | None = None
    why: str = ""
    undecided: bool = False
    conf: DkmsTree | None = None
    template: str = ""
    needs: tuple[Need, ...] = ()


@frozen
class Source:
    """A source: `tree` is a copy of what the user calls `path`."""

    tree: Path
    path: Path
    evaluate: Evaluator

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def init_command(self, wishes: Wishes) -> str:
        """Return the command that makes a driver.yaml of this source, to add an option to."""
        return shlex.join(["nodeside", "init", str(self.path), *wishes.options])


def plan_of(source: Source, wishes: Wishes) -> Plan:
    """Return what to build. Raises TargetError if there is no module; UsageError."""
    candidates = candidates_of(source.tree)
    own = wishes.own
    if wishes.command:
        directory = wishes.directory or "."
        if directory.startswith(("/", "..")) or not (source.tree / directory).is_dir():
            raise UsageError(f"--directory {directory}: the source has no such directory")
        way = BuildSettings(BuildKind.COMMAND, (), directory=directory, command=wishes.command)
        return Plan((way,), candidates)
    if wishes.directory:
        named = candidate_named(source.tree, wishes.directory, candidates)
        return _plan_for(source, candidates, named, only_listed=True)
    if own.settings is not None and not own.guessed:
        way = replace(own.settings, modules=())
        conf, template = None, ""
        if way.kind is BuildKind.DKMS:
            conf, template = _read_conf(source, way.directory)
        needs = _needs_of(source, conf, candidates)
        return Plan((way,), candidates, conf=conf, template=template, needs=needs)
    chosen, why = _choose_directory(source, candidates)
    plan = _plan_for(source, candidates, chosen, why)
    if not plan.ways and not candidates:
        raise TargetError(
            f"{source.name} has no kernel module to build: expected a dkms.conf, or a "
            f"Kbuild or Makefile with obj-m, at most {DEEPEST} directories deep",
            hint=f"say how it is built: {source.init_command(wishes)} "
            "--command 'make driver', see docs/packaging-a-driver.md",
        )
    return plan


def undecided_error(
    source: Source, plan: Plan, wishes: Wishes, tried: Sequence[str] = ()
) -> TargetError:
    """Return the error for several drivers, with the command for each.

    `tried` are the ways that build more than one of them, with their errors.
    """
    candidates = plan.candidates
    if plan.template:
        return TargetError(
            f"{plan.template}; and nothing else in {source.name} says how it is built",
            hint=f"{source.init_command(wishes)} --version VERSION --command "
            "'make driver', or take a release of the source",
        )
    init = f"{source.init_command(wishes)} --directory"
    drivers = list_likely_drivers(source.tree, candidates)
    commands = [f"{init} {shlex.quote(each.directory)}" for each in drivers[:_COMMANDS]]
    more = ", or another" if len(drivers) > _COMMANDS else ""
    what = "several drivers, and nothing in it speaks for one of them"
    if all(each.aside for each in candidates):
        what = "modules only in directories that are named as tests or tools are"
    words = f"{source.name} has {what}: kbuild finds modules in {candidates_in_words(candidates)}"
    return TargetError(
        "\n".join((words, *tried)),
        hint="say which one is meant: " + ", or ".join(commands) + more,
    )


def _choose_directory(
    source: Source, candidates: Sequence[Candidate]
) -> tuple[Candidate | None, str]:
    """Return the directory to build in and why: the one with a dkms.conf, else the likeliest."""
    packaged = [each for each in candidates if each.dkms_conf and not each.aside]
    if packaged and packaged[0].directory == ".":
        return packaged[0], ""
    if len(packaged) == 1:
        others = len(candidates) > 1
        why = f"alone has a dkms.conf, of: {candidates_in_words(candidates)}"
        return packaged[0], why if others else "the only directory with a dkms.conf"
    if not candidates:
        return None, ""
    return choose_likeliest(source.tree, packaged or candidates, source.name)


def _plan_for(
    source: Source,
    candidates: tuple[Candidate, ...],
    chosen: Candidate | None,
    why: str = "",
    *,
    only_listed: bool = False,
) -> Plan:
    """Return the plan for the directory that was chosen, or for none."""
    conf, template, dkms = None, "", None
    if chosen is not None and chosen.dkms_conf:
        conf, template = _read_conf(source, chosen.directory)
        dkms = None if template else chosen
    listing = chosen if chosen is not None and chosen.lists else None
    if chosen is not None and listing is None and not only_listed:
        rest = [each for each in candidates if each.lists]
        other, other_why = choose_likeliest(source.tree, rest, source.name) if rest else (None, "")
        listing, why = other, why if dkms else other_why
    ways = likely_ways(source.tree, dkms, listing, only_listed=only_listed)
    return Plan(
        tuple(ways),
        candidates,
        chosen=dkms or listing,
        why=why,
        undecided=bool(candidates) and dkms is None and listing is None,
        conf=conf,
        template=template,
        needs=_needs_of(source, conf, candidates),
    )


def _needs_of(
    source: Source, conf: DkmsTree | None, candidates: Sequence[Candidate]
) -> tuple[Need, ...]:
    """Return what BUILD_DEPENDS of a dkms.conf names. Its source may be beside in the same tree."""
    if conf is None or not conf.needs:
        return ()
    beside: dict[str, str] = {}
    for each in [each for each in candidates if each.dkms_conf][:_BESIDE]:
        named = _PACKAGE_NAME.search(source_text(source.tree / each.directory / DKMS_CONF))
        if named:
            beside.setdefault(named[1], each.directory)
    return tuple(Need(name, make_dns_label(name), beside.get(name, "")) for name in conf.needs)


def _read_conf(source: Source, directory: str) -> tuple[DkmsTree, str]:
    """Return what a dkms.conf says, and that it is a template, "" if it is none."""
    conf = Path(directory) / DKMS_CONF
    found = read_dkms_tree(source.tree / directory, source.evaluate, source.path / conf)
    words = template_in_words(source.tree / conf, found)
    return found, f"{source.path / conf} is {words}" if words else ""
