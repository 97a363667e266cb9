"""The table of dkms packages: what a row says. Nothing is built or booted here."""

from __future__ import annotations

from dataclasses import replace

from tests.vm.dkms_packages import Outcome
from tests.vm.dkms_table import as_markdown, merged

READY = Outcome("good-dkms", "1.0", "6.1.0-56-amd64", 0, 12.4, files=3, rung="cached")
BROKEN = Outcome(
    "bad-dkms",
    "2.0",
    "6.1.0-56-amd64",
    10,
    3.0,
    files=1,
    message="the module does not compile\n"
    "first error: /shared/out/0123456789ab-1/dkms/bad/2.0/build/bad.c:7:1: error: no | here",
)


def rows(*outcomes: Outcome) -> list[str]:
    return as_markdown(outcomes).splitlines()[2:]


def test_a_ready_package_has_its_rung_and_the_seconds_of_its_build() -> None:
    assert rows(READY) == ["| good-dkms | 1.0 | 6.1.0-56-amd64 | 3 | 12 s | ready | cached |  |"]


def test_a_package_that_does_not_get_ready_has_its_first_error_without_our_paths() -> None:
    (row,) = rows(BROKEN)

    assert row.endswith("| 3 s | exit code 10 |  | bad.c:7:1: error: no / here |")


def test_a_module_that_would_not_go_again_is_told() -> None:
    assert "| ready, not unloaded |" in rows(replace(READY, unloaded=False))[0]


def test_the_load_of_a_package_replaces_its_build() -> None:
    built = replace(READY, rung="")

    assert merged([built, BROKEN], [READY]) == (BROKEN, READY)
