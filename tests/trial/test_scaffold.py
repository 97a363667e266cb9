"""The files that `nodeside init` writes, for drafts as sources give them, and worse."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from nodeside.driver.handoff.source import source_digest
from nodeside.driver.handoff.source_tree import NotSource
from nodeside.driver.module.modulefile import ModuleFile, Parameter
from nodeside.errors import UsageError
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.spec import json_schema, load
from nodeside.spec.model import Driver
from nodeside.spec.pci import PciId
from nodeside.trial import scaffold
from nodeside.trial.owned_place import open_place
from nodeside.trial.target.draft import Draft
from nodeside.trial.target.side_file import TrialAdditions, read_side_file
from tests import yaml_in_c as yaml
from tests.tries import sampled

EDU = "pci:v00001234d000011E8sv*sd*bc*sc*i*"
CHIP = "pci:v00001D0Fd0000F000sv*sd*bc*sc*i*"


def a_draft(*files: ModuleFile, **guesses: str) -> Draft:
    modules = tuple(file.name for file in files) or ("chip",)
    settings = BuildSettings(BuildKind.KBUILD, modules, directory="drivers/chip")
    return Draft("chip", "1.0", settings, files, guesses=guesses)


def a_module(name: str = "chip", *aliases: str, **parameters: str) -> ModuleFile:
    declared = {key: Parameter(key, "int", text) for key, text in parameters.items()}
    return ModuleFile(Path(), name, parameters=declared, aliases=aliases)


def written(draft: Draft, directory: Path, source: str = ".") -> Driver:
    (directory / "drivers" / "chip").mkdir(parents=True, exist_ok=True)
    texts = scaffold.make_file_texts(draft, source, "0.1")
    with open_place(directory) as place:
        place.write_files({name: text.encode() for name, text in texts.items()})
    return load(directory / "driver.yaml")


def test_what_is_written_says_what_the_draft_says(tmp_path: Path) -> None:
    driver = written(a_draft(a_module("chip", CHIP), a_module("chip_net")), tmp_path)

    assert (driver.name, driver.spec.version) == ("chip", "1.0")
    assert [module.name for module in driver.spec.modules] == ["chip", "chip_net"]
    assert (driver.spec.build.kind, driver.spec.build.directory) == (
        BuildKind.KBUILD,
        "drivers/chip",
    )
    assert driver.spec.hardware.pci == (PciId(vendor="1d0f", device="f000"),)


def test_hardware_that_no_trial_has_is_not_checked(tmp_path: Path) -> None:
    driver = written(a_draft(a_module("chip", CHIP)), tmp_path)

    assert not driver.spec.validate.bound
    assert read_side_file(tmp_path / "trial.yaml") == TrialAdditions()


def test_hardware_that_qemu_has_is_in_the_trial_and_checked(tmp_path: Path) -> None:
    driver = written(a_draft(a_module("edu", EDU)), tmp_path)

    assert [check.driver for check in driver.spec.validate.bound] == ["edu"]
    assert read_side_file(tmp_path / "trial.yaml") == TrialAdditions(devices=("edu",))


def test_more_devices_than_fit_are_told(tmp_path: Path) -> None:
    aliases = [f"pci:v00001D0Fd0000{number:04X}sv*" for number in range(70)]

    driver = written(a_draft(a_module("chip", *aliases, "usb:v1234", "usb:v2345")), tmp_path)

    assert len(driver.spec.hardware.pci) == 64
    text = (tmp_path / "driver.yaml").read_text()
    assert "guess: 6 more, of 1d0f, did not fit" in text
    assert "devices of other kinds: usb (2)" in text


def test_a_guess_is_marked_where_it_stands(tmp_path: Path) -> None:
    written(a_draft(version="no MODULE_VERSION"), tmp_path)

    assert "  version: '1.0' # guess: no MODULE_VERSION\n" in (tmp_path / "driver.yaml").read_text()


@pytest.mark.parametrize(
    "hostile",
    sampled(["a\nspec: {}", "x\r  privileged: true", "\x1b]52;c;aGk=\x07", "a\x85b", "'\"#{}"], 5),
)
def test_what_a_module_says_of_itself_stays_a_comment(tmp_path: Path, hostile: str) -> None:
    module = ModuleFile(
        Path(),
        "chip",
        parameters={hostile: Parameter(hostile, hostile, hostile)},
        aliases=(f"pci:{hostile}", f"{hostile}:x"),
        firmware=(hostile,),
    )

    driver = written(a_draft(module), tmp_path)

    assert driver == written(a_draft(a_module("chip")), tmp_path)
    assert "\x1b" not in (tmp_path / "driver.yaml").read_text()


def test_the_image_has_the_same_source_as_the_directory(tmp_path: Path) -> None:
    """Else a bundle that was published from a checkout has another key than on the nodes."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "chip.c").write_text("int chip;\n")
    driver = written(a_draft(), tree)
    before = source_digest(tree, NotSource(driver.spec.source.exclude))
    ignored = (tree / ".dockerignore").read_text().splitlines()

    for path in list(tree.iterdir()):
        if any(fnmatchcase(path.name, line) for line in ignored if not line.startswith("#")):
            path.unlink()

    assert sorted(path.name for path in tree.iterdir()) == ["chip.c", "driver.yaml", "drivers"]
    assert source_digest(tree, NotSource(driver.spec.source.exclude)) == before
    (tree / "driver.yaml").unlink()
    assert source_digest(tree) == before


def test_an_editor_finds_the_schema(tmp_path: Path) -> None:
    written(a_draft(), tmp_path)

    first = (tmp_path / "driver.yaml").read_text().partition("\n")[0]
    name = first.partition("$schema=")[2]
    assert first.startswith("# yaml-language-server: ")
    assert json.loads((tmp_path / name).read_text()) == json_schema()


def test_each_file_that_is_there_is_named(tmp_path: Path) -> None:
    with open_place(tmp_path / "new") as place:
        scaffold.require_absent(place)
    with open_place(tmp_path) as place:
        scaffold.require_absent(place)
        (tmp_path / "Containerfile").symlink_to("nowhere")
        (tmp_path / "trial.yaml").touch()

        with pytest.raises(UsageError, match=r"has Containerfile, trial\.yaml already"):
            scaffold.require_absent(place)


def test_a_long_path_is_a_path_and_not_two_lines(tmp_path: Path) -> None:
    long = "a directory with spaces " * 8 + "end"
    settings = BuildSettings(BuildKind.KBUILD, ("chip",), directory=long)

    driver = written(Draft("chip", "1.0", settings, guesses={"build": "it"}), tmp_path)

    assert driver.spec.build.directory == long


def test_modules_for_all_of_a_vendor_select_all_of_it(tmp_path: Path) -> None:
    driver = written(a_draft(a_module("chip", "pci:v00001D0Fd*sv*sd*bc12sc*i*")), tmp_path)

    assert driver.spec.hardware.pci == (PciId(vendor="1d0f"),)


def test_all_values_are_read_by_any_yaml_reader_alike(tmp_path: Path) -> None:
    settings = BuildSettings(BuildKind.COMMAND, ("on",), command=("sh", "-c", "a: b # c && 'd'"))
    draft = Draft("no", "1.10", settings)

    driver = written(draft, tmp_path)

    plain = yaml.safe_load((tmp_path / "driver.yaml").read_text())
    assert plain["metadata"]["name"] == driver.name == "no"
    assert plain["spec"]["version"] == driver.spec.version == "1.10"
    assert plain["spec"]["modules"] == [{"name": "on"}]
    assert tuple(plain["spec"]["build"]["command"]) == settings.command
