"""What a MAKE line of a dkms.conf runs: the same commands as dkms, of any version.

dkms puts `-j` and `KERNELRELEASE=` after the text `make` with which a command begins, and nowhere
else; so that is what a Makefile sees that asks `ifneq ($(KERNELRELEASE),)`. `test_dkms_judges` asks
dkms itself about each line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from nodeside.protocol.build_records import BuildRequest
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.system import process
from nodeside.toolkit_sidecar import dkms_conf
from nodeside.toolkit_sidecar.buildlog import BuildLog
from nodeside.toolkit_sidecar.confinement import BuildWatch
from nodeside.toolkit_sidecar.dkms import make_command, make_plan
from nodeside.toolkit_sidecar.headers import Headers
from nodeside.toolkit_sidecar.recipe import Workplace
from tests.toolkit_sidecar.faketoolkit import BOOT_ID, DIGEST, KERNEL, LONG

CONF = "PACKAGE_NAME=straw\nPACKAGE_VERSION=1.0\nBUILT_MODULE_NAME=straw\nCLEAN=true\n"
MAKE = '#!/bin/sh\necho "$*" >>"$SAID"\n'
HEADERS = Headers(Path("/headers"), KERNEL.release, KERNEL.version)
OURS = f"-j4 KERNELRELEASE={KERNEL.release}"
DEFAULT = f"{OURS} -C /headers M=DIRECTORY"


# A line of a dkms.conf, and the arguments of each make that it runs. DIRECTORY is the one of the
# build. SOURCE is where dkms keeps the source; here, it is the directory of the build.
LINES: Sequence[tuple[str, Sequence[str]]] = [
    # The command begins with make: dkms adds its words.
    ("MAKE='make'", [OURS]),
    ('MAKE="make all"', [f"{OURS} all"]),
    ('MAKE[0]="make all"', [f"{OURS} all"]),
    ('MAKE="make  all "', [f"{OURS} all"]),
    ("MAKE=$'make\\tall'", [f"{OURS} all"]),
    ("MAKE='make \\\n all'", [f"{OURS}  all"]),
    ('MAKE="make KERNELRELEASE=mine all"', [f"{OURS} KERNELRELEASE=mine all"]),
    # Double quotes in a value are lost when dkms reads it, so they hide nothing.
    ("MAKE='\"make\" all'", [f"{OURS} all"]),
    ('MAKE="\\"make\\" all"', [f"{OURS} all"]),
    ("MAKE='make all FLAGS=\"\"'", [f"{OURS} all FLAGS="]),
    # Only the first make is dkms's; and a word that begins so is taken for one.
    ('MAKE="make one && make two"', [f"{OURS} one", "two"]),
    ('MAKE="makeshift all"', [f"{OURS}shift all"]),
    # The command begins with anything else: it is run as it is.
    ("MAKE=\"'make' all\"", ["all"]),
    ("MAKE='\\make all'", ["all"]),
    ('MAKE="\\\\make all"', ["all"]),
    ("MAKE=\"ma''ke all\"", ["all"]),
    ('MAKE="m\\ake all"', ["all"]),
    ('MAKE=" make all"', ["all"]),
    ('MAKE="env make all"', ["all"]),
    ('MAKE="cd . && make all"', ["all"]),
    ('MAKE="$(command -v make) all"', ["all"]),
    ('MAKE="KERNELRELEASE=mine make all"', ["all"]),
    # Variables are expanded, whichever quotes stand around them.
    ('MAKE="make K=$kernelver"', [f"{OURS} K={KERNEL.release}"]),
    ("MAKE='make K=$kernelver'", [f"{OURS} K={KERNEL.release}"]),
    ("MAKE='make K=${kernelver}'", [f"{OURS} K={KERNEL.release}"]),
    ('MAKE="make K=\\$kernelver"', [f"{OURS} K={KERNEL.release}"]),
    ("MAKE=\"make FLAGS='a b'\"", [f"{OURS} FLAGS=a b"]),
    ("MAKE='make all `echo x`'", [f"{OURS} all x"]),
    ("MAKE='make all $(echo x)'", [f"{OURS} all x"]),
    # The place where dkms keeps the source, which nothing may write to here.
    ("MAKE='make -C /usr/src/straw-1.0'", [f"{OURS} -C SOURCE"]),
    ('MAKE="make M=/usr/src/straw-1.0/src"', [f"{OURS} M=SOURCE/src"]),
    (
        'MAKE="make -C $source_tree/$module-$module_version all"',
        [f"{OURS} -C SOURCE all"],
    ),
    ("MAKE='cd /usr/src/straw-1.0;make all'", ["all"]),
    ("MAKE='make S=/usr/src/straw-1.0.1'", [f"{OURS} S=/usr/src/straw-1.0.1"]),
    ("MAKE='make S=/srv/usr/src/straw-1.0'", [f"{OURS} S=/srv/usr/src/straw-1.0"]),
    ("MAKE='make -C /usr/src/linux-headers-6'", [f"{OURS} -C /usr/src/linux-headers-6"]),
    # No command of its own.
    ("MAKE=", [DEFAULT]),
    ("", [DEFAULT]),
]


@pytest.mark.parametrize(("line", "ran"), LINES)
def test_make_gets_what_it_gets_from_dkms(tmp_path: Path, line: str, ran: Sequence[str]) -> None:
    place = workplace(tmp_path)
    assert run(place, line) == [re.sub("DIRECTORY|SOURCE", str(place.out), words) for words in ran]


def workplace(directory: Path) -> Workplace:
    """A build of four jobs in `directory`, with a make that writes its arguments down."""
    make = directory / "bin" / "make"
    make.parent.mkdir()
    make.write_text(MAKE)
    make.chmod(0o755)
    path = f"{make.parent}:{process.make_environment()['PATH']}"
    env = {"PATH": path, "SAID": str(directory / "said")}
    settings = BuildSettings(BuildKind.DKMS, ("straw",))
    request = BuildRequest("1", "straw", "1.0", KERNEL, BOOT_ID, DIGEST, settings, LONG)
    return Workplace(request, directory, HEADERS, jobs=4, env=env)


def run(place: Workplace, line: str) -> list[str]:
    """Evaluate a dkms.conf with this line and run its command; the arguments that make got."""
    conf, here = place.out / "dkms.conf", place.out
    conf.write_text(f"{CONF}{line}\n")
    with BuildLog(place.out / "build.log", lambda _: None) as log:
        values = dkms_conf.evaluate(
            conf,
            dump=place.out / "values",
            shell=dkms_conf.shell_variables(
                HEADERS, KERNEL.release, KERNEL.architecture, tree=place.out / "dkms", jobs=4
            ),
            env=place.env,
            mark=str(place.out),
            log=log,
            watch=BuildWatch(seconds=LONG, request=conf, disk=place.out),
        )
    command = make_command(make_plan(values, KERNEL, HEADERS), place, here)
    process.run(["bash", "-c", command], timeout=LONG, env=place.env, cwd=here)
    return (place.out / "said").read_text().splitlines()
