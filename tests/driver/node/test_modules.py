from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.driver.node.modules import KernelModules, parse_modules
from nodeside.errors import SystemRefused
from nodeside.system.host import Host
from tests.driver.fakes.kernel import RELEASE, FakeKernel, FakeModule, write

PROC_MODULES = """\
edu 16384 0 - Live 0xffffffffc0a5e000 (OE)
videodev 270336 2 v4l2loopback,uvcvideo, Live 0xffffffffc09a1000
stay 16384 0 [permanent], Live 0xffffffffc0a5a000 (O)
held 16384 1 edu,[permanent], Live 0x0
leaving 16384 0 - Unloading 0xffffffffc0a00000 (OE-)
coming 16384 1 - Loading 0xffffffffc0a00000 (OE+)
"""


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def test_rows_of_proc_modules_are_understood() -> None:
    states = parse_modules(PROC_MODULES)

    assert states["edu"].taint == "OE"
    assert states["edu"].holders == ()
    assert not states["edu"].permanent
    assert states["videodev"].refcnt == 2
    assert states["videodev"].holders == ("v4l2loopback", "uvcvideo")
    assert states["stay"].permanent
    assert states["stay"].holders == ()
    assert states["held"].permanent
    assert states["held"].holders == ("edu",)
    assert states["leaving"].initstate == "going"
    assert states["leaving"].taint == "OE"
    assert states["coming"].initstate == "coming"


def test_a_kernel_that_cannot_unload_has_only_permanent_modules() -> None:
    (state,) = parse_modules("edu 16384 - - Live 0x0\n").values()

    assert state.permanent
    assert state.refcnt == 0


def test_a_loaded_module_is_known_by_its_build_id(kernel: FakeKernel) -> None:
    kernel.add("edu", FakeModule(build_id="ab" * 20))

    state = KernelModules(kernel.host).state("edu")

    assert state is not None
    assert state.build_id == "ab" * 20
    assert state.initstate == "live"


def test_a_dash_in_a_name_is_an_underscore(kernel: FakeKernel) -> None:
    kernel.add("nat_rtsp")

    state = KernelModules(kernel.host).state("nat-rtsp")

    assert state is not None
    assert state.name == "nat_rtsp"


def test_only_parameters_that_can_be_read_are_shown(kernel: FakeKernel) -> None:
    kernel.add("edu")
    parameters = kernel.host.sys_module / "edu/parameters"
    write(parameters / "debug", "Y\n")
    (parameters / "secret").mkdir()  # cannot be read, whoever runs the test

    state = KernelModules(kernel.host).with_parameters("edu")

    assert state is not None
    assert state.parameters == {"debug": "Y"}


def test_a_module_that_vanishes_between_two_reads_is_read_again(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.add("edu")
    kernel.add("other")
    modules = KernelModules(kernel.host)
    stale = modules.rows()
    kernel.delete_module("edu")
    answers = [stale]
    monkeypatch.setattr(
        KernelModules,
        "rows",
        lambda self: (
            answers.pop() if answers else parse_modules((self.host.proc / "modules").read_text())
        ),
    )

    assert modules.state("edu") is None
    assert not answers


def test_a_built_in_driver_with_parameters_is_not_a_loaded_module(kernel: FakeKernel) -> None:
    write(kernel.host.sys_module / "virtio_pci/parameters/force_legacy", "N\n")
    modules = KernelModules(kernel.host)

    assert modules.state("virtio_pci") is None
    assert modules.is_built_in("virtio_pci")


def test_a_built_in_driver_without_parameters_is_found_in_modules_builtin(
    kernel: FakeKernel,
) -> None:
    write(kernel.host.lib_modules(RELEASE) / "modules.builtin", "kernel/fs/ext4/ext4.ko\n")
    kernel.add("edu")
    modules = KernelModules(kernel.host)

    assert modules.is_built_in("ext4")
    assert not modules.is_built_in("edu")
    assert not modules.is_built_in("absent")


def test_a_kernel_without_modules_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SystemRefused, match=r"cannot read .*/proc/modules") as caught:
        KernelModules(Host(tmp_path)).rows()

    assert "mount the host's /proc at /host/proc" in caught.value.hint
