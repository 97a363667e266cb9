"""What the Kbuild or Makefile of a directory lists for kbuild: read, and not run.

The files are a vendor's. Each is read once, to a limit, in time that grows as their size does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from nodeside.errors import NodesideError
from nodeside.protocol.module_names import kernel_name
from nodeside.system.files import open_untrusted
from nodeside.values import frozen

MAKEFILES = ("Kbuild", "Makefile")  # kbuild reads the first that is there
TEMPLATE = ".in"  # the end of the name of a file that a configure fills in
_LIMIT = 1 << 20  # bytes of a file
_INCLUDES = 20  # files that are read of those that a Makefile includes
_WORDS = 200  # words that it may have in all its `include`

# obj-m; obj-$(CONFIG_X), which is obj-m where the option is m; obj-y and subdir-m, for directories
# (Documentation/kbuild/modules.rst, makefiles.rst)
OBJECTS = re.compile(
    r"^[ \t]*(obj-m|obj-y|subdir-[my]|obj-\$[({][^\n=]{1,200}[)}])[ \t]*([:+?]?)=(.*)$",
    re.MULTILINE,
)
OBJECT = re.compile(r"(?<![\w/$(){}.-])([\w-]{1,55})\.o(?!\S)")
_DIRECTORY = re.compile(r"(?<!\S)([\w-][\w./-]*)/(?!\S)")
_WORD = re.compile(r"(?<!\S)([\w-][\w./-]*)(?!\S)")
_INCLUDE = re.compile(r"^[ \t]*[s-]?include[ \t]+([^#\n]{1,500})", re.MULTILINE)
_INCLUDED = re.compile(r"(?:\$[({](?:src|obj|M|PWD|CURDIR|KBUILD_EXTMOD)[)}]/)?(\w[\w./-]*)")
_COMMENT = re.compile(r"(?:^|[ \t])#.*$", re.MULTILINE)
# What only a file for kbuild has: if such a file shows no list, it computes one.
_FOR_KBUILD = re.compile(r"\$[({](?:src|obj|KBUILD_EXTMOD|KERNELRELEASE)[)}]|KERNELRELEASE")
_VARIABLE = re.compile(r"\$[({](\w+)[)}]")
_SET = re.compile(r"^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*([:?+]*)=[ \t]*(.*)$", re.MULTILINE)
_RULE = re.compile(r"^[^\s#:=][^#:=\n]{0,500}:(?![:=])", re.MULTILINE)


@frozen
class KbuildList:
    """A directory's list. `modules` are those that it names, by their kernel names.

    A variable counts as a name if the same files set it to one word. `directories` are those below
    that it lists too. `computed` is the name of a file whose list is only known when it runs; "" if
    the list was read.
    """

    modules: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    computed: str = ""
    listed: bool = False

    def __bool__(self) -> bool:
        return self.listed or bool(self.computed)


def read_kbuild_list(directory: Path, end: str = "") -> KbuildList:
    """Return what the Makefiles of a directory list; false if that is nothing.

    `end` is the end of the files' names, such as TEMPLATE.
    """
    texts = read_makefiles(directory, end)
    words_of = _single_words(texts)
    modules: set[str] = set()
    directories: dict[str, None] = {}
    listed = False
    for text in texts:
        for objects in OBJECTS.finditer(text):
            name, words = objects[1], objects[3].partition("#")[0]
            plain = _WORD if name.startswith("subdir-") else _DIRECTORY
            below = [os.path.normpath(found[1]) for found in plain.finditer(words)]
            directories.update(dict.fromkeys(below))
            if name == "obj-y" or name.startswith("subdir-"):
                listed = listed or bool(below)
                continue
            listed = True
            words = _VARIABLE.sub(lambda found: words_of.get(found[1], found[0]), words)
            modules |= {kernel_name(module[1]) for module in OBJECT.finditer(words)}
    computed = "" if listed else _computing_file(directory, end)
    return KbuildList(tuple(sorted(modules)), tuple(directories), computed, listed)


def read_makefiles(directory: Path, end: str = "") -> list[str]:
    """Return the texts of the Makefiles of a directory, and of what they include from it."""
    texts = [source_text(directory / f"{name}{end}") for name in MAKEFILES]
    seen: set[Path] = set()
    for text in texts:  # which grows
        for word in _words_included(text):
            file = _included_file(directory, word)
            if file is not None and file not in seen and len(seen) < _INCLUDES:
                seen.add(file)
                texts.append(source_text(file))
    return texts


def has_rules(directory: Path, names: tuple[str, ...]) -> bool:
    """Return whether make may find a target in the Makefile of a directory."""
    text = next((text for name in names if (text := source_text(directory / name))), "")
    return bool(_RULE.search(text) or _INCLUDE.search(text)) or not OBJECTS.search(text)


def source_text(path: Path, limit: int = _LIMIT) -> str:
    """Return a file of the source with its continued lines joined; "" if there is none to read."""
    try:
        with open_untrusted(path, limit=limit) as file:
            text = file.read(limit)
    except (OSError, NodesideError):
        return ""
    return text.decode("utf-8", "replace").replace("\\\n", " ")


def _single_words(texts: list[str]) -> dict[str, str]:
    """Return the variables that these files set to one plain word, and to no other."""
    found: dict[str, str] = {}
    for each in (each for text in texts for each in _SET.finditer(text)):
        value = each[3].partition("#")[0].strip()
        plain = re.fullmatch(r"[\w-]{1,55}(?:\.o)?", value) and found.get(each[1], value) == value
        found[each[1]] = value if plain and each[2] != "+" else ""
    return {name: word for name, word in found.items() if word}


def _computing_file(directory: Path, end: str) -> str:
    """Return the file for kbuild that computes its list; "" if there is none."""
    for name in MAKEFILES:
        text = _COMMENT.sub("", source_text(directory / f"{name}{end}"))
        if name != "Kbuild" and not _FOR_KBUILD.search(text):
            continue
        files = [_included_file(directory, word) for word in _words_included(text)]
        if "obj-m" in text or any(file is None or _is_missing(file) for file in files):
            return f"{name}{end}"
    return ""


def _is_missing(file: Path) -> bool:
    """Return whether there is no file of that name, which something may make yet."""
    try:
        file.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        pass  # such as a circle of links
    return False


def _words_included(text: str) -> Iterator[str]:
    """Yield the words of all `include`, each once."""
    seen: set[str] = set()
    for found in _INCLUDE.finditer(text):
        for word in found[1].split():
            if word not in seen:
                seen.add(word)
                yield word
            if len(seen) == _WORDS:
                return


def _included_file(directory: Path, word: str) -> Path | None:
    """Return the file that a word of an `include` names plainly, if it is in this directory.

    os.path.realpath, since Path.resolve() of Python 3.11 and 3.12 raises for a circle of links.
    """
    plain = _INCLUDED.fullmatch(word)
    if plain is None:
        return None
    file = directory / plain[1]
    real = Path(os.path.realpath(file))
    return file if real.is_relative_to(os.path.realpath(directory)) else None
