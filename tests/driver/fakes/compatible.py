"""A bundle for another kernel that fits this one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nodeside.system.host import Kernel
from tests.driver.fakes.kernel import write, write_bytes
from tests.driver.fakes.node import FakeNode, module_bytes

OTHER = Kernel("6.0.0-other", "#1 SMP", "x86_64")


def compatible(
    node: FakeNode, crc: int = 0x1234, *, more: Mapping[str, int] = MappingProxyType({})
) -> None:
    """A bundle of the same source for another kernel, and this kernel's symbols.

    It imports `more` symbols that this kernel has not.
    """
    here = Kernel(OTHER.release, OTHER.version, node.host.kernel.architecture)
    task = node.task(here, reuse="crc")
    versions = {"printk": 0x1234, "module_layout": 0x1, **more}
    node.put_bundle(
        task, {"straw": module_bytes("straw", release=OTHER.release, versions=versions)}
    )
    symbols = f"{crc:#010x}\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n"
    symbols += "0x00000001\tmodule_layout\tvmlinux\tEXPORT_SYMBOL\t\n"
    write(node.host.lib_modules("6.1.0-test") / "build/Module.symvers", symbols)
    write_bytes(
        node.host.lib_modules("6.1.0-test") / "kernel/some.ko",
        module_bytes("some", versions={"printk": 1}),
    )
