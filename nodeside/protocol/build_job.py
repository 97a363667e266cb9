"""The records that the steps of a build Job exchange, and its report to the controller.

Each step runs in its own container:

    toolkit.pyz kernels       toolkit image   ToolkitKernels: the kernels with headers
    nodeside driver order     driver image    BuildOrder: the kernel, and the request
    toolkit.pyz answer        toolkit image   the answer to that request (shared_directory.py)
    nodeside driver finish    driver image    BuildOutcome: the outcome of the build

A bundle's key includes the kernel's version string (`uname -v`), which comes from the headers. So
the toolkit is queried before anything is ordered. ToolkitKernels is written before any vendor code
runs. BuildOrder is in a place that vendor code cannot write to; the last step relies on it alone.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import field
from enum import Enum

from nodeside.errors import NodesideError, NoHeaders
from nodeside.protocol.records import decode, encode
from nodeside.system.host import Kernel
from nodeside.values import frozen

MESSAGE_LIMIT = 4096  # bytes of a termination message; a kubelet keeps no more
_TEXT_LIMIT = 1000  # characters of each text in the message
_PROTOCOL = 1

# Parts of a release that name a variant: 5.14.0-427.el9.x86_64+rt, 4.18.0-305.rt7.72.el8.x86_64.
_VARIANT = re.compile(r"(?<=[.+-])(rt|64k|debug)(?=\d|[.+-]|$)")


_TEXTS = ("message", "hint", "first_error")  # the other texts of an outcome are names:
_FORMS = {
    "kernel": re.compile(r"[A-Za-z0-9._+~-]{0,64}"),
    "tag": re.compile(r"[A-Za-z0-9_.-]{0,200}"),
    "digest": re.compile(r"(sha256:[0-9a-f]{64})?"),
    "reason": re.compile(r"[A-Za-z0-9]{0,64}"),
}


@frozen
class ToolkitKernel:
    """Headers in a toolkit image. `version` is "" if the headers do not contain it."""

    release: str
    version: str = ""
    signature_hash: str = ""


@frozen
class ToolkitKernels:
    """`results/kernels.json`: the kernels whose headers are in a toolkit image."""

    boot_id: str
    kernels: tuple[ToolkitKernel, ...]
    protocol: int = _PROTOCOL


@frozen
class BuildOrder:
    """`order.json`: the build to run. `request` is "" if the store already has the bundle.

    `to` is the destination of the bundle, in the format of `--to`; "" for none. `digest` is the
    digest of the bundle in the store. With `rebuild`, the bundle replaces another of its tag.
    """

    boot_id: str
    kernel: Kernel
    key: str
    tag: str
    to: str = ""
    request: str = ""
    digest: str = ""
    signature_hash: str = ""
    rebuild: bool = False
    protocol: int = _PROTOCOL


class BuildVerdict(Enum):
    """The verdict of a build on a driver and a kernel."""

    PUBLISHED = "published"  # it builds, and is now in the store
    PRESENT = "present"  # it was already in the store
    BUILT = "built"  # it builds; publishing was not requested
    REFUSED = "refused"  # it does not build: a node would get the same answer
    BROKEN = "broken"  # the build could not run, which says nothing about the driver


@frozen
class BuildOutcome:
    """A build Job's report to the controller, in the termination message of a container."""

    verdict: BuildVerdict
    kernel: str = ""
    tag: str = ""
    digest: str = ""
    reason: str = ""
    message: str = ""
    hint: str = ""
    first_error: str = ""
    seconds: float = 0.0
    protocol: int = field(default=_PROTOCOL)

    def failure_in_words(self) -> str:
        """Return the failure in one line."""
        return self.first_error or self.message.partition("\n")[0] or self.reason


def kernel_variant(release: str) -> str:
    """Return a kernel's variant, "" for the plain one; toolkits have one kernel per variant."""
    return "-".join(dict.fromkeys(_VARIANT.findall(release)))


def choose_kernel(
    toolkit: ToolkitKernels, *, release: str = "", variant: str | None = None
) -> ToolkitKernel:
    """Choose the kernel to build for: by release, by variant, or the only one there is.

    Raises NoHeaders unless exactly one kernel matches, or if its build (`uname -v`) is unknown.
    """
    matches = [
        kernel
        for kernel in toolkit.kernels
        if release in ("", kernel.release) and variant in (None, kernel_variant(kernel.release))
    ]
    if len(matches) != 1:
        releases = ", ".join(kernel.release for kernel in toolkit.kernels) or "no kernel at all"
        kind = "" if variant is None else f"{variant or 'plain'} "
        raise NoHeaders(
            f"the toolkit image has headers of {releases}; "
            f"expected {release or f'exactly one {kind}kernel'}",
            hint="name the release: --kernel"
            if matches
            else "use the toolkit image of that kernel",
        )
    if not matches[0].version:
        raise NoHeaders(
            f"the headers of {matches[0].release} do not contain the kernel's version string "
            "(`uname -v`), which is part of a bundle's key",
            hint="nodes with that kernel must build the modules themselves",
        )
    return matches[0]


def termination_message(outcome: BuildOutcome) -> str:
    """Encode the outcome as a termination message, cut to the size that a kubelet keeps."""
    record, limit = encode(outcome), _TEXT_LIMIT
    record |= dict.fromkeys(_malformed_fields(outcome), "")
    while True:
        cut = {**record, **{name: _shorten(record[name], limit) for name in _TEXTS}}
        text = json.dumps(cut, ensure_ascii=False, sort_keys=True)
        if len(text.encode(errors="replace")) <= MESSAGE_LIMIT or not limit:
            return text
        limit //= 2


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def _malformed_fields(outcome: BuildOutcome) -> list[str]:
    return [name for name, form in _FORMS.items() if not form.fullmatch(getattr(outcome, name))]


def read_outcome(text: str) -> BuildOutcome | None:
    """Decode the outcome in a termination message; None if it has none or is too long.

    Anyone who may write the status of a pod may have written it. So an outcome with a malformed
    name, or with a number out of range, counts as none.
    """
    try:
        record = json.loads(text) if len(text.encode()) <= MESSAGE_LIMIT else None
        outcome = decode(BuildOutcome, record) if isinstance(record, dict) else None
    except (ValueError, RecursionError, NodesideError):
        return None
    if outcome is None or _malformed_fields(outcome):
        return None
    return outcome if math.isfinite(outcome.seconds) and 0 <= outcome.protocol < 1000 else None
