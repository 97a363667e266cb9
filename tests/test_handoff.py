"""The hand-off with two real processes: the driver's command line and the sidecar's.

Either may be killed at any moment. The toolkit is one of straw (see `faketoolkit`), the modules are
real ELF files, the shared directory, the records and the locks are real.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from nodeside.errors import ExitCode
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system import process
from tests import yaml_in_c as yaml
from tests.driver.fakes.node import module_bytes
from tests.toolkit_sidecar.faketoolkit import KERNEL, LONG, FakeToolkit, SidecarProcess, until
from tests.toolkit_sidecar.warm import no_orphans

pytestmark = pytest.mark.slow

# What vendor code does: it waits for the test to let it go on, then there is a module.
_WAITS = """\
echo building
touch "$HOME/../../../begun"
while [ ! -e "$HOME/../../../go" ]; do sleep 0.02; done
cp straw.bin straw.ko
"""


_HEARD: dict[int, bytearray] = {}  # what drivers said on stderr before their end, by pid


class Handoff:
    """A driver, a toolkit, and the directory that they share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.toolkit = FakeToolkit(directory)
        self.shared: SharedDir = self.toolkit.shared
        self.image = directory / "image"
        self.source = self.image / "source"
        self.source.mkdir(parents=True)
        (self.source / "Makefile").write_text("obj-m := straw.o\n")
        (self.source / "straw.bin").write_bytes(module_bytes("straw", release=KERNEL.release))
        self.vendor("cp straw.bin straw.ko\n")
        self.cache = directory / "cache"
        self.go = directory / "go"
        self.begun = directory / "begun"
        document = {
            "apiVersion": "nodeside.io/v1alpha1",
            "kind": "Driver",
            "metadata": {"name": "straw"},
            "spec": {
                "version": "1.0",
                "source": {"path": "source"},
                "modules": [{"name": "straw"}],
            },
        }
        (self.image / "driver.yaml").write_text(yaml.safe_dump(document))

    def vendor(self, script: str) -> None:
        """What the source does when it is built."""
        (self.source / "vendor.sh").write_text(script)

    def argv(self, *more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "nodeside", "driver", "build", "--output", "json"),
            *("--driver", str(self.image), "--host-root", str(self.toolkit.root)),
            *("--shared", str(self.shared.root), "--cache", str(self.cache), *more),
        ]

    def build(self, *more: str) -> process.Completed:
        """Run the driver's side to its end."""
        return process.run(self.argv(*more), timeout=2 * LONG, check=False)

    @contextmanager
    def building(self) -> Iterator[process.Child]:
        """The driver's side as a process that is killed at the end if it still lives."""
        child = process.start(self.argv(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            yield child
        finally:
            child.kill()
            child.communicate()

    def wait_until_it_builds(self) -> None:
        until(self.begun.exists, "the build to begin")

    def release(self) -> None:
        """Let the vendor's code come to its end."""
        self.go.touch()

    def nothing_is_left(self, *, but: Sequence[str] = ()) -> None:
        """No request, no answer, no output, no source, no half-made thing, no process."""
        until(lambda: self._leftovers() == [*but], lambda: f"the end of {self._leftovers()}")
        assert self._processes() == []

    def _leftovers(self) -> list[str]:
        found = [path.name for path in self.shared.requests.iterdir()]
        found += [path.name for path in self.shared.out.iterdir()]
        found += [path.name for path in self.shared.results.iterdir() if path.stem[:1].isdigit()]
        for top in (self.shared.root, self.cache):
            for directory, names, files in os.walk(top):
                entries = [name for name in (*names, *files) if name.startswith(".tmp-")]
                found += [f"{directory}/{name}" for name in entries]
        return found

    def _processes(self) -> list[str]:
        """Processes that work in this test's directory, but for the sidecar's own two."""
        infos = [each.info for each in psutil.process_iter(["cwd", "cmdline"])]
        return [
            shlex.join(info["cmdline"] or ())
            for info in infos
            if info["cwd"] and Path(info["cwd"]).is_relative_to(self.shared.root)
        ]


@pytest.fixture
def handoff(tmp_path: Path) -> Iterator[Handoff]:
    with no_orphans():
        yield Handoff(tmp_path)


@pytest.fixture
def sidecar(handoff: Handoff) -> Iterator[SidecarProcess]:
    with handoff.toolkit.sidecar() as running:
        yield running


def document(done: process.Completed) -> dict[str, Any]:
    assert done.exit_code == 0, done.errors
    found: dict[str, Any] = json.loads(done.output)
    return found


def finish(child: process.Child) -> process.Completed:
    """Wait for a driver that was started before."""
    output, errors = child.communicate(timeout=2 * LONG)
    return process.Completed(("nodeside",), child.returncode, output.decode(), errors.decode(), 0)


# --- nobody is killed ------------------------------------------------------------------------


def test_a_module_is_built_and_ends_in_the_cache(handoff: Handoff, sidecar: SidecarProcess) -> None:
    handoff.vendor("echo compiling straw\ncp straw.bin straw.ko\n")
    done = handoff.build()

    bundle = document(done)
    assert bundle["kernel"]["release"] == KERNEL.release
    assert [module["name"] for module in bundle["modules"]] == ["straw"]
    assert bundle["toolchain"]["compiler"] == "gcc (Debian 12.2.0-14) 12.2.0"
    cached = Path(bundle["path"]) / "modules/straw.ko"
    assert cached.read_bytes() == (handoff.source / "straw.bin").read_bytes()
    assert "build | compiling straw\n" in done.errors
    handoff.nothing_is_left()


def test_a_second_build_finds_it_in_the_cache_and_asks_nobody(handoff: Handoff) -> None:
    with handoff.toolkit.sidecar():
        first = document(handoff.build())
    again = document(handoff.build())
    assert again["digest"] == first["digest"]
    assert again["how"].startswith("the cache holds")


def test_a_build_that_is_wanted_again_is_a_new_one(
    handoff: Handoff, sidecar: SidecarProcess
) -> None:
    handoff.build()
    done = handoff.build("--again")
    assert document(done)["how"].startswith("the toolkit built it")
    assert "build | " in done.errors


def test_a_compile_error_is_said_first_with_the_command_to_repeat_it(
    handoff: Handoff, sidecar: SidecarProcess
) -> None:
    handoff.vendor("echo \"straw.c:3:1: error: expected ';'\"\necho more\nexit 2\n")
    done = handoff.build()
    assert done.exit_code == ExitCode.BUILD_FAILED
    assert json.loads(done.output)["error"]["reason"] == "Compile"
    last = done.errors[done.errors.index("error: ") :]
    assert "first error: straw.c:3:1: error: expected ';'" in last
    assert "to repeat it, in the toolkit container:\ncd " in last
    assert last.splitlines()[-1].startswith("hint: ")
    assert "Traceback" not in done.errors


def test_a_failed_build_is_tried_again_when_it_is_asked_for_again(
    handoff: Handoff, sidecar: SidecarProcess
) -> None:
    handoff.vendor("exit 2\n")
    assert handoff.build().exit_code == ExitCode.BUILD_FAILED
    assert handoff.build().exit_code == ExitCode.BUILD_FAILED
    assert [path.stem[-2:] for path in handoff.shared.requests.iterdir()] == ["-2"]
    until(lambda: len(list(handoff.shared.out.iterdir())) == 1, "the first output to be removed")


def test_no_headers_is_dkms_exit_code(handoff: Handoff, sidecar: SidecarProcess) -> None:
    headers = handoff.toolkit.root / f"usr/src/linux-headers-{KERNEL.release}"
    headers.rename(headers.with_name("linux-headers-other"))
    done = handoff.build()
    assert done.exit_code == ExitCode.NO_HEADERS
    assert f"the node runs {KERNEL.release}" in done.errors
    assert "hint: " in done.errors


def test_what_was_built_into_a_cache_inside_the_source_is_found_again(
    handoff: Handoff, sidecar: SidecarProcess
) -> None:
    handoff.cache = handoff.source / "cache"
    built = json.loads(handoff.build().output)
    again = json.loads(handoff.build().output)
    assert again["key"] == built["key"]
    assert again["path"] == built["path"]
    assert again["how"] != built["how"]


def test_a_module_that_is_wanted_and_does_not_come_out_is_named(
    handoff: Handoff, sidecar: SidecarProcess
) -> None:
    handoff.vendor("cp straw.bin hay.ko\n")
    driver = handoff.image / "driver.yaml"
    driver.write_text(driver.read_text().replace("name: straw\n  source", "name: hay\n  source"))
    done = handoff.build()
    assert done.exit_code == ExitCode.NO_MODULE
    assert "the build produced no module named hay" in done.errors


def test_what_is_no_module_is_refused_and_not_asked_for_again_and_again(
    handoff: Handoff, sidecar: SidecarProcess
) -> None:
    handoff.vendor("ko straw\n")  # says the right name, and is no ELF file
    done = handoff.build()
    assert done.exit_code == ExitCode.BUNDLE
    assert "the build output cannot be used" in done.errors
    [note] = handoff.shared.requests.glob("*.refused")  # why, for whoever would build it again
    handoff.nothing_is_left(but=[note.name])
    assert not any(handoff.cache.rglob("*.ko"))

    handoff.vendor("cp straw.bin straw.ko\n")
    handoff.build()
    assert not note.exists(), "what begins anew forgets it"


# --- somebody is killed ----------------------------------------------------------------------


def test_a_driver_that_was_killed_finds_its_build_again(
    handoff: Handoff, sidecar: SidecarProcess
) -> None:
    handoff.vendor(_WAITS)
    with handoff.building() as first:
        handoff.wait_until_it_builds()
        first.kill()
    asked = handoff.shared.request_ids()
    with handoff.building() as second:
        until(lambda: _said(second, b"joining the build"), "the second driver to join")
        assert handoff.shared.request_ids() == asked
        handoff.release()
        assert document(finish(second))["how"].startswith("the toolkit built it")
    assert sidecar.output.count("build begins") == 1
    handoff.nothing_is_left()


def test_a_driver_that_was_killed_after_the_answer_takes_it(
    handoff: Handoff, sidecar: SidecarProcess
) -> None:
    handoff.vendor(_WAITS)
    with handoff.building() as first:
        handoff.wait_until_it_builds()
        first.kill()
    handoff.release()
    (asked,) = handoff.shared.request_ids()
    until(handoff.shared.result_path(asked).exists, "the answer")
    assert document(handoff.build())["how"].startswith("the toolkit built it")
    assert sidecar.output.count("build begins") == 1
    handoff.nothing_is_left()


def test_a_sidecar_that_was_killed_is_missed_and_the_next_one_finishes(handoff: Handoff) -> None:
    handoff.vendor(_WAITS)
    with ExitStack() as stack:
        first = stack.enter_context(handoff.toolkit.sidecar())
        driver = stack.enter_context(handoff.building())
        handoff.wait_until_it_builds()
        first.stop(signal.SIGKILL)
        until(lambda: _said(driver, b"sidecar was lost"), "the driver to miss it")
        handoff.release()
        stack.enter_context(handoff.toolkit.sidecar())
        done = finish(driver)
        assert document(done)["how"].startswith("the toolkit built it")
        assert len(handoff.shared.request_ids()) == 0
        handoff.nothing_is_left()


def test_both_killed_and_both_restarted_come_to_an_end(handoff: Handoff) -> None:
    handoff.vendor(_WAITS)
    with handoff.toolkit.sidecar() as first, handoff.building() as driver:
        handoff.wait_until_it_builds()
        driver.kill()
        first.stop(signal.SIGKILL)
    handoff.release()
    with handoff.toolkit.sidecar():
        assert document(handoff.build())["how"].startswith("the toolkit built it")
        handoff.nothing_is_left()


def test_a_sidecar_that_comes_late_finds_the_request(handoff: Handoff) -> None:
    with handoff.building() as driver:
        until(handoff.shared.request_ids, "the request")
        with handoff.toolkit.sidecar():
            document(finish(driver))
            handoff.nothing_is_left()


def test_ctrl_c_takes_the_request_back_and_the_build_ends(
    handoff: Handoff, sidecar: SidecarProcess
) -> None:
    handoff.vendor(_WAITS)
    with handoff.building() as driver:
        handoff.wait_until_it_builds()
        driver.send_signal(signal.SIGINT)
        done = finish(driver)
    assert done.exit_code == ExitCode.INTERRUPTED
    assert done.errors.endswith("interrupted\n")
    assert "Traceback" not in done.errors
    handoff.nothing_is_left()


def test_sigterm_leaves_the_build_to_be_joined(handoff: Handoff, sidecar: SidecarProcess) -> None:
    handoff.vendor(_WAITS)
    with handoff.building() as driver:
        handoff.wait_until_it_builds()
        driver.send_signal(signal.SIGTERM)
        assert finish(driver).exit_code == 128 + signal.SIGTERM
    assert len(handoff.shared.request_ids()) == 1
    handoff.release()
    assert document(handoff.build())["how"].startswith("the toolkit built it")
    handoff.nothing_is_left()


def test_two_drivers_at_once_do_not_disturb_each_other(
    handoff: Handoff, sidecar: SidecarProcess
) -> None:
    handoff.vendor(_WAITS)
    with handoff.building() as first:
        handoff.wait_until_it_builds()
        refused = handoff.build("--again")
        assert refused.exit_code == ExitCode.LOCKED
        assert "another process is already running a build in" in refused.errors
        handoff.release()
        document(finish(first))


def _said(child: process.Child, words: bytes) -> bool:
    """Whether a driver's log has these words by now; what it says is lost for `communicate`."""
    assert child.stderr is not None
    os.set_blocking(child.stderr.fileno(), False)
    heard: bytearray = _HEARD.setdefault(child.pid, bytearray())
    heard += child.stderr.read() or b""
    os.set_blocking(child.stderr.fileno(), True)
    return words in heard
