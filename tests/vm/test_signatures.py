"""Signed modules: on a kernel that loads nothing else, and on one that does not ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeside.driver.module.signing import SigningError, verify_module
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from nodeside.trial.workshop import Workshop
from tests.vm.conftest import Resume, switched_on
from tests.vm.forgeries import forged
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import CACHE, Pod, whys
from tests.vm.variants import SIGNER, DriverImage, SmallModule, own_key

pytestmark = pytest.mark.vm


@pytest.fixture(scope="module")
def drivers(newest: KernelDisk, image: DriverImage, host_builds: HostBuilds) -> DriverImage:
    signing = own_key(image.directory / "key")
    image.edu("unsigned")
    image.edu("signed", {"signing": signing})
    tiny = host_builds(image.small("tiny", SmallModule("tiny")), newest).module_path("tiny")
    image.instant("built", tiny, spec={"signing": signing})
    return image


@pytest.fixture(scope="module")
def machine(resume: Resume, drivers: DriverImage) -> Iterator[Machine]:
    with resume(drivers, devices=()) as machine:
        yield machine


def test_a_kernel_that_enforces_signatures_is_not_even_asked_with_a_wrong_one(
    workshop: Workshop, newest: KernelDisk, drivers: DriverImage, host_builds: HostBuilds
) -> None:
    enforcing = ["module.sig_enforce=1"]
    with switched_on(workshop, newest, drivers, append=enforcing) as machine:
        pod = Pod(machine)
        for name in ("unsigned", "signed"):
            pod.put_bundle(host_builds(drivers.directory / name, newest))
        before = pod.kernel_log()

        unsigned = pod.run_once(of="unsigned", code=40)
        assert unsigned["message"] == (
            "edu: this kernel enforces module signatures (module.sig_enforce); edu.ko is not signed"
        )
        signed = pod.run_once(of="signed", code=40)
        assert signed["message"].startswith(
            "edu: this kernel enforces module signatures (module.sig_enforce); edu.ko is signed by "
            f"{SIGNER} (key id "
        )
        assert signed["message"].endswith("), which is not enrolled")
        assert "mokutil --import" in signed["hint"]
        assert pod.kernel_log() == before
        assert not pod.loaded()


def test_what_the_sidecar_built_is_signed_before_it_is_cached_and_loaded(
    pod: Pod, drivers: DriverImage, tmp_path: Path
) -> None:
    pod.start_sidecar()

    built = pod.run_once(of="built")

    assert built["source"] == "built"
    (cached,) = pod.node("sh", "-c", f"ls {CACHE}/tiny/*/modules/tiny.ko").splitlines()
    module = tmp_path / "tiny.ko"
    module.write_bytes(pod.machine.read_file(cached))
    verify_module(module, drivers.directory / "key" / "certificate.pem")
    from_sidecar = tmp_path / "unsigned.ko"
    from_sidecar.write_bytes((drivers.directory / "built" / "src" / "module.bin").read_bytes())
    with pytest.raises(SigningError, match="not signed; expected a signature by"):
        verify_module(from_sidecar, drivers.directory / "key" / "certificate.pem")


def test_with_a_key_configured_nothing_else_is_loaded_from_the_cache(
    pod: Pod, host_builds: HostBuilds, newest: KernelDisk, drivers: DriverImage, tmp_path: Path
) -> None:
    """Somebody put an unsigned module into the cache, with a manifest that fits it."""
    signed = host_builds(drivers.directory / "signed", newest)
    unsigned = host_builds(drivers.directory / "unsigned", newest)
    pod.put_bundle(forged(signed, {"edu": unsigned.module_path("edu")}, tmp_path))

    refused = pod.report("load", of="signed", code=31)

    expected = f"edu.ko: not signed; expected a signature by {SIGNER}"
    assert expected in whys(refused)["cached"]
    assert not pod.loaded()
