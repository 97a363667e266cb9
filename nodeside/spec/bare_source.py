"""A driver for a source that has no driver.yaml: what its files say, read and not run.

`nodeside try` and `nodeside init` know more, since they run dkms.conf and build the source, in a
toolkit. A node and a laptop may have neither toolkit nor network when a command is typed there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nodeside.errors import SpecError
from nodeside.protocol.bundle_key import BuildKind
from nodeside.protocol.labels import API_VERSION, make_dns_label
from nodeside.protocol.module_names import kernel_name
from nodeside.spec.document import parse
from nodeside.spec.kbuild_list import (
    MAKEFILES,
    OBJECT,
    OBJECTS,
    KbuildList,
    read_kbuild_list,
    read_makefiles,
    source_text,
)
from nodeside.spec.model import Driver

NO_VERSION = "0.1.0"
_NO_NAME = frozenset({"src", "source", "driver", "kernel", "linux", "module", "modules", "kmod"})
_CONF_LIMIT = 1 << 16  # bytes; real ones have 5 kB
_VALUE_LIMIT = 100  # characters; a name of a package is put into others

_IF = re.compile(r"[ \t]*(else[ \t]+)?(?:ifn?eq|ifn?def)\b(.*)")
_ENDIF = re.compile(r"[ \t]*endif\b")
# `ifneq ($(KERNELRELEASE),)` or `ifdef KERNELRELEASE`: only tells kbuild from a make by hand.
_BY_KBUILD = re.compile(
    r"[ \t]*(?:\([ \t]*\$[({]KERNELRELEASE[)}][ \t]*,[ \t]*\)|KERNELRELEASE)[ \t]*(?:#.*)?"
)

_KEY = r"(PACKAGE_NAME|PACKAGE_VERSION|BUILT_MODULE_NAME|DEST_MODULE_NAME)"
_SET = re.compile(rf"(?<![#$\w]){_KEY}(?:\[[^\]]{{0,20}}\])?\+?=")
_SET_LITERALLY = re.compile(
    rf"""{_KEY}(?:\[(\d{{1,4}})\])?=(?:"([^"`\\]*)"|'([^']*)'|([^\s"'`\\;&|()<>#]*))\s*(?:\#.*)?"""
)
_SET_OTHER = re.compile(
    r"""(?!BUILT_|DEST_|PACKAGE_)\w+(?:\[[^\]]{0,20}\])?=(?:"(?:[^"\\]|\\.)*"|'[^']*')\s*"""
)
_PACKAGE = re.compile(r"\$(?:\{(PACKAGE_NAME|PACKAGE_VERSION)\}|(PACKAGE_NAME|PACKAGE_VERSION)\b)")
_OPENS = re.compile(
    r"(?:^|[;&|]|\b(?:then|else|do)\b)\s*(?:if|for|while|until|case|select)\b|\)\s*\{"
)
_CLOSES = re.compile(r"(?:^|[;&\s])(?:fi|done|esac)\b|^\}")


def bare_driver(directory: Path) -> Driver | None:
    """Return the driver of a dkms or kbuild source; None if the directory is not one.

    Raises SpecError if its files do not say plainly what its modules are called.
    """
    conf = directory / "dkms.conf"
    if os.path.lexists(conf):
        return parse(_document_of_dkms_conf(conf), str(directory))
    listed = read_kbuild_list(directory)
    if not listed:
        return None
    modules = _read_listed_modules(directory, listed)
    name = driver_name_of(modules, directory.resolve().name)
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


