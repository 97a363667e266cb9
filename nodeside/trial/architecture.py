"""The architectures that a throwaway machine can have, and how they differ.

Only this module knows more of an architecture than its name. The machine runs under QEMU. Programs
in its root file systems also run on this host: when packages are configured, when Python is packed,
and in a build. Those of another architecture need QEMU's user emulation (`emulation`).
"""

from __future__ import annotations

import platform
from pathlib import Path

from nodeside.errors import UsageError
from nodeside.values import frozen


@frozen
class Architecture:
    """One architecture. `emulated_words` are added to the kernel's command line under TCG."""

    name: str  # Debian's
    machine: str  # `uname -m`
    triplet: str  # the name of the libraries' directory
    loader: str  # the dynamic loader of programs, in that directory
    flavours: tuple[str, ...]  # of kernels; the first is the default

    qemu: str
    qemu_package: str
    qemu_machine: str
    emulated_cpu: str
    console: str
    emulated_words: tuple[str, ...] = ()

    @property
    def default_kernel(self) -> str:
        return self.flavours[0]

    @property
    def ordinary_kernel(self) -> str:
        """The flavour with video, sound, USB and I2C. Debian gives it the architecture's name."""
        return self.name

    @property
    def is_foreign(self) -> bool:
        """Whether this host has another architecture, so that the machine must be emulated."""
        return self.machine != platform.machine()

    @property
    def user_emulation(self) -> str:
        """The name of QEMU's user emulation, for its program and its entry in binfmt_misc."""
        return f"qemu-{self.machine}"

    def libraries(self, root: Path) -> Path:
        """Return the directory of the libraries in a root file system."""
        return root / "usr" / "lib" / self.triplet


AMD64 = Architecture(
    name="amd64",
    machine="x86_64",
    triplet="x86_64-linux-gnu",
    loader="ld-linux-x86-64.so.2",
    flavours=("cloud-amd64", "rt-amd64", "amd64"),
    qemu="qemu-system-x86_64",
    qemu_package="qemu-system-x86",
    qemu_machine="pc",
    # Software emulation without its slow parts: vector string functions, five-level page tables
    # and the checks of supervisor accesses. A build takes three quarters of its time with `max`.
    emulated_cpu="max,-avx,-avx2,-la57,-smap,-smep,-pku",
    console="ttyS0",
    # The kernel does not trust the TSC of several emulated CPUs, although QEMU keeps it monotonic.
    # Without this word, each reading of the clock would be an access to an emulated device.
    emulated_words=("tsc=reliable",),
)
ARM64 = Architecture(
    name="arm64",
    machine="aarch64",
    triplet="aarch64-linux-gnu",
    loader="ld-linux-aarch64.so.1",
    flavours=("cloud-arm64", "rt-arm64", "arm64-16k", "arm64"),
    qemu="qemu-system-aarch64",
    qemu_package="qemu-system-arm",
    # The machine's memory begins at 1 GiB, beyond the 28-bit addresses of QEMU's edu device. So an
    # IOMMU translates them.
    qemu_machine="virt,gic-version=3,iommu=smmuv3",
    # With this CPU the machine boots in 7 s, with `max` in 34 s: that computes a checksum at every
    # function call (pauth). A Cortex-A72 is as fast, but has no 16k pages.
    emulated_cpu="cortex-a76",
    console="ttyAMA0",
)
ARCHITECTURES = {architecture.name: architecture for architecture in (AMD64, ARM64)}


def architecture_named(name: str) -> Architecture:
    """Return an architecture by Debian's name or by `uname -m`. Raises UsageError."""
    for architecture in ARCHITECTURES.values():
        if name in (architecture.name, architecture.machine):
            return architecture
    raise UsageError(
        f"no architecture named {name!r} can be tried",
        hint=f"expected one of {', '.join(ARCHITECTURES)}",
    )
