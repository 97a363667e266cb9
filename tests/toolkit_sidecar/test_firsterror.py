"""The first error of real output, and the words for what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.protocol.build_records import FailureKind
from nodeside.toolkit_sidecar.buildlog import BuildLog
from nodeside.toolkit_sidecar.firsterror import ErrorScanner
from tests.toolkit_sidecar.faketoolkit import FakeToolkit

CORPUS = Path(__file__).parent.parent / "corpus" / "buildlogs"
ANOTHER = "a version of the driver for this kernel"
MEMORY = "raise the toolkit's memory limit"

TOLD = {
    # name of the log: (what the first error is, what stands in the hint)
    "macro-of-the-kernel": (
        "/mnt/core/bus.c:32: /usr/src/linux-headers-6.12.117+deb12-common/include/linux/init.h:180",
        f"or has a mistake: correct it, or take {ANOTHER}",
    ),
    "assembler": ("/mnt/b.S:1: Error: no such instruction: `movzz %eax,%ebx'", ""),
    "changed-interface": (
        "/mnt/straw.c:4:30: error: implicit declaration of function ",
        f"or has a mistake: correct it, or take {ANOTHER}",
    ),
    "clock-skew": (
        "/mnt/straw.c:2:37: error: implicit declaration of function",
        "source files: make[1]: Warning: File '/mnt/straw.c' has modification time 86395 s in",
    ),
    "clock-skew-of-a-recipe": (
        "cp a.c a.o; touch a.o (make: *** [Makefile:2: all] Error 1)",
        "this machine's clock is behind",
    ),
    "compiler-killed": ("gcc-12: fatal error: Killed signal terminated program cc1", MEMORY),
    "compiler-out-of-memory": ("virtual memory exhausted: Cannot allocate memory", MEMORY),
    "compiler-terminated": ("cc: fatal error: Terminated signal terminated program cc1", MEMORY),
    "error-of-a-makefile": ("Makefile:2: *** FLAVOUR is not set.  Stop.", ""),
    "gpl-only-symbol": (
        "ERROR: modpost: GPL-incompatible module straw.ko uses GPL-only symbol '__class_create'",
        "exports this symbol to GPL modules only",
    ),
    "harmless-missing-tool": (
        "/mnt/straw.c:2:37: error: implicit declaration of function ",
        f"or has a mistake: correct it, or take {ANOTHER}",
    ),
    "linker-killed": ("collect2: fatal error: ld terminated with signal 9 [Killed]", MEMORY),
    "make-killed-a-recipe": ("make: *** [Makefile:2: all] Killed", MEMORY),
    "missing-header-of-a-library": (
        "tool.c:1:10: fatal error: zmq.h: No such file or directory",
        "neither source nor toolkit has zmq.h",
    ),
    "missing-header-of-the-source": (
        "/mnt/straw.c:2:10: fatal error: straw_version.h: No such file or directory",
        "neither source nor toolkit has straw_version.h",
    ),
    "missing-interpreter-of-env": (
        "/usr/bin/env: 'python3': No such file or directory",
        "install python3 in the toolkit image (package python3)",
    ),
    "missing-kernel-header": (
        "/mnt/straw.c:2:10: fatal error: linux/genhd_of_old.h: No such file or directory",
        f"this kernel has no <linux/genhd_of_old.h>: take {ANOTHER}",
    ),
    "missing-library": (
        "/usr/bin/ld: cannot find -lzmq: No such file or directory",
        "the toolkit has no library zmq",
    ),
    # Two jobs wrote at once: "/bin/sh: 1: " stands in another line.
    "missing-tool-exit-127": ("protoc: not found", "package protobuf-compiler"),
    "missing-tool-in-a-recipe": ("make: swig: No such file or directory", "install swig in the"),
    "missing-tool-in-a-script": ("./build.sh: line 4: cmake: command not found", "install cmake"),
    "missing-tool-in-a-shell-recipe": ("/bin/sh: 1: protoc: not found", "install protoc in the"),
    # 280 lines of warnings stand between this and make's last word.
    "missing-tool-in-kbuild": (
        "make[1]: g++: No such file or directory",
        "install g++ in the toolkit image (package g++ on Debian, gcc-c++ on Fedora)",
    ),
    "missing-tool-of-a-pipe": ("./build.sh: 4: git: not found", "install git in the toolkit"),
    "missing-tool-that-a-header-is-made-with": (
        "/mnt/straw.c:3:37: error: ",
        "an earlier line reports a missing tool: /bin/sh: 1: python3: not found",
    ),
    "missing-tool-that-is-caught": ("/bin/sh: 1: git: not found", "install git in the toolkit"),
    "multiple-definition": (
        "ld: /mnt/b.o:/mnt/b.c:1: multiple definition of `twice'",
        "two files of the driver define twice",
    ),
    "no-headers-where-the-makefile-looks": (
        "make[1]: *** /lib/modules/5.10.0-1-amd64/build: No such file or directory.  Stop.",
        "the toolkit has no /lib/modules/5.10.0-1-amd64/build: install the distribution's header",
    ),
    "no-rule": (
        "make[1]: *** No rule to make target '/mnt/b.o', needed by '/mnt/straw.o'.  Stop.",
        "/mnt/b.o is not in the source, and no rule makes it",
    ),
    "no-space": (
        "/mnt/n4.c:7:1: fatal error: closing dependency file /mnt/.n4.o.d: No space left on device",
        "free some space",
    ),
    "no-space-for-fixdep": ("fixdep: not all data was written to the output", "free some space"),
    "object-that-does-not-come": (
        "make[1]: *** No rule to make target '/mnt/blob.o', needed by '/mnt/straw.o'.  Stop.",
        "/mnt/blob.o is not in the source",
    ),
    "option-that-the-compiler-does-not-know": (
        "gcc: error: unrecognized command-line option '-fmin-function-alignment=16'",
        "use the toolkit image of the node's kernel",
    ),
    "script-killed": ("./build.sh: line 2:     2 Killed", MEMORY),
    "script-that-is-not-executable": (
        "make: ./configure: Permission denied",
        "./configure is not executable: chmod +x in the source",
    ),
    "symbol-of-a-namespace": (
        "ERROR: modpost: module straw uses symbol dma_buf_put from namespace DMA_BUF",
        "MODULE_IMPORT_NS(DMA_BUF)",
    ),
    "undefined-reference": (
        "tool.c:(.text+0x5): undefined reference to `of_nobody'",
        "no linked object defines of_nobody",
    ),
    "undefined-symbol-of-modpost": (
        'ERROR: modpost: "of_another_driver" [/mnt/straw.ko] undefined!',
        "nor a module of this build exports of_another_driver",
    ),
    "unknown-option-of-the-compiler": (
        "gcc-12: error: unrecognized command-line option ",
        "this compiler does not know the option",
    ),
    "warning-as-error": (
        "/mnt/straw.c:2:34: error: unused variable ",
        "set build.makeArguments: [KCFLAGS=-Wno-error=unused-variable]",
    ),
    "warning-that-the-kernel-makes-an-error": (
        "/mnt/straw.c:4:32: error: assignment to ",
        f"take {ANOTHER}",
    ),
}


def test_every_log_has_its_words() -> None:
    assert {path.stem for path in CORPUS.glob("*.log")} == set(TOLD)


@pytest.mark.parametrize("name", sorted(TOLD))
def test_the_first_error_of_a_real_build_is_its_cause(name: str) -> None:
    found = read((CORPUS / f"{name}.log").read_text())
    line, words = TOLD[name]
    assert found.line.startswith(line)
    assert words in found.hint
    assert bool(found.hint) == bool(words)


@pytest.mark.parametrize(
    "name", [name for name in TOLD if name.startswith("no-space")] + ["no-space"]
)
def test_a_disk_that_is_full_is_known_by_the_builds_own_words(name: str, tmp_path: Path) -> None:
    with BuildLog(tmp_path / "build.log", lambda _: None) as log:
        log.add_output((CORPUS / f"{name}.log").read_bytes())
        assert log.out_of_space


@pytest.mark.parametrize(
    ("output", "line"),
    [
        # What a configure script asks for and does without.
        ("checking for gawk... not found\nChecking iptables: not found\n", ""),
        (
            "sh: gawk: not found\nmake: [Makefile:4: x] Error 127 (ignored)\na.c:1: error: x\n",
            "a.c",
        ),
        # Of two tools the one is needed whose exit code make tells.
        (
            "sh: a: not found\nsh: b: not found\nmake: *** [x] Error 127\nsh: c: not found\n",
            "sh: b",
        ),
        # An error that comes before is the first one.
        ("a.c:1: error: x\nsh: b: not found\nmake: *** [x] Error 127\n", "a.c:1"),
        ("sh: b: not found\na.c:1: error: x\nmake: *** [x] Error 127\n", "sh: b"),
        # make's words that something else failed.
        (
            "make[1]: *** [x] Error 1\nmake[1]: *** Waiting for unfinished jobs....\n",
            "make[1]: *** [x",
        ),
        ("make: *** Deleting file 'x'\nmake: *** No targets.  Stop.\n", "make: *** No targets"),
        (
            "a.s: Fatal error: can't write 129 bytes to x.o: 'No space left on device'\n",
            "a.s: Fatal",
        ),
        ("g++: internal compiler error: Killed (program cc1plus)\n", "g++: internal"),
        ("", ""),
    ],
)
def test_of_several_lines_the_first_that_matters_is_taken(output: str, line: str) -> None:
    found = read(f"{output}exit 0").line
    assert found.startswith(line)
    assert bool(found) == bool(line)


def test_the_words_reach_the_answer(toolkit: FakeToolkit) -> None:
    log = (CORPUS / "missing-tool-in-kbuild.log").read_text()
    toolkit.vendor("said", log)
    toolkit.vendor("vendor.sh", "cat said\nexit 2\n")
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.COMPILE
    assert result.first_error == "make[1]: g++: No such file or directory"
    assert result.hint.startswith("install g++ in the toolkit image")


def test_a_tool_that_a_step_itself_lacks_is_told(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "echo 'x.c:1: warning: y'\nno-such-tool\nexit $?\n")
    result = toolkit.answer(toolkit.request())
    assert result.first_error.endswith("vendor.sh: line 2: no-such-tool: command not found")
    assert "install no-such-tool in the toolkit image" in result.hint


def test_our_own_lines_are_no_errors_of_the_build(tmp_path: Path) -> None:
    with BuildLog(tmp_path / "build.log", lambda _: None) as log:
        log.say("make failed: error: x")
        assert log.first_error.line == ""


def read(text: str) -> ErrorScanner:
    """What is found in output that ends with a line for the exit code."""
    *lines, last = text.splitlines()
    found = ErrorScanner()
    for line in lines:
        found.scan_line(line)
    found.end_step(int(last.removeprefix("exit ")))
    return found


def test_the_place_of_another_errors_macro_is_not_that_of_the_first() -> None:
    header = "/usr/src/linux-headers-6.12/include/linux/fs.h:9:1: error: unknown type name 'x'"
    found = read(
        f"{header}\n/mnt/a.c:1:2: error: no\n/mnt/b.c:3:4: note: in expansion of macro 'M'\nexit 2"
    )

    assert found.line == header
