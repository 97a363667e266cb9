"""The files that `nodeside init` writes beside a source, from a draft of its driver.yaml.

Each file is complete and correct as written. A value that the source does not tell is marked with
"guess". What a person is likely to want next is there as a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nodeside.driver.module.modulefile import ModuleFile, Parameter
from nodeside.errors import UsageError
from nodeside.log import escape_controls
from nodeside.protocol.bundle_key import BuildKind
from nodeside.protocol.labels import API_VERSION
from nodeside.spec import json_schema
from nodeside.spec.schema import LIST_LIMIT
from nodeside.spec.yamltext import write_yaml
from nodeside.trial.owned_place import OwnedPlace
from nodeside.trial.target.draft import Draft
from nodeside.trial.target.hardware import pci_ids
from nodeside.values import frozen

SCHEMA = "driver.schema.json"
# Files to exclude from the source, so that a change of one does not change the key of a bundle.
# driver.yaml and trial.yaml are never part of the source.
_BESIDE = ("Containerfile", ".dockerignore", SCHEMA)
FILES = ("driver.yaml", *_BESIDE, "trial.yaml")

_COMMENT = 160  # characters of a comment with text from a module
_GUESS = 600  # characters of the reason for a guess, which names directories
_CANDIDATES = 20  # directories in a comment
_PARAMETERS = 40  # shown of a module; `modinfo` has them all
_ANY_WIDTH = 1 << 20  # YAML must not break a text into lines: a comment may follow it
# QEMU's devices by PCI id (docs/specs/pci-ids.rst and hw/net/), so that a trial has the hardware.
_EMULATED = {
    ("1234", "11e8"): "edu",
    ("8086", "100e"): "e1000",
    ("8086", "10d3"): "e1000e",
    ("10ec", "8139"): "rtl8139",
    ("1022", "2000"): "pcnet",
}

_CONTAINERFILE = """\
# A driver image: the source and its driver.yaml on top of the nodeside driver base image.
# Nothing is compiled here. The node or a build Job compiles the modules for the node's kernel.
#
#   base=registry.example.com/nodeside/nodeside-driver:{release}
#   buildah bud -t registry.example.com/drivers/{name}:{tag} --build-arg BASE=$base .
ARG BASE=localhost/nodeside-driver
FROM ${{BASE}}

LABEL org.opencontainers.image.title="{name}" \\
      org.opencontainers.image.version="{version}"

COPY . /driver-image/
"""
_DOCKERIGNORE = """\
# What is no part of the driver. All else in here is in the image, and a change of the source is a
# new build on every node: add what a build does not need, and to source.exclude in driver.yaml too.
# The products of make need no line: nodeside leaves out what make would make again.
.git
trial.yaml
Containerfile
.dockerignore
driver.schema.json
"""


@frozen
class FoundHardware:
    """The PCI ids (vendor, device) that the modules declare, and how many ids of other buses.

    The device is "" if a module is for every device of a vendor.
    """

    pci: tuple[tuple[str, str], ...]
    others: Mapping[str, int]

    @property
    def emulated_devices(self) -> tuple[tuple[str, str], ...]:
        return tuple(each for each in self.pci if each in _EMULATED)


def find_hardware(files: Iterable[ModuleFile]) -> FoundHardware:
    """Return the hardware in the device tables of modules (scripts/mod/file2alias.c)."""
    aliases = [alias for file in files for alias in file.aliases]
    others: dict[str, int] = {}
    for bus, colon, _ in (alias.partition(":") for alias in aliases):
        if colon and bus != "pci" and re.fullmatch(r"[a-z0-9]{2,16}", bus):
            others[bus] = others.get(bus, 0) + 1
    return FoundHardware(pci_ids(aliases), others)


def make_file_texts(draft: Draft, source: str, release: str) -> dict[str, str]:
    """Return the files' texts by name. `source` is a path, `release` is that of nodeside."""
    words = {
        "name": draft.name,
        "version": draft.version,
        "tag": _image_tag(draft.version),
        "release": release,
    }
    return {
        "driver.yaml": "\n".join(_driver_lines(draft, source)) + "\n",
        "trial.yaml": "\n".join(_trial_lines(draft)) + "\n",
        "Containerfile": _CONTAINERFILE.format(**words),
        ".dockerignore": _DOCKERIGNORE,
        SCHEMA: json.dumps(json_schema(), indent=1) + "\n",
    }


