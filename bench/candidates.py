"""The drivers that are built: one file of ours, and unmodified Debian packages of every size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.size import Size


@dataclass(frozen=True)
class Candidate:
    """A driver to build. `package` is a Debian package, "" for the one that is made here."""

    name: str
    package: str = ""
    long: bool = False  # fewer rounds


CANDIDATES = (
    Candidate("hello"),
    Candidate("vpoll", "vpoll-dkms"),
    Candidate("v4l2loopback", "v4l2loopback-dkms"),
    Candidate("openvpn-dco", "openvpn-dco-dkms"),
    Candidate("xtables-addons", "xtables-addons-dkms", long=True),
    Candidate("jool", "jool-dkms", long=True),
)
CHOSEN = {
    Size.FULL: CANDIDATES,
    Size.QUICK: CANDIDATES[:3],
    Size.SMALLEST: CANDIDATES[:1],
}

_HELLO = """\
// SPDX-License-Identifier: GPL-2.0
#include <linux/init.h>
#include <linux/module.h>

static int __init hello_init(void)
{
	pr_info("hello\\n");
	return 0;
}

static void __exit hello_exit(void)
{
}

module_init(hello_init);
module_exit(hello_exit);
MODULE_DESCRIPTION("The smallest driver there is");
MODULE_LICENSE("GPL");
"""
_CONF = """\
PACKAGE_NAME="{name}"
PACKAGE_VERSION="1.0"
BUILT_MODULE_NAME[0]="{name}"
DEST_MODULE_LOCATION[0]="/updates"
AUTOINSTALL="yes"
MAKE[0]="{make}"
"""
_MAKE = "make -C $kernel_source_dir M=$dkms_tree/{name}/1.0/build modules"
ENDED = "MAKE-ENDED"
# dkms.conf cannot do this: what stands in MAKE is expanded when it is read.
_SCRIPT = f"""\
make -C "$1" M="$2" modules
code=$?
echo "{ENDED} $(date +%s.%N)"
exit $code
"""


def write_hello(tree: Path) -> Path:
    """A dkms tree of one file."""
    return _write(tree, "hello", _HELLO, _MAKE)


def write_broken(tree: Path) -> Path:
    """The same with a mistake, built by a script that says when make ended."""
    build = "$dkms_tree/broken/1.0/build"
    make = f"sh {build}/build.sh $kernel_source_dir {build}"
    _write(tree, "broken", _HELLO.replace("return 0", "return nought"), make)
    (tree / "build.sh").write_text(_SCRIPT)
    return tree


def _write(tree: Path, name: str, text: str, make: str) -> Path:
    tree.mkdir(parents=True)
    (tree / f"{name}.c").write_text(text)
    (tree / "Makefile").write_text(f"obj-m := {name}.o\n")
    (tree / "dkms.conf").write_text(_CONF.format(name=name, make=make.format(name=name)))
    return tree
