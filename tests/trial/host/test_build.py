"""Which builds are made on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.spec import parse
from nodeside.trial.host.build import LARGE, LARGE_BYTES, is_large

DRIVER = parse(
    {
        "apiVersion": "nodeside.io/v1alpha1",
        "kind": "Driver",
        "metadata": {"name": "straw"},
        "spec": {"version": "1.0", "modules": [{"name": "straw"}]},
    }
)


@pytest.mark.parametrize(
    ("sizes", "large"),
    [([10] * LARGE, False), ([10] * (LARGE + 1), True), ([LARGE_BYTES + 1], True)],
)
def test_many_files_or_much_text_is_built_here(
    sizes: list[int], large: bool, tmp_path: Path
) -> None:
    for number, size in enumerate(sizes):
        (tmp_path / f"{number}.c").write_text("x" * size)

    assert is_large(DRIVER, tmp_path) is large


def test_a_link_to_nowhere_is_a_file_like_another(tmp_path: Path) -> None:
    (tmp_path / "gone.c").symlink_to("/no/such/file.c")

    assert not is_large(DRIVER, tmp_path)
