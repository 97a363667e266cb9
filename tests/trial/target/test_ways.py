"""What a source may do to those who read it: Makefiles, a driver.yaml, values of a dkms.conf."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.trial.target.candidates import Candidate
from nodeside.trial.target.dkms_tree import is_placeholder
from nodeside.trial.target.own_driver import read_own_driver
from nodeside.trial.target.ways import further_ways

MAKE = BuildSettings(BuildKind.COMMAND, (), command=("make",))


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("help:\n\t@echo help\nall: driver\nmodules: driver\n", ["modules", "all"]),
        ("help:\nfoo modules bar: x\n", ["modules"]),
        ("help:\nall := x\nmodules = a: b\n#modules: x\n\tall: x\n", []),
        ("help:\nall" + " all" * 250_000, []),
        ("help:\n" + "all: x\n" * 100_000, ["all"]),
    ],
)
def test_other_targets_of_a_makefile_are_those_of_its_rules(
    tmp_path: Path, text: str, targets: list[str]
) -> None:
    """A line of a million characters is read once, not once for each of its words."""
    (tmp_path / "Makefile").write_text(text)

    assert [way.command[1] for way in further_ways(tmp_path, MAKE)] == targets


def test_a_value_of_any_length_is_soon_known_to_be_no_placeholder() -> None:
    assert is_placeholder("FULL_VERSION")
    assert not is_placeholder("VERSION_" * 130_000 + "!")


@pytest.mark.slow
def test_a_driver_yaml_with_many_empty_lines_is_read(tmp_path: Path) -> None:
    (tmp_path / "driver.yaml").write_text("spec:\n  version: '2'\n" + "\n" * 250_000)

    assert read_own_driver(tmp_path / "driver.yaml", tmp_path, ".").version == "2"


def test_the_name_of_a_directory_is_one_line_and_drives_no_terminal() -> None:
    assert Candidate("a\n\x1b[2Jb").in_words() == "a\\n\\x1b[2Jb"
