"""The key of a bundle: everything that determines the result of a build.

Stdlib only: the toolkit sidecar uses it too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from nodeside.system.host import Kernel
from nodeside.values import frozen


class BuildKind(Enum):
    """The build system of a source."""

    KBUILD = "kbuild"
    DKMS = "dkms"
    COMMAND = "command"


@frozen
class BuildSettings:
    """Everything apart from source and kernel that determines the result of a build.

    `directory` is the build directory, relative to the source. `patches` are files in the source,
    applied with `patch -p1` in order. `command` is an argv for `BuildKind.COMMAND`. `modules` are
    the names of the modules that the build must produce, in load order. `symbols` is the digest of
    what the modules of other drivers export (`spec.after`), "" for none.
    """

    kind: BuildKind
    modules: tuple[str, ...]
    directory: str = "."
    make_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    symbols: str = ""


def bundle_key(
    source_digest: str, settings: BuildSettings, kernel: Kernel, certificate_digest: str = ""
) -> str:
    """Return the key of a bundle, 64 hex digits; computable without a toolkit.

    Different builds (`uname -v`) of one kernel release have different keys, and so do different
    signing certificates. `certificate_digest` is the sha256 of the DER, empty if unsigned.
    """
    inputs = {
        "source": source_digest,
        "kind": settings.kind.value,
        "modules": list(settings.modules),
        "directory": settings.directory,
        "make_arguments": list(settings.make_arguments),
        "environment": dict(settings.environment),
        "patches": list(settings.patches),
        "command": list(settings.command),
        "release": kernel.release,
        "version": kernel.version,
        "architecture": kernel.architecture,
        "certificate": certificate_digest,
    }
    if settings.symbols:  # a driver that stands alone keeps the key that it has always had
        inputs["symbols"] = settings.symbols
    canonical = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def store_tag(version: str, kernel: Kernel, key: str) -> str:
    """Return a bundle's tag in a store and its directory name in a cache (OCI allows no `+`)."""
    tag = f"{version}-{kernel.release}-{kernel.architecture}-{key[:12]}"
    return re.sub(r"[^A-Za-z0-9_.-]", "_", tag)


# Matches such a tag. A file with such a name in a source was put there by nodeside.
STORE_TAG = re.compile(
    r"[A-Za-z0-9_.-]+-[A-Za-z0-9_.-]+-(x86_64|aarch64|ppc64le|s390x|riscv64|armv7l|i686)-[0-9a-f]{12}"
)
