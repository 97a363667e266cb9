"""Bundle manifests: the modules, their source, their kernel, and the sha256 of every file.

The manifest is canonical JSON, and the sha256 of its bytes is the digest of the bundle, as shown by
`sha256sum manifest.json`. The digest covers every file of the bundle, since the manifest lists each
with its own sha256. If signing is configured, the manifest's bytes are signed
(`signing.sign_manifest`) and the signature is stored next to them. The manifest also tells people
and their tools which kernels the modules fit. Firmware is not part of a bundle: it comes with the
driver image. Nothing here touches the disk.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.build_records import Toolchain
from nodeside.protocol.bundle_key import BuildSettings
from nodeside.protocol.module_names import kernel_name
from nodeside.protocol.records import MalformedRecord, decode, encode
from nodeside.system.host import Kernel
from nodeside.values import frozen

if TYPE_CHECKING:
    from nodeside.driver.module.modulefile import ModuleFile

SCHEMA = 1
MANIFEST_LIMIT = 8 << 20  # bytes; a driver of 100 modules with 500 imports each has about 3 MiB

SIGNATURE_LIMIT = 1 << 16  # bytes; real signatures have 400 to 6,000
MODULES_LIMIT = 2000  # per bundle; a tree of the largest subsystems has about 900

MODULE_FILE = re.compile(r"modules/[A-Za-z0-9_-]{1,55}\.ko")
_MODULE_NAME = re.compile(r"[A-Za-z0-9_]{1,55}")
_TEXT_LIMIT = 1024  # characters; these texts appear in messages and directory names
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+~-]{0,39}")
_DRIVER = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_HEX64 = re.compile(r"[0-9a-f]{64}")
_CRC = re.compile(r"(0x[0-9a-f]{8})?")


class BundleError(NodesideError):
    """A bundle or archive that is damaged, hostile, or not what it claims to be."""

    exit_code = ExitCode.BUNDLE
    reason = "BadBundle"


@frozen
class BundleModule:
    """One module of a bundle. `name` has `_`, never `-`; `file` is relative to the bundle.

    `imports`, `weak_imports` (optional symbols) and `exports` map a symbol to its CRC as `0x%08x`,
    or to "" for a kernel without CONFIG_MODVERSIONS. `signer` is empty for an unsigned module.
    """

    name: str
    file: str
    sha256: str
    size: int
    build_id: str
    srcversion: str
    vermagic: str
    depends: tuple[str, ...]
    imports: Mapping[str, str]
    exports: Mapping[str, str]
    weak_imports: Mapping[str, str]
    license: str
    import_namespaces: tuple[str, ...]
    signer: str


@frozen
class BundleFile:
    """A file listed in the manifest. `file` is relative to the bundle."""

    file: str
    sha256: str
    size: int


@frozen
class BundleManifest:
    """The content of `manifest.json`. `modules` is in load order; `created` is UTC (RFC 3339).

    `certificate` is the sha256 of the signing certificate, "" if the modules are not signed.
    """

    driver: str
    version: str
    key: str
    kernel: Kernel
    modules: tuple[BundleModule, ...]
    source_digest: str
    settings: BuildSettings
    toolchain: Toolchain | None
    certificate: str
    created: str
    schema: int = SCHEMA

    def files(self) -> Iterator[BundleFile]:
        """Yield every file that the manifest lists, which excludes the manifest itself."""
        for module in self.modules:
            yield BundleFile(module.file, module.sha256, module.size)


@frozen
class StoredManifest:
    """A manifest as stored: its exact bytes and its detached signature (CMS in DER, b"" if none).

    Only its form has been checked.
    """

    manifest: BundleManifest
    data: bytes = field(repr=False)
    signature: bytes = field(default=b"", repr=False)

    @property
    def digest(self) -> str:
        return digest_of(self.data)


def describe_module(module: ModuleFile, file: str) -> BundleModule:
    """Return the manifest entry of a module; `file` is its future path in the bundle."""
    return BundleModule(
        name=kernel_name(module.name),
        file=file,
        sha256=module.sha256,
        size=module.size,
        build_id=module.build_id,
        srcversion=module.srcversion,
        vermagic=module.vermagic,
        depends=tuple(module.depends),
        imports={symbol: _crc_in_hex(crc) for symbol, crc in module.imports.items()},
        exports={symbol: _crc_in_hex(crc) for symbol, crc in module.exports.items()},
        weak_imports={symbol: _crc_in_hex(crc) for symbol, crc in module.weak_imports.items()},
        license=module.license,
        import_namespaces=tuple(module.import_namespaces),
        signer=(module.signature.signer or "unnamed") if module.signature else "",
    )


def canonical_bytes(manifest: BundleManifest) -> bytes:
    """Return the bytes of `manifest.json`: equal for equal manifests."""
    return (json.dumps(encode(manifest), sort_keys=True, indent=1) + "\n").encode()


def bundle_digest(manifest: BundleManifest) -> str:
    """Return the digest of the bundle that this manifest describes."""
    return digest_of(canonical_bytes(manifest))


def digest_of(data: bytes) -> str:
    """Return the digest of `data` as `sha256:<hex>`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def same_modules(one: BundleManifest, other: BundleManifest) -> bool:
    """Return whether two bundles hold the same files, even if built at different times."""
    return one.key == other.key and set(one.files()) == set(other.files())


