"""Who asks for which parameter of a module: driver.yaml, or the kernel's command line.

For modules of the kernel's tree, modprobe.d does too: `in_tree_effects` has these.

Pure. driver.yaml is the more specific of the two and wins, as the arguments of modprobe do; the
command line adds what driver.yaml does not set. People are told of both: somebody wrote each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from nodeside.driver.module.modulefile import ModuleFile
from nodeside.driver.module.parameters import unknown_parameters
from nodeside.driver.node.command_line import CommandLine
from nodeside.log import escape_controls
from nodeside.protocol.module_names import kernel_name
from nodeside.spec.model import Module
from nodeside.values import frozen

DRIVER_YAML = "driver.yaml"
COMMAND_LINE = "kernel command line"
MODPROBE_D = "modprobe.d"


_IN_WORDS = {
    DRIVER_YAML: "driver.yaml",
    COMMAND_LINE: "the kernel's command line",
    MODPROBE_D: "the host's modprobe.d",
}


@frozen
class RequestedParameter:
    """A parameter that a module gets. `source` is who asks for it.

    `overruled` is the value on the kernel's command line, if driver.yaml has another one.
    """

    module: str
    name: str
    value: str
    source: str
    overruled: str = ""

    def in_words(self) -> str:
        """Return the parameter and who asks for it, as one line."""
        text = escape_controls(f"{self.module}: {self.name}={self.value}")
        if self.overruled:
            return f"{text} (driver.yaml; the kernel's command line says {self.overruled})"
        return f"{text} ({_IN_WORDS[self.source]})"


def requested_parameters(
    modules: Iterable[Module], line: CommandLine
) -> tuple[RequestedParameter, ...]:
    """Return all parameters of these modules, the command line's first."""
    return tuple(each for module in modules for each in _parameters_of(module, line))


def _parameters_of(module: Module, line: CommandLine) -> Iterator[RequestedParameter]:
    name, boot = kernel_name(module.name), line.parameters_of(module.name)
    for key, value in added_parameters(module, line).items():
        yield RequestedParameter(name, key, value, COMMAND_LINE)
    for key, value in module.parameters.items():
        other = boot.get(kernel_name(key), value)
        yield RequestedParameter(name, key, value, DRIVER_YAML, other if other != value else "")


def added_parameters(module: Module, line: CommandLine) -> dict[str, str]:
    """Return the parameters that only the kernel's command line sets."""
    own = {kernel_name(key) for key in module.parameters}
    return {key: value for key, value in line.parameters_of(module.name).items() if key not in own}


def _left_out_notes(module: Module, line: CommandLine) -> Iterator[str]:
    own = {kernel_name(key) for key in module.parameters}
    for name, (words, why) in line.left_out_of(module.name).items():
        if name not in own:
            yield (
                f"{kernel_name(module.name)}: the kernel's command line has {words}, which is left "
                f"out: {why}"
            )


def boot_notes(
    modules: Sequence[Module], line: CommandLine, files: Iterable[ModuleFile]
) -> tuple[str, ...]:
    """Return what a person should know of the command line when these modules are loaded."""
    notes = [
        each.in_words()
        for each in requested_parameters(modules, line)
        if each.source == COMMAND_LINE
    ]
    notes += [each.in_words() for each in requested_parameters(modules, line) if each.overruled]
    notes += [note for module in modules for note in _left_out_notes(module, line)]
    boot: Mapping[str, Mapping[str, str]] = {
        kernel_name(m.name): added_parameters(m, line) for m in modules
    }
    for file in files:
        for message, hint in unknown_parameters(file, boot.get(file.name, {})).values():
            known = f"; {hint}" if file.parameters else ""
            notes.append(f"{message}, and ignores that of the kernel's command line{known}")
    return tuple(notes)
