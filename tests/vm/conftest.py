"""Real kernels in throwaway machines: fixtures of the tier `vm`.

Kernels are found in the archive at run time. What a test does not need to see compiled in the
machine is built on this host, in the toolkit's root file system, once per session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.module.modulefile import read_module
from nodeside.driver.module.symvers import compare_symbols, parse_symvers
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from nodeside.trial.workshop import Workshop
from tests.vm.earlier import earlier_kernels
from tests.vm.hostbuilds import HostBuilds, headers_of
from tests.vm.pod import Pod
from tests.vm.resumed import Resumed, SavedMachine
from tests.vm.variants import EDU, DriverImage
from tests.vm.warm import WarmDriver

# What the command line of the kernel says to modules of these names, which only one file has.
SAID_AT_BOOT = (
    "told.answer=19",
    'told.colour="dark red"',
    "module_blacklist=forbidden",
    'quoted.label=say"a b"',
)


@pytest.fixture(scope="session")
def workshop() -> Iterator[Workshop]:
    with Workshop() as workshop:
        yield workshop


@pytest.fixture(scope="session")
def host_builds(
    workshop: Workshop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HostBuilds]:
    with HostBuilds(workshop, tmp_path_factory.mktemp("host-builds")) as builds:
        yield builds


@dataclass(frozen=True)
class Kernels:
    """The newest cloud kernel, and two earlier ones as the edu driver sees them.

    `equal` is the newest of those whose CRCs are all the same, `different` of those with others.
    """

    newest: KernelDisk
    equal: KernelDisk
    different: KernelDisk


@pytest.fixture(scope="session")
def newest(workshop: Workshop) -> KernelDisk:
    """The newest cloud kernel: it boots fastest."""
    return workshop.kernel("cloud-amd64")


@pytest.fixture(scope="session")
def generic(workshop: Workshop) -> KernelDisk:
    """The newest kernel of the ordinary flavour, with video, sound and all."""
    return workshop.kernel("amd64")


@pytest.fixture(scope="session")
def compressed(workshop: Workshop) -> KernelDisk:
    """A kernel whose in-tree modules are compressed."""
    return workshop.kernel("6.12-cloud-amd64")


@pytest.fixture(scope="session")
def kernels(workshop: Workshop, host_builds: HostBuilds, newest: KernelDisk) -> Kernels:
    """Walk back from the newest kernel until both kinds of neighbour are found."""
    module = read_module(host_builds(EDU, newest).module_path("edu"))
    equal: KernelDisk | None = None
    different: KernelDisk | None = None
    for candidate in earlier_kernels(workshop, newest):
        disk = workshop.kernel(candidate)
        symbols = parse_symvers((headers_of(disk) / "Module.symvers").read_text())
        if compare_symbols([module], symbols):
            different = different or disk
        else:
            equal = equal or disk
        if equal is not None and different is not None:
            return Kernels(newest, equal, different)
    raise AssertionError(f"no earlier kernel with equal and different CRCs beside {newest.release}")


@pytest.fixture(scope="module")
def kernel(newest: KernelDisk) -> KernelDisk:
    """The kernel of the machine that the tests of a file share; a file may have another one."""
    return newest


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> DriverImage:
    """The driver image of a file's tests; filled before the machine is switched on."""
    return DriverImage(tmp_path_factory.mktemp("image"))


@contextmanager
def switched_on(
    workshop: Workshop,
    kernel: KernelDisk,
    image: DriverImage,
    *,
    devices: Sequence[str] = ("edu",),
    append: Sequence[str] = (),
    network: bool = False,
) -> Iterator[Machine]:
    """A node with these drivers, for the tests of a file or for one of them.

    It has one CPU: where nothing is compiled, a second one only makes the emulation slower.
    """
    with (
        workshop.node(kernel, driver_image=image.directory) as node,
        node.boot(devices=devices, append=append, network=network, cpus=1) as machine,
    ):
        yield machine


@pytest.fixture(scope="session")
def saved(workshop: Workshop, newest: KernelDisk) -> Iterator[SavedMachine]:
    with SavedMachine(workshop, newest, SAID_AT_BOOT) as saved:
        yield saved


Resume = Callable[..., AbstractContextManager[Machine]]


@pytest.fixture(scope="session")
def resume(workshop: Workshop, newest: KernelDisk, saved: SavedMachine) -> Resume:
    """`switched_on` with the newest kernel, for tests to which the boot means nothing.

    In emulation the machine is resumed where another one was saved.
    """
    if workshop.accelerator_for(newest) == "tcg":
        return saved.resumed
    return partial(switched_on, workshop, newest, append=SAID_AT_BOOT)


def warm_driver(machine: Machine) -> WarmDriver:
    """The one that was saved with the machine, or a new one."""
    return machine.warm if isinstance(machine, Resumed) else WarmDriver(machine)


@pytest.fixture(scope="module")
def warm(machine: Machine) -> WarmDriver:
    """Where the commands of a file's pods run; it ends with the machine."""
    return warm_driver(machine)


@pytest.fixture
def pod(machine: Machine, warm: WarmDriver) -> Iterator[Pod]:
    """A pod on the machine that the tests of a file share (its fixture `machine`), as if new."""
    pod = Pod(machine, warm)
    pod.reset()
    yield pod
    pod.close()
    assert not machine.splats(), "\n".join(machine.splats())


Give = Callable[..., Bundle]


@pytest.fixture
def give(pod: Pod, image: DriverImage, host_builds: HostBuilds, kernel: KernelDisk) -> Give:
    """Build a driver of the image on this host, and put its bundle into the node's cache."""

    def give(name: str, *, after: Sequence[Bundle] = ()) -> Bundle:
        bundle = host_builds(image.directory / name, kernel, after=after)
        pod.put_bundle(bundle)
        return bundle

    return give
