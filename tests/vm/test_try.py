"""`nodeside try` from the command line to the exit code."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest

from nodeside.errors import ExitCode
from nodeside.system import process
from nodeside.system.process import Completed
from nodeside.trial.cache import default_directory
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.workshop import Workshop
from tests import daemon
from tests.patience import patience
from tests.vm.variants import EDU, PEER, variant

pytestmark = pytest.mark.vm

SECONDS = patience(1800.0)
CODE = "from nodeside.__main__ import main; main()"

# It crashes a cloud kernel, and does not compile for a new one.
MOODY = """\
#include <linux/module.h>
#include <linux/string.h>
#include <linux/utsname.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
#error not for this version
#endif

static int __init moody_init(void)
{
	BUG_ON(strstr(init_utsname()->release, "-cloud-"));
	return 0;
}

static void __exit moody_exit(void)
{
}

module_init(moody_init);
module_exit(moody_exit);
MODULE_LICENSE("GPL");
"""


def try_out(*words: str) -> Completed:
    return run("try", *words)


def run(*words: str) -> Completed:
    argv = [sys.executable, "-c", CODE, *words]
    return process.run(argv, timeout=SECONDS, check=False)


def document(done: Completed) -> Mapping[str, Any]:
    found = json.loads(done.output)
    assert isinstance(found, dict)
    return found


def test_edu_is_tried_in_two_kernels_with_a_consumer(
    newest: KernelDisk, generic: KernelDisk
) -> None:
    done = try_out(
        *(str(EDU), "--build-on", "host", "--output", "json"),
        *("--kernel", newest.release, "--reboot-into", generic.release),
        *("--command", "cat /proc/sys/kernel/osrelease"),
    )

    assert done.exit_code == 0, done.errors
    first, second = document(done)["runs"]
    assert [first["kernel"], second["kernel"]] == [newest.release, generic.release]
    for run in (first, second):
        assert run["builtOn"] == "host"
        assert run["announcementMistakes"] == []
        assert run["report"]["state"] == "ready"
        [device] = run["devices"]["resources"][0]["devices"]
        assert (device["healthy"], device["nodes"]) == (True, ["/dev/edu0"])
        assert "10! = 3628800" in run["commands"][0]["output"]
        assert run["commands"][1]["output"] == run["kernel"]


def test_a_driver_after_another_is_refused_before_anything_is_made() -> None:
    done = try_out(str(PEER))
    assert done.exit_code == ExitCode.USAGE
    assert "edu-peer comes after edu, and a trial has one driver" in done.errors
    assert "building" not in done.errors


def test_what_init_writes_is_tried_unchanged_and_not_compiled_again(
    newest: KernelDisk, tmp_path: Path
) -> None:
    """Its hardware is one that QEMU has, so the trial has it, and the driver is bound to it."""
    directory = tmp_path / "edu"
    shutil.copytree(EDU / "src", directory)
    (directory / "dkms.conf").unlink()
    source = directory / "edu.c"
    # Bundles of earlier trials outlive tmp_path, which has the same name again after a reboot.
    source.write_text(f"{source.read_text()}\n/* {secrets.token_hex(16)} */\n")
    made = run("init", str(directory))
    assert made.exit_code == 0, made.errors
    words = (str(directory), "--kernel", newest.release, "--output", "json")

    first, second = (try_out(*words, "--accel", "tcg") for _ in range(2))

    for done in (first, second):
        assert done.exit_code == 0, done.errors
        [tried] = document(done)["runs"]
        assert tried["builtOn"] == "host"
        [check] = [each for each in tried["report"]["checks"] if "1234:11e8" in each["name"]]
        assert check["ok"], check
    assert "make: exit code 0" in first.errors
    assert "nothing has changed since" in second.errors
    assert "make: exit code 0" not in second.errors


def test_several_kernels_are_a_matrix_with_a_report(
    newest: KernelDisk, generic: KernelDisk, tmp_path: Path
) -> None:
    """Each has a node of its own: one whose kernel the driver crashes keeps no other from it.

    The source is a kbuild tree without a driver.yaml.
    """
    (tmp_path / "moody").mkdir()
    (tmp_path / "moody" / "Kbuild").write_text("obj-m := moody.o\n")
    (tmp_path / "moody" / "moody.c").write_text(MOODY)

    done = try_out(
        *(str(tmp_path / "moody"), "--report", str(tmp_path / "out"), "--build-on", "host"),
        *("-k", newest.release, "-k", generic.release, "-k", "6.12"),
        *("--command", "grep -c moody /proc/modules | grep 1"),
    )

    suites = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()
    failed = {
        suite.get("name"): [case.get("name") for case in suite if case.find("failure") is not None]
        for suite in suites
    }
    crashed, good, broken = failed
    assert (crashed, good) == (newest.release, generic.release)
    assert failed == {crashed: ["load", "kernel log"], good: [], broken: ["build"]}
    assert "1 of 3 kernels" in (tmp_path / "out" / "report.html").read_text()
    assert done.exit_code == ExitCode.BUILD_FAILED, "that of the last that failed"
    assert "#error not for this version" in " ".join(done.output.rpartition("KERNEL")[2].split())


def test_a_driver_with_a_daemon_is_tried_with_it(newest: KernelDisk, tmp_path: Path) -> None:
    directory = variant(EDU, tmp_path / "edu", daemon.SPEC)
    done = try_out(
        *(str(directory), "--build-on", "host", "--output", "json", "--kernel", newest.release),
        *("--command", "cat /host/sys/module/edu/refcnt"),
    )

    assert done.exit_code == 0, done.errors
    [run] = document(done)["runs"]
    [service] = run["report"]["services"]
    assert (service["name"], service["ready"]) == ("monitor", True)
    assert run["commands"][-1]["output"] == "1", "the daemon has the device open"


def test_a_driver_that_does_not_compile_has_its_exit_code_and_boots_nothing(tmp_path: Path) -> None:
    (tmp_path / "dkms.conf").write_text(
        "PACKAGE_NAME=broken\nPACKAGE_VERSION=1\nDEST_MODULE_LOCATION[0]=/updates\n"
    )
    (tmp_path / "Makefile").write_text("obj-m := broken.o\n")
    (tmp_path / "broken.c").write_text("#error this is broken\n")

    done = try_out(str(tmp_path), "--build-on", "host")

    assert done.exit_code == 10
    assert "this is broken" in done.output
    assert "not booted: there is nothing to load" in done.output
    assert "10: the module does not compile" in done.output


def test_every_kernel_is_tried_whatever_became_of_the_one_before(
    newest: KernelDisk, compressed: KernelDisk, generic: KernelDisk, tmp_path: Path
) -> None:
    (tmp_path / "dkms.conf").write_text(
        "PACKAGE_NAME=moody\nPACKAGE_VERSION=1\nDEST_MODULE_LOCATION[0]=/updates\n"
    )
    (tmp_path / "Makefile").write_text("obj-m := moody.o\n")
    (tmp_path / "moody.c").write_text(MOODY)

    done = try_out(
        *(str(tmp_path), "--build-on", "host", "--output", "json", "--kernel", newest.release),
        *("--reboot-into", compressed.release, "--reboot-into", generic.release),
        *("--reboot-into", newest.release),
    )

    crashed, broken, fine = document(done)["runs"]
    assert crashed["kernel"] == newest.release
    assert crashed["exitCode"] == ExitCode.LOAD_FAILED
    assert "crashed while the driver was brought up: " in crashed["report"]["message"]
    assert crashed["kernelComplaints"]
    assert broken["kernel"] == compressed.release
    assert broken["exitCode"] == ExitCode.BUILD_FAILED
    assert "not for this version" in broken["report"]["message"]
    assert fine["kernel"] == generic.release
    assert fine["report"]["state"] == "ready"
    assert f"not booting {newest.release} again: the driver crashed it" in done.errors
    assert done.exit_code == ExitCode.BUILD_FAILED  # that of the last one that failed


def test_a_kernel_without_headers_is_said_by_the_node(workshop: Workshop) -> None:
    bare = [kernel for kernel in workshop.available_kernels() if not kernel.headers]
    if not bare:
        pytest.fail("every kernel of the archive has headers now", pytrace=False)

    done = try_out(str(EDU), "--kernel", bare[-1].release)

    assert done.exit_code == 21, done.output + done.errors
    assert "no kernel headers for exactly this kernel" in done.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_trial_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    child = process.start(
        [sys.executable, "-c", CODE, "try", str(EDU)],
        env={"TMPDIR": str(tmp_path), "NODESIDE_TRIAL_CACHE": str(default_directory())},
        stderr=writing,
    )
    os.close(writing)
    with os.fdopen(reading, "r") as said:
        for line in said:
            if "] booted in" in line:
                os.kill(child.pid, number)
                break
        rest = said.read()

    assert child.wait(SECONDS) == 130
    assert rest.endswith("interrupted\n")
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in _commands()


def _commands() -> str:
    """The command lines of all processes; QEMU's has its disks in it."""
    found = psutil.process_iter(["cmdline"])
    return " ".join(word for each in found for word in each.info["cmdline"] or ())
