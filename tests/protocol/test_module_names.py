"""What a kernel module is called."""

from __future__ import annotations

import pytest

from nodeside.protocol.module_names import kernel_name, name_of_file


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("edu.ko", "edu"),
        ("snd-hda-intel.ko.xz", "snd_hda_intel"),
        ("/lib/modules/x/a.ko.zst", "a"),
        ("b.ko.gz", "b"),
        ("plain-name", "plain_name"),
    ],
)
def test_a_file_is_named_as_the_kernel_names_its_module(file: str, name: str) -> None:
    assert name_of_file(file) == name


def test_the_kernel_shows_an_underscore_for_every_dash() -> None:
    assert kernel_name("snd-hda-intel") == kernel_name("snd_hda_intel") == "snd_hda_intel"
