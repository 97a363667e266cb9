from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from nodeside.driver.kernel.errors import LoadFailed
from nodeside.driver.node.intree import NotInTree, read_tree, real_path
from tests.driver.fakes.kernel import RELEASE, FakeKernel, write, write_bytes
from tests.driver.fakes.node import ElfKernel, module_bytes

DEP = """\
kernel/media/mc/mc.ko:
kernel/media/videodev.ko.xz: kernel/media/mc/mc.ko
kernel/usb/uvc-video.ko.gz: kernel/media/videodev.ko.xz kernel/media/mc/mc.ko kernel/fs/built.ko
kernel/media/broken.ko:
"""


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    kernel = FakeKernel(tmp_path)
    tree = kernel.host.lib_modules(RELEASE)
    write(tree / "modules.dep", DEP)
    write(tree / "modules.builtin", "kernel/fs/built.ko\n")
    write(tree / "modules.softdep", "# soft\nsoftdep videodev pre: other\n")
    write(tree / "kernel/media/mc/mc.ko", "mc")
    write_bytes(tree / "kernel/media/videodev.ko.xz", lzma.compress(b"videodev mc"))
    write_bytes(tree / "kernel/usb/uvc-video.ko.gz", gzip.compress(b"uvc_video videodev"))
    return kernel


def test_dependencies_come_first_and_built_in_ones_are_there_already(kernel: FakeKernel) -> None:
    tree = read_tree(kernel.host.lib_modules(RELEASE))

    assert tree.load_order("uvc-video") == ("mc", "videodev", "uvc_video")
    assert tree.load_order("built") == ()
    assert tree.softdeps == {"videodev": "pre: other"}


def test_a_chain_of_any_length_has_an_order(kernel: FakeKernel) -> None:
    tree = kernel.host.lib_modules(RELEASE)
    write(
        tree / "modules.dep", "".join(f"m{n}.ko: m{n + 1}.ko\n" for n in range(1500)) + "m1500.ko:"
    )

    order = read_tree(tree).load_order("m0")

    assert order == tuple(f"m{n}" for n in reversed(range(1501)))


def test_compressed_modules_are_loaded_in_order(kernel: FakeKernel) -> None:
    assert kernel.loader.load_in_tree("uvc_video") == ("mc", "videodev", "uvc_video")
    assert list(kernel.modules) == ["mc", "videodev", "uvc_video"]


def test_soft_dependencies_are_loaded_as_modprobe_does(kernel: FakeKernel) -> None:
    tree = kernel.host.lib_modules(RELEASE)
    write(tree / "modules.dep", f"{DEP}kernel/other.ko:\nkernel/later.ko: kernel/other.ko\n")
    write(tree / "modules.softdep", "softdep videodev pre: other broken post: later built\n")
    write(tree / "kernel/other.ko", "other")
    write(tree / "kernel/later.ko", "later other")
    write(tree / "kernel/media/broken.ko", "broken absent")

    loaded = kernel.loader.load_in_tree("uvc_video")

    assert loaded == ("mc", "other", "videodev", "uvc_video", "later")


def test_modprobe_d_keeps_soft_dependencies_away_and_no_others(kernel: FakeKernel) -> None:
    tree = kernel.host.lib_modules(RELEASE)
    write(tree / "modules.dep", f"{DEP}kernel/other.ko:\nkernel/new.ko:\n")
    for name in ("other", "new"):
        write(tree / f"kernel/{name}.ko", name)
    lines = "blacklist other\nblacklist mc\ninstall mc /bin/false\nsoftdep mc pre: new\n"
    write(kernel.host.root / "etc/modprobe.d/local.conf", lines)

    assert kernel.loader.load_in_tree("videodev") == ("new", "mc", "videodev")


def test_a_soft_circle_loads_what_is_needed_first(kernel: FakeKernel) -> None:
    tree = kernel.host.lib_modules(RELEASE)
    write(tree / "modules.dep", "a.ko: b.ko c.ko\nb.ko:\nc.ko: b.ko\ns.ko: c.ko b.ko\n")
    write(tree / "modules.softdep", "softdep b pre: s\n")

    order = read_tree(tree).soft_order(["a"])

    assert order.index("b") < order.index("c") < order.index("a")
    assert set(order) == {"a", "b", "c", "s"}


def test_options_of_modprobe_d_are_below_the_command_line(tmp_path: Path) -> None:
    kernel = ElfKernel(tmp_path)
    tree = kernel.host.lib_modules(RELEASE)
    write(tree / "modules.dep", "kernel/mc.ko:\n")
    write_bytes(tree / "kernel/mc.ko", module_bytes("mc", parameters=("a", "b")))
    write(kernel.host.proc / "cmdline", "quiet mc.b=boot\n")
    write(kernel.host.root / "etc/modprobe.d/mc.conf", "options mc a=1 b=conf label='x y'\n")

    kernel.loader.load_in_tree("mc")

    assert kernel.loads == ["mc a=1 b=boot label='x"]


def test_what_is_loaded_already_is_left_alone(kernel: FakeKernel) -> None:
    kernel.loader.load_in_tree("videodev")

    assert kernel.loader.load_in_tree("uvc_video") == ("uvc_video",)
    assert kernel.loader.load_in_tree("uvc_video") == ()


def test_the_loaded_module_of_another_driver_is_none_of_the_kernels_and_serves(
    kernel: FakeKernel,
) -> None:
    kernel.add("rdma_of_a_vendor")

    assert kernel.loader.load_in_tree("rdma-of-a-vendor") == ()


def test_a_module_that_this_kernel_has_not_is_named(kernel: FakeKernel) -> None:
    with pytest.raises(NotInTree, match="this kernel has no module drm: it is not in") as caught:
        kernel.loader.load_in_tree("drm")

    assert "linux-modules-extra" in caught.value.hint


def test_a_file_that_is_no_module_is_refused_by_the_kernel(kernel: FakeKernel) -> None:
    write(kernel.host.lib_modules(RELEASE) / "kernel/media/broken.ko", "broken absent")

    with pytest.raises(LoadFailed, match="nothing in the kernel exports absent_call"):
        kernel.loader.load_in_tree("broken")


def test_a_host_whose_modules_are_not_mounted_is_said_so(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)

    with pytest.raises(NotInTree, match=r"cannot read .*/modules\.dep") as caught:
        kernel.loader.load_in_tree("mc")

    assert "mount the host's /lib/modules at /host/lib/modules" in caught.value.hint


def test_an_absolute_link_of_the_host_means_the_hosts_root(kernel: FakeKernel) -> None:
    weak = kernel.host.lib_modules(RELEASE) / "weak-updates/extra.ko"
    real = write(kernel.host.lib_modules("6.1.0-other") / "extra/extra.ko", "extra")
    weak.parent.mkdir()
    weak.symlink_to("/lib/modules/6.1.0-other/extra/extra.ko")

    assert real_path(kernel.host, weak) == real
