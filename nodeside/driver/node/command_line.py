"""The kernel's command line: what it says of modules that are loaded later.

`edu.timeout_ms=777` is a parameter of the module edu. The kernel gives it to what is built in, and
modprobe to what it loads; who makes the module system calls has to do the same. The syntax is that
of next_arg() in lib/cmdline.c: double quotes around a value or a whole argument, and `--` before
what belongs to init. In names of parameters and modules, `-` is `_`.

A module of `module_blacklist=` is refused by the kernel itself (kernel/module/main.c, blacklisted),
which compares the names exactly. `modprobe.blacklist=` concerns modules that are loaded by alias,
for a device that appears: nodeside loads none of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nodeside import sysfs
from nodeside.driver.module.parameters import unpassable
from nodeside.host import Host
from nodeside.modulenames import kernel_name

_END = "--"
_BLACKLIST = "module_blacklist"
_ALONE = "y"  # what a parameter without a value means: only a boolean may stand alone
_ALONE_DYNDBG = "+p"  # lib/dynamic_debug.c, ddebug_dyndbg_module_param_cb


LeftOut = Mapping[str, tuple[str, str]]
"""Parameters that a module is not given: name → (the words on the command line, why)."""


@dataclass(frozen=True)
class CommandLine:
    """`parameters` are those of each module; of a name that is there twice, the last value.

    `left_out` are those that no module can be given. The kernel ignores a name that no parameter
    has, so they are no reason to refuse a module.
    """

    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    blacklist: frozenset[str] = frozenset()

    def of(self, module: str) -> Mapping[str, str]:
        """Return the parameters of a module."""
        return self.parameters.get(kernel_name(module), {})

    def left_out_of(self, module: str) -> LeftOut:
        return self.left_out.get(kernel_name(module), {})


NOTHING_SAID = CommandLine()


def read_command_line(host: Host) -> CommandLine:
    return parse_command_line(sysfs.read(host.proc / "cmdline") or "")


def parse_command_line(text: str) -> CommandLine:
    parameters: dict[str, dict[str, str]] = {}
    left_out: dict[str, dict[str, tuple[str, str]]] = {}
    blacklist: frozenset[str] = frozenset()
    for word, value in _arguments(text.strip()):
        module, dot, name = word.partition(".")
        name = kernel_name(name)
        if dot and module and name:
            given = parameters.setdefault(kernel_name(module), {})
            others = left_out.setdefault(kernel_name(module), {})
            given.pop(name, None)
            others.pop(name, None)
            if problem := unpassable(name, value or ""):
                others[name] = (_words(name, value), problem)
            else:
                given[name] = _alone(name) if value is None else value
        elif kernel_name(word) == _BLACKLIST:
            blacklist = frozenset((value or "").split(",")) - {""}
    return CommandLine(parameters, left_out, blacklist)


def _alone(name: str) -> str:
    return _ALONE_DYNDBG if name == "dyndbg" else _ALONE


def _words(name: str, value: str | None) -> str:
    return name if value is None else f"{name}={value}"


def _arguments(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield names and values, None for a name alone, up to what belongs to init."""
    for argument in _split(text):
        if argument == _END:
            return
        whole = argument.startswith('"')
        plain = argument.removeprefix('"')
        name, equals, value = plain.partition("=")
        if value.startswith('"') or (whole and equals):
            value = value.removeprefix('"').removesuffix('"')
        elif whole:
            name = name.removesuffix('"')
        yield name, value if equals else None


def _split(text: str) -> Iterator[str]:
    """Yield the arguments: white space ends one, except between double quotes."""
    start, quoted = 0, False
    for position, character in enumerate(f"{text} "):
        quoted ^= character == '"'
        if character.isspace() and (not quoted or position == len(text)):
            if position > start:
                yield text[start:position]
            start = position + 1
