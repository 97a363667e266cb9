"""Reads trial.yaml: the devices and commands that a vendor's directory adds to a trial.

A vendor wrote the file, and QEMU runs as root: some of QEMU's devices and properties read and write
files of the host. So the file may only name devices that stay inside the machine. On the command
line, a person may name any device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from nodeside.errors import SpecError
from nodeside.spec.mistakes import FieldPath, Mistake, in_brief, mistakes_error
from nodeside.spec.yamltext import read_yaml
from nodeside.system.files import open_untrusted
from nodeside.trial.vendor_tree import require_inside
from nodeside.values import frozen

SIDE_FILE = "trial.yaml"
_SIZE_LIMIT = 256 << 10
_COMMANDS = 64  # a limit, since their output is kept until the end of the trial
_CHARACTERS = 8192  # of one command, or of all devices; a YAML alias may repeat a long word
_BY_HAND = "if you trust it, name it on the command line: --device"

# Models that reach the host's files, devices or kernel, even without a property.
_HOST_MODELS = (
    "*loader", "*vfio*", "*vhost*", "*9p*", "*-host", "*-host-*", "*passthr*", "*assign*",
    "*proxy*", "ivshmem*", "xen-*", "usb-mtp", "usb-redir", "usb-braille", "u2f-*", "ccid-card-*",
    "pvrdma", "scsi-generic", "scsi-block",
)  # fmt: skip
# Properties whose value names something on the host, or another model.
_HOST_KEYS = re.compile(
    r"db|driver|.*(dev|devs|device|dir|fd|fds)"
    r"|.*(file|path|pcap|root|drive|disk|host|socket|raw|backend|cert|display|mount|server).*"
)
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_KEY = re.compile(r"[a-z][a-z0-9_.-]*", re.IGNORECASE)
_SIMPLE = re.compile(r"-?[0-9]+[kKMGTb]?|0[xX][0-9a-fA-F]+|on|off|yes|no|true|false|auto")
_TEXT_KEYS = frozenset({"id", "bus", "addr", "port", "mac", "serial", "guid", "uuid", "name"})
_TEXT = re.compile(r"[A-Za-z0-9_.:-]+")


@frozen
class TrialAdditions:
    """The content of a trial.yaml: QEMU devices, and commands to run once the driver is ready."""

    devices: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()


NO_ADDITIONS = TrialAdditions()


def read_side_file(path: Path) -> TrialAdditions:
    """Return the devices and commands of a trial.yaml; empty if it does not exist.

    Strict: raises SpecError for anything else in it.
    """
    if not path.is_file():
        return NO_ADDITIONS
    text = _read_text(path)
    if all(line.partition("#")[0].strip() in ("", "---", "...") for line in text.splitlines()):
        return NO_ADDITIONS
    document = read_yaml(text, str(path))
    values = {} if document.data is None else document.data
    mistakes = (*document.mistakes, *_find_mistakes(values))
    if mistakes:
        error = mistakes_error(document, mistakes)
        error.hint = "devices is a list of QEMU devices, commands a list of argvs"
        raise error
    assert isinstance(values, Mapping)
    return TrialAdditions(
        devices=tuple(values.get("devices", ())),
        commands=tuple(tuple(argv) for argv in values.get("commands", ())),
    )


def _read_text(path: Path) -> str:
    with open_untrusted(require_inside(path), limit=_SIZE_LIMIT) as file:
        data = file.read(_SIZE_LIMIT)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise SpecError(f"{path}: not YAML: not UTF-8 at byte {exc.start}") from exc


def _find_mistakes(values: Any) -> Iterator[Mistake]:
    if not isinstance(values, Mapping):
        yield Mistake((), f"expected a mapping, got {in_brief(values)}")
        return
    for key in values:
        if key not in ("devices", "commands"):
            yield Mistake((key,), "unknown field")
    devices, commands = values.get("devices", []), values.get("commands", [])
    yield from _find_list_mistakes(("devices",), devices)
    for index, device in enumerate(devices if _is_short(devices) else ()):
        if isinstance(device, str) and (problem := host_access_message(device)):
            yield Mistake(("devices", index), f"{in_brief(device)}: {problem}", _BY_HAND)
    if not isinstance(commands, list):
        yield Mistake(("commands",), f"expected a list of argvs, got {in_brief(commands)}")
        return
    if len(commands) > _COMMANDS:
        yield Mistake(("commands",), f"expected at most {_COMMANDS} commands, got {len(commands)}")
    for index, argv in enumerate(commands):
        yield from _find_list_mistakes(("commands", index), argv)
        if argv == []:
            yield Mistake(("commands", index), "expected a program and its arguments")


def _find_list_mistakes(place: FieldPath, value: Any) -> Iterator[Mistake]:
    if not isinstance(value, list):
        yield Mistake(place, f"expected a list of strings, got {in_brief(value)}")
        return
    for index, word in enumerate(value):
        if not isinstance(word, str):
            yield Mistake((*place, index), f"expected a string, got {in_brief(word)}")
    if not _is_short(value):
        yield Mistake(place, f"expected at most {_CHARACTERS} characters in all")


def _is_short(words: Any) -> bool:
    """Return whether `words` is a list with few enough characters."""
    if not isinstance(words, list):
        return False
    return sum(len(word) + 1 for word in words if isinstance(word, str)) <= _CHARACTERS


def host_access_message(device: str) -> str:
    """Return why a vendor may not add this `-device`, as a clause; "" if it stays in the machine.

    A property that is in `_TEXT_KEYS` may have a plain word, any other one a number or a switch.
    """
    model, *properties = device.split(",")
    if not _MODEL.fullmatch(model):
        return "expected MODEL or MODEL,KEY=VALUE,..."
    if any(fnmatchcase(model.lower(), pattern) for pattern in _HOST_MODELS):
        return f"the device {model} can reach files or devices of this host"
    for each in properties:
        key, has_value, value = each.partition("=")
        if not has_value or not _KEY.fullmatch(key):
            return f"expected KEY=VALUE, got {in_brief(each)}"
        if _HOST_KEYS.fullmatch(key.lower()):
            return f"the property {in_brief(key)} can reach files or devices of this host"
        if not (_SIMPLE.fullmatch(value) or (key in _TEXT_KEYS and _TEXT.fullmatch(value))):
            word = " nor a plain word" if key in _TEXT_KEYS else ""
            return f"the value of {in_brief(key)} is neither a number nor a switch{word}"
    return ""
