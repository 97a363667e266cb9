"""The TLS certificate of the metrics server: from a mounted Secret, or self-signed.

OpenShift's service CA and cert-manager write `tls.crt` and `tls.key` into a Secret and renew them;
the kubelet updates the mounted directory. Both files are checked for each connection, so no restart
is needed. If they do not exist (yet) or do not match, a self-signed certificate is made at startup.
The connection is then encrypted, but clients cannot authenticate the server.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nodeside import log

CERTIFICATE, KEY = "tls.crt", "tls.key"  # of a Secret of type kubernetes.io/tls

_DAYS = 3650  # longer than any process lives
_CLOCK_SKEW = timedelta(hours=1)  # how far a client's clock may be behind ours

_Stamp = tuple[tuple[int, int], ...]


class ServingCertificate:
    """The certificate that is served; `context()` returns the context for the next connection."""

    def __init__(self, directory: Path | None, names: Sequence[str]) -> None:
        self._directory = directory
        self._names = names
        self._lock = threading.Lock()
        self._stamp: _Stamp | None = None
        self._context: ssl.SSLContext | None = None

    def current_context(self) -> ssl.SSLContext:
        """Return the context with the current certificate.

        If that certificate is bad, the last good one stays in use; nothing is raised.
        """
        with self._lock:
            stamp = self._read_stamp()
            if self._context is None or stamp != self._stamp:
                mounted = self._mounted_context(stamp)
                self._context = mounted or self._context or self._self_signed_context()
                self._stamp = stamp
            return self._context

    def _read_stamp(self) -> _Stamp | None:
        """Return a stamp that changes with either file; None unless both exist."""
        if self._directory is None:
            return None
        with suppress(OSError):
            stats = [(self._directory / name).stat() for name in (CERTIFICATE, KEY)]
            return tuple((each.st_ino, each.st_mtime_ns) for each in stats)
        return None

    def _mounted_context(self, stamp: _Stamp | None) -> ssl.SSLContext | None:
        if self._directory is None or stamp is None:
            return None
        try:
            context = _make_context(self._directory / CERTIFICATE, self._directory / KEY)
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
            log.warning(f"cannot serve with the certificate in {self._directory}: {exc}")
            return None
        log.fact("serving metrics with a certificate", directory=str(self._directory))
        return context

    def _self_signed_context(self) -> ssl.SSLContext:
        where = f" in {self._directory}" if self._directory else ""
        log.fact(f"no certificate{where}: serving metrics with a self-signed one")
        descriptor = os.memfd_create("certificate")  # the root file system is read-only
        try:
            os.write(descriptor, make_self_signed(self._names))
            return _make_context(Path(f"/proc/self/fd/{descriptor}"), None)
        finally:
            os.close(descriptor)


def _make_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, password="")  # prevents a prompt on the terminal
    return context


def make_self_signed(names: Sequence[str]) -> bytes:
    """Return a new key and a self-signed certificate for it, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0][:64])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(pem, *plain) + certificate.public_bytes(pem)
