"""`nodeside try --keep`: an engineer whose source is not built mends it in the machine."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from select import select

import pytest

from nodeside.errors import ExitCode
from nodeside.trial.machine.kernel_disk import KernelDisk
from tests.patience import patience
from tests.vm.hostbuilds import HostBuilds
from tests.vm.variants import EDU, variant

pytestmark = pytest.mark.vm

LONG = patience(600.0)
QUICK = {"kind": "command", "command": ["sh", "-eu", "build.sh"]}
PROMPT = "trial:/driver-image# "
ESCAPES = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")


class Engineer:
    """Somebody at a terminal."""

    def __init__(self, *words: str) -> None:
        self._terminal, theirs = pty.openpty()
        code = "from nodeside.__main__ import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def sees(self, until: str = PROMPT) -> str:
        """What is shown until that; to the end if it ends before."""
        shown = b""
        deadline = time.monotonic() + LONG
        while not shown.endswith(until.encode() or b"\0"):
            assert select([self._terminal], [], [], deadline - time.monotonic())[0], shown
            try:
                shown += os.read(self._terminal, 1)
            except OSError:  # the other end is closed
                break
        return ESCAPES.sub("", shown.decode()).replace("\r", "")

    def types(self, line: str, until: str = PROMPT) -> str:
        os.write(self._terminal, f"{line}\n".encode())
        return self.sees(until)

    def leaves(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


@pytest.fixture
def engineer(newest: KernelDisk, tmp_path: Path, host_builds: HostBuilds) -> Iterator[Engineer]:
    """The build takes a module that lies in the source, under another name than it has."""
    edu = variant(EDU, tmp_path / "edu", {"build": QUICK})
    (edu / "src" / "build.sh").write_text('cp edo.bin "$NODESIDE_OUTPUT/edu.ko"\n')
    shutil.copyfile(host_builds(EDU, newest).module_path("edu"), edu / "src" / "edu.bin")
    engineer = Engineer("try", str(edu), "--keep", "--kernel", newest.release)
    yield engineer
    engineer.leaves()


def test_what_is_not_built_is_mended_built_and_loaded_in_the_shell(engineer: Engineer) -> None:
    shown = engineer.sees()
    assert "cannot stat 'edo.bin'" in shown
    assert "a shell or a command in the toolkit container" in shown

    assert "\n65532\n" in engineer.types("toolkit id -u")
    assert "BusyBox" in engineer.types("vi --help")
    assert "\nbuild: 10\n" in engineer.types("nodeside driver build; echo build: $?")
    assert "build.sh" in engineer.types("toolkit sh -c 'ls */build'")

    engineer.types("sed -i s/edo/edu/ src/build.sh")
    shown = engineer.types("nodeside driver build && nodeside driver load; echo load: $?")
    assert "\nload: 0\n" in shown
    assert "\nvalidate: 0\n" in engineer.types("nodeside driver validate; echo validate: $?")

    engineer.types("sleep 1000 </dev/edu0 &")
    assert "\nheld\n" in engineer.types("nodeside driver status | grep -w $! && echo held")
    engineer.types("kill %1")

    shown = engineer.types("exit", until="")
    patch = Path(shown.partition("a patch for the driver image: ")[2].split()[0])
    assert "\n-cp edo.bin" in patch.read_text()
    patch.unlink()
    assert engineer.process.wait(LONG) == ExitCode.BUILD_FAILED


def test_what_was_edited_outlives_a_crash_of_the_kernel(engineer: Engineer) -> None:
    engineer.sees()
    engineer.types("sed -i s/edo/edu/ src/build.sh; echo more >src/new; sleep 5")

    shown = engineer.types("echo c >/host/proc/sysrq-trigger", until="")

    assert "booting again, for what you have edited" in shown
    patch = Path(shown.partition("a patch for the driver image: ")[2].split()[0])
    assert "\n-cp edo.bin" in patch.read_text()
    assert "\n+more" in patch.read_text()
    patch.unlink()
    assert engineer.process.wait(LONG) == ExitCode.BUILD_FAILED
