"""Bundles for tests, small and with any bytes for modules; and entries of hostile archives."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

from nodeside.driver.bundle.bundle import Bundle, write_bundle
from nodeside.driver.bundle.manifest import BundleManifest, BundleModule, canonical_bytes
from nodeside.driver.store.base import WantedBundle
from nodeside.protocol.build_records import Toolchain
from nodeside.protocol.bundle_key import BuildKind, BuildSettings, bundle_key, store_tag
from nodeside.system.host import Kernel

KERNEL = Kernel("6.1.0-50-cloud-amd64", "#1 SMP Debian 6.1.192-2 (2026-11-16)", "x86_64")
SETTINGS = BuildSettings(BuildKind.KBUILD, ("edu", "edu_dma"))
KEY = bundle_key("5" * 64, SETTINGS, KERNEL)
TAG = store_tag("1.2.0", KERNEL, KEY)
WANTED = WantedBundle("edu", "1.2.0", KERNEL, KEY)
CREATED = "2026-11-21T11:00:00+00:00"


def bundle_module(name: str, content: bytes, *, signer: str = "") -> BundleModule:
    return BundleModule(
        name=name,
        file=f"modules/{name}.ko",
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        build_id="ab" * 20,
        srcversion="",
        vermagic=f"{KERNEL.release} SMP preempt mod_unload modversions",
        depends=(),
        imports={"module_layout": "0x0badcafe", "printk": ""},
        exports={},
        weak_imports={},
        license="GPL",
        import_namespaces=(),
        signer=signer,
    )


def sample_bundle(
    directory: Path,
    *,
    contents: Mapping[str, bytes] | None = None,
    kernel: Kernel = KERNEL,
    driver: str = "edu",
    key: str = KEY,
    created: str = CREATED,
    certificate: str = "",
    version: str = "1.2.0",
    sign: Callable[[bytes], bytes] = lambda _: b"",
) -> Bundle:
    """A bundle of two modules at `directory`; `sign` signs its manifest."""
    parts = contents or {"edu": b"\x7fELF edu " * 999, "edu_dma": b"\x7fELF dma"}
    sources = directory.parent / f"sources-{directory.name}"
    for name, content in parts.items():
        _write(sources / f"{name}.ko", content)
    manifest = BundleManifest(
        driver=driver,
        version=version,
        key=key,
        kernel=kernel,
        modules=tuple(bundle_module(name, content) for name, content in parts.items()),
        source_digest="5" * 64,
        settings=SETTINGS,
        toolchain=Toolchain("gcc 12.2.0", kernel.release, "7" * 64),
        certificate=certificate,
        created=created,
    )
    files = {name: sources / f"{name}.ko" for name in parts}
    return write_bundle(directory, manifest, files, signature=sign(canonical_bytes(manifest)))


def tar_entry(
    name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> bytes:
    """One entry of a tar archive, with nothing checked."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), kind, link
    header = info.tobuf(tarfile.GNU_FORMAT)
    return header + content + b"\0" * (-len(content) % 512)


def tar_of(bundle: Bundle) -> bytes:
    """The uncompressed tar of a bundle, without its end."""
    data = io.BytesIO()
    for name in ("manifest.json", *(file.file for file in bundle.manifest.files())):
        data.write(tar_entry(name, (bundle.directory / name).read_bytes()))
    return data.getvalue()


END = b"\0" * 1024


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
