"""Pools: groups of a Driver's nodes that one build serves.

Pure. The kubelet's report (`status.nodeInfo`) decides what a node is. The labels of Node Feature
Discovery only confirm it: they lag a reboot by up to a minute and vanish when it is restarted. So
they can bring a driver to a node, but their absence removes none.

The OS version of a pool is, on CoreOS, the OSTREE_VERSION, which is also the name of the image
stream tag of its Driver Toolkit. Elsewhere it is the id and version of /etc/os-release as far as
`osImage` shows them, such as `ubuntu22.04`. It is coarse on purpose, since a pool also has the
kernel release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from cluster.model.coreos import parse_coreos_version
from cluster.model.names import OSTREE_LABEL
from cluster.model.snapshot import Node, Pool


def pool_of(
    node: Node, assigned: Pool | None = None, *, rebooted: bool = True, works: bool = True
) -> Pool:
    """Return the pool of a node that has been in pool `assigned` so far.

    The node stays in it while its kernel is the same, with two exceptions: it `rebooted` into
    another OS version; or the driver does not work there and only a label, which may have been
    late, has the version. So a package that changes /etc/os-release or a flapping label moves no
    running driver. Neither does a kubelet that has not reported its kernel yet. If it never did,
    the node is in a pool without a kernel, which nothing serves.
    """
    if assigned is not None and not node.kernel:
        return assigned
    if (
        assigned is not None
        and assigned.kernel == node.kernel
        and assigned.architecture == node.architecture
        and not (rebooted and has_version(node.os_image))
        and (works or not _label_has_version(node))
    ):
        return assigned
    version = ostree_version(node.labels, node.os_image) or os_version(node.os_image)
    return _shared_pool(node.architecture, version, node.kernel)


def has_version(os_image: str) -> bool:
    """Return whether `osImage` contains a version, not only a name as it may on CoreOS."""
    return any(letter.isdigit() for letter in os_version(os_image))


def _label_has_version(node: Node) -> bool:
    return bool(ostree_version(node.labels, "")) and not has_version(node.os_image)


@lru_cache(maxsize=4096)
def _shared_pool(architecture: str, version: str, kernel: str) -> Pool:
    """Return one shared object per pool, since pools are keys in many mappings."""
    return Pool(architecture, version, kernel)


# --- the OS version of a node --------------------------------------------------------------------

# 49.84.202110081407-0, 418.94.202501221327-0 and, since OpenShift 4.19, 9.6.20260616-0.
_OSTREE = re.compile(r"(?<![\w.-])[0-9]{1,4}\.[0-9]{1,4}\.(?:[0-9]{8}|[0-9]{12})-[0-9]+(?![\w.-])")
_VERSION = re.compile(r"(?<![\w.])v?([0-9]+(?:\.[0-9]+)?)(?:[.+-][\w.+-]*)?(?: SP([0-9]))?")
_NOT_IN_A_SLUG = re.compile(r"[^a-z0-9.]+")
_SLUG = re.compile(r"(?P<id>.*?)(?P<version>(?P<major>[0-9]*)(\.(?P<minor>[0-9]+))?)")
_FEDORA_COREOS: Final = "fedora-coreos"
_REBUILDS: Final = frozenset(("rhel", "centos", "rocky", "almalinux", "ol"))  # of RHEL

# Prefix of PRETTY_NAME -> ID, as in /etc/os-release. Longer prefixes come first.
_IDS: Final = (
    ("Red Hat Enterprise Linux CoreOS", "rhcos"),
    ("CentOS Stream CoreOS", "scos"),
    ("Fedora CoreOS", _FEDORA_COREOS),
    ("Red Hat Enterprise Linux", "rhel"),
    ("CentOS Stream", "centos"),
    ("Rocky Linux", "rocky"),
    ("AlmaLinux", "almalinux"),
    ("Oracle Linux", "ol"),
    ("Fedora", "fedora"),
    ("Debian GNU/Linux", "debian"),
    ("Ubuntu", "ubuntu"),
    ("SUSE Linux Enterprise", "sles"),
    ("openSUSE Leap", "opensuse-leap"),
    ("Amazon Linux", "amzn"),
    ("Flatcar Container Linux", "flatcar"),
    ("Bottlerocket OS", "bottlerocket"),
    ("Container-Optimized OS", "cos"),
    ("Talos", "talos"),
)


def ostree_version(labels: Mapping[str, str], os_image: str) -> str:
    """Return the OSTREE_VERSION of a node, "" if it has none.

    The kubelet's `osImage` takes precedence: it is up to date after a reboot, when the label of
    Node Feature Discovery may still describe the old system.
    """
    return _ostree_in(os_image) or _ostree_in(labels.get(OSTREE_LABEL, ""))


@lru_cache(maxsize=1024)
def os_version(os_image: str) -> str:
    """Return the OSTREE_VERSION, or else id and version, such as `debian12`, `rhel9.4`.

    Returns "unknown" if there is neither.
    """
    if ostree := _ostree_in(os_image):
        return ostree
    name = next((known for begin, known in _IDS if os_image.startswith(begin)), "")
    version = _VERSION.search(os_image)
    if not name:
        name = _NOT_IN_A_SLUG.sub("-", os_image[: version.start() if version else None].lower())
    number = ".".join(part for part in version.groups() if part) if version else ""
    return f"{name.strip('-.')[:40]}{number}" or "unknown"


def os_parts(version: str) -> dict[str, str]:
    """Return a pool's OS version in parts, "" for what is unknown.

    `id` as in /etc/os-release, which is `rhel` for CoreOS since OpenShift 4.19; `variant`, which is
    `coreos` for each CoreOS; `version` with its `major` and `minor` part; `rhel` is the version of
    RHEL whose packages the system has, such as 9.4 for 418.94.202501221327-0.
    """
    if found := parse_coreos_version(version):
        rhel = f"{found.major}" if found.is_stream else f"{found.major}.{found.minor}"
        numbers = found.openshift or (found.major, found.minor)
        major, minor = (str(number) for number in numbers)
        name = "scos" if found.is_stream else "rhcos" if found.openshift else "rhel"
        parts = {"version": f"{major}.{minor}", "major": major, "minor": minor, "rhel": rhel}
        return {"id": name, "variant": "coreos", **parts}
    match = _SLUG.fullmatch(version)
    parts = match.groupdict(default="") if match else dict.fromkeys(_SLUG.groupindex, "")
    if parts["id"] == _FEDORA_COREOS:
        return {**parts, "id": "fedora", "variant": "coreos", "rhel": ""}
    return {**parts, "variant": "", "rhel": parts["version"] if parts["id"] in _REBUILDS else ""}


@lru_cache(maxsize=1024)
def _ostree_in(text: str) -> str:
    match = _OSTREE.search(text)
    return match[0] if match else ""
