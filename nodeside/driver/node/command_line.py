"""The kernel's command line: what it says of modules that are loaded later.

`edu.timeout_ms=777` is a parameter of the module edu. The kernel gives it to what is built in, and
modprobe to what it loads; who makes the module system calls has to do the same. In names of
parameters and modules, `-` is `_`.

A module of `module_blacklist=` is refused by the kernel itself (kernel/module/main.c, blacklisted),
which compares the names exactly. `modprobe.blacklist=` concerns modules that are loaded by alias,
for a device that appears: nodeside loads none of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from nodeside.driver.module.modulefile import ModuleFile
from nodeside.driver.module.parameters import needs_value, parse_arguments, unpassable_reason
from nodeside.protocol.module_names import kernel_name
from nodeside.system import sysfs
from nodeside.system.host import Host
from nodeside.values import frozen

_BLACKLIST = "module_blacklist"
_ALONE = "y"  # what a parameter without a value means: only a boolean may stand alone
_ALONE_DYNDBG = "+p"  # lib/dynamic_debug.c, ddebug_dyndbg_module_param_cb


ArgumentsOfModule = Mapping[str, str | None]
"""Parameters of one module: name → value, None for a name alone."""

LeftOut = Mapping[str, tuple[str, str]]
"""Parameters that a module is not given: name → (the words on the command line, why)."""


@frozen
class CommandLine:
    """What the kernel's command line says of modules.

    `parameters` are those of each module; of a name that is there twice, the last value, and None
    for a name without a value. `files` are the modules whose parameters are known.
    """

    parameters: Mapping[str, ArgumentsOfModule] = field(default_factory=dict)
    blacklist: frozenset[str] = frozenset()
    files: Mapping[str, ModuleFile] = field(default_factory=dict)

    def parameters_of(self, module: str) -> dict[str, str]:
        """Return the parameters of a module, without those that it cannot be given."""
        name, left_out = kernel_name(module), self.left_out_of(module)
        return {
            key: _value_when_alone(key) if value is None else value
            for key, value in self.parameters.get(name, {}).items()
            if key not in left_out
        }

    def left_out_of(self, module: str) -> LeftOut:
        """Return what a module cannot be given.

        That is no reason to refuse it: the kernel ignores a name that no parameter has.
        """
        name = kernel_name(module)
        return {
            key: (key if value is None else f"{key}={value}", why)
            for key, value in self.parameters.get(name, {}).items()
            if (why := _ungivable_reason(self.files.get(name), key, value))
        }

    def merged_onto(self, options: Mapping[str, ArgumentsOfModule]) -> CommandLine:
        """Return what modprobe.d says, overridden by this command line, as modprobe merges them."""
        names = dict.fromkeys((*options, *self.parameters))
        parameters = {
            name: {**options.get(name, {}), **self.parameters.get(name, {})} for name in names
        }
        return replace(self, parameters=parameters)

    def for_modules(self, files: Iterable[ModuleFile]) -> CommandLine:
        """Return the command line with only the parameters that these modules can be given."""
        return replace(self, files={file.name: file for file in files})


EMPTY_COMMAND_LINE = CommandLine()


def read_command_line(host: Host) -> CommandLine:
    return parse_command_line(sysfs.read(host.proc / "cmdline") or "")


def parse_command_line(text: str) -> CommandLine:
    parameters: dict[str, dict[str, str | None]] = {}
    blacklist: frozenset[str] = frozenset()
    for word, value in parse_arguments(text.strip()):
        module, dot, name = word.partition(".")
        if dot and module and name:
            parameters.setdefault(kernel_name(module), {})[kernel_name(name)] = value
        elif kernel_name(word) == _BLACKLIST:
            blacklist = frozenset((value or "").split(",")) - {""}
    return CommandLine(parameters, blacklist)


def _value_when_alone(name: str) -> str:
    return _ALONE_DYNDBG if name == "dyndbg" else _ALONE


def _ungivable_reason(file: ModuleFile | None, name: str, value: str | None) -> str:
    """Return why a module cannot be given a parameter; "" if it can."""
    if value is not None:
        return unpassable_reason(name, value)
    declared = needs_value(file, name) if file is not None else ""
    needs = f"expected a value, since its type is {declared}" if declared else ""
    return unpassable_reason(name, "") or needs
