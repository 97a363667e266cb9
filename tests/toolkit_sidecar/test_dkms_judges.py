"""The real dkms, of Debian 12 and the newest, is asked about trees that our tests build.

Where the two differ, `CASES` has the answer of each, and ours: a difference that is gone is seen.
docs/dkms-packages.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.bundle_key import BuildKind
from nodeside.toolkit_sidecar.dkms import pad_version
from nodeside.trial.workshop import Workshop
from tests.toolkit_sidecar.dkms_judges import SUITES, Verdict, fetch_dkms, judge
from tests.toolkit_sidecar.dkms_make_lines import CONF, LINES, MAKE
from tests.toolkit_sidecar.faketoolkit import FakeToolkit

pytestmark = pytest.mark.toolkit

OLD, NEW = "3.0", "newest"
PLACE = "DEST_MODULE_LOCATION=/updates\n"
STRAW = f"PACKAGE_NAME=straw\nPACKAGE_VERSION=1.0\nBUILT_MODULE_NAME=straw\nCLEAN=true\n{PLACE}"
WRITE = '#!/bin/sh\necho "{}" >>"$SAID"\n{}\n'
BUILT = (0, ("make",))


@dataclass(frozen=True)
class Case:
    """A tree, and what becomes of it: the exit code, and which of its programs ran.

    Ours is the exit code of the step that failed, 77 for a kernel that is excluded.
    """

    old: tuple[int, tuple[str, ...]]
    new: tuple[int, tuple[str, ...]]
    ours: tuple[int, tuple[str, ...]]
    conf: str
    files: Mapping[str, str] = field(default_factory=dict)
    make: str = "make"


CASES = {
    # dkms 3.0 and the newest differ, and nodeside does what the newest does.
    "a PRE_BUILD that fails ends the build": Case(
        old=(0, ("before", "make")),
        new=(3, ("before",)),
        ours=(3, ("before",)),
        conf="PRE_BUILD=before.sh\n",
        files={"before.sh": WRITE.format("before", "exit 3")},
    ),
    "a POST_BUILD that fails ends the build": Case(
        old=(0, ("make", "after")),
        new=(3, ("make", "after")),
        ours=(3, ("make", "after")),
        conf="POST_BUILD=after.sh\n",
        files={"after.sh": WRITE.format("after", "exit 3")},
    ),
    "OBSOLETE_BY excludes a later kernel": Case(
        old=BUILT, new=(77, ()), ours=(77, ()), conf="OBSOLETE_BY=5.10\n"
    ),
    "BUILD_EXCLUSIVE_KERNEL_MIN excludes an earlier kernel": Case(
        old=BUILT, new=(77, ()), ours=(77, ()), conf="BUILD_EXCLUSIVE_KERNEL_MIN=9.0\n"
    ),
    "BUILD_EXCLUSIVE_KERNEL_MAX excludes a later kernel": Case(
        old=BUILT, new=(77, ()), ours=(77, ()), conf="BUILD_EXCLUSIVE_KERNEL_MAX=5.10\n"
    ),
    # nodeside differs from both.
    "CC is the kernel's compiler": Case(
        old=(0, ("before gcc-12", "make ")),
        new=(0, ("before gcc-12", "make gcc-12")),
        ours=(0, ("before gcc", "make gcc")),
        conf="PRE_BUILD=before.sh\n",
        files={"before.sh": WRITE.format("before $CC", "")},
        make="make $CC",
    ),
    "BUILD_DEPENDS on what is not there": Case(
        old=BUILT, new=(13, ()), ours=BUILT, conf="BUILD_DEPENDS[0]=hay\n"
    ),
    "no place to install to": Case(
        old=(8, ()), new=(8, ()), ours=BUILT, conf="unset DEST_MODULE_LOCATION\n"
    ),
    "a module of two that its own rule excludes": Case(
        old=(7, ("make",)),
        new=(7, ("make",)),
        ours=BUILT,
        conf=(
            "BUILT_MODULE_NAME[1]=hay\nDEST_MODULE_LOCATION[1]=/updates\n"
            "BUILD_EXCLUSIVE_KERNEL_MIN[1]=9.0\n"
        ),
    ),
    # All agree.
    "OBSOLETE_BY beside BUILD_EXCLUSIVE_KERNEL_MAX": Case(
        old=BUILT,
        new=BUILT,
        ours=BUILT,
        conf="OBSOLETE_BY=5.10\nBUILD_EXCLUSIVE_KERNEL_MAX=6.12\n",
    ),
    "BUILD_EXCLUSIVE_KERNEL excludes what it does not match": Case(
        old=(77, ()), new=(77, ()), ours=(77, ()), conf="BUILD_EXCLUSIVE_KERNEL='^5'\n"
    ),
    "BUILD_EXCLUSIVE_CONFIG excludes a kernel without an option": Case(
        old=(77, ()), new=(77, ()), ours=(77, ()), conf="BUILD_EXCLUSIVE_CONFIG=CONFIG_PHB\n"
    ),
    "a PRE_BUILD that is not executable is left out": Case(
        old=BUILT, new=BUILT, ours=BUILT, conf="PRE_BUILD=vendor.sh\n"
    ),
    "a version that is kept in a file beside it": Case(
        old=BUILT,
        new=BUILT,
        ours=BUILT,
        conf=(
            'KEPT="${BASH_SOURCE%/dkms.conf}/kept"\n'
            'test -e "$KEPT" || echo PACKAGE_VERSION=1.0 >"$KEPT"\n'
            'unset PACKAGE_VERSION\n. "$KEPT"\n'
        ),
    ),
}


@pytest.fixture(scope="module")
def verdicts(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, Mapping[str, Verdict]]]:
    """What each dkms makes of each tree."""
    scratch = tmp_path_factory.mktemp("judges")
    trees: dict[str, Path] = {}
    for index, (line, _) in enumerate(LINES):
        trees[f"line{index}"] = _tree_of_line(scratch / f"line{index}", line)
    toolkit = FakeToolkit(scratch)
    for index, case in enumerate(CASES.values()):
        trees[f"case{index}"] = _tree_of_case(scratch / f"case{index}", case, toolkit)
    with Workshop() as workshop:
        disk = workshop.kernel("cloud-amd64")
        layers = (disk.tree, workshop.roots.toolkit(disk.compiler))
        found = {
            name: fetch_dkms(suite, workshop.cache, workshop.archive)
            for name, suite in SUITES.items()
        }
        assert found[OLD][0].startswith("3.0.")
        assert pad_version(found[NEW][0]) >= pad_version("3.2")
        judges = {name: root for name, (_, root) in found.items()}
        yield judge(trees, judges, toolkit.headers(), layers, scratch / "rooms")


def _tree_of_line(place: Path, line: str) -> Path:
    _write(place / "source/dkms.conf", f"{CONF}{PLACE}{line}\n")
    _write(place / "source/straw.c", "")
    _write(place / "bin/make", MAKE, 0o755)
    return place


def _tree_of_case(place: Path, case: Case, toolkit: FakeToolkit) -> Path:
    for name, text in _files_of(case).items():
        _write(place / "source" / name, text, 0o755 if text.startswith("#!") else 0o644)
    for name in ("make", "gcc", "strip"):
        _write(place / "bin" / name, (toolkit.bin / name).read_text(), 0o755)
    _write(place / "bin/gcc-12", (toolkit.bin / "gcc").read_text(), 0o755)
    return place


def _files_of(case: Case) -> Mapping[str, str]:
    vendor = f'echo "{case.make}" >>"$SAID"; ko straw\n'
    return {"dkms.conf": f"{STRAW}{case.conf}", "vendor.sh": vendor, **case.files}


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize("name", CASES)
def test_each_dkms_answers_as_the_documents_say_and_so_do_we(
    verdicts: Mapping[str, Mapping[str, Verdict]], toolkit: FakeToolkit, name: str
) -> None:
    case, tree = CASES[name], f"case{list(CASES).index(name)}"

    for which, expected in ((OLD, case.old), (NEW, case.new)):
        verdict = verdicts[which][tree]
        assert (verdict.code, verdict.said) == expected, verdict.output
    assert _our_answer(toolkit, case) == case.ours


def _our_answer(toolkit: FakeToolkit, case: Case) -> tuple[int, tuple[str, ...]]:
    for name, text in _files_of(case).items():
        toolkit.vendor(name, text, 0o755 if text.startswith("#!") else 0o644)
    said = toolkit.root / "said"
    said.touch()
    environment = {"SAID": str(said)}
    result = toolkit.answer(toolkit.request(kind=BuildKind.DKMS, environment=environment))
    code = 77 if result.failure is FailureKind.EXCLUDED else result.exit_code
    assert result.succeeded == (code == 0), result.message
    return code, tuple(said.read_text().splitlines())


@pytest.mark.parametrize("which", SUITES)
def test_make_gets_from_each_dkms_what_it_gets_from_us(
    verdicts: Mapping[str, Mapping[str, Verdict]], which: str
) -> None:
    for number, (line, ran) in enumerate(LINES):
        expected = tuple(words.replace("SOURCE", "/usr/src/straw-1.0") for words in ran)
        verdict = verdicts[which][f"line{number}"]
        assert verdict.said == expected, (line, verdict.output)
