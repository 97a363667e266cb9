"""Signing and verification of kernel modules and manifests, with the kernel's own scheme.

The scheme is that of the kernel's scripts/sign-file.c: a detached CMS message over the module's
bytes, without certificates and without signed attributes, then `struct module_signature` and a
marker line. `openssl cms` creates and verifies the message. It gets the key by path: nodeside
itself does not read the key, and no vendor code ever runs where the key is. The manifest of a
bundle is signed with the same key in the same form; its message is in a separate file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO

from nodeside import log
from nodeside.driver.module.elf import NotAModule
from nodeside.driver.module.modulefile import parse_module
from nodeside.driver.module.signature import (
    ID_PKCS7,
    MARKER,
    TRAILER,
    Certificate,
    certificate_pem,
    describe_message,
    describe_signature,
    find_appended,
    parse_certificate,
)
from nodeside.errors import ExitCode, NodesideError
from nodeside.system.files import TEMPORARY_PREFIX, disk_errors, sync_directory
from nodeside.system.host import Host
from nodeside.system.process import ToolError, run
from nodeside.system.scratch import scratch_directory

HASHES = (
    "sha1", "sha224", "sha256", "sha384", "sha512", "sha3-256", "sha3-384", "sha3-512"
)  # fmt: skip
DEFAULT_HASH = "sha256"

_TIMEOUT = 60.0  # seconds for one openssl command; the largest module takes about one
_FILE_LIMIT = 1 << 20  # bytes of a certificate or key; real ones have a few thousand
_SIGNATURES_LIMIT = 8  # consecutive signatures to strip
_ENCRYPTED = (b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED")
_NO_PASSWORD = ("-passin", "pass:")  # so that openssl fails instead of asking
_SIG_HASH = re.compile(r'^CONFIG_MODULE_SIG_HASH="([\w-]+)"$', re.MULTILINE)
_KEY_HINT = "spec.signing.key in driver.yaml names it; it must be a PEM file without a password"
_INSTALL = "install openssl in the driver image: apt-get install openssl"


class SigningError(NodesideError):
    """A module was not signed, or a signature is wrong."""

    exit_code = ExitCode.SIGNING
    reason = "SigningFailed"


class BadSignature(SigningError):
    """A manifest is not signed, or not by the expected signer."""

    reason = "BadSignature"


def require_pair(key: Path, certificate: Path) -> None:
    """Raise SigningError unless the key can be used and belongs to the certificate."""
    signer = read_certificate(certificate)
    with _scratch_directory() as scratch:
        _write_checked_certificate(key, certificate, signer, scratch)


def sign_module(module: Path, key: Path, certificate: Path, hash: str = DEFAULT_HASH) -> None:
    """Sign an uncompressed .ko in place, atomically, replacing any existing signature.

    `hash` is the kernel's CONFIG_MODULE_SIG_HASH, see `kernel_hash`.
    """
    if hash not in HASHES:
        raise SigningError(f"unknown hash {hash!r}: expected one of {', '.join(HASHES)}")
    signer = read_certificate(certificate)
    with _scratch_directory() as scratch:
        pem = _write_checked_certificate(key, certificate, signer, scratch)
        _sign_with(module, key, pem, hash, scratch / "message.der")
    log.detail("module signed", module=module.name, signer=signer.subject, hash=hash)


def verify_module(module: Path, certificate: Path) -> None:
    """Verify that a module is signed with a certificate's key; raises SigningError if not."""
    signer = read_certificate(certificate)
    with _open_module(module) as file, _scratch_directory() as scratch:
        appended = find_appended(file, str(module))
        signature = describe_signature(appended)
        if appended is None or signature is None:
            raise SigningError(
                f"{module}: not signed; expected a signature by {signer.subject}",
                hint=f"nodeside signs what it builds: remove {module} and build again",
            )
        if appended.id_type != ID_PKCS7 or not signer.has_made(signature):
            raise SigningError(
                f"{module}: signed by {signature.signer or 'an unnamed signer'} "
                f"(key id {signature.key_id or 'unknown'}), expected {signer.subject} "
                f"(serial number {signer.serial})",
                hint=f"see who signed it: modinfo {module}",
            )
        content = scratch / "content"
        with open(content, "wb") as target:
            _copy_bytes(file, target, appended.content)
        try:
            _verify_message(content, appended.message, signer, scratch)
        except ToolError as exc:
            raise SigningError(
                f"{module}: its signature by {signer.subject} is wrong: "
                "the module was changed after it was signed",
                hint="remove the file and build or fetch it again",
            ) from exc


