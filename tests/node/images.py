"""OCI images out of directories, without a daemon, pushed by skopeo.

What `images/*.Containerfile` make of packages is assembled here of the proving ground's root file
systems, which hold the same packages: a layer for each directory, as a plain archive, since a
machine under software emulation takes longer to decompress than to read. What a build of one
module never looks at is left out, for the same reason. Layers are kept in the trial's cache.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nodeside
from nodeside import process
from nodeside.scratch import scratch_directory
from nodeside.trial.cache import digest_of
from nodeside.trial.machine.initramfs import BUSYBOX
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.payload import compile_package
from nodeside.trial.workshop import Workshop
from tests.images.containerfile import settings
from tests.node.configuration import REGISTRY, SANDBOX

_PACK = 300.0  # seconds
_IMAGES = Path(__file__).parents[2] / "images"

# Below /usr/lib/x86_64-linux-gnu: of packages that Debian counts as essential, or of tools that
# nobody calls here.
_LIBRARIES = (
    "gconv/*", "perl*", "libperl*", "libapt*", "libdb-*", "libgnutls*", "libgprofng*", "libkrb5*",
    "libmvec*", "libp11-kit*", "libsepol*", "libunistring*", "lib[alt]san*", "libubsan*",
    "security/*", "gprofng",
)  # fmt: skip
_NEVER = (
    "dev/*", "proc/*", "sys/*", "run/*", "tmp/*", "usr/share/*", "usr/include", "usr/lib/*.a",
    "var/lib/*", "var/cache/*", "var/log/*", "usr/lib/apt", "usr/lib/locale", "usr/lib/systemd",
    "usr/bin/perl*", "usr/bin/dpkg*", "usr/bin/apt*", "usr/bin/gpgv", "usr/lib/terminfo",
    *(f"usr/lib/x86_64-linux-gnu/{name}" for name in _LIBRARIES),
)  # fmt: skip
_NOT_IN_DRIVER = (
    "usr/lib/python3*/pydoc_data",
    "usr/lib/python3*/asyncio",
    "usr/lib/python3*/test",
)
_NOT_IN_TOOLKIT = (
    "usr/bin/*lto-dump*", "usr/bin/*gprofng*", "usr/bin/*-dwp*", "usr/bin/*ld.gold*",
    "usr/bin/*gcov*", "usr/bin/*zstd*", "usr/lib/gcc/*/lto1", "usr/lib/file",
)  # fmt: skip
# Other architectures, and what kbuild made of a configuration to notice its changes.
_NOT_IN_HEADERS = (
    "usr/src/*-common/arch/[a-w]*", "usr/src/*/include/config/[A-Z]*",
    *(f"usr/src/*-common/include/{name}" for name in ("dt-bindings", "drm", "media", "sound")),
)  # fmt: skip

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PAUSE: Mapping[str, Any] = {"Entrypoint": ["/bin/busybox", "sleep", "2147483647"]}


@dataclass(frozen=True)
class Images:
    """Makes the images of the node's pods and pushes them to a registry on loopback.

    `directory` is for layers that are different in each test.
    """

    workshop: Workshop
    registry: str
    directory: Path

    def sandbox(self) -> None:
        """What holds a pod's namespaces."""
        tree = self._tree("pause")
        _copy(BUSYBOX, tree / "bin/busybox")
        self._push(SANDBOX.removeprefix(f"{REGISTRY}/"), _PAUSE, [_pack(tree, self.directory)])

    def driver(self, name: str, content: Path) -> str:
        """A vendor's image: `content` is what is at /driver-image; its pull spec."""
        tree = self._tree(name)
        shutil.copytree(content, tree / "driver-image")
        base = self._cached(self.workshop.roots.driver(), _NOT_IN_DRIVER)
        return self._push(
            name, _settings("driver"), [base, self._nodeside, _pack(tree, self.directory)]
        )

    def toolkit(self, name: str, kernel: KernelDisk) -> str:
        """Compiler and headers of one kernel; its pull spec."""
        root = self.workshop.roots.toolkit(kernel.compiler)
        headers = self._cached(kernel.tree, _NOT_IN_HEADERS)
        layers = [self._cached(root, _NOT_IN_TOOLKIT), headers]
        return self._push(name, _settings("toolkit"), layers)

    @cached_property
    def _nodeside(self) -> Path:
        """What images/driver.Containerfile adds to Debian's packages."""
        tree = self._tree("nodeside")
        package = tree / "usr/lib/python3/dist-packages/nodeside"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(nodeside.__file__).parent, package, ignore=ignored)
        compile_package(package, self.workshop.roots.driver())
        _copy(_IMAGES / "nodeside", tree / "usr/bin/nodeside")
        packed = tree / "usr/lib/nodeside/python"
        packed.parent.mkdir(parents=True)
        process.run(["cp", "-a", self.workshop.packed_python(), packed], timeout=_PACK)
        return _pack(tree, self.directory)

    def _tree(self, name: str) -> Path:
        tree = self.directory / name.replace("/", "-")
        tree.mkdir(parents=True)
        tree.chmod(0o755)
        return tree

    def _cached(self, tree: Path, without: Sequence[str] = ()) -> Path:
        """The layer of a tree in the trial's cache, which never changes."""
        patterns = (*_NEVER, *without)

        def fill(directory: Path) -> None:
            self.workshop.progress.say(f"packing {tree.parent.name} as an image's layer")
            _pack(tree, directory, patterns)

        name = f"{tree.parent.name}-{digest_of(repr(patterns))}"
        made = self.workshop.cache.make("layers", name, fill, needs_mib=512)
        return next(made.iterdir())

    def _push(self, name: str, config: Mapping[str, Any], layers: Sequence[Path]) -> str:
        """Layers that the registry has are not sent again."""
        with scratch_directory("image") as directory:
            _write_layout(directory, config, layers)
            process.run(
                [
                    *("skopeo", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false"),
                    *(f"oci:{directory}:image", f"docker://{self.registry}/{name}"),
                ],
                timeout=_PACK,
                env={"HOME": str(directory)},
            )
        return f"{REGISTRY}/{name}"


def _settings(name: str) -> dict[str, Any]:
    """What the Containerfile says, in the environment that a Debian image gives it."""
    found = settings(_IMAGES / f"{name}.Containerfile")
    return {**found, "Env": [_PATH, *found["Env"]]}


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def _pack(tree: Path, directory: Path, without: Sequence[str] = ()) -> Path:
    """A layer of a tree, in `directory`, named by its digest.

    Times stay as they are: compiled Python is believed only if its source has the recorded one.
    """
    unfinished = directory / ".unfinished"
    process.run(
        [
            *("tar", "--create", "--file", unfinished, "--directory", tree, "--sort=name"),
            *("--numeric-owner", "--format=gnu", "--anchored"),
            *(f"--exclude=./{pattern}" for pattern in without),
            ".",
        ],
        timeout=_PACK,
    )
    with unfinished.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return unfinished.rename(directory / digest)


def _write_layout(directory: Path, config: Mapping[str, Any], layers: Sequence[Path]) -> None:
    """https://github.com/opencontainers/image-spec/blob/main/image-layout.md"""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for layer in layers:
        with suppress(FileExistsError):
            (blobs / layer.name).symlink_to(layer)
    document = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.name}" for layer in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _blob(blobs, document, "application/vnd.oci.image.config.v1+json"),
        "layers": [_described(layer, "application/vnd.oci.image.layer.v1.tar") for layer in layers],
    }
    named = _blob(blobs, manifest, str(manifest["mediaType"]))
    named["annotations"] = {"org.opencontainers.image.ref.name": "image"}
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def _blob(blobs: Path, document: Mapping[str, Any], kind: str) -> dict[str, Any]:
    data = json.dumps(document, sort_keys=True).encode()
    path = blobs / hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    return _described(path, kind)


def _described(path: Path, kind: str) -> dict[str, Any]:
    size = path.stat().st_size
    return {"mediaType": kind, "digest": f"sha256:{path.name}", "size": size}
