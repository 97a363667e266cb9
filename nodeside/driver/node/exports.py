"""What the running kernel has of some symbols: in its image, in loaded modules, in its tree.

The kernel resolves a symbol by its name, whichever loaded module exports it. No list that was made
before the load has the symbols of modules that somebody else loaded, so these are read here:

    /proc/kallsyms                  image and loaded modules (kernel/kallsyms.c, s_show)
    /lib/modules/.../modules.symbols   modules of the kernel's tree, as depmod found them

A module's symbol has a capital letter in kallsyms if EXPORT_SYMBOL exports it. EXPORT_SYMBOL_GPL
gives it a small one (kernel/module/kallsyms.c, is_exported). Both leave a label `__ksymtab_NAME` in
the module's read-only data. Somebody else's module may be stripped of it: then NAME with a small
letter may be exported or local.

Addresses are not needed: kptr_restrict hides only them. Without CONFIG_KALLSYMS_ALL the list has no
data symbols. Without CONFIG_KALLSYMS there is no list. In both cases, a symbol may be in the kernel
although it is not found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path

from nodeside.driver.node.modules import KernelModules
from nodeside.protocol.module_names import kernel_name
from nodeside.system.host import Host
from nodeside.values import frozen

_DATA = "init_task"  # data of every kernel's image; listed only with CONFIG_KALLSYMS_ALL
_EXPORT = "symbol:"
_LABEL = "__ksymtab_"  # of an export, include/linux/export-internal.h
_UNDEFINED = "u"  # what a module imports: listed while its init function runs


@frozen
class RunningExports:
    """Where the running kernel has some symbols.

    `loaded` maps a symbol to the loaded module that exports it, `in_tree` to the module of the
    kernel's tree that does, loaded or not. `image` are those of the kernel itself. `out_of_tree`
    are the loaded modules of others, and `unclear` are symbols that they have, exported or local.
    `complete`: a symbol that is missing here is in neither the kernel nor its tree.
    """

    loaded: Mapping[str, str] = field(default_factory=dict)
    in_tree: Mapping[str, str] = field(default_factory=dict)
    image: frozenset[str] = frozenset()
    out_of_tree: frozenset[str] = frozenset()
    unclear: frozenset[str] = frozenset()
    complete: bool = False

    def has_symbol(self, symbol: str) -> bool:
        """Return whether something exports the symbol, or may."""
        return self.in_kernel(symbol) or symbol in self.in_tree

    def in_kernel(self, symbol: str) -> bool:
        return symbol in self.loaded or symbol in self.image or symbol in self.unclear


NO_EXPORTS_READ = RunningExports()


def read_exports(
    host: Host, symbols: Collection[str], leaving: Collection[str] = ()
) -> RunningExports:
    """Return where these symbols are now. Modules that are about to leave do not count."""
    tree = host.lib_modules(host.kernel.release)
    rows = KernelModules(host).rows().values()
    others = frozenset(r.name for r in rows if not r.in_tree and r.name not in leaving)
    found = _read_kernel_exports(host.proc / "kallsyms", symbols, leaving, others)
    tree_known = (tree / "modules.symbols").exists() or not (tree / "modules.dep").exists()
    return replace(
        found,
        in_tree={s: m for s, m in symbols_of_tree(tree) if s in symbols and m not in leaving},
        complete=found.complete and tree_known,
    )


def _read_kernel_exports(
    kallsyms: Path,
    symbols: Collection[str],
    leaving: Collection[str],
    others: frozenset[str],
) -> RunningExports:
    """Return what kallsyms tells. `others` are the modules that are not of the kernel's tree."""
    loaded: dict[str, str] = {}
    image, unclear, has_data = set(), set(), False
    for letter, symbol, module in _read_kallsyms(kallsyms):
        has_data = has_data or symbol == _DATA
        name = symbol.removeprefix(_LABEL) if module else symbol
        if name not in symbols or module in leaving:
            continue
        exported = letter.isupper() or name != symbol
        if exported and module:
            loaded[name] = module
        elif exported:
            image.add(name)
        elif module in others and letter != _UNDEFINED:
            unclear.add(name)
    return RunningExports(
        loaded=loaded,
        image=frozenset(image),
        out_of_tree=others,
        unclear=frozenset(unclear - loaded.keys()),
        complete=has_data,
    )


def _read_kallsyms(kallsyms: Path) -> Iterator[tuple[str, str, str]]:
    """Yield letters and symbols with their modules, "" for the kernel's image."""
    for line in _read_lines(kallsyms):
        words = line.split()
        if len(words) >= 3:
            yield words[1], words[2], kernel_name(words[3].strip("[]")) if len(words) > 3 else ""


def symbols_of_tree(tree: Path) -> Iterator[tuple[str, str]]:
    """Yield what modules.symbols lists: `alias symbol:NAME MODULE`."""
    for line in _read_lines(tree / "modules.symbols"):
        words = line.split()
        if len(words) == 3 and words[1].startswith(_EXPORT):
            yield words[1].removeprefix(_EXPORT), kernel_name(words[2])


def _read_lines(path: Path) -> Iterator[str]:
    """Yield a file line by line: a distribution's kallsyms has 200,000."""
    try:
        with open(path, errors="replace") as file:
            yield from file
    except OSError:
        return
