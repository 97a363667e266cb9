"""What a driver.yaml that is there says for `nodeside init`, whole or in two lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.driver.module.elf import NotAModule
from nodeside.driver.module.modulefile import ModuleFile
from nodeside.errors import NodesideError, SpecError
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.spec import load
from nodeside.trial import scaffold
from nodeside.trial.target.dkms_tree import EvaluatedConf
from nodeside.trial.target.draft import draft_of
from nodeside.trial.target.own_driver import OwnDriver, read_own_driver
from nodeside.trial.target.plan import Wishes

TWO_LINES = "spec:\n  build:\n    kind: command\n    command: [make, driver]\n"


def own(tmp_path: Path, text: str) -> OwnDriver:
    (tmp_path / "driver.yaml").write_text(text)
    return read_own_driver(tmp_path / "driver.yaml", tmp_path, ".")


def test_two_lines_say_how_to_build(tmp_path: Path) -> None:
    found = own(tmp_path, TWO_LINES)

    assert found.settings is not None
    assert (found.settings.kind, found.settings.command) == (BuildKind.COMMAND, ("make", "driver"))
    assert (found.name, found.version, found.modules) == ("", "", ())


def test_what_a_build_finds_is_written_beside_them(tmp_path: Path) -> None:
    (tmp_path / "Kbuild").write_text("obj-m := helper.o\n")
    text = TWO_LINES + "    environment: {DEPTH: '2'}\n  version: '4.2'\n"
    found = own(tmp_path, text)
    tried: list[BuildSettings] = []

    def build(tree: Path, settings: BuildSettings) -> tuple[ModuleFile, ...]:
        tried.append(settings)
        return (ModuleFile(tree, "chip", aliases=("pci:v00001D0Fd0000F000sv*",)),)

    def evaluate(tree: Path) -> EvaluatedConf:
        raise AssertionError(tree)

    draft = draft_of(tmp_path, tmp_path, evaluate, build, Wishes(own=found))
    (tmp_path / "driver.yaml").write_text(
        scaffold.make_file_texts(draft, ".", "0.1")["driver.yaml"]
    )

    assert [(each.command, dict(each.environment)) for each in tried] == [
        (("make", "driver"), {"DEPTH": "2"})
    ]
    spec = load(tmp_path / "driver.yaml").spec
    assert (spec.build.command, spec.build.environment) == (("make", "driver"), {"DEPTH": "2"})
    assert (spec.version, [module.name for module in spec.modules]) == ("4.2", ["chip"])
    assert [pci.device for pci in spec.hardware.pci] == ["f000"]
    assert not draft.guesses


@pytest.mark.parametrize("text", ["mine\n", "", "[a]\n", "spec: 1\n", "metadata: {name: x}\n"])
def test_a_file_that_says_nothing_is_written_anew(tmp_path: Path, text: str) -> None:
    assert own(tmp_path, text) == OwnDriver()
    (tmp_path / "driver.yaml").unlink()
    assert read_own_driver(tmp_path / "driver.yaml", tmp_path, "src").source == "src"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("spec: {build: {kin: command}}\n", r"\$\.spec\.build\.kin: unknown field"),
        ("spec: {build: [make]}\n", r"\$\.spec\.build"),
        ("spec: {source: {path: ../x}}\n", r"\$\.spec\.source\.path"),
        ("spec: {source: {path: src}}\n", "there is no directory"),
        ("spec: {source: {path: up}}\n", "leads out of"),
        ("spec: {version: [1]}\n", r"\$\.spec\.version"),
        ("a: [\n", "not YAML"),
        ("a: 1\na: 2\n", "appears twice"),
    ],
)
def test_a_mistake_in_it_is_said_and_not_passed_over(
    tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "up").symlink_to("..")

    with pytest.raises(SpecError, match=problem):
        own(tmp_path, text)


def test_a_directory_that_is_named_has_modules_of_its_own(tmp_path: Path) -> None:
    """Not those of an earlier driver.yaml, though the source does not compile there."""
    for name in ("chip", "board"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Kbuild").write_text(f"obj-m := {name}.o\n")
    found = own(tmp_path, "spec:\n  modules: [{name: chip}]\n")

    def build(_: Path, settings: BuildSettings) -> tuple[ModuleFile, ...]:
        raise NotAModule(f"nothing in {settings.directory}")

    def evaluate(tree: Path) -> EvaluatedConf:
        raise AssertionError(tree)

    wishes = Wishes(directory="board", own=found)
    assert draft_of(tmp_path, tmp_path, evaluate, build, wishes).modules == ("board",)


def test_a_guess_of_ours_is_guessed_anew(tmp_path: Path) -> None:
    marked = TWO_LINES.replace("kind: command", "kind: command # guess: no other way")

    assert own(tmp_path, marked).guessed
    assert not own(tmp_path, TWO_LINES).guessed


def test_a_link_to_a_file_elsewhere_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(TWO_LINES)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "driver.yaml").symlink_to("../secret")

    with pytest.raises(NodesideError, match="outside of its directory"):
        read_own_driver(tmp_path / "tree" / "driver.yaml", tmp_path / "tree", ".")
