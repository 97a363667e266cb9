"""Where the running kernel has symbols: lines as a real kernel and depmod write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.driver.node.exports import RunningExports, read_exports
from nodeside.system.host import Host
from tests.driver.fakes.kernel import RELEASE, FakeKernel, FakeModule, write

IMAGE = """\
0000000000000000 A fixed_percpu_data
0000000000000000 T printk
0000000000000000 t local_of_the_image
"""
DATA = "0000000000000000 D init_task\n"
MODULES = """\
0000000000000000 t start\t[provider]
0000000000000000 T frob_get\t[provider]
0000000000000000 r __ksymtab_frob_get\t[provider]
0000000000000000 t frob_put\t[provider]
0000000000000000 r __kstrtab_frob_lock\t[provider]
0000000000000000 r __kstrtabns_frob_lock\t[provider]
0000000000000000 r __ksymtab_frob_lock\t[provider]
0000000000000000 r __crc_frob_lock\t[provider]
0000000000000000 t __pfx_frob_lock\t[provider]
0000000000000000 t frob_lock\t[provider]
0000000000000000 u frob_lock\t[straw]
0000000000000000 u video_call\t[straw]
0000000000000000 T ib_register\t[ib_core]
0000000000000000 t nothing\t[ib_core]
0000000000000000 T old_call\t[straw]
0000000000000000 t ftrace_trampoline\t[__builtin__ftrace]
"""
OF_TREE = """\
# Aliases for symbols, used by symbol_request().
alias symbol:video_call videodev
alias symbol:ib_register ib_core
"""
ASKED = frozenset(
    {"printk", "frob_get", "frob_lock", "local_of_the_image", "video_call", "nothing"}
)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    kernel = FakeKernel(tmp_path)
    kernel.add("provider", FakeModule(taint=" (OE)"))
    kernel.add("ib_core", FakeModule(taint=""))
    kernel.add("straw", FakeModule(taint=" (OE)"))
    write(kernel.host.proc / "kallsyms", IMAGE + DATA + MODULES)
    write(kernel.host.lib_modules(RELEASE) / "modules.symbols", OF_TREE)
    return kernel.host


def test_only_what_is_exported_is_found_with_its_module(host: Host) -> None:
    """frob_lock is an EXPORT_SYMBOL_GPL, so that its letter is a small one."""
    assert read_exports(host, ASKED) == RunningExports(
        loaded={"frob_get": "provider", "frob_lock": "provider"},
        in_tree={"video_call": "videodev"},
        image=frozenset({"printk"}),
        out_of_tree=frozenset({"provider", "straw"}),
        complete=True,
    )


def test_small_letter_without_a_label_in_a_module_of_others_may_be_an_export(host: Host) -> None:
    found = read_exports(host, {"frob_put", "nothing"})

    assert not found.loaded
    assert found.unclear == {"frob_put"}
    assert (found.has_symbol("frob_put"), found.has_symbol("nothing")) == (True, False)
    assert read_exports(host, {"frob_put"}, {"provider"}).unclear == frozenset()


def test_symbols_of_modules_that_leave_do_not_count(host: Host) -> None:
    found = read_exports(host, {"old_call", "ib_register"}, {"straw", "ib_core"})

    assert (found.loaded, found.in_tree) == ({}, {})
    assert found.out_of_tree == {"provider"}


def test_list_without_data_does_not_tell_what_is_not_there(host: Host) -> None:
    """A kernel without CONFIG_KALLSYMS_ALL lists functions only, and so no label of an export."""
    functions = [line for line in (IMAGE + MODULES).splitlines(True) if " r " not in line]
    write(host.proc / "kallsyms", "".join(functions))

    found = read_exports(host, ASKED)

    assert found.loaded == {"frob_get": "provider"}
    assert found.unclear == {"frob_lock"}
    assert not found.complete


def test_kernel_without_a_list_tells_nothing(host: Host) -> None:
    (host.proc / "kallsyms").unlink()

    found = read_exports(host, ASKED)

    assert (found.loaded, found.image, found.complete) == ({}, frozenset(), False)


def test_tree_whose_symbols_are_not_listed_does_not_tell_what_is_not_there(host: Host) -> None:
    (host.lib_modules(RELEASE) / "modules.symbols").unlink()
    assert read_exports(host, ASKED).complete  # nor can a module of it be loaded

    write(host.lib_modules(RELEASE) / "modules.dep", "kernel/videodev.ko:\n")
    assert not read_exports(host, ASKED).complete
