"""A program that scripts/setup installs has a test that starts it on a fresh machine."""

from __future__ import annotations

import pytest

from tests import TOP
from tests.fresh.programs import COMMANDS, TESTS, first_words, installed_by, started_by_name

SETUP = """\
tools_to_try="qemu-img:qemu-utils
    zstd:zstd"
tools_to_test="skopeo:skopeo"
tools_to_see_pages="chromium:chromium"
missing_packages() {
    is_installed busybox-static || echo busybox-static
}
if [ -x .venv/bin/prometheus ]; then return; fi
case ${1:-} in
test)
    install_packages $tools_to_try $tools_to_test
    ;;
browser)
    install_packages $tools_to_see_pages
    ;;
esac
"""


def test_what_setup_installs_for_the_tests_is_read_out_of_it() -> None:
    found = installed_by(SETUP)

    assert found == {"qemu-img", "zstd", "skopeo", "busybox-static", "prometheus"}


def test_every_program_that_setup_installs_is_started_on_a_fresh_machine() -> None:
    installed = installed_by((TOP / "scripts" / "setup").read_text())

    assert installed == {*TESTS, *COMMANDS}, "tests/fresh/programs.py names a test for each"
    assert not TESTS.keys() & COMMANDS.keys()


@pytest.mark.parametrize("nodeid", sorted(set(TESTS.values())))
def test_the_test_that_starts_it_is_there(nodeid: str) -> None:
    path, _, name = nodeid.partition("[")[0].partition("::")

    assert f"\ndef {name}(" in (TOP / path).read_text()


def test_programs_that_are_started_by_name_are_found_in_sources() -> None:
    source = """
process.run(["readelf", path], timeout=1)
run(["/bin/cp", "a"])
run([sys.executable, "sed"])
process.run(
    [
        "chroot", root,
    ]
)
with start(["sleep", "9"]) as child: run(argv)
"""

    assert set(first_words(source)) == {"readelf", "chroot", "sleep"}
    assert {"openssl", "debugfs", "setpriv"} <= started_by_name(TOP)
