"""What a load means for modules of the kernel's tree, in words, before anything is changed.

A driver may need modules of the tree, to which modprobe.d and the kernel's command line give
parameters. It may also replace one that others of the tree use: these expect its symbols with the
CRCs of the kernel's build, and cannot be loaded if the driver's module exports other CRCs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from nodeside.driver.kernel.boot_parameters import COMMAND_LINE, MODPROBE_D, RequestedParameter
from nodeside.driver.kernel.dependencies import soft_needs
from nodeside.driver.module.modulefile import ModuleFile, read_modules
from nodeside.driver.node.command_line import CommandLine, read_command_line
from nodeside.driver.node.exports import symbols_of_tree
from nodeside.driver.node.facts import KernelFacts
from nodeside.driver.node.intree import InTree, NotInTree, read_tree, real_path
from nodeside.driver.node.modprobe_d import ModprobeConfig, read_modprobe_config
from nodeside.driver.node.modules import KernelModules
from nodeside.errors import NodesideError
from nodeside.system.host import Host
from nodeside.text.shortlist import shortlist

_USERS_LIMIT = 256  # files read: the largest core module of a distribution has about 150 users
_NAMED_USERS = 8
_ASKED_LIMIT = 256  # parameters shown; an administrator has a handful
_WORDS = 512  # characters of the parameters in one note


def in_tree_notes(
    host: Host, modules: Sequence[ModuleFile], needs: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return what a person should know of the tree's modules before `modules` are loaded."""
    config, line = read_modprobe_config(host), read_command_line(host)
    notes = [*config.unread, *unheeded_notes([module.name for module in modules], config)]
    try:
        tree = read_tree(host.lib_modules(host.kernel.release))
    except NotInTree:
        return tuple(notes)
    soft = [n for m in modules for part in (soft_needs(m, modules),) for n in part.pre + part.post]
    wanted = [name for name in soft if not config.why_unwanted(name)]
    order = tree.soft_order([*(n for m in modules for n in needs[m.name]), *wanted], config)
    loaded = KernelModules(host).rows()
    return (
        *notes,
        *loading_notes([name for name in order if name not in loaded], config, line),
        *_left_out_notes(soft, order, tree, config),
    )


def requested_parameters_in_tree(
    host: Host, names: Iterable[str]
) -> tuple[RequestedParameter, ...]:
    """Return the parameters that modules of the tree, and those they need, get when loaded."""
    config, line = read_modprobe_config(host), read_command_line(host)
    try:
        order = read_tree(host.lib_modules(host.kernel.release)).soft_order(names, config)
    except NotInTree:
        return ()
    merged = line.merged_onto(config.options)
    found = (
        RequestedParameter(
            name, key, value, COMMAND_LINE if key in line.parameters.get(name, {}) else MODPROBE_D
        )
        for name in order
        for key, value in merged.parameters_of(name).items()
    )
    return tuple(islice(found, _ASKED_LIMIT))


def unheeded_notes(names: Iterable[str], config: ModprobeConfig) -> Iterator[str]:
    """Yield what modprobe.d says of the driver's own modules. nodeside does not heed it."""
    for name in names:
        if options := config.options.get(name):
            yield (
                f"{name}: the host's modprobe.d has options for it ({_in_words(options)}), which "
                "it is not given: set spec.modules[].parameters in driver.yaml"
            )
        if name in config.blacklist:
            yield f"{name}: the host's modprobe.d has it in blacklist; it is loaded all the same"
        if command := config.install_command(name):
            yield f"{name}: the host's modprobe.d has `install {name} {command}`, which is not run"


def loading_notes(order: Sequence[str], config: ModprobeConfig, line: CommandLine) -> Iterator[str]:
    """Yield where the parameters of modules of the tree come from, and which lines are not run."""
    for name in order:
        of_line, options = line.parameters.get(name, {}), config.options.get(name, {})
        below = {key: value for key, value in options.items() if key not in of_line}
        if below:
            yield f"{name}: {_in_words(below)} (the host's modprobe.d)"
        if of_line:
            yield f"{name}: {_in_words(of_line)} (the kernel's command line)"
        if command := config.install_command(name):
            yield f"{name}: the host's modprobe.d has `install {name} {command}`, which is not run"


def _left_out_notes(
    soft: Sequence[str], order: Sequence[str], tree: InTree, config: ModprobeConfig
) -> Iterator[str]:
    """Yield which soft dependencies, in `soft` or of modules in `order`, are left out, and why."""
    asked = [tree.softdeps_of(name, config) for name in order]
    for name in dict.fromkeys([*soft, *(n for each in asked for n in each.pre + each.post)]):
        if name not in order and name in tree.paths and (why := config.why_unwanted(name)):
            yield f"{name}, a soft dependency, is not loaded: {why}"


def _in_words(parameters: Mapping[str, str | None]) -> str:
    return " ".join(k if v is None else f"{k}={v}" for k, v in parameters.items())[:_WORDS]


# --- replacing a module that others of the tree use -------------------------------------------


def find_shut_out_users(
    ours: Sequence[ModuleFile],
    users: Sequence[ModuleFile],
    of_tree: Mapping[str, str],
    *,
    modversions: bool,
) -> dict[str, tuple[str, ...]]:
    """Return the modules that the kernel would refuse beside ours, and for which symbols.

    `of_tree` are the modules of the tree by the symbols that they export. The rules are those of
    resolve_symbol() and check_version() (kernel/module/main.c, version.c).
    """
    names = {module.name for module in ours}
    exports = {symbol: crc for module in ours for symbol, crc in module.exports.items()}
    shut: dict[str, tuple[str, ...]] = {}
    for user in users:
        gone = [s for s in user.imports if of_tree.get(s) in names and s not in exports]
        crcs = {**user.imports, **user.weak_imports} if modversions else {}
        other = [
            s
            for s, crc in crcs.items()
            if crc is not None and exports.get(s) is not None and exports[s] != crc
        ]
        if user.name not in names and (gone or other):
            shut[user.name] = tuple(dict.fromkeys((*gone, *other)))
    return shut


def shut_out_notes(host: Host, ours: Sequence[ModuleFile], facts: KernelFacts) -> tuple[str, ...]:
    """Return a note if our modules stand for one of the tree that others of it cannot use."""
    try:
        tree = read_tree(host.lib_modules(facts.kernel.release))
    except NotInTree:
        return ()
    names = {module.name for module in ours} & tree.paths.keys()
    users = [user for user, needed in tree.needs.items() if names & set(needed)][:_USERS_LIMIT]
    if not users:
        return ()
    try:
        files = read_modules([real_path(host, tree.directory / tree.paths[user]) for user in users])
    except NodesideError as problem:
        return (f"the modules that use the kernel's {', '.join(names)} cannot be read: {problem}",)
    shut = find_shut_out_users(
        ours, files, dict(symbols_of_tree(tree.directory)), modversions=facts.modversions
    )
    if not shut:
        return ()
    symbol = next(iter(shut.values()))[0]
    note = (
        f"{', '.join(sorted(names))} of this driver takes the place of the kernel's, and the "
        f"kernel's {shortlist(sorted(shut), _NAMED_USERS)} cannot be loaded beside it: this "
        f"driver exports {symbol} with another CRC, or not at all"
    )
    return (note,)
