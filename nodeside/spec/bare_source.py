"""A driver for a source that has no driver.yaml: what its files say, read and not run.

`nodeside try` and `nodeside init` know more, since they run dkms.conf and build the source, in a
toolkit. A node and a laptop may have neither toolkit nor network when a command is typed there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nodeside.contract import API_VERSION, BuildKind
from nodeside.errors import NodesideError, SpecError
from nodeside.files import open_untrusted
from nodeside.modulenames import kernel_name
from nodeside.spec.document import parse
from nodeside.spec.model import Driver

MAKEFILES = ("Kbuild", "Makefile")  # kbuild reads the first that is there
NO_VERSION = "0.1.0"
_NO_NAME = frozenset({"src", "source", "driver", "kernel", "linux", "module", "modules", "kmod"})
_LIMIT = 1 << 20  # bytes of a Makefile or dkms.conf

# obj-m, or obj-$(CONFIG_X), which is obj-m where the option is m (Documentation/kbuild/modules.rst)
_OBJECTS = re.compile(r"^[ \t]*obj-(?:m|\$[({]\w+[)}])[ \t]*[:+?]?=(.*)$", re.MULTILINE)
_OBJECT = re.compile(r"(?<![\w/$(){}.-])([\w-]{1,55})\.o(?!\S)")

_KEY = r"(PACKAGE_NAME|PACKAGE_VERSION|BUILT_MODULE_NAME|DEST_MODULE_NAME)"
_SET = re.compile(rf"(?<![#\w])(?<!\$){_KEY}(?:\[[^\]]*\])?\+?=")
_SET_LITERALLY = re.compile(
    rf"""^{_KEY}(?:\[(\d{{1,4}})\])?=(?:"([^"`\\]*)"|'([^']*)'|([^\s"'`\\;&|()<>#]*))\s*(?:\#.*)?$"""
)
_SET_OTHER = re.compile(r"""^(?!BUILT_|DEST_|PACKAGE_)\w+(?:\[[^\]]*\])?=["']""")
_PACKAGE = re.compile(r"\$(?:\{(PACKAGE_NAME|PACKAGE_VERSION)\}|(PACKAGE_NAME|PACKAGE_VERSION)\b)")


def bare_driver(directory: Path) -> Driver | None:
    """Return the driver of a dkms or kbuild source; None if the directory is not one.

    Raises SpecError if its files do not say plainly what its modules are called.
    """
    if conf := source_text(directory / "dkms.conf"):
        return parse(_of_dkms_conf(conf, directory), str(directory))
    if not lists_modules(directory):
        return None
    modules = named_modules(directory)
    if not modules:
        raise _unclear(directory, "computes the names of its modules")
    name = name_of(modules, directory.resolve().name)
    build = {"kind": BuildKind.KBUILD.value}
    return parse(smallest_document(name, NO_VERSION, ".", build, modules), str(directory))


def smallest_document(
    name: str, version: str, source: str, build: Mapping[str, Any], modules: Iterable[str]
) -> dict[str, Any]:
    """Return the smallest driver.yaml, as values. `source` is the path of the source."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Driver",
        "metadata": {"name": name},
        "spec": {
            "version": version,
            "source": {"path": source},
            "build": dict(build),
            "modules": [{"name": module} for module in modules],
        },
    }


def lists_modules(directory: Path) -> bool:
    """Return whether kbuild finds a list of modules in this directory."""
    return any(_OBJECTS.search(text) for text in _makefiles(directory))


def named_modules(directory: Path) -> tuple[str, ...]:
    """Return the modules that Makefiles list by name; those that variables make are not among."""
    found = {
        kernel_name(module[1])
        for text in _makefiles(directory)
        for objects in _OBJECTS.finditer(text)
        for module in _OBJECT.finditer(objects[1])
    }
    return tuple(sorted(found))


def name_of(modules: tuple[str, ...], directory: str) -> str:
    """Return the name of a driver: that of its only module, or that of its directory."""
    alone = len(modules) == 1 or says_nothing(directory)
    return label(modules[0] if alone else directory)


def says_nothing(directory: str) -> bool:
    """Return whether a directory has a name that many sources have, such as `src`."""
    return directory.lower() in _NO_NAME


def label(name: str) -> str:
    """Return a package name as a DNS label of at most 40 characters."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-") or "driver"


def plain_version(version: str) -> str:
    """Return a version as driver.yaml accepts it; other characters become dots."""
    plain = re.sub(r"[^A-Za-z0-9_.+~-]+", ".", version)[:40]
    return plain if re.match(r"[A-Za-z0-9]", plain) else f"0{plain}"[:40]


def source_text(path: Path) -> str:
    """Return a file of the source with its continued lines joined; "" if there is none to read."""
    try:
        with open_untrusted(path, limit=_LIMIT) as file:
            text = file.read(_LIMIT)
    except (OSError, NodesideError):
        return ""
    return text.decode("utf-8", "replace").replace("\\\n", " ")


def _makefiles(directory: Path) -> list[str]:
    return [source_text(directory / name) for name in MAKEFILES]


def _of_dkms_conf(conf: str, directory: Path) -> dict[str, Any]:
    """Return the document of a dkms tree (dkms(8)) whose dkms.conf sets its names literally."""
    values = _literal_values(conf, directory)
    name, version = values.get(("PACKAGE_NAME", 0)), values.get(("PACKAGE_VERSION", 0))
    if not name or not version:
        raise _unclear(directory, "sets no PACKAGE_NAME or no PACKAGE_VERSION")
    indices = sorted({i for key, i in values if not key.startswith("PACKAGE_")}) or [0]
    modules = dict.fromkeys(values.get(("BUILT_MODULE_NAME", i)) or name for i in indices)
    build = {"kind": BuildKind.DKMS.value}
    return smallest_document(label(name), plain_version(version), ".", build, modules)


def _literal_values(conf: str, directory: Path) -> dict[tuple[str, int], str]:
    values: dict[tuple[str, int], str] = {}

    def package(match: re.Match[str]) -> str:
        return values.get((match[1] or match[2], 0), match[0])

    for line in conf.splitlines():
        if line.lstrip().startswith("#") or _SET_OTHER.match(line):
            continue
        touched = _SET.search(line.partition(" #")[0])
        if touched is None:
            continue
        match = _SET_LITERALLY.match(line)
        if match is None:
            raise _unclear(directory, f"computes {touched[1]}")
        key = (match[1], int(match[2] or 0))
        double, single, plain = match[3], match[4], match[5]
        value = single if single is not None else _PACKAGE.sub(package, double or plain or "")
        if "$" in value or values.get(key, value) != value:
            raise _unclear(directory, f"computes {key[0]}")
        values[key] = value
    return values


def _unclear(directory: Path, what: str) -> SpecError:
    """Return the error about a source of which too little is known without running it."""
    conf = directory / "dkms.conf"
    file = conf if conf.exists() else directory / "Makefile"
    return SpecError(
        f"{directory} has no driver.yaml, and {file.name} {what}",
        hint=f"nodeside init {directory} finds out by a build, and writes a driver.yaml",
    )
