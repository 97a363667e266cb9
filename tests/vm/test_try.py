"""`nodeside try` from the command line to the exit code."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
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
from tests.console import until
from tests.patience import patience
from tests.vm.earlier import earlier_kernels
from tests.vm.variants import EDU, PEER, spec_of, variant

pytestmark = pytest.mark.vm

SECONDS = patience(1800.0)
CODE = "from nodeside.__main__ import main; main()"

# It crashes one kernel, and does not compile for a new one.
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
	BUG_ON(!strcmp(init_utsname()->release, CRASHES));
	return 0;
}

static void __exit moody_exit(void)
{
}

module_init(moody_init);
module_exit(moody_exit);
MODULE_LICENSE("GPL");
"""

# As vendors do who build for kernels with fewer options than their own.
NO_VIDEO_KBUILD = """\
obj-m := novideo.o
KBUILD_MODPOST_WARN := 1
"""
NO_VIDEO = """\
#include <linux/module.h>

struct file;
struct video_device *video_devdata(struct file *file);

static int __init novideo_init(void)
{
	return video_devdata(NULL) ? 0 : -ENODEV;
}

static void __exit novideo_exit(void)
{
}

module_init(novideo_init);
module_exit(novideo_exit);
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


def test_edu_and_a_daemon_are_tried_in_two_kernels_each_on_a_node_of_its_own(
    newest: KernelDisk, generic: KernelDisk, tmp_path: Path
) -> None:
    checks = spec_of(EDU)["validate"] | daemon.SPEC["validate"]
    directory = variant(EDU, tmp_path / "edu", {**daemon.SPEC, "validate": checks})
    done = try_out(
        *(str(directory), "--build-on", "host", "--output", "json"),
        *("-k", newest.release, "-k", generic.release),
        *("--command", "cat /proc/sys/kernel/osrelease"),
        *("--command", "cd /host/var/lib/nodeside; echo tried >> trials; cat trials"),
        *("--command", "cat /host/sys/module/edu/refcnt"),
    )

    assert done.exit_code == 0, done.errors
    first, second = document(done)["runs"]
    assert [first["kernel"], second["kernel"]] == [newest.release, generic.release]
    for run in (first, second):
        assert run["builtOn"] == "host"
        assert run["announcementMistakes"] == []
        assert run["report"]["state"] == "ready"
        assert len(run["report"]["checks"]) >= 5, run["report"]["checks"]
        [service] = run["report"]["services"]
        assert (service["name"], service["ready"]) == ("monitor", True)
        [device] = run["devices"]["resources"][0]["devices"]
        assert (device["healthy"], device["nodes"]) == (True, ["/dev/edu0"])
        consumer, release, trials, users = (each["output"] for each in run["commands"])
        assert "10! = 3628800" in consumer
        assert release == run["kernel"]
        assert trials == "tried", "another trial was on this node"
        assert users == "1", "the daemon has the device open"


def test_a_driver_after_another_is_refused_before_anything_is_made() -> None:
    done = try_out(str(PEER))
    assert done.exit_code == ExitCode.USAGE
    assert "edu-peer comes after edu, and a trial has one driver" in done.errors
    assert "building" not in done.errors


def test_what_init_writes_is_tried_unchanged_and_not_compiled_again(
    newest: KernelDisk, tmp_path: Path
) -> None:
    """Its hardware is one that QEMU has, so the trial has it, and the driver is bound to it.

    The second trial is interrupted when its machine has booted.
    """
    directory = tmp_path / "edu"
    shutil.copytree(EDU / "src", directory)
    (directory / "dkms.conf").unlink()
    source = directory / "edu.c"
    # Bundles of earlier trials outlive tmp_path, which has the same name again after a reboot.
    source.write_text(f"{source.read_text()}\n/* {secrets.token_hex(16)} */\n")
    made = run("init", str(directory))
    assert made.exit_code == 0, made.errors
    words = (str(directory), "--kernel", newest.release, "--accel", "tcg")

    first = try_out(*words, "--output", "json")
    second = interrupted(words, "] booted in", signal.SIGINT, tmp_path / "scratch")

    assert first.exit_code == 0, first.errors
    [tried] = document(first)["runs"]
    assert tried["builtOn"] == "host"
    [check] = [each for each in tried["report"]["checks"] if "1234:11e8" in each["name"]]
    assert check["ok"], check
    assert "make: exit code 0" in first.errors
    assert "nothing has changed since" in second
    assert "make: exit code 0" not in second


def test_every_kernel_is_tried_whatever_became_of_the_one_before(
    workshop: Workshop, newest: KernelDisk, compressed: KernelDisk, tmp_path: Path
) -> None:
    """The driver crashes one kernel and does not compile for another; a report has all of them.

    The source is a kbuild tree without a driver.yaml.
    """
    earlier = workshop.kernel(earlier_kernels(workshop, newest)[0])
    (tmp_path / "moody").mkdir()
    (tmp_path / "moody" / "Kbuild").write_text("obj-m := moody.o\n")
    crashes = f'#define CRASHES "{newest.release}"\n'
    (tmp_path / "moody" / "moody.c").write_text(crashes + MOODY)

    done = try_out(
        *(str(tmp_path / "moody"), "--report", str(tmp_path / "out"), "--build-on", "host"),
        *("--kernel", newest.release, "--reboot-into", compressed.release),
        *("--reboot-into", earlier.release, "--reboot-into", newest.release),
        *("--command", "grep -c moody /proc/modules | grep 1"),
    )

    report = json.loads((tmp_path / "out" / "report.json").read_text())
    crashed, broken, fine = report["runs"]
    assert crashed["kernel"] == newest.release
    assert crashed["exitCode"] == ExitCode.LOAD_FAILED
    assert "crashed while the driver was brought up: " in crashed["report"]["message"]
    assert crashed["kernelComplaints"]
    assert broken["kernel"] == compressed.release
    assert broken["exitCode"] == ExitCode.BUILD_FAILED
    assert "not for this version" in broken["report"]["message"]
    assert fine["kernel"] == earlier.release
    assert fine["report"]["state"] == "ready"
    assert f"not booting {newest.release} again: the driver crashed it" in done.errors

    suites = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()
    failed = {
        suite.get("name"): [case.get("name") for case in suite if case.find("failure") is not None]
        for suite in suites
    }
    assert list(failed) == [newest.release, compressed.release, earlier.release]
    assert list(failed.values()) == [["load", "kernel log"], ["build"], []]
    assert "1 of 3 kernels" in (tmp_path / "out" / "report.html").read_text()
    assert done.exit_code == ExitCode.BUILD_FAILED, "that of the last that failed"
    assert "not for this version" in done.output


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


def test_a_module_that_the_kernel_is_too_poor_for_is_refused_with_the_kernel_that_has_it(
    newest: KernelDisk, generic: KernelDisk, tmp_path: Path
) -> None:
    """It compiles, since modpost only warns; the check before the load refuses it."""
    tree = tmp_path / "novideo"
    tree.mkdir()
    (tree / "Kbuild").write_text(NO_VIDEO_KBUILD)
    (tree / "novideo.c").write_text(NO_VIDEO)

    done = try_out(str(tree), "--kernel", newest.release, "--build-on", "host")

    assert done.exit_code == ExitCode.REFUSED, done.output + done.errors
    assert "video_devdata" in done.output
    assert (
        f"the kernel of this trial, {newest.release}, has no video_devdata (of videodev); the "
        f"ordinary kernel has: nodeside try {tree} --kernel amd64"
    ) in " ".join(done.output.split())


def test_a_kernel_without_headers_is_said_by_the_node(workshop: Workshop) -> None:
    bare = [kernel for kernel in workshop.available_kernels() if not kernel.headers]
    if not bare:
        pytest.fail("every kernel of the archive has headers now", pytrace=False)

    done = try_out(str(EDU), "--kernel", bare[-1].release)

    assert done.exit_code == 21, done.output + done.errors
    assert "no kernel headers for exactly this kernel" in done.output


def test_an_interrupted_trial_leaves_nothing_behind(tmp_path: Path) -> None:
    """While the machine boots; another test interrupts one that has booted."""
    interrupted((str(EDU),), "] booting ", signal.SIGTERM, tmp_path / "scratch")


def interrupted(words: Sequence[str], moment: str, number: signal.Signals, scratch: Path) -> str:
    """Interrupt a trial when it has said this and its machine is there; what it said.

    Nothing of it may be left.
    """
    scratch.mkdir()
    reading, writing = os.pipe()
    child = process.start(
        [sys.executable, "-c", CODE, "try", *words],
        env={"TMPDIR": str(scratch), "NODESIDE_TRIAL_CACHE": str(default_directory())},
        stderr=writing,
    )
    os.close(writing)
    said = ""
    with os.fdopen(reading, "r") as lines:
        for line in lines:
            said += line
            if moment in line:
                until(lambda: _machine_in(scratch), "the machine", timeout=SECONDS)
                os.kill(child.pid, number)
                break
        said += lines.read()

    assert child.wait(SECONDS) == 130
    assert said.endswith("interrupted\n")
    assert list(scratch.iterdir()) == []
    assert str(scratch) not in _commands()
    return said


def _machine_in(scratch: Path) -> bool:
    """Whether a QEMU runs that has its disks there."""
    return any(
        "qemu-system" in command and str(scratch) in command for command in _commands().splitlines()
    )


def _commands() -> str:
    """The command lines of all processes; QEMU's has its disks in it."""
    found = psutil.process_iter(["cmdline"])
    return "\n".join(" ".join(each.info["cmdline"] or ()) for each in found)
