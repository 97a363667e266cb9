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

from nodeside.errors import NodesideError, SpecError
from nodeside.protocol.bundle_key import BuildKind
from nodeside.protocol.labels import API_VERSION
from nodeside.protocol.module_names import kernel_name
from nodeside.spec.document import parse
from nodeside.spec.model import Driver
from nodeside.system.files import open_untrusted

_MAKEFILES = ("Kbuild", "Makefile")  # kbuild reads the first that is there
TEMPLATE = ".in"  # the end of the name of a file that a configure fills in
NO_VERSION = "0.1.0"
_NO_NAME = frozenset({"src", "source", "driver", "kernel", "linux", "module", "modules", "kmod"})
_MAKEFILE_LIMIT = 1 << 20  # bytes
_CONF_LIMIT = 1 << 16  # bytes; real ones have 5 kB
_VALUE_LIMIT = 100  # characters; a name of a package is put into others

# obj-m, or obj-$(CONFIG_X), which is obj-m where the option is m (Documentation/kbuild/modules.rst)
_OBJECTS = re.compile(r"^[ \t]*obj-(m|\$[({]\w+[)}])[ \t]*([:+?]?)=(.*)$", re.MULTILINE)
_OBJECT = re.compile(r"(?<![\w/$(){}.-])([\w-]{1,55})\.o(?!\S)")
_DIRECTORY = re.compile(r"(?<!\S)([\w-][\w./-]*)/(?!\S)")
_INCLUDE = re.compile(r"^[ \t]*[s-]?include[ \t]+([^#\n]{1,500})", re.MULTILINE)
_INCLUDED = re.compile(r"(?:\$[({](?:src|obj|M|PWD|CURDIR|KBUILD_EXTMOD)[)}]/)?(\w[\w./-]*)")
_INCLUDES = 20  # files that are read of those that a Makefile includes
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
        return parse(_of_dkms_conf(conf), str(directory))
    if not lists_modules(directory):
        return None
    modules = _plainly_listed(directory)
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


def lists_modules(directory: Path, end: str = "") -> bool:
    """Return whether kbuild finds a list of modules in this directory.

    A Kbuild computes it if it includes a file by a name that is not plain. `end` is the end of the
    files' names, such as TEMPLATE.
    """
    kbuild = source_text(directory / f"{_MAKEFILES[0]}{end}")
    computed = any(_included_file(directory, word) is None for word in _words_included(kbuild))
    return computed or any(_OBJECTS.search(text) for text in _read_makefiles(directory, end))


def listed_directories(directory: Path) -> tuple[str, ...]:
    """Return the directories below that Makefiles list beside their modules, by name."""
    lists = [
        objects[3] for text in _read_makefiles(directory) for objects in _OBJECTS.finditer(text)
    ]
    return tuple(found[1] for words in lists for found in _DIRECTORY.finditer(words))


def named_modules(directory: Path) -> tuple[str, ...]:
    """Return the modules that Makefiles list by name; names that variables make are left out."""
    found = {
        kernel_name(module[1])
        for text in _read_makefiles(directory)
        for objects in _OBJECTS.finditer(text)
        for module in _OBJECT.finditer(objects[3])
    }
    return tuple(sorted(found))


def _plainly_listed(directory: Path) -> tuple[str, ...]:
    """Return the modules of a Makefile that lists them by name, and whatever the kernel.

    Raises SpecError for any other.
    """
    file = next(path for name in _MAKEFILES if os.path.lexists(path := directory / name))
    found: set[str] = set()
    conditions: list[str] = []
    for line in source_text(file).splitlines():
        condition = _IF.match(line)
        if conditions and (_ENDIF.match(line) or (condition and condition[1])):
            conditions.pop()
        if condition:
            conditions.append(condition[2])
        if not (objects := _OBJECTS.match(line)):
            continue
        if not all(map(_BY_KBUILD.fullmatch, conditions)):
            raise _unclear_error(file, "lists modules under a condition")
        words = objects[3].partition("#")[0].split()
        if objects[1] != "m" or not all(_OBJECT.fullmatch(word) for word in words):
            raise _unclear_error(
                file, "computes the names of its modules, or has them in directories"
            )
        if objects[2] != "+":
            found.clear()
        found |= {kernel_name(word.removesuffix(".o")) for word in words}
    if len(_read_makefiles(directory)) > len(_MAKEFILES) and {*named_modules(directory)} != found:
        raise _unclear_error(file, "includes another file, which lists modules too")
    if not found:
        raise _unclear_error(file, "lists no module")
    return tuple(sorted(found))


def name_of(modules: tuple[str, ...], directory: str) -> str:
    """Return the name of a driver: the name of its only module, else of its directory."""
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


def source_text(path: Path, limit: int = _MAKEFILE_LIMIT) -> str:
    """Return a file of the source with its continued lines joined; "" if there is none to read."""
    try:
        with open_untrusted(path, limit=limit) as file:
            text = file.read(limit)
    except (OSError, NodesideError):
        return ""
    return text.decode("utf-8", "replace").replace("\\\n", " ")


def _read_makefiles(directory: Path, end: str = "") -> list[str]:
    """Return the texts of the Makefiles of a directory, and of what they include from it."""
    texts = [source_text(directory / f"{name}{end}") for name in _MAKEFILES]
    seen: set[Path] = set()
    for text in texts:  # which grows
        files = [
            file for word in _words_included(text) if (file := _included_file(directory, word))
        ]
        for file in files:
            if file not in seen and len(seen) < _INCLUDES:
                seen.add(file)
                texts.append(source_text(file))
    return texts


def _words_included(text: str) -> list[str]:
    """Return the words of all `include`, each once."""
    words = (word for found in _INCLUDE.finditer(text) for word in found[1].split())
    return list(dict.fromkeys(words))


def _included_file(directory: Path, word: str) -> Path | None:
    """Return the file that a word of an `include` names plainly, if it is in this directory.

    A circle of links is in it, and no file: Path.resolve() of Python 3.11 and 3.12 raises for one.
    """
    plain = _INCLUDED.fullmatch(word)
    if plain is None:
        return None
    file = directory / plain[1]
    real = Path(os.path.realpath(file))
    return file if real.is_relative_to(os.path.realpath(directory)) else None


def _of_dkms_conf(conf: Path) -> dict[str, Any]:
    """Return the document of a dkms tree (dkms(8)) whose dkms.conf sets its names literally."""
    values = _literal_values(conf)
    name, version = values.get(("PACKAGE_NAME", 0)), values.get(("PACKAGE_VERSION", 0))
    if not name or not version:
        raise _unclear_error(conf, "is no file that sets PACKAGE_NAME and PACKAGE_VERSION")
    indices = sorted({i for key, i in values if not key.startswith("PACKAGE_")}) or [0]
    modules = dict.fromkeys(values.get(("BUILT_MODULE_NAME", i)) or name for i in indices)
    build = {"kind": BuildKind.DKMS.value}
    return smallest_document(label(name), plain_version(version), ".", build, modules)


def _literal_values(conf: Path) -> dict[tuple[str, int], str]:
    values: dict[tuple[str, int], str] = {}

    def package(match: re.Match[str]) -> str:
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
        value = single if single is not None else _PACKAGE.sub(package, double or plain or "")
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
