"""Debian's dkms packages, unmodified, whichever the archive has today.

`make test` builds those of few source files; `make lab-story` also those of more, and
`python -m tests.vm.dkms_table` all.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.module.modulefile import read_modules
from nodeside.errors import ExitCode, SpecError
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.spec import load
from nodeside.spec.bare_source import bare_driver
from nodeside.trial import scaffold
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.target.draft import Draft
from nodeside.trial.workshop import Workshop
from tests.vm.dkms_effects import EFFECTS, EXCLUDED
from tests.vm.dkms_packages import LARGE, SMALL, DkmsPackages, Outcome, package_names
from tests.vm.dkms_table import as_text, merged

pytestmark = pytest.mark.vm

_AT_LEAST = 12  # packages that must get ready with a known effect, whatever becomes of the others
_HONEST = {
    ExitCode.BUILD_FAILED: "first error: ",
    ExitCode.NO_MODULE: "first error: ",  # the last command of its MAKE ends well whatever happens
    ExitCode.EXCLUDED: "is not made for this kernel: ",
    ExitCode.REFUSED: "needs ",
    ExitCode.LOAD_FAILED: "cannot load ",
}


@pytest.fixture(scope="module")
def packages(
    workshop: Workshop, generic: KernelDisk, tmp_path_factory: pytest.TempPathFactory
) -> DkmsPackages:
    """The packages of the archive, for the ordinary kernel."""
    return DkmsPackages(workshop, generic, tmp_path_factory.mktemp("dkms") / "ordinary")


@pytest.fixture(scope="module")
def outcomes(packages: DkmsPackages, request: pytest.FixtureRequest) -> Mapping[str, Outcome]:
    """All packages of the archive but those that take long to build."""
    largest = LARGE if request.config.getoption("--every-chapter") else SMALL
    built = list(packages.build(package_names(packages.workshop.archive), largest=largest))
    return {outcome.package: outcome for outcome in merged(built, packages.load(built))}


def test_at_least_twelve_packages_of_the_archive_get_ready(
    outcomes: Mapping[str, Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{as_text(outcomes.values())}\n")
    ready = [name for name, outcome in outcomes.items() if outcome.ready]
    assert len(ready) >= _AT_LEAST, ready


def test_a_package_that_does_not_get_ready_says_why(outcomes: Mapping[str, Outcome]) -> None:
    for outcome in outcomes.values():
        if not outcome.ready:
            assert outcome.code in _HONEST, outcome
            assert _HONEST[ExitCode(outcome.code)] in outcome.message, outcome


def test_every_package_that_was_loaded_can_be_unloaded_again(
    outcomes: Mapping[str, Outcome],
) -> None:
    assert not [outcome.package for outcome in outcomes.values() if not outcome.unloaded]


def test_every_package_of_the_archive_is_tried(
    packages: DkmsPackages, outcomes: Mapping[str, Outcome]
) -> None:
    untried = set(package_names(packages.workshop.archive)) - set(outcomes)
    assert untried == {*packages.treeless, *packages.left_out}
    assert not set(packages.treeless) & set(EFFECTS), "what has a known effect has a dkms tree"


def test_the_effect_of_every_package_that_the_archive_still_has_is_seen(
    outcomes: Mapping[str, Outcome],
) -> None:
    """Packages come and go: which of those with a known effect there are is seen at run time."""
    known = [outcome for name, outcome in outcomes.items() if name in EFFECTS]
    assert [wrong for outcome in known if (wrong := _unlike(outcome))] == []
    assert len([outcome for outcome in known if outcome.ready]) >= _AT_LEAST


def _unlike(outcome: Outcome) -> str:
    """What is not as it was known to be; nothing if all is."""
    effect = EFFECTS[outcome.package]
    said = outcome.shown if outcome.ready else outcome.message
    if outcome.code == effect.code and re.search(effect.shows, said, re.MULTILINE):
        return ""
    wanted = f"exit code {int(effect.code)} and {effect.shows!r}"
    return f"{outcome.package}: expected {wanted}, got exit code {outcome.code} and {said!r}"


def test_what_init_writes_for_a_package_is_the_driver_that_got_ready(
    packages: DkmsPackages, outcomes: Mapping[str, Outcome], tmp_path: Path
) -> None:
    """But for the hardware, which no trial asks about, and what the effect adds to its modules."""
    for name in (name for name, outcome in outcomes.items() if outcome.ready):
        tried = load(packages.images / name / "driver.yaml")
        modules = tuple(module.name for module in tried.spec.modules)
        files = read_modules(sorted(packages.cache.glob(f"{tried.name}/*/modules/*")))
        settings = BuildSettings(BuildKind.DKMS, modules)
        draft = Draft(tried.name, tried.spec.version, settings, tuple(files))
        (tmp_path / "driver.yaml").write_text(
            scaffold.make_file_texts(draft, "src", "0.1")["driver.yaml"]
        )

        made = load(tmp_path / "driver.yaml").spec

        assert tuple(module.name for module in made.modules) == modules, name
        same = replace(made, hardware=tried.spec.hardware, modules=tried.spec.modules)
        assert same == tried.spec, name


def test_what_a_dkms_conf_says_without_being_run_is_what_bash_finds_in_it(
    packages: DkmsPackages, outcomes: Mapping[str, Outcome]
) -> None:
    plain = []
    for name in (name for name, outcome in outcomes.items() if outcome.ready):
        tried = load(packages.images / name / "driver.yaml")
        with suppress(SpecError):  # it computes its names
            read = bare_driver(packages.images / name / "src")
            assert read is not None, name
            assert (read.name, read.spec.version) == (tried.name, tried.spec.version)
            left_out = EFFECTS[name].left_out if name in EFFECTS else ()
            found = [m.name for m in read.spec.modules if m.name not in left_out]
            assert found == [m.name for m in tried.spec.modules], name
            plain.append(name)
    assert len(plain) >= _AT_LEAST, plain


def test_a_kernel_that_a_package_excludes_is_named_with_the_rule(
    workshop: Workshop, newest: KernelDisk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    packages = DkmsPackages(workshop, newest, tmp_path_factory.mktemp("dkms") / "cloud")
    names = sorted(set(EXCLUDED) & set(package_names(workshop.archive)))
    excluded = list(packages.build(names, largest=LARGE))
    assert excluded, "the archive has none of the packages that exclude a cloud kernel"
    for outcome in excluded:
        assert outcome.code == ExitCode.EXCLUDED, outcome.message
        assert EXCLUDED[outcome.package] in outcome.message
        assert "is not made for this kernel: BUILD_EXCLUSIVE_" in outcome.message