def require_absent(place: OwnedPlace) -> None:
    """Raise UsageError if one of the files exists."""
    there = [name for name in FILES if place.has_name(name)]
    if there:
        raise UsageError(
            f"{place.path} has {', '.join(there)} already, and nothing was written",
            hint="--force writes them anew; of driver.yaml, it keeps how to build (spec.build)",
        )


def _driver_lines(draft: Draft, source: str) -> Iterator[str]:
    hardware = find_hardware(draft.files)
    yield f"# yaml-language-server: $schema={SCHEMA}"
    yield '# Made by `nodeside init`: check what is marked with "guess". All other fields are in'
    yield "# `nodeside spec reference`. Try it: nodeside try ."
    yield f"apiVersion: {API_VERSION}"
    yield "kind: Driver"
    yield "metadata:"
    yield f"  name: {_yaml_text(draft.name)}{_guess_comment(draft, 'name')}"
    yield "spec:"
    yield f"  version: {_yaml_text(draft.version)}{_guess_comment(draft, 'version')}"
    yield "  # A cluster needs the image that the Containerfile makes:"
    yield f"  # image: registry.example.com/drivers/{draft.name}:{_image_tag(draft.version)}"
    yield from _hardware_lines(hardware)
    yield "  source:"
    yield f"    path: {_yaml_text(source)}"
    if source == ".":
        yield f"    exclude: [{', '.join(_BESIDE)}]"
    yield from _build_lines(draft)
    yield from _need_lines(draft)
    yield from _module_lines(draft)
    yield from _firmware_lines(draft.files)
    yield from _validate_lines(draft, hardware)


def _hardware_lines(hardware: FoundHardware) -> Iterator[str]:
    yield "  # The nodes of a cluster that get the driver; without `hardware`, all of them do."
    listed = hardware.pci[:LIST_LIMIT]
    if listed:
        yield "  hardware:"
        yield "    pci: # as the modules' MODULE_DEVICE_TABLE says"
        yield from (f"      - {{{_pci_id(each)}}}" for each in listed)
    if left := len(hardware.pci) - len(listed):
        vendors = sorted({vendor for vendor, _ in hardware.pci[LIST_LIMIT:]})
        yield f"      # guess: {left} more, of {', '.join(vendors)}, did not fit. An entry without"
        yield "      # `device` stands for every device of a vendor."
    if hardware.others:
        buses = ", ".join(f"{bus} ({n})" for bus, n in sorted(hardware.others.items()))
        yield f"  # The modules are also for devices of other kinds: {buses}."
    if not listed:
        yield "  # hardware:"
        yield '  #   nodeSelector: {example.com/has-the-device: "true"}'


def _build_lines(draft: Draft) -> Iterator[str]:
    if len(draft.candidates) > 1:
        yield "  # The directories of the source that list modules, with their device tables:"
        shown = [each.in_words() for each in draft.candidates[:_CANDIDATES]]
        yield from (f"  #   {_comment_text(words)}" for words in shown)
        if left := len(draft.candidates) - len(shown):
            yield f"  #   and {left} more: nodeside init --output json"
    if draft.given_build is not None:
        lines = write_yaml({"build": draft.build_document()}, width=_ANY_WIDTH).splitlines()
        yield from (f"  {line}" for line in lines)
        return
    yield "  build:"
    yield f"    kind: {draft.build.kind.value}{_guess_comment(draft, 'build')}"
    if draft.build.directory != ".":
        yield f"    directory: {_yaml_text(draft.build.directory)}"
    if draft.build.command:
        words = ", ".join(_yaml_text(word) for word in draft.build.command)
        yield f"    command: [{words}]"
    if draft.build.kind is BuildKind.KBUILD:
        yield "    # makeArguments: [CONFIG_EXAMPLE=m]"


