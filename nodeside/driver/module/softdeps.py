"""Soft dependencies: modules that should be loaded before or after another one, if they are there.

MODULE_SOFTDEP of a module and `softdep` of modprobe.d(5) have the same form: `pre: a b post: c`.
The kernel reads neither; who loads modules does. A failure to load one is no failure of the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeside.protocol.module_names import kernel_name
from nodeside.values import frozen


@frozen
class Softdeps:
    """The names of modules to load before (`pre`) and after (`post`), in this order."""

    pre: tuple[str, ...] = ()
    post: tuple[str, ...] = ()


def parse_softdeps(texts: Iterable[str]) -> Softdeps:
    """Parse the soft dependencies of one module. Words before the first `pre:` are ignored."""
    found: dict[str, dict[str, None]] = {"pre:": {}, "post:": {}, "": {}}
    for text in texts:
        place = ""
        for word in text.split():
            if word in found:
                place = word
            else:
                found[place][kernel_name(word)] = None
    return Softdeps(tuple(found["pre:"]), tuple(found["post:"]))
