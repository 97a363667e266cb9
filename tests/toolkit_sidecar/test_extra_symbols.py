"""The symbols of other drivers, in the order that a kernel's own tools read."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.protocol.build_records import BuildRequest, FailureKind
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.system.host import Kernel
from nodeside.toolkit_sidecar.extra_symbols import write_extra_symbols
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.recipe import build_environment

GIVEN = "0x0000beef\tbend\tstraw\tEXPORT_SYMBOL\tFARM\n0x00000001\tburn\tstraw\tEXPORT_SYMBOL\t\n"


@pytest.mark.parametrize(
    ("of_kernel", "second"),
    [
        ("0x1\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n", "0x00000001\tburn\tstraw\tEXPORT_SYMBOL\t"),
        ("0x1\tprintk\tvmlinux\tEXPORT_SYMBOL\n", "0x00000001\tburn\tstraw\tEXPORT_SYMBOL"),
        ("0x1\tprintk\t\tvmlinux\tEXPORT_SYMBOL\n", "0x00000001\tburn\t\tstraw\tEXPORT_SYMBOL"),
        ("", "0x00000001\tburn\tstraw\tEXPORT_SYMBOL\t"),
    ],
    ids=["since 5.7", "before 5.4", "5.4 to 5.6", "a list that is not there"],
)
def test_a_list_is_written_as_that_of_the_kernel(
    tmp_path: Path, of_kernel: str, second: str
) -> None:
    given, kernels, target = (tmp_path / name for name in ("given", "kernels", "target"))
    given.write_text(GIVEN)
    if of_kernel:
        kernels.write_text(of_kernel)
    write_extra_symbols(given, kernels, target)
    lines = target.read_text().splitlines()
    assert (len(lines), lines[1]) == (2, second)
    assert ("FARM" in lines[0]) == (of_kernel.count("\t") != 3)


def test_symbols_that_are_not_there_fail_the_build(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="symbols of other drivers cannot be read") as caught:
        write_extra_symbols(tmp_path / "given", tmp_path / "kernels", tmp_path / "target")
    assert caught.value.kind is FailureKind.BAD_SOURCE


@pytest.mark.parametrize(("own", "value"), [({}, "{}"), ({"KBUILD_EXTRA_SYMBOLS": "a"}, "a {}")])
def test_a_build_finds_them_beside_its_own(tmp_path: Path, own: dict[str, str], value: str) -> None:
    settings = BuildSettings(BuildKind.KBUILD, ("hay",), environment=own, symbols="0" * 64)
    kernel = Kernel("6.1", "#1", "x86_64")
    request = BuildRequest("0" * 12 + "-1", "hay", "1.0", kernel, "boot", "d", settings, 1.0)
    env = build_environment(request, tmp_path)
    assert env["KBUILD_EXTRA_SYMBOLS"] == value.format(tmp_path / "Module.symvers")