def _need_lines(draft: Draft) -> Iterator[str]:
    """Yield `after` as a comment: the others may be no Drivers, and a trial has only this one."""
    if draft.needs:
        packages = ", ".join(_comment_text(need.package) for need in draft.needs)
        yield f"  # BUILD_DEPENDS in dkms.conf: {packages}. Where other Drivers have"
        yield "  # their modules, these are loaded first, and this one is built with their symbols."
        yield "  # `nodeside try` has one driver, and refuses `after`."
        yield f"  # after: [{', '.join(need.driver for need in draft.needs)}]"


def _module_lines(draft: Draft) -> Iterator[str]:
    files = {file.name: file for file in draft.files}
    yield f"  modules:{_guess_comment(draft, 'modules')}"
    for name in draft.modules:
        yield f"    - name: {_yaml_text(name)}"
        file = files.get(name.replace("-", "_"))
        if file is not None and file.parameters:
            yield "      # parameters: # all of them are strings"
            yield from _parameter_lines(list(file.parameters.values()))


def _parameter_lines(parameters: Sequence[Parameter]) -> Iterator[str]:
    for each in parameters[:_PARAMETERS]:
        words = ": ".join(_comment_text(word) for word in (each.type, each.description) if word)
        yield f'      #   {_comment_text(each.name)}: ""{f" # {words}" if words else ""}'
    if len(parameters) > _PARAMETERS:
        yield f"      #   and {len(parameters) - _PARAMETERS} more, see modinfo"


def _firmware_lines(files: Sequence[ModuleFile]) -> Iterator[str]:
    names = sorted({_comment_text(name) for file in files for name in file.firmware})
    if names:
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        yield f"  # The modules may request firmware: {shown}"
        yield "  # firmware: {path: firmware} # files that the image brings, as in /lib/firmware"


def _validate_lines(draft: Draft, hardware: FoundHardware) -> Iterator[str]:
    """Yield checks that hold in a trial too: those of a device only if QEMU emulates it."""
    driver = draft.modules[0]
    yield "  # What shows that the driver works. A node where it does not hold is not ready."
    if hardware.emulated_devices:
        yield "  validate:"
        yield "    bound:"
        for each in hardware.emulated_devices:
            bound = f"{_pci_id(each)}, driver: {_yaml_text(driver)}"
            yield f"      - {{{bound}}} # guess: the driver's name in sysfs"
        return
    yield "  # validate:"
    yield "  #   devices: [/dev/example0]"
    for each in hardware.pci[:1]:
        yield "  #   bound:"
        yield f"  #     - {{{_pci_id(each)}, driver: {_yaml_text(driver)}}}"


def _trial_lines(draft: Draft) -> Iterator[str]:
    yield "# Only for `nodeside try`: devices that QEMU emulates, and commands to run once the"
    yield "# driver is ready, in a container with its devices and with the node below /host."
    devices = [_EMULATED[each] for each in find_hardware(draft.files).emulated_devices]
    yield f"devices: [{', '.join(devices)}]"
    yield "# commands:"
    yield "#   - [cat, /proc/modules]"


def _pci_id(pci: tuple[str, str]) -> str:
    vendor, device = pci
    return f'vendor: "{vendor}"' + (f', device: "{device}"' if device else "")


def _guess_comment(draft: Draft, name: str) -> str:
    if name not in draft.guesses:
        return ""
    return f" # guess: {_comment_text(draft.guesses[name], _GUESS)}"


def _yaml_text(text: str) -> str:
    """Return a text as YAML, in quotes if it needs them."""
    return write_yaml([text], width=_ANY_WIDTH).removeprefix("- ").rstrip("\n")


def _image_tag(version: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", version)


def _comment_text(text: str, limit: int = _COMMENT) -> str:
    line = escape_controls(" ".join(text.split()))
    return line if len(line) <= limit else f"{line[:limit]}..."
