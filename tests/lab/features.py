"""A stand-in for Node Feature Discovery: it labels a node with what its PCI bus and system say.

It is not NFD. It obeys NFD's own configuration of the source `pci`, with NFD's defaults, and sets
labels of the same names. Source: https://kubernetes-sigs.github.io/node-feature-discovery/ (worker
configuration reference, and "Built-in labels").
"""

from __future__ import annotations

import shlex
import string
from collections.abc import Mapping, Sequence
from typing import Any, Final

PREFIX: Final = "feature.node.kubernetes.io"
DEFAULT_CLASSES: Final = ("03", "0b40", "12")
DEFAULT_FIELDS: Final = ("class", "vendor")
FIELDS: Final = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")
# The edu device is of class 00ff, which the defaults leave out.
CONFIGURATION: Final[Mapping[str, Any]] = {
    "sources": {"pci": {"deviceClassWhitelist": [*DEFAULT_CLASSES, "00ff"]}}
}
_OF_A_VALUE = f"{string.ascii_letters}{string.digits}-_."
_OS_RELEASE = ("ID", "VERSION_ID", "OSTREE_VERSION")

# What a node is asked: a line for each PCI function, then what its system is.
ASKED: Final = f"""\
for device in /sys/bus/pci/devices/*; do
  cd $device && echo pci $(cat {" ".join(FIELDS)})
done
echo kernel $(uname -r)
sed 's/^/os /' /etc/os-release
"""


def features(answer: str, configuration: Mapping[str, Any] = CONFIGURATION) -> dict[str, str]:
    """The labels of a node that answered so."""
    rows = [line.partition(" ") for line in answer.splitlines()]
    devices = [rest.split() for kind, _, rest in rows if kind == "pci"]
    releases = [rest for kind, _, rest in rows if kind == "kernel"]
    labels = {f"{PREFIX}/kernel-version.full": _value(release) for release in releases}
    for kind, _, rest in rows:
        name, _, value = rest.partition("=")
        if kind == "os" and name in _OS_RELEASE:
            labels[f"{PREFIX}/system-os_release.{name}"] = "".join(shlex.split(value))
    return labels | _pci(devices, configuration.get("sources", {}).get("pci", {}))


def _value(release: str) -> str:
    """A kernel release as NFD writes it, since the value of a label holds no `+`."""
    return "".join(c if c in _OF_A_VALUE else "_" for c in release).strip("-_.")


def _pci(devices: Sequence[Sequence[str]], settings: Mapping[str, Any]) -> dict[str, str]:
    classes = tuple(settings.get("deviceClassWhitelist", DEFAULT_CLASSES))
    wanted = settings.get("deviceLabelFields", ())
    fields = [field for field in FIELDS if field in wanted] or DEFAULT_FIELDS
    labels = {}
    for values in devices:
        device = {
            name: value.removeprefix("0x") for name, value in zip(FIELDS, values, strict=True)
        }
        device["class"] = device["class"][:4]  # the rest is its programming interface
        if device["class"].startswith(classes):
            labels[f"{PREFIX}/pci-{'_'.join(device[field] for field in fields)}.present"] = "true"
    return labels
