"""A `uname` for one build, which reports the kernel that the build is for.

Half of all Makefiles look for their headers below `/lib/modules/$(uname -r)/build`. A toolkit
container also builds for kernels that its machine does not run: in a build Job, and on a host for a
throwaway machine. Therefore a `uname` of ours comes first on the PATH of every build. It reports
release, version and machine of the request, and leaves everything else, including invalid options,
to the real one.

It serves programs that run `uname`; a program that calls uname(2) itself still sees the running
kernel.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from nodeside.system.files import disk_errors
from nodeside.system.host import Kernel

# POSIX sh that runs no program but the real uname. The order of the fields is fixed, whatever the
# order of the options; `-a` omits a processor and a platform that are unknown (coreutils).
_SCRIPT = """\
#!/bin/sh
# Made by nodeside for one build. It reports the kernel that the build is for.
fields=
for word do
    case $word in
    --all) word=-a ;;
    --kernel-name | --sysname) word=-s ;;
    --nodename) word=-n ;;
    --kernel-release | --release) word=-r ;;
    --kernel-version) word=-v ;;
    --machine) word=-m ;;
    --processor) word=-p ;;
    --hardware-platform) word=-i ;;
    --operating-system) word=-o ;;
    esac
    case $word in
    -*[!asnrvmpio]* | - | [!-]* | '') exec @REAL@ "$@" ;;
    esac
    fields=$fields${word#-}
done
line=
say() { line=$line${line:+ }$1; }
case ${fields:-s} in *[as]*) say "$(@REAL@ -s)" ;; esac
case $fields in *[an]*) say "$(@REAL@ -n)" ;; esac
case $fields in *[ar]*) say @RELEASE@ ;; esac
case $fields in *[av]*) say @VERSION@ ;; esac
case $fields in *[am]*) say @MACHINE@ ;; esac
for field in p i; do
    case $fields in
    *$field*) say "$(@REAL@ -$field)" ;;
    *a*) value=$(@REAL@ -$field 2>/dev/null) && [ "$value" != unknown ] && say "$value" ;;
    esac
done
case $fields in *[ao]*) say "$(@REAL@ -o)" ;; esac
printf '%s\\n' "$line"
"""


def path_with_uname(directory: Path, kernel: Kernel, path: str) -> str:
    """Create `directory` with a `uname` for this kernel. Return `path` with it in front."""
    words = {
        "@REAL@": shutil.which("uname", path=path) or "/bin/uname",
        "@RELEASE@": kernel.release,
        "@VERSION@": kernel.version,
        "@MACHINE@": kernel.architecture,
    }
    script = _SCRIPT
    for name, value in words.items():
        script = script.replace(name, shlex.quote(value))
    with disk_errors(directory):
        directory.mkdir()
        (directory / "uname").write_text(script)
        (directory / "uname").chmod(0o755)
    return f"{directory}:{path}"
