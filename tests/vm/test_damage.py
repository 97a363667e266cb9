"""Caches that hold the wrong thing or are full: none of it is loaded, nothing is half written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeside.trial.machine.machine import Machine
from tests.vm.conftest import Give, Kernels, Resume
from tests.vm.forgeries import forged
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import CACHE, SHARED, Pod, whys
from tests.vm.variants import DriverImage, SmallModule

pytestmark = pytest.mark.vm


@pytest.fixture(scope="module")
def machine(
    resume: Resume, kernels: Kernels, image: DriverImage, host_builds: HostBuilds
) -> Iterator[Machine]:
    image.edu("edu")
    store = image.directory / "store"
    image.edu("prebuilt", {"prebuilt": {"sources": [{"directory": "../store"}]}})
    host_builds.publish(image.directory / "prebuilt", kernels.newest, str(store))
    tiny = image.small("tiny", SmallModule("tiny"))
    image.instant("instant", host_builds(tiny, kernels.newest).module_path("tiny"))
    with resume(image) as machine:
        yield machine


@contextmanager
def small_disk(pod: Pod, place: str, kib: int) -> Iterator[None]:
    """A file system of that size at a place of the node."""
    pod.node("mkdir", "-p", place)
    pod.node("mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=755", "small", place)
    pod.end_containers()
    try:
        yield
    finally:
        pod.end_containers()
        pod.node("umount", place)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("truncate -s 4096 {}/modules/edu.ko", id="truncated"),
        pytest.param(
            "printf X | dd of={}/modules/edu.ko bs=1 seek=9000 conv=notrunc", id="altered"
        ),
        pytest.param("rm {}/modules/edu.ko", id="incomplete"),
        pytest.param("echo '{{' > {}/manifest.json", id="no manifest"),
        pytest.param("ln -sf /etc/passwd {}/modules/more.ko", id="a link in it"),
    ],
)
def test_a_damaged_bundle_is_set_aside_and_another_one_fetched(
    pod: Pod, give: Give, damage: str
) -> None:
    tag = give("prebuilt").directory.name
    pod.node("sh", "-c", damage.format(f"{CACHE}/edu/{tag}"))

    done = pod.driver("run", "--once", "--output", "json", of="prebuilt")

    assert "a damaged bundle was set aside" in done.errors
    fetched = json.loads(done.output)
    assert fetched["source"] == "fetched"
    assert whys(fetched)["cached"].startswith("no bundle ")
    assert pod.node("sh", "-c", f"ls {CACHE}/edu") == f"{tag}\n"


def test_modules_of_another_kernel_under_this_key_are_refused_by_their_symbols(
    pod: Pod, image: DriverImage, host_builds: HostBuilds, kernels: Kernels, tmp_path: Path
) -> None:
    """Without the kernel's list of symbols it is the kernel that refuses them."""
    here = host_builds(image.directory / "edu", kernels.newest)
    there = host_builds(image.directory / "edu", kernels.different)
    pod.put_bundle(forged(here, {"edu": there.module_path("edu")}, tmp_path))

    by_kernel = pod.run_once(of="edu", code=41)
    assert by_kernel["reason"] == "SymbolVersion"
    assert "it was built against another kernel" in by_kernel["message"]
    assert "] edu: disagrees about version of symbol" in by_kernel["message"]

    pod.start_sidecar()
    pod.until(f"ls {SHARED}/results/symvers-*")
    before = pod.kernel_log()
    by_us = pod.run_once(of="edu", code=40)
    assert by_us["message"].startswith("edu: edu does not fit this kernel's symbols: ")
    assert pod.kernel_log() == before


def test_a_full_cache_is_told_and_holds_no_half_bundle(pod: Pod) -> None:
    with small_disk(pod, CACHE, kib=16):
        full = pod.run_once(of="prebuilt", code=51)
        assert full["reason"] == "NoSpace"
        assert full["retryable"]
        assert "no space left writing /host/var/lib/nodeside/cache" in full["message"]
        assert pod.node("find", CACHE, "-type", "f") == ""
        assert not pod.loaded()

    assert pod.run_once(of="prebuilt")["source"] == "fetched"


def test_a_shared_directory_that_is_full_is_told_by_whoever_meets_it(pod: Pod) -> None:
    with small_disk(pod, SHARED, kib=128 << 10):
        pod.start_sidecar()
        fill = f"dd if=/dev/zero of={SHARED}/filler bs=1k count={{}} 2>/dev/null; true"
        free = int(pod.node("sh", "-c", f"df -k {SHARED} | awk 'END {{ print $4 }}'"))

        # Room for a request, none for a build: the sidecar says so.
        pod.node("sh", "-c", fill.format(free - (6 << 10)))
        by_sidecar = pod.run_once(of="instant", code=51)
        assert by_sidecar["reason"] == "DiskFull"
        assert by_sidecar["retryable"]
        assert "no space left in /shared" in by_sidecar["message"]

        # Not even room for the source: the driver says so, and leaves no half of it.
        pod.kill_sidecar()
        pod.node("sh", "-c", f"rm -rf {SHARED}/source/* {SHARED}/requests/* {SHARED}/out/*")
        pod.node("sh", "-c", f"dd if=/dev/zero of={SHARED}/more bs=1k 2>/dev/null; true")
        by_driver = pod.run_once(of="instant", code=51)
        assert by_driver["reason"] == "NoSpace"
        assert "no space left writing /shared/source/" in by_driver["message"]
        assert pod.node("find", f"{SHARED}/source", "-type", "f") == ""

        pod.node("rm", f"{SHARED}/filler", f"{SHARED}/more")
        pod.start_sidecar()
        assert pod.run_once(of="instant")["source"] == "built"
