"""What a load means for modules of the kernel's tree, told before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.kernel.in_tree_effects import (
    find_shut_out_users,
    in_tree_notes,
    requested_parameters_in_tree,
    shut_out_notes,
)
from nodeside.driver.module.modulefile import ModuleFile, read_module
from nodeside.driver.node.facts import KernelFacts
from tests.driver.fakes.kernel import RELEASE, write, write_bytes
from tests.driver.fakes.node import ElfKernel, module_bytes


@pytest.fixture
def kernel(tmp_path: Path) -> ElfKernel:
    return ElfKernel(tmp_path)


def own(kernel: ElfKernel, name: str, *softdeps: str, **more: object) -> ModuleFile:
    path = write_bytes(kernel.host.root / f"own/{name}.ko", module_bytes(name, **more))  # type: ignore[arg-type]
    return replace(read_module(path), softdeps=softdeps)


def test_parameters_of_needed_modules_are_told_with_who_asks_for_them(kernel: ElfKernel) -> None:
    tree = kernel.host.lib_modules(RELEASE)
    write(tree / "modules.dep", "core.ko: lib.ko\nlib.ko:\nextra.ko:\nloaded.ko:\n")
    write(kernel.host.proc / "cmdline", 'lib.size=3 core.label="a b" loaded.x=1')
    lines = (
        "options core fast label=c\noptions lib size=2\ninstall lib /bin/sh -c 'rm -rf /'\n"
        "options edu a=1\nblacklist edu\nblacklist extra\n"
    )
    write(kernel.host.proc / "1/root/etc/modprobe.d/site.conf", lines)
    kernel.add("loaded")
    edu = own(kernel, "edu", "pre: extra absent")

    assert in_tree_notes(kernel.host, [edu], {"edu": ("core", "loaded")}) == (
        (
            "edu: the host's modprobe.d has options for it (a=1), which it is not given: set "
            "spec.modules[].parameters in driver.yaml"
        ),
        "edu: the host's modprobe.d has it in blacklist; it is loaded all the same",
        "lib: size=3 (the kernel's command line)",
        ("lib: the host's modprobe.d has `install lib /bin/sh -c 'rm -rf /'`, which is not run"),
        "core: fast (the host's modprobe.d)",
        "core: label=a b (the kernel's command line)",
        ("extra, a soft dependency, is not loaded: the host's modprobe.d has it in blacklist"),
    )


def test_each_parameter_of_the_tree_has_its_source(kernel: ElfKernel) -> None:
    tree = kernel.host.lib_modules(RELEASE)
    write(tree / "modules.dep", "core.ko: lib.ko\nlib.ko:\n")
    write(kernel.host.proc / "cmdline", "lib.size=3")
    lines = "options core fast label=c\noptions lib size=2 x=\x1b[2J\noptions absent a=1\n"
    write(kernel.host.proc / "1/root/etc/modprobe.d/site.conf", lines)

    assert [
        each.in_words() for each in requested_parameters_in_tree(kernel.host, ["core", "absent"])
    ] == [
        "lib: size=3 (the kernel's command line)",
        "lib: x=\\x1b[2J (the host's modprobe.d)",
        "core: fast=y (the host's modprobe.d)",
        "core: label=c (the host's modprobe.d)",
    ]
    many = " ".join(f"p{i}=1" for i in range(5000))
    write(kernel.host.proc / "1/root/etc/modprobe.d/site.conf", f"options core {many}\n")
    assert len(requested_parameters_in_tree(kernel.host, ["core"])) == 256


def test_a_node_without_modprobe_d_and_without_a_tree_has_nothing_to_tell(
    kernel: ElfKernel,
) -> None:
    assert in_tree_notes(kernel.host, [own(kernel, "edu")], {"edu": ()}) == ()


USER = ModuleFile(Path("ib.ko"), "ib", imports={"core_get": 0x11, "printk": 0x1})
CORE = ModuleFile(Path("core.ko"), "core", exports={"core_get": 0x11})
OF_TREE = {"core_get": "core", "core_put": "core"}


def test_users_that_the_kernel_would_refuse() -> None:
    other = replace(CORE, exports={"core_get": 0x22})
    gone = replace(CORE, exports={"core_put": 0x1})
    weak = replace(USER, imports={}, weak_imports={"core_get": 0x11})
    shut = ("core_get",)

    assert find_shut_out_users([CORE], [USER], OF_TREE, modversions=True) == {}
    assert find_shut_out_users([other], [USER], OF_TREE, modversions=True) == {"ib": shut}
    assert find_shut_out_users([other], [USER], OF_TREE, modversions=False) == {}
    assert find_shut_out_users([gone], [USER], OF_TREE, modversions=False) == {"ib": shut}
    assert find_shut_out_users([gone], [weak], OF_TREE, modversions=True) == {}
    assert find_shut_out_users([other], [weak], OF_TREE, modversions=True) == {"ib": shut}
    sibling = replace(USER, name="ib")
    assert find_shut_out_users([other, sibling], [USER], OF_TREE, modversions=True) == {}


def test_users_of_a_replaced_core_are_named_before_the_load(kernel: ElfKernel) -> None:
    tree = kernel.host.lib_modules(RELEASE)
    dep = "core.ko:\nib.ko: core.ko\nen.ko: core.ko\nfar.ko: ib.ko core.ko\nelse.ko:\n"
    write(tree / "modules.dep", dep)
    write(tree / "modules.symbols", "alias symbol:core_get core\nalias symbol:core_put core\n")
    for name, imports in (("ib", "core_get"), ("en", "core_put"), ("far", "ib_get")):
        write_bytes(tree / f"{name}.ko", module_bytes(name, imports=(imports,)))
    facts = KernelFacts(kernel.host.kernel)

    whole = own(kernel, "core", exports=("core_get", "core_put"))
    assert shut_out_notes(kernel.host, [whole], facts) == ()
    assert shut_out_notes(kernel.host, [own(kernel, "edu")], facts) == ()
    assert shut_out_notes(kernel.host, [own(kernel, "core", exports=("core_put",))], facts) == (
        (
            "core of this driver takes the place of the kernel's, and the kernel's ib cannot be "
            "loaded beside it: this driver exports core_get with another CRC, or not at all"
        ),
    )


def test_a_user_that_cannot_be_read_stops_nothing(kernel: ElfKernel) -> None:
    tree = kernel.host.lib_modules(RELEASE)
    write(tree / "modules.dep", "core.ko:\nib.ko: core.ko\n")
    notes = shut_out_notes(kernel.host, [own(kernel, "core")], KernelFacts(kernel.host.kernel))

    assert len(notes) == 1
    assert notes[0].startswith("the modules that use the kernel's core cannot be read: ")