def _read_listed_modules(directory: Path, listed: KbuildList) -> tuple[str, ...]:
    """Return the modules of a Makefile that lists them by name, the same ones for every kernel.

    Raises SpecError for any other Makefile.
    """
    file = next(path for name in MAKEFILES if os.path.lexists(path := directory / name))
    found: set[str] = set()
    conditions: list[bool] = []  # of each open condition, whether it is about the kernel
    about_kernel = 0  # how many of them are: a hostile file may open one on each line
    for line in source_text(file).splitlines():
        condition = _IF.match(line)
        if conditions and (_ENDIF.match(line) or (condition and condition[1])):
            about_kernel -= conditions.pop()
        if condition:
            conditions.append(_BY_KBUILD.fullmatch(condition[2]) is None)
            about_kernel += conditions[-1]
        if not (objects := OBJECTS.match(line)):
            continue
        if about_kernel:
            raise _unclear_error(file, "lists modules under a condition")
        words = objects[3].partition("#")[0].split()
        if objects[1] != "obj-m" or not all(OBJECT.fullmatch(word) for word in words):
            raise _unclear_error(
                file, "computes the names of its modules, or has them in directories"
            )
        if objects[2] != "+":
            found.clear()
        found |= {kernel_name(word.removesuffix(".o")) for word in words}
    if len(read_makefiles(directory)) > len(MAKEFILES) and {*listed.modules} != found:
        raise _unclear_error(file, "includes another file, which lists modules too")
    if not found:
        raise _unclear_error(file, "lists no module")
    return tuple(sorted(found))


def driver_name_of(modules: tuple[str, ...], directory: str) -> str:
    """Return the name of a driver: the name of its only module, else of its directory."""
    alone = len(modules) == 1 or is_common_name(directory)
    return make_dns_label(modules[0] if alone else directory)


def is_common_name(directory: str) -> bool:
    """Return whether many sources have a directory of this name, such as `src`."""
    return directory.lower() in _NO_NAME


def plain_version(version: str) -> str:
    """Return a version as driver.yaml accepts it; other characters become dots."""
    plain = re.sub(r"[^A-Za-z0-9_.+~-]+", ".", version.strip())[:40]
    return plain if re.match(r"[A-Za-z0-9]", plain) else f"0{plain}"[:40]


def _document_of_dkms_conf(conf: Path) -> dict[str, Any]:
    """Return the document of a dkms tree (dkms(8)) whose dkms.conf sets its names literally."""
    values = _literal_values(conf)
    name, version = values.get(("PACKAGE_NAME", 0)), values.get(("PACKAGE_VERSION", 0))
    if not name or not version:
        raise _unclear_error(conf, "is no file that sets PACKAGE_NAME and PACKAGE_VERSION")
    indices = sorted({i for key, i in values if not key.startswith("PACKAGE_")}) or [0]
    modules = dict.fromkeys(values.get(("BUILT_MODULE_NAME", i)) or name for i in indices)
    build = {"kind": BuildKind.DKMS.value}
    return smallest_document(make_dns_label(name), plain_version(version), ".", build, modules)


def _literal_values(conf: Path) -> dict[tuple[str, int], str]:
    values: dict[tuple[str, int], str] = {}

    def value_of(match: re.Match[str]) -> str:
        return values.get((match[1] or match[2], 0), match[0])

    depth = 0  # of blocks that bash may skip or repeat
    for line in source_text(conf, _CONF_LIMIT).splitlines():
        if line.lstrip().startswith("#") or _SET_OTHER.fullmatch(line):
            continue
        depth += len(_OPENS.findall(line.strip())) - len(_CLOSES.findall(line.strip()))
        touched = _SET.search(line)
        if touched is None:
            continue
        match = _SET_LITERALLY.fullmatch(line)
        if match is None or depth:
            raise _unclear_error(conf, f"computes {touched[1]}")
        key = (match[1], int(match[2] or 0))
        double, single, plain = match[3], match[4], match[5]
        value = single if single is not None else _PACKAGE.sub(value_of, double or plain or "")
        if "$" in value or len(value) > _VALUE_LIMIT or values.get(key, value) != value:
            raise _unclear_error(conf, f"computes {key[0]}")
        values[key] = value
    return values


def _unclear_error(file: Path, what: str) -> SpecError:
    """Return the error for a source that cannot be understood without running it."""
    directory = file.parent
    return SpecError(
        f"{directory} has no driver.yaml, and {file.name} {what}",
        hint=f"nodeside init {directory} finds out by a build, and writes a driver.yaml",
    )
