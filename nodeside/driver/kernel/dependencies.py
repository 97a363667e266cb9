"""Whether something provides the symbols of modules before they load, and what must load first.

Pure. A module's `depends` names the modules beside which it was linked. The kernel does not read
it: it looks for each symbol in all that is loaded. So another module that exports the same is as
good, and `depends` alone is no reason to refuse a module.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import chain

from nodeside.driver.module.modulefile import ModuleFile
from nodeside.driver.module.softdeps import Softdeps, parse_softdeps
from nodeside.driver.module.symvers import KernelSymbol, compare_symbols
from nodeside.driver.node.exports import RunningExports
from nodeside.driver.node.facts import KernelFacts
from nodeside.protocol.module_names import name_of_file

Symbols = Mapping[str, KernelSymbol]
_IMAGE = "vmlinux"


def absent_dependencies(
    module: ModuleFile, facts: KernelFacts, siblings: Container[str]
) -> tuple[str, ...]:
    """Return the entries of `depends` that are nowhere on this node under their name."""
    here = facts.loaded | facts.available | facts.builtin
    return tuple(name for name in module.depends if name not in here and name not in siblings)


def doubtful_symbols(
    modules: Sequence[ModuleFile], facts: KernelFacts, symbols: Symbols | None, exported: Symbols
) -> frozenset[str]:
    """Return the symbols that only the running kernel can confirm."""
    siblings = {module.name for module in modules}
    ours = {symbol for module in modules for symbol in module.exports}
    doubtful = {
        symbol
        for module in modules
        if any(name not in siblings | facts.loaded | facts.builtin for name in module.depends)
        for symbol in module.imports
        if symbol not in ours and symbol not in exported
    }
    if symbols is not None:
        doubtful |= {each.symbol for each in compare_symbols(modules, {**symbols, **exported})}
    return frozenset(doubtful)


def is_certain(symbol: str, symbols: Symbols, running: RunningExports) -> bool:
    """Return whether the kernel's Module.symvers is right about a symbol.

    It is wrong if another loaded module exports the symbol or may export it: one from outside the
    kernel's tree, perhaps in place of one of the tree, or one that was added to the tree later. The
    CRC of that module's symbol is not known.
    """
    listed = symbols.get(symbol)
    if listed is not None and listed.module == _IMAGE:
        return True
    if exporter := running.loaded.get(symbol):
        return listed is not None and exporter not in running.out_of_tree
    if symbol in running.unclear:
        return False
    if listed is None and symbol in running.in_tree:
        return False
    return running.complete or not running.out_of_tree


def unprovided_symbols(
    module: ModuleFile,
    modules: Sequence[ModuleFile],
    facts: KernelFacts,
    running: RunningExports,
    *,
    symbols: Symbols | None,
    exported: Symbols,
) -> tuple[str, ...]:
    """Return the required symbols that certainly nothing exports.

    A Module.symvers lists all modules of a kernel, those too whose package is not installed.
    """
    ours = set(chain.from_iterable(each.exports for each in modules))
    lacking = [s for s in module.imports if s not in ours and s not in exported]
    lacking = [symbol for symbol in lacking if not running.has_symbol(symbol)]
    if running.complete or (symbols is not None and not running.out_of_tree):
        return tuple(s for s in lacking if not _is_offered(s, symbols or {}, facts, running))
    return ()


def _is_offered(symbol: str, symbols: Symbols, facts: KernelFacts, running: RunningExports) -> bool:
    """Return whether the kernel's image or a module on this node may have a listed symbol."""
    listed = symbols.get(symbol)
    if listed is None:
        return False
    name = name_of_file(listed.module)
    if name in facts.loaded | facts.available:
        return not running.complete
    return listed.module == _IMAGE or name in facts.builtin


def in_tree_needs(
    module: ModuleFile, modules: Sequence[ModuleFile], facts: KernelFacts, running: RunningExports
) -> tuple[str, ...]:
    """Return the modules of the kernel's tree that must be loaded before this one.

    The tree may have the symbols of one of `depends` in a module of another name. One whose symbols
    are all in the kernel already is not loaded: the kernel refuses to export a symbol twice.
    """
    siblings = {each.name for each in modules}
    missing = absent_dependencies(module, facts, siblings)
    named = [name for name in module.depends if name not in siblings and name not in missing]
    of_tree = [(running.in_tree[s], s) for s in module.imports if s in running.in_tree]
    instead = [name for name, symbol in of_tree if not running.in_kernel(symbol)]
    served = {name for name, _ in of_tree} - set(instead)
    named = [name for name in named if name in facts.loaded or name not in served]
    return tuple(name for name in dict.fromkeys([*named, *instead]) if name not in siblings)


def soft_needs(module: ModuleFile, modules: Sequence[ModuleFile]) -> Softdeps:
    """Return the modules, other than siblings, that a module asks for by MODULE_SOFTDEP."""
    siblings = {each.name for each in modules}
    asked = parse_softdeps(module.softdeps)
    return Softdeps(
        tuple(name for name in asked.pre if name not in siblings),
        tuple(name for name in asked.post if name not in siblings),
    )


def depends_notes(modules: Sequence[ModuleFile], facts: KernelFacts) -> tuple[str, ...]:
    """Return a note for each module beside which one was linked, and which is not here."""
    siblings = {each.name for each in modules}
    return tuple(
        f"{module.name} was linked beside {', '.join(missing)} (its `depends`), which this node "
        "does not have: the kernel looks only for the symbols"
        for module in modules
        if (missing := absent_dependencies(module, facts, siblings))
    )
