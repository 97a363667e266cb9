"""Turns the output of a build into a cached bundle: copy, check, sign, pack, adopt into the cache.

The sidecar cannot influence these steps. Its output is copied first, and only the copy is read,
signed (with a key that the sidecar never sees) and used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from nodeside.driver.bundle.bundle import Bundle, write_bundle
from nodeside.driver.bundle.manifest import (
    BundleError,
    BundleManifest,
    canonical_bytes,
    describe_module,
)
from nodeside.driver.handoff.artifacts import copy_modules
from nodeside.driver.ladder.task import Task
from nodeside.driver.ladder.usable import missing_modules
from nodeside.driver.module.elf import NotAModule
from nodeside.driver.module.load_order import in_load_order
from nodeside.driver.module.modulefile import ModuleFile, read_modules
from nodeside.protocol.build_records import BuildResult
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.files import UntrustedFile


def assemble_bundle(task: Task, shared: SharedDir, result: BuildResult) -> Bundle:
    """Make a bundle from the output of a build and return it from the cache.

    Raises BundleError if the output cannot be used; SigningError, NoSpace, SystemRefused.
    """
    try:
        with task.cache.staging_directory() as staging:
            raw = staging / "raw"
            raw.mkdir()
            modules = _copy_built_modules(task, shared, result, raw)
            if task.signing is not None:
                _sign_modules(task, modules.values())
            manifest = _make_manifest(task, result, modules)
            signature = _sign_manifest(task, manifest)
            bundle = write_bundle(staging / "bundle", manifest, modules, signature=signature)
            return task.cache.adopt_bundle(bundle.directory, built_here=True)
    except (UntrustedFile, BundleError, NotAModule) as error:
        refusal = BundleError(f"the build output cannot be used: {error}", hint=error.hint)
        refusal.reason = error.reason
        raise refusal from error


def _copy_built_modules(
    task: Task, shared: SharedDir, result: BuildResult, raw: Path
) -> Mapping[str, Path]:
    """Copy the built modules; return the copies by name.

    Raises BundleError if a wanted module is missing.
    """
    copies = copy_modules(shared, result, raw)
    if absent := missing_modules(task, copies):
        raise BundleError(
            f"the toolkit delivered {', '.join(sorted(copies)) or 'nothing'}; {absent} is missing"
        )
    return copies


def _sign_modules(task: Task, modules: Iterable[Path]) -> None:
    from nodeside.driver.module.signing import (  # late: most drivers do not sign
        kernel_hash,
        sign_module,
        verify_module,
    )

    assert task.signing is not None
    key, certificate = task.path(task.signing.key), task.path(task.signing.certificate)
    algorithm = task.config.signature_hash or kernel_hash(task.host, task.kernel.release)
    for module in modules:
        sign_module(module, key, certificate, algorithm)
        verify_module(module, certificate)


def _sign_manifest(task: Task, manifest: BundleManifest) -> bytes:
    """Sign the manifest with the key of driver.yaml; b"" without a key."""
    if task.signing is None:
        return b""
    from nodeside.driver.module.signing import sign_manifest

    key, certificate = task.path(task.signing.key), task.path(task.signing.certificate)
    return sign_manifest(canonical_bytes(manifest), key, certificate)


def _make_manifest(task: Task, result: BuildResult, modules: Mapping[str, Path]) -> BundleManifest:
    files = _read_modules(task, modules)
    return BundleManifest(
        driver=task.name,
        version=task.version,
        key=task.key,
        kernel=task.kernel,
        modules=tuple(describe_module(f, f"modules/{f.name}.ko") for f in in_load_order(files)),
        source_digest=task.source_digest,
        settings=task.settings,
        toolchain=result.toolchain,
        certificate=task.certificate,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _read_modules(task: Task, modules: Mapping[str, Path]) -> list[ModuleFile]:
    """Read the wanted modules in the order of driver.yaml, then any others."""
    wanted = list(task.wanted.names)
    order = wanted + sorted(name for name in modules if name not in wanted)
    files = read_modules([modules[name] for name in order])
    for name, file in zip(order, files, strict=True):
        if file.name != name:
            raise BundleError(
                f"the toolkit delivered {name}.ko, but the module's own name is {file.name}"
            )
    return files
