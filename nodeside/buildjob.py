"""A build in steps, each in a container of its own, as a build Job runs them: what they tell each
other, and what the last of them tells the controller.

    toolkit.pyz kernels       toolkit image   ToolkitKernels: whose headers are there
    nodeside driver order     driver image    BuildOrder: for which kernel, and the request
    toolkit.pyz answer        toolkit image   the answer to that request (shared.py)
    nodeside driver finish    driver image    BuildOutcome: what came of it

The key of a bundle has the kernel's version string in it (`uname -v`), which stands in the headers:
so the toolkit is asked before anything is ordered. ToolkitKernels is written before code of a
vendor runs; BuildOrder lies where such code cannot write, and is all that the last step goes by.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from enum import Enum

from nodeside.errors import NodesideError, NoHeaders
from nodeside.host import Kernel
from nodeside.records import decode, encode

MESSAGE_LIMIT = 4096  # bytes of a termination message that a kubelet keeps
_TEXT_LIMIT = 1000  # characters of each text in it
_PROTOCOL = 1

# Words of a release that name a variant: 5.14.0-427.el9.x86_64+rt, 4.18.0-305.rt7.72.el8.x86_64.
_VARIANT = re.compile(r"(?<=[.+-])(rt|64k|debug)(?=\d|[.+-]|$)")


@dataclass(frozen=True)
class ToolkitKernel:
    """Headers in a toolkit image. `version` is "" where they do not carry it."""

    release: str
    version: str = ""
    signature_hash: str = ""


@dataclass(frozen=True)
class ToolkitKernels:
    """`results/kernels.json`: the kernels that a toolkit image has headers of."""

    boot_id: str
    kernels: tuple[ToolkitKernel, ...]
    protocol: int = _PROTOCOL


@dataclass(frozen=True)
class BuildOrder:
    """`order.json`: what is to be built. `request` is "" if the store has the bundle.

    `to` is where the bundle goes, as `--to` says it; "" for nowhere. `digest` is that of the bundle
    in the store.
    """

    boot_id: str
    kernel: Kernel
    key: str
    tag: str
    to: str = ""
    request: str = ""
    digest: str = ""
    signature_hash: str = ""
    protocol: int = _PROTOCOL


class BuildVerdict(Enum):
    """What a build says about a driver and a kernel."""

    PUBLISHED = "published"  # it builds, and the store has it now
    PRESENT = "present"  # the store had it
    BUILT = "built"  # it builds; nobody asked to publish it
    REFUSED = "refused"  # it does not build: a node would get the same answer
    BROKEN = "broken"  # the build could not be made, which says nothing about the driver


@dataclass(frozen=True)
class BuildOutcome:
    """What a build Job tells the controller, by the termination message of a container."""

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

    @property
    def words(self) -> str:
        """What went wrong, in one line."""
        return self.first_error or self.message.partition("\n")[0] or self.reason


def kernel_variant(release: str) -> str:
    """The variant of a kernel, "" for the plain one: toolkits have one kernel of each."""
    return "-".join(dict.fromkeys(_VARIANT.findall(release)))


def choose_kernel(
    found: ToolkitKernels, *, release: str = "", variant: str | None = None
) -> ToolkitKernel:
    """The kernel to build for: by its release, by its variant, or the only one there is.

    Raises NoHeaders if the toolkit does not have exactly one such, or cannot say which build it is.
    """
    fitting = [
        each
        for each in found.kernels
        if release in ("", each.release) and variant in (None, kernel_variant(each.release))
    ]
    if len(fitting) != 1:
        there = ", ".join(each.release for each in found.kernels) or "no kernel at all"
        wanted = release or (f"one {variant or 'plain'} kernel" if variant is not None else "one")
        raise NoHeaders(
            f"the toolkit image has headers of {there}; asked for {wanted}",
            hint="name the release: --kernel"
            if fitting
            else "use the toolkit image of that kernel",
        )
    if not fitting[0].version:
        raise NoHeaders(
            f"the headers of {fitting[0].release} do not say which build of the kernel they are "
            "of (`uname -v`), which is part of a bundle's key",
            hint="nodes of that kernel have to build for themselves",
        )
    return fitting[0]


def termination_message(outcome: BuildOutcome) -> str:
    """The outcome as a kubelet passes it on, cut to what it keeps."""
    limit = _TEXT_LIMIT
    while True:
        cut = replace(
            outcome,
            message=_cut(outcome.message, limit),
            hint=_cut(outcome.hint, limit),
            first_error=_cut(outcome.first_error, limit),
        )
        said = json.dumps(encode(cut), ensure_ascii=False, sort_keys=True)
        if len(said.encode(errors="replace")) <= MESSAGE_LIMIT:
            return said
        limit //= 2


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def read_message(text: str) -> BuildOutcome | None:
    """The outcome in a termination message; None if it holds none, or more than one can."""
    if len(text) > MESSAGE_LIMIT:
        return None
    try:
        record = json.loads(text)
        return decode(BuildOutcome, record) if isinstance(record, dict) else None
    except (ValueError, RecursionError, NodesideError):
        return None
