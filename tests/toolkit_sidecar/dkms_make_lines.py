"""MAKE lines of a dkms.conf, and what each runs, as dkms itself says (test_dkms_judges)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nodeside.toolkit_sidecar.headers import Headers
from tests.toolkit_sidecar.faketoolkit import KERNEL

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
