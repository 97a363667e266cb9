"""Logs of the shapes that people report: builds by dkms and akmods, vendors' trees on new kernels.

Each log is our own, in the form in which such a build prints it. The three texts after it are the
cause, what the hint says, and what it must not say: words that were once given for this shape.
"""

from __future__ import annotations

import pytest

from nodeside.toolkit_sidecar.firsterror import ErrorScanner

FITS_NOT = "the source does not fit this kernel, or has a mistake"
ADD_IT = "add it to the source (git"
TOOL = "an earlier line reports a missing tool"
NO_GIT = "the source that is built has no .git"

REPORTS = {
    "a download in a build": (
        (
            "curl: (6) Could not resolve host: example.org\n"
            "make: *** [Makefile:7: firmware.bin] Error 6\n"
        ),
        "curl: (6) Could not resolve host: example.org",
        "a build has no network",
        "",
    ),
    "a socket in a build": (
        (
            "Traceback (most recent call last):\n"
            '  File "gen.py", line 9, in <module>\n'
            "PermissionError: [Errno 1] Operation not permitted\n"
            "make: *** [Makefile:7: table.h] Error 1\n"
        ),
        "PermissionError: [Errno 1] Operation not permitted",
        "opens no socket",
        "",
    ),
    "words without the word error": (
        (
            "cat VERSION > stamp.h\n"
            "Build this in a checkout: the revision is unknown\n"
            "make: *** [Makefile:5: stamp.h] Error 1\n"
        ),
        "Build this in a checkout: the revision is unknown (make: *** [Makefile:5: stamp.h] Error",
        NO_GIT,
        "",
    ),
    "a script of several lines, then kbuild's own": (
        (
            "  CC [M]  core.o\n"
            "./gen.sh: this tree was exported without its tables\n"
            "make[2]: *** [scripts/Makefile.build:255: tables.o] Error 1\n"
            "  CC [M]  other.o\n"
            "make[1]: *** [Makefile:2065: /mnt] Error 2\n"
        ),
        "./gen.sh: this tree was exported without its tables (make[2]: ***",
        "",
        "",
    ),
    "a program's traceback": (
        (
            "Traceback (most recent call last):\n"
            '  File "gen.py", line 3, in <module>\n'
            "    import jinja2\n"
            "ModuleNotFoundError: No module named 'jinja2'\n"
            "make: *** [Makefile:9: regs.h] Error 1\n"
        ),
        "ModuleNotFoundError: No module named 'jinja2' (make: ***",
        "",
        "",
    ),
    "a cry in the middle of a script's last words": (
        (
            "asking the patch service\n"
            "gen.sh: line 9: curl: command not found\n"
            "  ERROR: the patch service is not reachable: see whether a proxy, or\n"
            "  a firewall, is between this machine and\n"
            "  'https://patches.example'.\n"
            "make[2]: *** [Makefile:5: compat.patch] Error 1\n"
            "make: *** [Makefile:2: module] Error 2\n"
        ),
        (
            "ERROR: the patch service is not reachable: see whether a proxy, or a firewall, is "
            "between this machine and 'https://patches.example'. (make[2]: *** [Makefile:5: "
        ),
        "a build has no network",
        "",
    ),
    "a cry that is no cause": (
        (
            "ERROR: no manual pages can be made here\n"
            "  CC [M]  edu.o\n"
            "edu.c:4:9: error: implicit declaration of function 'old_call'\n"
            "make[1]: *** [scripts/Makefile.build:255: edu.o] Error 1\n"
        ),
        "edu.c:4:9: error: implicit declaration of function 'old_call'",
        FITS_NOT,
        "",
    ),
    "CMake": (
        (
            "-- The C compiler identification is GNU 12.2.0\n"
            "CMake Error at CMakeLists.txt:7 (message):\n"
            "  Set THING_VERSION, or build from a checkout\n"
            "\n"
            "\n"
            "-- Configuring incomplete, errors occurred!\n"
        ),
        "CMake Error at CMakeLists.txt:7 (message): Set THING_VERSION, or build from a checkout",
        NO_GIT,
        "",
    ),
    "configure: the words are in the next line": (
        (
            "checking kernel build directory... /lib/modules/6.1.0-9-cloud-amd64/build\n"
            "checking for the layer's objects...\n"
            "configure: error:\n"
            "\t*** The objects of the layer below are not built for this kernel\n"
            "\t*** Name them with --with-objects=PATH\n"
            "make: *** No rule to make target 'module'.  Stop.\n"
        ),
        "configure: error: *** The objects of the layer below are not built for this kernel",
        "",
        ADD_IT,
    ),
    "configure: the first of two lines names a directory": (
        (
            "configure: error: in `/out/build':\n"
            "configure: error: cannot link a program\n"
            "See `config.log' for more details\n"
        ),
        "configure: error: in `/out/build': configure: error: cannot link a program",
        "",
        "",
    ),
    "a request to install, then what comes of it": (
        (
            "checking for libwidget... no\n"
            "libwidget-dev is missing: please install it\n"
            "cc -c tool.c\n"
            "tool.c:1:10: fatal error: widget.h: No such file or directory\n"
            "compilation terminated.\n"
            "make: *** [Makefile:3: tool.o] Error 1\n"
        ),
        "libwidget-dev is missing: please install it",
        "what failed then: tool.c:1:10: fatal error: widget.h",
        ADD_IT,
    ),
    "a version string that no shell finds": (
        (
            "/bin/sh: 1: 6.1.0-9: not found\n"
            "  CC [M]  edu.o\n"
            "edu.c:4:9: error: implicit declaration of function 'old_call'\n"
            "make[1]: *** [scripts/Makefile.build:255: edu.o] Error 1\n"
        ),
        "edu.c:4:9: error: implicit declaration of function 'old_call'",
        FITS_NOT,
        TOOL,
    ),
    "a script that looks at memory": (
        (
            "./build.sh: line 12: free: command not found\n"
            "edu.c:9:2: error: expected ';' before 'return'\n"
            "make: *** [Makefile:3: edu.o] Error 1\n"
        ),
        "edu.c:9:2: error: expected ';'",
        "",
        TOOL,
    ),
    "a tool that makes the file which is then lacking": (
        (
            "/bin/sh: 1: bison: not found\n"
            "make[1]: *** No rule to make target 'parse.c', needed by 'parse.o'.  Stop.\n"
        ),
        "make[1]: *** No rule to make target 'parse.c'",
        f"{TOOL}: /bin/sh: 1: bison: not found",
        "",
    ),
    "a path above the source, for make": (
        "make: *** No rule to make target '../common/shared.c', needed by 'all'.\n",
        "make: *** No rule to make target '../common/shared.c'",
        "../common/shared.c is outside the source directory: name a directory above as the source",
        ADD_IT,
    ),
    "a path above the source, for the compiler": (
        "src/edu.c:3:10: fatal error: ../../common/regs.h: No such file or directory\n",
        "src/edu.c:3:10: fatal error: ../../common/regs.h",
        "../../common/regs.h is outside the source directory",
        "neither source nor toolkit",
    ),
    "a path that leaves a directory and not the source": (
        "src/edu.c:3:10: fatal error: ../inc/regs.h: No such file or directory\n",
        "src/edu.c:3:10: fatal error: ../inc/regs.h",
        "neither source nor toolkit has ../inc/regs.h",
        "is outside",
    ),
    "a variable that only an upper Makefile sets": (
        (
            "Makefile:1: /../rules.mk: No such file or directory\n"
            "make: *** No rule to make target '/../rules.mk'.  Stop.\n"
        ),
        "make: *** No rule to make target '/../rules.mk'",
        "/../rules.mk begins with a variable that is empty: a Makefile above sets it",
        ADD_IT,
    ),
    "a rule of kbuild without its program": (
        (
            "make[3]: *** No rule to make target 'scripts/asn1_compiler', needed by 'k.asn1.o'.  "
            "Stop.\n"
        ),
        "make[3]: *** No rule to make target 'scripts/asn1_compiler'",
        "the headers lack scripts/asn1_compiler, a program of kbuild",
        ADD_IT,
    ),
    "headers without their programs": (
        (
            "  CC [M]  compat.o\n"
            "/bin/sh: 1: scripts/genksyms/genksyms: not found\n"
            "make[4]: *** [scripts/Makefile.build:313: compat.o] Error 127\n"
        ),
        "/bin/sh: 1: scripts/genksyms/genksyms: not found",
        "the headers lack scripts/genksyms/genksyms, a program of kbuild",
        "is not in the source",
    ),
    "headers of another architecture": (
        (
            './scripts/recordmcount: 1: Syntax error: ")" unexpected\n'
            "make[2]: *** [scripts/Makefile.build:264: edu.o] Error 2\n"
        ),
        './scripts/recordmcount: 1: Syntax error: ")" unexpected',
        "a program of the headers is for another architecture",
        "",
    ),
    "make goes to a directory that has no headers": (
        (
            "make -C /usr/src/linux M=/out/build modules\n"
            "make[1]: *** No rule to make target 'modules'.  Stop.\n"
            "make: *** [Makefile:9: default] Error 2\n"
        ),
        "make[1]: *** No rule to make target 'modules'.",
        "went to a directory without kernel headers",
        ADD_IT,
    ),
    "make goes to an empty directory": (
        (
            "make[1]: *** No targets specified and no makefile found.  Stop.\n"
            "make: *** [Makefile:8: default] Error 2\n"
        ),
        "make[1]: *** No targets specified and no makefile found",
        "went to a directory without kernel headers",
        "",
    ),
    "a macro that the kernel has now, too": (
        (
            'extents.c:11: error: "MAX" redefined [-Werror]\n'
            "./include/linux/minmax.h:330: note: this is the location of the previous definition\n"
            "make[2]: *** [scripts/Makefile.build:244: extents.o] Error 1\n"
        ),
        'extents.c:11: error: "MAX" redefined',
        FITS_NOT,
        "KCFLAGS",
    ),
    "the kernel's macro after the driver's": (
        (
            "In file included from /usr/src/kernels/6.16/include/linux/kernel.h:28,\n"
            "                 from common/track.c:9:\n"
            '/usr/src/kernels/6.16/include/linux/minmax.h:314: error: "MIN" redefined [-Werror]\n'
            "inc/basic.h:97: note: this is the location of the previous definition\n"
        ),
        "inc/basic.h:97: /usr/src/kernels/6.16/include/linux/minmax.h:314: error:",
        FITS_NOT,
        "",
    ),
    "an error in the kernel's header, with the file that includes it": (
        (
            "In file included from ./include/linux/sched.h:12,\n"
            "                 from core/task.c:67:\n"
            "./include/linux/thread.h:20:1: error: unknown type name 'bool'\n"
        ),
        "core/task.c:67: ./include/linux/thread.h:20:1: error:",
        FITS_NOT,
        "",
    ),
    "a check of the kernel in a function that is inlined": (
        (
            "In function 'fortify_memcpy_chk',\n"
            "    inlined from 'copy_mac' at net/frame.c:33:2:\n"
            "/usr/src/kernels/6.4.0/include/linux/fortify.h:571:4: error: call to "
            "'__compiletime_assert_9' declared with attribute error: the field is too small\n"
        ),
        "net/frame.c:33: /usr/src/kernels/6.4.0/include/linux/fortify.h:571:4: error:",
        FITS_NOT,
        "",
    ),
    "a member that may only be read now": (
        "mmap.c:75:23: error: assignment of read-only member 'vm_flags'\n",
        "mmap.c:75:23: error: assignment of read-only member",
        FITS_NOT,
        "",
    ),
    "a location that may only be read": (
        "ops.c:5:9: error: assignment of read-only location '*ops'\n",
        "ops.c:5:9: error: assignment of read-only location",
        FITS_NOT,
        "",
    ),
    "clang's words for a function that is gone": (
        (
            "inode.c:415:9: error: call to undeclared function 'drop_it'; ISO C99 and later do not "
            "support implicit function declarations [-Werror,-Wimplicit-function-declaration]\n"
        ),
        "inode.c:415:9: error: call to undeclared function",
        FITS_NOT,
        "",
    ),
    "the driver itself refuses": (
        'compat.h:12:2: error: #error "needs Linux 6.6 or later"\n',
        "compat.h:12:2: error: #error",
        "the driver itself says why",
        "",
    ),
    "an installer in a build": (
        (
            "install -m644 edu.ko /lib/modules/6.1.0-9-cloud-amd64/extra\n"
            "install: cannot create regular file '/lib/modules/6.1.0-9-cloud-amd64/extra/edu.ko': "
            "Read-only file system\n"
            "make: *** [Makefile:12: install] Error 1\n"
        ),
        "install: cannot create regular file",
        "nothing is installed",
        "",
    ),
    "depmod in a build": (
        (
            "depmod: ERROR: openat(/lib/modules/6.1.0-9-cloud-amd64, modules.dep.tmp, 1101, 644): "
            "Read-only file system\n"
            "make: *** [Makefile:13: install] Error 1\n"
        ),
        "depmod: ERROR: openat(",
        "nothing is installed",
        "",
    ),
    "kbuild without the driver's directory": (
        (
            "make -C /lib/modules/6.1.0-9-cloud-amd64/build M= modules\n"
            "mkdir: cannot create directory '.tmp_10458': Read-only file system\n"
            "mkdir: cannot create directory '.tmp_10461': Read-only file system\n"
            "make: *** [Makefile:7: all] Error 2\n"
        ),
        "mkdir: cannot create directory '.tmp_10461': Read-only file system",
        "M= is empty",
        "",
    ),
    "a version by git, where git is not": (
        (
            "/bin/sh: 1: git: not found\n"
            "edu.c:3:10: fatal error: version.h: No such file or directory\n"
        ),
        "edu.c:3:10: fatal error: version.h",
        f"{TOOL}: /bin/sh: 1: git: not found",
        "",
    ),
    "a version by git, without a repository": (
        (
            "fatal: not a git repository (or any of the parent directories): .git\n"
            "edu.c:8:20: error: 'EDU_GIT_VERSION' undeclared (first use in this function)\n"
        ),
        "edu.c:8:20: error: 'EDU_GIT_VERSION' undeclared",
        NO_GIT,
        "",
    ),
    "a build that wants a repository": (
        (
            "Directory .git does not exist indicating that this was not cloned\n"
            "make: *** [Makefile:100: check] Error 1\n"
        ),
        "Directory .git does not exist indicating",
        NO_GIT,
        "",
    ),
    "a file of the revision that only a repository gives": (
        (
            "core/.revision can only be written in a git clone\n"
            "make[1]: *** [Makefile:12: core/.revision] Error 1\n"
            "make: *** [Makefile:7: module] Error 2\n"
        ),
        "core/.revision can only be written in a git clone (make[1]: *** [Makefile:12:",
        NO_GIT,
        "",
    ),
    "a submodule that is not there": (
        "Makefile:9: *** shared/ is empty, run: git submodule update --init.  Stop.\n",
        "Makefile:9: *** shared/ is empty",
        "the source lacks what its git submodules have: fetch them",
        NO_GIT,
    ),
    "a repository that has nothing to do with it": (
        (
            "fatal: not a git repository (or any of the parent directories): .git\n"
            "edu.c:8:20: error: implicit declaration of function 'old_call'\n"
        ),
        "edu.c:8:20: error: implicit",
        FITS_NOT,
        NO_GIT,
    ),
    "a list of symbols of another kernel": (
        (
            "FATAL: modpost: parse error in symbol dump file\n"
            "make[1]: *** [scripts/Makefile.modpost:94: Module.symvers] Error 1\n"
        ),
        "FATAL: modpost: parse error in symbol dump file",
        "source.exclude: [Module.symvers]",
        "",
    ),
    "tracepoints": (
        (
            "In file included from edu_trace.h:40,\n"
            "                 from edu_trace.c:3:\n"
            "/usr/src/linux-headers-6.1/include/trace/define_trace.h:95:42: fatal error: "
            "./edu_trace.h: No such file or directory\n"
        ),
        "edu_trace.c:3: /usr/src/linux-headers-6.1/include/trace/define_trace.h:95:42: fatal",
        "add -I$(src) to ccflags-y",
        ADD_IT,
    ),
    "headers that lack one of their own": (
        (
            "/usr/src/kernels/5.19/include/linux/kernel.h:14:10: fatal error: linux/stdarg.h: "
            "No such file or directory\n"
        ),
        "/usr/src/kernels/5.19/include/linux/kernel.h:14:10: fatal error: linux/stdarg.h",
        "a header of the kernel needs linux/stdarg.h, which is not there",
        "take a version of the driver",
    ),
}


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_the_cause_of_a_reported_failure_is_told(name: str) -> None:
    log, cause, advice, never = REPORTS[name]
    found = scan(log)
    assert found.line.startswith(cause)
    assert advice in found.hint
    assert bool(found.hint) == bool(advice)
    assert not never or never not in found.hint


def test_what_a_failed_step_said_last_is_the_cause() -> None:
    found = ErrorScanner()
    for line in ("checking for frobctl... no", "Cannot go on without frobctl"):
        found.scan_line(line)
    found.end_step(1)

    assert found.line == "Cannot go on without frobctl"


def test_a_step_that_succeeds_leaves_no_last_words() -> None:
    found = ErrorScanner()
    found.scan_line("all is well")
    found.end_step(0)
    found.end_step(2)

    assert found.line == ""


def scan(log: str) -> ErrorScanner:
    """What is found in the output of a step that fails."""
    found = ErrorScanner()
    for line in log.splitlines():
        found.scan_line(line)
    found.end_step(2)
    return found
