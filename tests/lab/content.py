"""The images of a lab, as they ship: in a registry, and unpacked on a disk of each node.

To unpack a toolkit of 20,000 files takes an emulated machine longer than to build a driver with it.
So this host's own containerd does it once: its data becomes the disk from which a node's containerd
starts. The kubelet finds the images there, as on a node that has pulled them before.

    <cache>/labs/<architecture>-<digest>/
      registry/data/      of docker-registry
      images.ext4         of containerd, mounted on /var/lib/containerd
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nodeside
from nodeside.errors import DeadlinePassed
from nodeside.system import process
from nodeside.system.scratch import scratch_directory
from nodeside.trial.architecture import Architecture
from nodeside.trial.cache import digest_of, remove_tree
from nodeside.trial.machine import busybox, disks
from nodeside.trial.workshop import Workshop
from tests.driver.fakes.registry import registry
from tests.images.built import AGENT, CONTROLLER, EDU, Engine, engine
from tests.node.configuration import REGISTRY, SANDBOX
from tests.patience import patience

CONTROLLER_IMAGE = f"{REGISTRY}/nodeside/nodeside-cluster:{nodeside.__version__}"
AGENT_IMAGE = f"{REGISTRY}/nodeside/nodeside-agent:{nodeside.__version__}"
EDU_IMAGE = f"{REGISTRY}/drivers/edu:1.0.0"

_PAUSE = "localhost/pause"
_FREE_MIB = 6144  # for what a node pulls later; sparse
_NEEDS_MIB = 4096
_START, _PULL = patience(60.0), patience(600.0)  # seconds
_LOOK = 0.05  # seconds
_CONTAINERFILE = """\
FROM scratch
COPY busybox /bin/busybox
ENTRYPOINT ["/bin/busybox", "sleep", "2147483647"]
"""

_CONTAINERD = """\
version = 3
root = "{tree}"
state = "{directory}/state"
disabled_plugins = [
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
  "io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "{directory}/containerd.sock"
[ttrpc]
  address = "{directory}/containerd.sock.ttrpc"
"""


@dataclass(frozen=True)
class Content:
    """What a lab starts with."""

    directory: Path

    @property
    def disk(self) -> Path:
        """The base of each node's disk of images."""
        return self.directory / "images.ext4"

    def copy_registry(self, directory: Path) -> None:
        """The registry's data, which the lab adds to."""
        process.run(
            ["cp", "-a", "--reflink=auto", self.directory / "registry", directory], timeout=_PULL
        )


def toolkit_image(kernel: str) -> str:
    return f"{REGISTRY}/toolkit:{kernel.replace('+', '_')}"


def make_content(
    workshop: Workshop, kernels: Sequence[str], programs: Mapping[str, Path]
) -> Content:
    """Build the images for the workshop's architecture, and keep what is made of them.

    Older content is removed. `programs` are those of this host's architecture.
    """
    architecture = workshop.architecture
    with engine(workshop.cache) as builder:
        workshop.progress.print_step(
            f"building the images for {architecture.name} that have changed"
        )
        images = _build(builder, kernels, workshop)
        identities = sorted(f"{name} {builder.image_id(tag)}\n" for name, tag in images.items())
        digest = digest_of("".join(identities) + f"{programs['containerd']} {_CONTAINERD}")
        name = f"{architecture.name}-{digest}"
        if not workshop.cache.path("labs", name).exists():
            _remove_older(workshop.cache.directory / "labs", architecture)

        def fill(directory: Path) -> None:
            workshop.progress.print_step("unpacking the images as a node does")
            with registry(directory / "registry") as where:
                for name, tag in images.items():
                    builder.push(tag, f"{where}/{name.removeprefix(f'{REGISTRY}/')}")
                _pull(directory, list(images), where, programs, architecture)
            (directory / "registry" / "config.yml").unlink()

        return Content(workshop.cache.make("labs", name, fill, needs_mib=_NEEDS_MIB))


def _build(builder: Engine, kernels: Sequence[str], workshop: Workshop) -> dict[str, str]:
    """Pull specs, with the names of the images in the engine's storage."""
    architecture = workshop.architecture
    images = {SANDBOX: _pause(builder, workshop)}
    if architecture.is_foreign:
        images[EDU_IMAGE] = builder.edu(architecture)
    else:
        builder.build_all()
        images |= {CONTROLLER_IMAGE: CONTROLLER, AGENT_IMAGE: AGENT, EDU_IMAGE: EDU}
    toolkits = {toolkit_image(each): builder.toolkit(each, architecture) for each in kernels}
    return images | toolkits


def _pause(builder: Engine, workshop: Workshop) -> str:
    with scratch_directory("pause") as directory:
        static = busybox.provide_busybox(workshop.archive, workshop.cache)
        shutil.copyfile(static, directory / "busybox")
        (directory / "busybox").chmod(0o755)
        (directory / "Containerfile").write_text(_CONTAINERFILE)
        name = workshop.architecture.name
        return builder.assemble(f"{_PAUSE}:{name}", directory, platform=f"linux/{name}")


def _remove_older(directory: Path, architecture: Architecture) -> None:
    """No lab uses them: there is one at a time, and it is being started."""
    for entry in directory.glob(f"{architecture.name}-*"):
        remove_tree(entry)


def _pull(
    directory: Path,
    images: Sequence[str],
    where: str,
    programs: Mapping[str, Path],
    architecture: Architecture,
) -> None:
    tree = directory / "tree"
    tree.mkdir(mode=0o711)
    with scratch_directory("containerd") as scratch, _containerd(scratch, tree, programs) as ctr:
        hosts = scratch / "certs.d" / REGISTRY / "hosts.toml"
        hosts.parent.mkdir(parents=True)
        hosts.write_text(f'[host."http://{where}"]\n  capabilities = ["pull", "resolve"]\n')
        for image in images:
            platform = ("--platform", f"linux/{architecture.name}")
            pull = ("images", "pull", "--hosts-dir", hosts.parents[1], *platform, image)
            process.run([*ctr, *pull], timeout=_PULL)
    disks.make_ext4(tree, directory / "images.ext4", label="images", free_mib=_FREE_MIB)
    shutil.rmtree(tree)


@contextmanager
def _containerd(
    scratch: Path, tree: Path, programs: Mapping[str, Path]
) -> Iterator[list[str | Path]]:
    """containerd of this host, in mounts of its own; how to ask it, as the kubelet does."""
    config = scratch / "config.toml"
    config.write_text(_CONTAINERD.format(tree=tree, directory=scratch))
    ctr: list[str | Path] = [programs["ctr"], "--address", scratch / "containerd.sock"]
    with (scratch / "log").open("wb") as log:
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--"]
        child = process.start(
            [*words, programs["containerd"], "--config", config],
            stdout=log,
            stderr=process.INTO_STDOUT,
        )
    try:
        _await_answer([*ctr, "version"], child, scratch / "log")
        yield [*ctr, "--namespace", "k8s.io"]
        child.send_signal(signal.SIGTERM)  # what it has on disk is whole then
        child.wait(_START)
    finally:
        process.kill_group(child.pid)
        child.wait(_START)


def _await_answer(words: Sequence[str | Path], child: process.Child, log: Path) -> None:
    deadline = time.monotonic() + _START
    while process.run(words, timeout=_START, check=False).exit_code != 0:
        if child.poll() is not None or time.monotonic() > deadline:
            said = process.last_lines_of(log.read_text(errors="replace"))
            raise DeadlinePassed(f"containerd of this host did not start\n{said}")
        time.sleep(_LOOK)
