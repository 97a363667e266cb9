"""Bundles that others built: from a real registry and over HTTP; good, wrong, broken, stalling.

The machine reaches this host's loopback at 10.0.2.2, where the registry and the web server are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.bundle.archive import pack_bundle
from nodeside.driver.store.base import FetchOptions
from nodeside.driver.store.publish import publish_bundle
from nodeside.spec.model import PrebuiltSource
from nodeside.trial.machine.machine import Machine
from tests.driver.fakes.registry import registry
from tests.driver.fakes.webserver import WebServer, file, silent
from tests.vm.conftest import Kernels, Resume
from tests.vm.forgeries import forged
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import CACHE, SHARED, Pod, whys
from tests.vm.variants import EDU, DriverImage, spec_of

pytestmark = [pytest.mark.vm, pytest.mark.registry]

# Seconds for one source. A good one takes one or two in an emulated machine, on a busy host more.
_PATIENCE = 300
_LITTLE_PATIENCE = 30

# What is on the web server beside a good archive, and what is said of it.
_NOTHING_GOOD = {
    "truncated": "the archive is truncated",
    "altered": "or damaged: ",  # the archive, or the gzip file: as one bit of this build decides
    "empty": "404 for ",
}


@dataclass(frozen=True)
class Places:
    """A registry, its files, and a web server; and what the machine calls them."""

    registry: str
    data: Path
    web: WebServer

    def oci(self, name: str) -> dict[str, Any]:
        """A source of driver.yaml: a repository of the registry."""
        return {"oci": f"{_from_machine(self.registry)}/{name}", "insecure": True}

    def http(self, name: str) -> dict[str, Any]:
        """A source of driver.yaml: a directory of the web server."""
        return {"http": f"http://{_from_machine(self.web.host)}/{name}"}

    @property
    def silent(self) -> dict[str, Any]:
        """A source of driver.yaml: a registry that takes requests and never answers."""
        return {"oci": f"{_from_machine(self.web.host)}/silent", "insecure": True}


def _from_machine(host: str) -> str:
    return f"10.0.2.2:{host.rpartition(':')[2]}"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    data = tmp_path_factory.mktemp("registry")
    with registry(data) as host, WebServer() as web:
        yield Places(host, data, web)


class Vendor:
    """Whoever builds and publishes. All drivers have one source, so that there is one bundle."""

    def __init__(
        self, image: DriverImage, builds: HostBuilds, kernels: Kernels, places: Places
    ) -> None:
        self.image = image
        self.builds = builds
        self.kernels = kernels
        self.places = places
        self.module = builds(image.edu("edu"), kernels.newest).module_path("edu")

    def driver(
        self, name: str, *sources: Mapping[str, Any], patience: int = _PATIENCE, **trust: Any
    ) -> Path:
        """The edu driver with these sources; its build takes no time."""
        prebuilt = {"sources": list(sources), "timeoutSeconds": patience, "trust": trust}
        return self.image.instant(name, self.module, spec={**spec_of(EDU), "prebuilt": prebuilt})

    def offer_in_registry(self, scratch: Path) -> None:
        """A good bundle, whose digest is pinned rightly and wrongly, and one that lies."""
        places, newest = self.places, self.kernels.newest
        good = self.driver("registry", places.oci("good"))
        digest = self.builds.publish(good, newest, f"oci+http:{places.registry}/good")
        self.driver("pinned", places.oci("good"), digests=[digest])
        self.driver("pinned-to-another", places.oci("good"), digests=["sha256:" + "0" * 64])
        other = self.builds(self.image.directory / "edu", self.kernels.different)
        liar = forged(self.builds(good, newest), {"edu": other.module_path("edu")}, scratch)
        repository = PrebuiltSource(oci=f"{places.registry}/other-kernel", insecure=True)
        publish_bundle(liar, repository, FetchOptions())
        self.driver("other-kernel", places.oci("other-kernel"))

    def offer_over_http(self, scratch: Path) -> None:
        """A good archive, damaged ones, none, and a registry that never answers."""
        bundle = self.builds(self.image.directory / "registry", self.kernels.newest)
        pack_bundle(bundle, scratch / "bundle.tar.gz")
        archive = (scratch / "bundle.tar.gz").read_bytes()
        altered = bytearray(archive)
        altered[len(archive) // 2] ^= 1
        offered = {"good": archive, "truncated": archive[:-1000], "altered": bytes(altered)}
        tag, web = bundle.directory.name, self.places.web
        for name, content in offered.items():
            web.on(f"/{name}/{tag}.tar.gz", file(content))
        self.driver("http", self.places.http("good"))
        self.driver("nothing-good", *map(self.places.http, _NOTHING_GOOD))
        web.on(f"/v2/silent/manifests/{tag}", silent)
        silent_first = (self.places.silent, self.places.oci("good"))
        self.driver("stalling", *silent_first, patience=_LITTLE_PATIENCE)


@pytest.fixture(scope="module")
def vendor(image: DriverImage, host_builds: HostBuilds, kernels: Kernels, places: Places) -> Vendor:
    return Vendor(image, host_builds, kernels, places)


@pytest.fixture(scope="module")
def machine(
    resume: Resume, vendor: Vendor, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    scratch = tmp_path_factory.mktemp("bundles")
    vendor.offer_in_registry(scratch)
    vendor.offer_over_http(scratch)
    with resume(vendor.image, network=True) as machine:
        yield machine


@pytest.mark.parametrize("source", ["registry", "http", "pinned"])
def test_a_good_bundle_is_fetched_loaded_and_kept_in_the_cache(pod: Pod, source: str) -> None:
    fetched = pod.run_once(of=source)
    assert fetched["source"] == "fetched"
    assert fetched["state"] == "ready"

    assert pod.driver("unload", of=source).exit_code == 0
    assert pod.run_once(of=source)["source"] == "cached"


def test_what_is_loaded_is_recognised_by_the_manifest_in_the_registry(pod: Pod) -> None:
    assert pod.run_once(of="registry")["source"] == "fetched"
    probes = pod.lines_of_probe()
    pod.node("rm", "-r", CACHE)

    assert pod.run_once(of="registry")["source"] == "loaded"
    assert pod.lines_of_probe() == probes
    assert not pod.exists(f"{CACHE}/edu"), "there was no need to fetch the modules"


def test_where_nothing_good_comes_from_any_source_it_is_built(pod: Pod, places: Places) -> None:
    pod.start_sidecar()

    built = pod.run_once(of="nothing-good")

    assert built["source"] == "built"
    said = whys(built)["fetched"].split("; http")
    assert len(said) == len(_NOTHING_GOOD)
    for (name, why), words in zip(_NOTHING_GOOD.items(), said, strict=True):
        assert f"{_from_machine(places.web.host)}/{name}" in words
        assert why in words


def test_a_bundle_whose_digest_is_not_the_pinned_one_is_not_taken_and_it_is_built(pod: Pod) -> None:
    pod.start_sidecar()

    built = pod.run_once(of="pinned-to-another")

    assert built["source"] == "built"
    assert (
        "which is not among those pinned in spec.prebuilt.trust.digests" in (whys(built)["fetched"])
    )


def test_a_source_that_stalls_costs_its_deadline_and_no_more(pod: Pod) -> None:
    fetched = pod.run_once(of="stalling")

    assert fetched["source"] == "fetched"
    assert fetched["stages"]["fetch"] >= _LITTLE_PATIENCE - 1


def test_modules_of_another_kernel_with_a_manifest_that_lies_are_not_loaded(pod: Pod) -> None:
    pod.start_sidecar()
    pod.until(f"ls {SHARED}/results/symvers-*")

    done = pod.driver("run", "--once", of="other-kernel")

    assert "edu does not fit this kernel's symbols" in done.errors + done.output
    assert done.exit_code == 40
    assert not pod.loaded()


def test_modules_altered_in_the_registry_are_not_used(pod: Pod, places: Places) -> None:
    """Somebody can write to the registry's disk."""
    for blob in places.data.rglob("sha256/*/*/data"):
        content = blob.read_bytes()
        if not content.startswith(b"{"):  # the archive, and not the documents about it
            blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    pod.start_sidecar()

    built = pod.run_once(of="registry")

    assert built["source"] == "built"
    assert "sha256" in whys(built)["fetched"], whys(built)["fetched"]