def parse_manifest(data: bytes, where: str) -> BundleManifest:
    """Parse a manifest from untrusted bytes. Raises BundleError.

    `where` names the file or the archive in error messages.
    """
    if len(data) > MANIFEST_LIMIT:
        raise BundleError(f"{where}: the manifest has more than {MANIFEST_LIMIT >> 20} MiB")
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise BundleError(f"{where}: the manifest is not JSON: {exc}") from exc
    if not isinstance(record, dict):
        raise BundleError(f"{where}: the manifest is not a JSON object")
    if record.get("schema") != SCHEMA:
        raise BundleError(
            f"{where}: the manifest has schema {record.get('schema')!r:.40}, "
            f"this nodeside reads {SCHEMA}",
            hint="the bundle was published by another version of nodeside: publish it again",
        )
    try:
        manifest = decode(BundleManifest, record, where="manifest")
    except MalformedRecord as exc:
        raise BundleError(f"{where}: {exc}") from exc
    check_manifest(manifest, where)
    return manifest


def check_manifest(manifest: BundleManifest, where: str) -> None:
    """Raise BundleError if names or digests in the manifest are unsafe or malformed."""
    for what, problem in _find_problems(manifest):
        raise BundleError(f"{where}: the manifest's {what} {problem}")


def _find_problems(manifest: BundleManifest) -> Iterator[tuple[str, str]]:
    if not _DRIVER.fullmatch(manifest.driver):
        yield "driver", f"is not a valid driver name: {manifest.driver!r:.80}"
    if not _HEX64.fullmatch(manifest.key):
        yield "key", f"is not 64 hex digits: {manifest.key!r:.80}"
    if not manifest.modules:
        yield "list of modules", "is empty"
    if len(manifest.modules) > MODULES_LIMIT:
        yield "list of modules", f"has more than {MODULES_LIMIT} entries"
    for module in manifest.modules:
        yield from _module_problems(module)
    files = [file.file for file in manifest.files()]
    yield from _file_problems(manifest.files())
    yield from _duplicate_names("file", files)
    yield from _duplicate_names("module", [module.name for module in manifest.modules])
    yield from _text_problems(manifest)
    if not _VERSION.fullmatch(manifest.version):
        yield "version", f"is not a valid driver version: {manifest.version!r:.80}"


def _module_problems(module: BundleModule) -> Iterator[tuple[str, str]]:
    what = f"module {module.name}"
    if not _MODULE_NAME.fullmatch(module.name):
        yield "modules", f"include an invalid module name: {module.name!r:.80}"
    if not MODULE_FILE.fullmatch(module.file):
        yield what, f"has an invalid file name: {module.file!r:.80}"
    crcs = (module.imports, module.weak_imports, module.exports)
    for symbol, crc in (pair for mapping in crcs for pair in mapping.items()):
        if not _CRC.fullmatch(crc) or not symbol.isprintable():
            yield what, f"has an invalid symbol or CRC: {symbol!r:.80}: {crc!r:.40}"


def _file_problems(files: Iterable[BundleFile]) -> Iterator[tuple[str, str]]:
    for file in files:
        if not _HEX64.fullmatch(file.sha256):
            yield f"sha256 of {file.file}", f"is not 64 hex digits: {file.sha256!r:.80}"
        if file.size < 0:
            yield f"size of {file.file}", f"is negative: {file.size}"


def _duplicate_names(what: str, names: list[str]) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield what, f"{name} appears twice"
        seen.add(name)


def _text_problems(manifest: BundleManifest) -> Iterator[tuple[str, str]]:
    """Yield problems with displayed text: control characters, excessive length."""
    kernel, toolchain = manifest.kernel, manifest.toolchain
    words = [manifest.version, manifest.source_digest, manifest.certificate, manifest.created]
    words += [kernel.release, kernel.version, kernel.architecture]
    words += [toolchain.compiler, toolchain.headers] if toolchain else []
    for module in manifest.modules:
        words += [module.build_id, module.srcversion, module.vermagic, module.license]
        words += [module.signer, *module.depends, *module.import_namespaces]
    for word in words:
        if not word.isprintable():
            yield "text", f"has control characters: {word!r:.80}"
        if len(word) > _TEXT_LIMIT:
            expected = f"expected at most {_TEXT_LIMIT}"
            yield "text", f"has a value of {len(word)} characters, {expected}: {word!r:.80}"


def _crc_in_hex(crc: int | None) -> str:
    return "" if crc is None else f"0x{crc:08x}"
