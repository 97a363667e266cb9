"""What is at /driver-image in these tests: drivers side by side, each in a directory of its own.

Versions of the edu example that differ in one point, small modules that do one thing wrong, and
sources whose build takes no time because the module lies in them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nodeside.system import process

SIGNER = "The vendor of the tests"
EDU = Path(__file__).parents[2] / "examples" / "edu"
PEER = EDU.with_name("edu-peer")

_SMALL = """\
// SPDX-License-Identifier: GPL-2.0
#include <linux/delay.h>
#include <linux/module.h>
{declarations}
static int answer;
module_param(answer, int, 0444);
MODULE_PARM_DESC(answer, "what init returns, as a positive errno");

static int __init small_init(void)
{{
	{init}
	pr_info("{name}: init returns %d\\n", -answer);
	return -answer;
}}
module_init(small_init);
{exit}
MODULE_DESCRIPTION("A small module of the tests");
MODULE_LICENSE("GPL");
MODULE_VERSION("1.0");
"""

_EXIT = """
static void __exit small_exit(void)
{{
	pr_info("{name}: exit\\n");
}}
module_exit(small_exit);
"""


@dataclass(frozen=True)
class SmallModule:
    """A module whose init function runs the C statements `init` and returns -`answer`."""

    name: str
    init: str = ""
    declarations: str = ""
    permanent: bool = False

    @property
    def source(self) -> str:
        return _SMALL.format(
            name=self.name,
            init=self.init,
            declarations=self.declarations,
            exit="" if self.permanent else _EXIT.format(name=self.name),
        )


_EXPORTS = """\
// SPDX-License-Identifier: GPL-2.0
#include <linux/module.h>
int frob_get(void);
int frob_get(void)
{
	return 1;
}
EXPORT_SYMBOL(frob_get);
int frob_put(void);
int frob_put(void)
{
	return 1;
}
EXPORT_SYMBOL_GPL(frob_put);
MODULE_DESCRIPTION("A module of the tests that exports frob_get() and frob_put()");
MODULE_LICENSE("GPL");
"""
_STAND_IN = {
    "Kbuild": "obj-m := standin.o consumer.o\n",
    "standin.c": _EXPORTS,
    "consumer.c": SmallModule(
        "consumer",
        init="answer = frob_get() - frob_put();",
        declarations="int frob_get(void);\nint frob_put(void);",
    ).source,
    "provider/Kbuild": "obj-m := provider.o\n",
    "provider/provider.c": _EXPORTS,
}
_BUILD = 'make -C "$NODESIDE_KERNEL_DIR" M="$PWD{}" modules'
_STAND_IN_BUILD = {
    "kind": "command",
    "command": ["sh", "-ec", f"{_BUILD.format('/provider')}; {_BUILD.format('')}"],
}


class DriverImage:
    """The directory that becomes /driver-image. Drivers are added before a node is made of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def edu(
        self,
        where: str,
        spec: Mapping[str, Any] | None = None,
        edits: Mapping[str, str] | None = None,
    ) -> Path:
        """The edu example with these fields in `spec`, and `edits` of its edu.c: old -> new."""
        directory = variant(EDU, self.directory / where, spec or {})
        source = directory / "src" / "edu.c"
        text = source.read_text()
        for old, new in (edits or {}).items():
            assert old in text
            text = text.replace(old, new)
        source.write_text(text)
        return directory

    def peer(self, where: str, spec: Mapping[str, Any] | None = None) -> Path:
        """The example of a driver that comes after edu."""
        return variant(PEER, self.directory / where, spec or {})

    def small(self, where: str, module: SmallModule, spec: Mapping[str, Any] | None = None) -> Path:
        """A driver of one small module, both of the same name."""
        name = module.name
        files = {f"{name}.c": module.source, "Kbuild": f"obj-m := {name}.o\n"}
        return self.driver(where, name, files, {"build": {"kind": "kbuild"}, **(spec or {})})

    def instant(
        self,
        where: str,
        module: Path,
        script: str = "",
        *,
        spec: Mapping[str, Any] | None = None,
        padding: int = 0,
        timeout: int = 600,
    ) -> Path:
        """A driver whose build runs the shell lines `script` and then delivers `module`, a .ko.

        `padding` bytes are appended to it, which the kernel ignores.
        """
        name = module.stem
        result = f'"$NODESIDE_OUTPUT/{name}.ko"'
        script += f"\ncp module.bin {result}\nhead -c {padding} /dev/zero >> {result}\n"
        build: dict[str, Any] = {"kind": "command", "command": ["bash", "-u", "build.sh"]}
        build["timeoutSeconds"] = timeout
        if padding:
            build["environment"] = {"STRIP": "no"}
        directory = self.driver(where, name, {"build.sh": script}, {"build": build, **(spec or {})})
        shutil.copyfile(module, directory / "src" / "module.bin")
        return directory

    def stand_in(self, where: str, *modules: str) -> Path:
        """A driver whose consumer.ko is linked beside standin.ko, a stand-in for provider.ko.

        So its `depends` names the stand-in; both export the symbols that it imports, one of them
        by EXPORT_SYMBOL_GPL.
        """
        spec = {"build": _STAND_IN_BUILD, "modules": [{"name": name} for name in modules]}
        return self.driver(where, "consumer", _STAND_IN, spec)

    def driver(
        self, where: str, name: str, files: Mapping[str, str], spec: Mapping[str, Any]
    ) -> Path:
        """A driver of one module, made of these source files."""
        directory = self.directory / where
        for file, text in files.items():
            path = directory / "src" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        whole = {"version": "1.0", "source": {"path": "src"}, "modules": [{"name": name}], **spec}
        _write(directory, {"name": name}, whole)
        return directory


def own_key(directory: Path) -> dict[str, str]:
    """`spec.signing` of a driver beside this directory: a key that no kernel has heard of."""
    directory.mkdir()
    process.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={SIGNER}", "-keyout", directory / "key.pem"),
            *("-out", directory / "certificate.pem"),
        ],
        timeout=60,
    )
    near = f"../{directory.name}"
    return {"key": f"{near}/key.pem", "certificate": f"{near}/certificate.pem"}


def spec_of(driver: Path) -> dict[str, Any]:
    """The `spec` of a driver, but for what says how to build it."""
    document = yaml.safe_load((driver / "driver.yaml").read_text())
    built = ("source", "build")
    return {name: value for name, value in document["spec"].items() if name not in built}


def variant(driver: Path, to: Path, spec: Mapping[str, Any]) -> Path:
    """A copy of a driver's directory whose `spec` has these fields."""
    shutil.copytree(driver, to)
    document = yaml.safe_load((to / "driver.yaml").read_text())
    _write(to, document["metadata"], document["spec"] | spec)
    return to


def parameters(**values: str) -> list[dict[str, Any]]:
    """`spec.modules` of the edu driver with these parameters."""
    return [{"name": "edu", "parameters": values}]


def _write(directory: Path, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
    """JSON is YAML too, and leaves no doubt what is a string."""
    document = {
        "apiVersion": "nodeside.io/v1alpha1",
        "kind": "Driver",
        "metadata": metadata,
        "spec": spec,
    }
    (directory / "driver.yaml").write_text(json.dumps(document, indent=2))