def sign_manifest(data: bytes, key: Path, certificate: Path) -> bytes:
    """Return a detached signature of a manifest: CMS in DER, as `sign_module` appends it."""
    signer = read_certificate(certificate)
    with _scratch_directory() as scratch:
        pem = _write_checked_certificate(key, certificate, signer, scratch)
        content, message = scratch / "manifest.json", scratch / "message.der"
        content.write_bytes(data)
        _make_message(content, key, pem, DEFAULT_HASH, message)
        signature = message.read_bytes()
    verify_manifest(data, signature, certificate)
    return signature


def verify_manifest(data: bytes, signature: bytes, certificate: Path) -> None:
    """Verify that a manifest is signed with a certificate's key; raises BadSignature if not."""
    signer = read_certificate(certificate)
    if not signature:
        raise BadSignature(
            f"the manifest is not signed; expected a signature by {signer.subject}",
            hint="build it with spec.signing, and publish it: nodeside driver publish",
        )
    claim = describe_message(signature)
    if not signer.has_made(claim):
        raise BadSignature(
            f"the manifest is signed by {claim.signer or 'an unnamed signer'!r:.120} (key id "
            f"{claim.key_id[:80] or 'unknown'}), expected {signer.subject} (serial number "
            f"{signer.serial})",
            hint="spec.prebuilt.trust.certificate must be the certificate of the publisher",
        )
    with _scratch_directory() as scratch:
        content = scratch / "manifest.json"
        content.write_bytes(data)
        try:
            _verify_message(content, signature, signer, scratch)
        except ToolError as exc:
            raise BadSignature(
                f"the signature of the manifest by {signer.subject} is wrong: "
                "the manifest was changed after it was signed",
            ) from exc


def read_certificate(path: Path) -> Certificate:
    """Read a PEM or DER certificate. Raises SigningError."""
    try:
        with open(path, "rb") as file:
            return parse_certificate(file.read(_FILE_LIMIT), str(path))
    except OSError as exc:
        raise SigningError(
            f"cannot read the certificate {path}: {exc.strerror}",
            hint="spec.signing or spec.prebuilt.trust in driver.yaml names it",
        ) from exc
    except ValueError as exc:
        raise SigningError(str(exc), hint=f"openssl x509 -in {path} -noout -subject") from exc


# --- the kernel's hash ------------------------------------------------------------------------


def kernel_hash(host: Host, release: str) -> str:
    """Return the hash that this kernel's own modules are signed with: CONFIG_MODULE_SIG_HASH.

    It is read from the kernel's configuration if the node has it, else from the signature of an
    in-tree module, and defaults to sha256. The kernel accepts any hash that it has built in.
    """
    tree = host.lib_modules(release)
    for path in (tree / "config", host.root / "boot" / f"config-{release}"):
        with suppress(OSError):
            if match := _SIG_HASH.search(path.read_text(errors="replace")):
                return match[1]
    return _hash_of_tree(tree) or DEFAULT_HASH


def _hash_of_tree(tree: Path) -> str:
    for path in islice((tree / "kernel").rglob("*.ko*"), 1):
        with suppress(NodesideError):
            signature = parse_module(path).signature
            return signature.hash if signature and signature.hash in HASHES else ""
    return ""


# --- key and certificate ----------------------------------------------------------------------


def _check_key(key: Path) -> None:
    """Check that we can read the key, and warn if every user can; its content is not read."""
    try:
        with open(key, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
    except OSError as exc:
        raise SigningError(f"cannot read the key {key}: {exc.strerror}", hint=_KEY_HINT) from exc
    if mode & stat.S_IROTH:
        log.warning("every user can read the signing key", key=key, fix=f"chmod 600 {key}")


def _public_key(key: Path) -> str:
    """Return the public half of a private key, as PEM text."""
    try:
        argv: list[str | Path] = ["openssl", "pkey", "-in", key, *_NO_PASSWORD, "-pubout"]
        return run(argv, timeout=_TIMEOUT, install=_INSTALL).output
    except ToolError as exc:
        raise _wrong_key_error(key) from exc


def _wrong_key_error(key: Path) -> SigningError:
    """Return why openssl cannot use a key, judging by its PEM headers."""
    with open(key, "rb") as file:
        head = file.read(_FILE_LIMIT)
    if any(mark in head for mark in _ENCRYPTED):
        return SigningError(
            f"the key {key} is encrypted; nodeside needs a key without a password",
            hint=f"openssl pkey -in {key} -out plain.pem, and make that file readable by root only",
        )
    return SigningError(f"{key}: expected a private key in PEM", hint=_KEY_HINT)


def _write_checked_certificate(
    key: Path, certificate: Path, signer: Certificate, scratch: Path
) -> Path:
    """Write the certificate as a PEM file after checking that the key belongs to it."""
    _check_key(key)
    pem = scratch / "certificate.pem"
    pem.write_text(certificate_pem(signer))
    _check_pair(key, certificate, pem)
    return pem


def _check_pair(key: Path, certificate: Path, pem: Path) -> None:
    """Check that the pair matches; else the kernel trusts a certificate that signed nothing."""
    certified = _run_openssl(
        "x509", "-in", pem, "-noout", "-pubkey", failed=f"cannot use the certificate {certificate}"
    )
    if _public_key(key).strip() != certified.strip():
        raise SigningError(
            f"the key {key} does not belong to the certificate {certificate}",
            hint="both must come from one `openssl req -x509 -newkey ...`; mount the matching pair",
        )


# --- openssl and the files around it ----------------------------------------------------------


def _run_openssl(*arguments: str | Path, failed: str) -> str:
    """Run one openssl command; `failed` is the start of the message if it fails."""
    try:
        return run(["openssl", *arguments], timeout=_TIMEOUT, install=_INSTALL).output
    except ToolError as exc:
        raise SigningError(f"{failed}: {exc}") from exc


def _sign_with(module: Path, key: Path, pem: Path, hash: str, message: Path) -> None:
    temporary = module.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{module.name}"
    with disk_errors(module):
        try:
            with _open_module(module) as file, open(temporary, "wb") as target:
                os.fchmod(target.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))
                _copy_bytes(file, target, _unsigned_size(file, module))
            _make_message(temporary, key, pem, hash, message)
            with open(temporary, "ab") as target:
                _append_signature(target, message.read_bytes())
                target.flush()
                os.fsync(target.fileno())
            os.replace(temporary, module)
            sync_directory(module.parent)
        finally:
            temporary.unlink(missing_ok=True)


