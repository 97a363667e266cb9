"""Kernels that a distribution had before its newest one."""

from __future__ import annotations

from nodeside.trial.debian.kernels import AvailableKernel
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.workshop import Workshop


def earlier_kernels(workshop: Workshop, newest: KernelDisk) -> list[AvailableKernel]:
    """Kernels of the same series and flavour that have headers, newest first."""
    available = [kernel for kernel in workshop.available_kernels() if kernel.headers]
    series, flavour = newest.release.split("-")[0], newest.release.split("-", 2)[2]
    names = [kernel.release for kernel in available]
    return [
        kernel
        for kernel in reversed(available[: names.index(newest.release)])
        if kernel.release.startswith(f"{series}-")
        and kernel.release.endswith(f"-{flavour}")
        and kernel.release.count("-") == newest.release.count("-")
    ]
