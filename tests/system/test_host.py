"""All paths of the node hang off one root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeside.errors import SystemRefused
from nodeside.system.host import Host

READ = ("boot_id", "kernel")  # what is read there, and no path


def test_every_path_is_below_the_root() -> None:
    """Also one that comes later; and each is what it was, since pods mount it."""
    names = [name for name, kind in vars(Host).items() if isinstance(kind, property)]
    found = {name: getattr(Host(Path("/host")), name) for name in names if name not in READ}
    assert found == {
        "sys": Path("/host/sys"),
        "proc": Path("/host/proc"),
        "dev": Path("/host/dev"),
        "sys_module": Path("/host/sys/module"),
        "run": Path("/host/run/nodeside"),
        "locks": Path("/host/run/nodeside-locks"),
        "cache": Path("/host/var/lib/nodeside/cache"),
        "userspace": Path("/host/var/lib/nodeside/userspace"),
        "loading": Path("/host/var/lib/nodeside/loading"),
    }
    assert Host(Path("/host")).lib_modules("6.1") == Path("/host/lib/modules/6.1")


def test_a_link_of_the_host_is_followed_below_its_root(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    absolute, relative, plain = (tmp_path / "lib" / name for name in ("a", "r", "p"))
    absolute.symlink_to("/usr/src/headers")
    relative.symlink_to("headers")

    host = Host(tmp_path)

    assert host.resolve_link(absolute) == tmp_path / "usr/src/headers"
    assert host.resolve_link(relative) == tmp_path / "lib/headers"
    assert host.resolve_link(plain) == plain


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
