"""Validation of module parameters: whether the kernel would accept a name and its value.

The kernel ignores an unknown parameter and still loads the module; it rejects a wrong value with a
bare EINVAL. So nodeside checks both before the load, by the rules of the kernel's kernel/params.c
(parse_args, param_set_*) and lib/kstrtox.c. What the kernel lets the module check (callbacks, the
number of array elements), nodeside does not check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nodeside.driver.module.modulefile import ModuleFile, Parameter

# The kernel takes these for every module: kernel/module/main.c, unknown_module_param_cb.
ALWAYS_ALLOWED = frozenset({"dyndbg", "async_probe"})

_END = "--"
_UNQUOTABLE = "expected a value whose double quotes enclose all of its blanks, or none"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_BOOLEAN = re.compile(r"[yYnNtTfF01]|[oO][nNfF]")  # kstrtobool only looks at the first characters
_INTEGER = re.compile(r"(?P<minus>-?)\+?(?:0[xX][0-9a-fA-F]+|[0-9]+)\n?$")
_STRING_LIMIT = 1024  # param_set_charp
_ARRAY = "array of "
_BOOLEANS = frozenset({"bool", "invbool", "bint", "bool_enable_only"})
_BITS: dict[str, tuple[int, bool]] = {  # type → (bits, 0 for a machine word; signed)
    "byte": (8, False),
    "hexint": (32, False),
    "short": (16, True),
    "ushort": (16, False),
    "int": (32, True),
    "uint": (32, False),
    "long": (0, True),
    "ulong": (0, False),
    "ullong": (64, False),
}


def unpassable_reason(name: str, value: str) -> str:
    """Return what is expected instead of a parameter that cannot be passed; "" if it can."""
    if not _NAME.fullmatch(name):
        return "expected a name of ASCII letters, digits and _"
    if "\0" in value:
        return "expected a value without NUL"
    return "" if write_argument(name, value) else _UNQUOTABLE


def write_argument(name: str, value: str) -> str:
    """Return a parameter as the kernel reads it back; "" if no words mean this value.

    White space ends an argument except between double quotes, which cannot be escaped: next_arg()
    in lib/cmdline.c. Bytes above ASCII are put in quotes too.
    """
    plain, quoted = f"{name}={value}", f'{name}="{value}"'
    bare = value.isascii() and not any(_is_space(c) for c in value)
    for words in (plain, quoted) if bare else (quoted, plain):
        if [*parse_arguments(f"{words} next")] == [(name, value), ("next", None)]:
            return words
    return ""


def parse_arguments(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield names and values, None for a name alone, as next_arg() in lib/cmdline.c does.

    Double quotes may be around a value or a whole argument. `--` ends what is for the kernel.
    """
    for argument in _split_arguments(text):
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


def _is_space(character: str) -> bool:
    """Return whether a byte of the character is white space to the kernel, as 0xa0 is."""
    return character in " \t\n\v\f\r" or 0xA0 in character.encode(errors="replace")


def _split_arguments(text: str) -> Iterator[str]:
    """Yield the arguments: white space ends one, except between double quotes."""
    start, quoted = 0, False
    for position, character in enumerate(f"{text} "):
        quoted ^= character == '"'
        if _is_space(character) and (not quoted or position == len(text)):
            if position > start:
                yield text[start:position]
            start = position + 1


def find_parameter(module: ModuleFile, name: str) -> Parameter | None:
    """Return the parameter of that name; `-` equals `_` (kernel/params.c, parameq)."""
    name = name.replace("-", "_")
    for declared, parameter in module.parameters.items():
        if declared.replace("-", "_") == name:
            return parameter
    return None


def needs_value(module: ModuleFile, name: str) -> str:
    """Return the declared type of a parameter that needs a value; "" if its name is enough.

    The name alone sets a boolean to true. For other types the kernel refuses it (kernel/params.c,
    parse_one and KERNEL_PARAM_OPS_FL_NOARG). If the type is not known, the module decides.
    """
    parameter = None if name in ALWAYS_ALLOWED else find_parameter(module, name)
    return "" if parameter is None or parameter.type in _BOOLEANS else parameter.type


Problems = dict[str, tuple[str, str]]
"""What is wrong with parameters: name → (message, hint)."""


def wrong_parameters(module: ModuleFile, desired: Mapping[str, str]) -> Problems:
    """Return the desired parameters that the kernel or the module would not take."""
    return unknown_parameters(module, desired) | wrong_values(module, desired)


def unknown_parameters(module: ModuleFile, desired: Mapping[str, str]) -> Problems:
    """Return the desired parameters that the module does not have."""
    return {
        name: (f"{module.name} has no parameter {name!r}", _unknown_name_hint(module, name))
        for name in desired
        if name not in ALWAYS_ALLOWED and find_parameter(module, name) is None
    }


def wrong_values(module: ModuleFile, desired: Mapping[str, str]) -> Problems:
    """Return the desired parameters whose value the kernel would not take."""
    wrong = {}
    for name, value in desired.items():
        parameter = None if name in ALWAYS_ALLOWED else find_parameter(module, name)
        if parameter is None:
            continue
        if problem := expected_instead(parameter.type, value, module.elf_class):
            wrong[name] = (
                f"parameter {name} of {module.name}: expected {problem}, got {value!r}",
                parameter.description and f"{name}: {parameter.description}",
            )
    return wrong


def _unknown_name_hint(module: ModuleFile, name: str) -> str:
    """Return the hint for an unknown name: the closest known name, and all of them."""
    if not module.parameters:
        return f"{module.name} takes no parameters: remove it from driver.yaml"
    from difflib import get_close_matches  # imported late: only needed on a mistake

    near = get_close_matches(name, module.parameters, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    return f"{guess}known parameters: {', '.join(sorted(module.parameters))}"


def expected_instead(type: str, value: str, elf_class: int = 64) -> str:
    """Return what the kernel expects instead of this value; "" if the value is valid."""
    if type.startswith(_ARRAY):
        inner = type.removeprefix(_ARRAY)
        problem = next(
            (p for v in value.split(",") if (p := _expected_instead_of_one(inner, v, elf_class))),
            "",
        )
        return f"a list separated by commas, each {problem}" if problem else ""
    return _expected_instead_of_one(type, value, elf_class)


def _expected_instead_of_one(type: str, value: str, elf_class: int) -> str:
    if type in _BOOLEANS and not _BOOLEAN.match(value):
        return "a boolean (y, n, 1, 0, on or off)"
    if type in _BITS:
        bits, signed = _BITS[type]
        return _expected_integer(value, bits or elf_class, signed=signed)
    if type == "charp" and len(value.encode()) > _STRING_LIMIT:
        return f"a string of at most {_STRING_LIMIT} bytes"
    return ""


def _expected_integer(value: str, bits: int, *, signed: bool) -> str:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    number = _parse_number(value)
    return "" if number is not None and low <= number <= high else f"an integer {low} to {high}"


def _parse_number(value: str) -> int | None:
    """Parse a value like kstrtoll(…, 0): 0x… is hexadecimal, 0… octal, anything else decimal."""
    match = _INTEGER.match(value)
    if not match or len(value) > 64:
        return None
    digits = value.strip().lstrip("+-")
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    try:
        number = int(digits, base)
    except ValueError:  # an 8 or 9 in an octal number
        return None
    return -number if match["minus"] else number