def _make_message(content: Path, key: Path, pem: Path, hash: str, message: Path) -> None:
    """Create the CMS message with the flags of scripts/sign-file.c.

    They are CMS_NOCERTS, CMS_BINARY, CMS_DETACHED, CMS_NOATTR and CMS_NOSMIMECAP; `openssl cms
    -sign` creates a detached signature by default.
    """
    _run_openssl(
        "cms", "-sign", "-binary", "-nocerts", "-noattr", "-nosmimecap", "-outform", "DER",
        "-md", hash, "-signer", pem, "-inkey", key, *_NO_PASSWORD,
        "-in", content, "-out", message,
        failed=f"cannot sign with {key}",
    )  # fmt: skip


def _append_signature(target: IO[bytes], message: bytes) -> None:
    target.write(message)
    target.write(TRAILER.pack(0, 0, ID_PKCS7, 0, 0, len(message)))
    target.write(MARKER)


def _verify_message(content: Path, message: bytes, signer: Certificate, scratch: Path) -> None:
    """Let openssl check the message against exactly this certificate. Raises ToolError.

    `-nointern` ignores certificates inside the message. `-noverify` skips the chain: the kernel
    only checks whether it has this certificate, not who issued it or when it expires.
    """
    pem, der = scratch / "certificate.pem", scratch / "message"
    pem.write_text(certificate_pem(signer))
    der.write_bytes(message)
    argv: list[str | Path] = [
        "openssl", "cms", "-verify", "-binary", "-noverify", "-nointern", "-inform", "DER",
        "-in", der, "-content", content, "-certfile", pem, "-out", "/dev/null",
    ]  # fmt: skip
    run(argv, timeout=_TIMEOUT, install=_INSTALL)


def _unsigned_size(file: IO[bytes], module: Path) -> int:
    """Return the size of the module without any signatures, in bytes.

    Raises NotAModule, as for any other mistake of whoever made the file.
    """
    end = file.seek(0, os.SEEK_END)
    for _ in range(_SIGNATURES_LIMIT):
        appended = find_appended(file, str(module), end=end)
        if appended is None:
            return end
        end = appended.content
    raise NotAModule(f"{module}: more than {_SIGNATURES_LIMIT} consecutive signatures")


def _copy_bytes(source: IO[bytes], target: IO[bytes], size: int) -> None:
    source.seek(0)
    while size > 0 and (chunk := source.read(min(size, 1 << 20))):
        target.write(chunk)
        size -= len(chunk)


@contextmanager
def _open_module(module: Path) -> Iterator[IO[bytes]]:
    try:
        file = open(module, "rb")
    except OSError as exc:
        raise SigningError(f"cannot read the module {module}: {exc.strerror}") from exc
    with file:
        if file.read(4) != b"\x7fELF":
            raise NotAModule(
                f"{module}: not a plain kernel module: expected an ELF file",
                hint="decompress it first: the kernel checks signatures of plain modules",
            )
        yield file


@contextmanager
def _scratch_directory() -> Iterator[Path]:
    """Provide a temporary directory for openssl's files; it never holds a key."""
    with scratch_directory("signing") as directory, disk_errors(directory):
        yield directory
