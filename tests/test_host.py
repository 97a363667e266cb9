"""All paths of the node hang off one root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeside.errors import SystemRefused
from nodeside.host import Host


def test_every_path_is_below_the_root() -> None:
    host = Host(Path("/host"))
    assert host.sys_module == Path("/host/sys/module")
    assert host.dev == Path("/host/dev")
    assert host.run == Path("/host/run/nodeside")
    assert host.cache == Path("/host/var/lib/nodeside/cache")
    assert host.lib_modules("6.1") == Path("/host/lib/modules/6.1")


def test_the_kernel_is_read_below_the_root(tmp_path: Path) -> None:
    kernel = tmp_path / "proc" / "sys" / "kernel"
    (kernel / "random").mkdir(parents=True)
    (kernel / "osrelease").write_text("6.1.0-40-amd64\n")
    (kernel / "version").write_text("#1 SMP Debian\n")
    (kernel / "random" / "boot_id").write_text("b-1\n")
    host = Host(tmp_path)
    assert (host.kernel.release, host.kernel.version) == ("6.1.0-40-amd64", "#1 SMP Debian")
    assert host.boot_id == "b-1"


def test_the_running_kernel_is_that_of_uname() -> None:
    found, name = Host().kernel, os.uname()
    assert (found.release, found.version) == (name.release, name.version)


def test_a_proc_that_is_not_mounted_is_explained(tmp_path: Path) -> None:
    with pytest.raises(SystemRefused, match=r"cannot read .*/proc/sys/kernel/random/boot_id") as e:
        _ = Host(tmp_path).boot_id
    assert e.value.hint == "in a pod, mount the host's /proc at /host/proc"
