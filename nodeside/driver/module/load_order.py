"""The load order of a driver's modules: as listed, with dependencies first.

The module lists in dkms.conf files are unordered, since depmod computes the order after the
installation. This order comes from the modules themselves. The kernel looks for symbols, so these
decide; `depends`, which may name a stand-in, and MODULE_SOFTDEP count only where symbols say
nothing. It is computed for the manifest of a build and before every load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from nodeside.driver.module.modulefile import ModuleFile
from nodeside.driver.module.softdeps import parse_softdeps


def in_load_order(modules: Sequence[ModuleFile]) -> tuple[ModuleFile, ...]:
    """Return the modules in the given order, each after the ones that it depends on."""
    by_name = {module.name: module for module in modules}
    exporters: dict[str, list[str]] = {}
    for module in modules:
        for symbol in module.exports:
            exporters.setdefault(symbol, []).append(module.name)
    asked: dict[str, list[str]] = {name: [] for name in by_name}
    for module in modules:
        soft = parse_softdeps(module.softdeps)
        asked[module.name] += [n for n in (*soft.pre, *module.depends) if n in by_name]
        for later in soft.post:
            asked.get(later, []).append(module.name)

    def needs(name: str) -> Iterator[str]:
        yield from (n for symbol in by_name[name].imports for n in exporters.get(symbol, ()))

    def asked_and_needs(name: str) -> Iterator[str]:
        yield from asked[name]
        yield from needs(name)

    order = dependencies_first(dependencies_first(by_name, asked_and_needs), needs)
    return tuple(by_name[name] for name in order)


def dependencies_first(
    names: Iterable[str], needs: Callable[[str], Iterable[str]]
) -> tuple[str, ...]:
    """Return the names and all that they need, in the given order, but dependencies first.

    A cycle, which neither kbuild nor depmod produces, is broken. A chain may have any length: the
    modules of a delivery are the vendor's, so there is no recursion.
    """
    order: dict[str, None] = {}
    for name in names:
        path: dict[str, Iterator[str]] = {} if name in order else {name: iter(needs(name))}
        while path:
            top = next(reversed(path))
            below = next(
                (need for need in path[top] if need not in order and need not in path), None
            )
            if below is not None:
                path[below] = iter(needs(below))
            else:
                del path[top]
                order[top] = None
    return tuple(order)
