"""Parser for the signature appended to a kernel module, and for X.509 certificates.

A signed module ends with a PKCS#7 message, `struct module_signature` and a marker line
(include/linux/module_signature.h, kernel/module/signing.c). The message is DER; following a known
path through it needs no crypto library. This module does not verify signatures:
`signing.verify_module` does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from dataclasses import field
from typing import IO

from nodeside.driver.module.elf import NotAModule
from nodeside.values import frozen

MARKER = b"~Module signature appended~\n"
TRAILER = struct.Struct(">BBBBB3xI")  # algo, hash, id_type, signer_len, key_id_len, sig_len
ID_PKCS7 = 2

_SIGNATURE_LIMIT = 1 << 20  # bytes; real ones have ~400 to ~4,000

_SEQUENCE, _SET, _INTEGER, _OID, _OCTETS = 0x30, 0x31, 0x02, 0x06, 0x04
_CONTEXT_0, _CONTEXT_3, _KEY_ID = 0xA0, 0xA3, 0x80
_NAME_OIDS = ("550403", "55040a", "2a864886f70d010901")  # common name, organization, e-mail
_SUBJECT_KEY_ID = bytes.fromhex("551d0e")
_HASHES = {
    "2a864886f70d0205": "md5",
    "2b0e03021a": "sha1",
    "608648016503040201": "sha256",
    "608648016503040202": "sha384",
    "608648016503040203": "sha512",
    "608648016503040204": "sha224",
    "608648016503040208": "sha3-256",
    "608648016503040209": "sha3-384",
    "60864801650304020a": "sha3-512",
    "2a811ccf55018311": "sm3",
}


@frozen
class Signature:
    """The signer of a module, as claimed by the signature itself.

    `key_id` is in lower-case hex: the certificate's subject key identifier if `by_key_id`, else its
    serial number. With a serial number, `signer` is the certificate's *issuer*, which is also its
    subject if it is self-signed. All fields are empty if the message cannot be parsed.
    """

    signer: str = ""
    key_id: str = ""
    hash: str = ""
    by_key_id: bool = False


@frozen
class Certificate:
    """An X.509 certificate. `serial` and `subject_key_id` are in lower-case hex, "" if absent."""

    der: bytes = field(repr=False)
    subject: str
    issuer: str
    serial: str
    subject_key_id: str

    @property
    def digest(self) -> str:
        """sha256 of the DER, in hex; the same for PEM and DER files."""
        return hashlib.sha256(self.der).hexdigest()

    @property
    def keyring_id(self) -> str:
        """The id that /proc/keys shows for the certificate once it is enrolled.

        It is the subject key identifier, or the serial number if there is none
        (crypto/asymmetric_keys/x509_public_key.c, x509_key_preparse).
        """
        return self.subject_key_id or self.serial

    def has_made(self, signature: Signature) -> bool:
        """Return whether the signature claims to be made with this certificate."""
        if signature.by_key_id:
            return signature.key_id == self.subject_key_id
        return signature.key_id == self.serial and signature.signer == self.issuer


@frozen
class AppendedSignature:
    """The parts of a signed module; the module itself is the first `content` bytes."""

    content: int
    id_type: int
    message: bytes


def find_appended(
    file: IO[bytes], where: str, *, end: int | None = None
) -> AppendedSignature | None:
    """Find the signature that ends at `end`, by default the end of the file.

    Raises NotAModule if its sizes are impossible: the kernel refuses such a module even if it does
    not enforce signatures (mod_check_sig).
    """
    stop = file.seek(0, 2) if end is None else end
    tail = stop - len(MARKER) - TRAILER.size
    if tail < 0:
        return None
    file.seek(tail)
    trailer = file.read(TRAILER.size + len(MARKER))
    if trailer[TRAILER.size :] != MARKER:
        return None
    _, _, id_type, signer_size, key_size, size = TRAILER.unpack_from(trailer)
    content = tail - size - signer_size - key_size
    if content < 0 or not 0 < size <= _SIGNATURE_LIMIT:
        raise NotAModule(
            f"{where}: damaged signature: it claims {size} bytes in a file of {stop}",
            hint="strip the signature (strip -g removes it), then sign the module again",
        )
    file.seek(tail - size)
    return AppendedSignature(content, id_type, file.read(size))


def describe_signature(appended: AppendedSignature | None) -> Signature | None:
    """Return the claims of an appended signature; None if there is no signature."""
    return describe_message(appended.message) if appended is not None else None


def describe_message(message: bytes) -> Signature:
    """Return the signer that a CMS message claims."""
    try:
        return _read_pkcs7(message)
    except _NotDerError:
        return Signature()


def parse_certificate(data: bytes, where: str) -> Certificate:
    """Parse a certificate in PEM or DER. Raises ValueError, which `signing` turns into an error."""
    der = _pem_to_der(data, where) if b"-----BEGIN" in data else data
    try:
        return _read_x509(der)
    except _NotDerError as exc:
        raise ValueError(f"{where}: expected an X.509 certificate in PEM or DER") from exc


def certificate_pem(certificate: Certificate) -> str:
    """Return the certificate as PEM, the one format that every version of openssl reads."""
    body = base64.encodebytes(certificate.der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"


def _pem_to_der(data: bytes, where: str) -> bytes:
    match = re.search(rb"-----BEGIN CERTIFICATE-----([^-]*)-----END CERTIFICATE-----", data)
    if not match:
        raise ValueError(f"{where}: the PEM file has no CERTIFICATE block")
    try:
        return base64.b64decode(b"".join(match[1].split()), validate=True)
    except binascii.Error as exc:
        raise ValueError(f"{where}: the PEM block is damaged: {exc}") from exc


# --- DER (X.690), along known paths only ------------------------------------------------------


class _NotDerError(Exception):
    """The bytes are not the structure they were read as."""


def _read_items(data: bytes) -> list[tuple[int, bytes]]:
    """Return the consecutive (tag, content) pairs in `data`."""
    items = []
    at = 0
    while at < len(data):
        tag, start, stop = _read_header(data, at)
        items.append((tag, data[start:stop]))
        at = stop
    return items


def _read_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of the item at `at`, and the start and end of its content."""
    if at + 2 > len(data):
        raise _NotDerError
    tag, length, start = data[at], data[at + 1], at + 2
    if length > 0x84 or length == 0x80 or tag & 0x1F == 0x1F:
        raise _NotDerError
    if length > 0x80:
        width = length - 0x80
        length = int.from_bytes(data[start : start + width], "big")
        start += width
    if start + length > len(data):
        raise _NotDerError
    return tag, start, start + length


def _items_inside(item: tuple[int, bytes], tag: int) -> list[tuple[int, bytes]]:
    """Return the items inside a constructed item, which must have the given tag."""
    return _read_items(_content_of(item, tag))


def _content_of(item: tuple[int, bytes], tag: int) -> bytes:
    if item[0] != tag:
        raise _NotDerError
    return item[1]


def _item_at(items: list[tuple[int, bytes]], index: int) -> tuple[int, bytes]:
    if not 0 <= index < len(items):
        raise _NotDerError
    return items[index]


def _read_pkcs7(message: bytes) -> Signature:
    """Read ContentInfo → SignedData → the first SignerInfo (RFC 5652, sections 3 and 5)."""
    content_info = _items_inside(_item_at(_read_items(message), 0), _SEQUENCE)
    signed_data = _items_inside(
        _item_at(_items_inside(_item_at(content_info, 1), _CONTEXT_0), 0), _SEQUENCE
    )
    signer_infos = _items_inside(_item_at(signed_data, len(signed_data) - 1), _SET)
    info = _items_inside(_item_at(signer_infos, 0), _SEQUENCE)
    oid = _content_of(_item_at(_items_inside(_item_at(info, 2), _SEQUENCE), 0), _OID)
    digest = _HASHES.get(oid.hex(), oid.hex())
    signer = _item_at(info, 1)
    if signer[0] == _KEY_ID:
        return Signature("", signer[1].hex(), digest, by_key_id=True)
    name, serial = (
        _item_at(_items_inside(signer, _SEQUENCE), 0),
        _item_at(_items_inside(signer, _SEQUENCE), 1),
    )
    return Signature(_read_name(name), _read_integer(serial), digest)


def _read_x509(der: bytes) -> Certificate:
    """Read the fields that identify a certificate (RFC 5280, section 4.1)."""
    whole = _item_at(_read_items(der), 0)
    body = _items_inside(_item_at(_items_inside(whole, _SEQUENCE), 0), _SEQUENCE)
    if _item_at(body, 0)[0] == _CONTEXT_0:  # the version, absent in version 1
        body = body[1:]
    extensions = next((item for item in body if item[0] == _CONTEXT_3), None)
    return Certificate(
        der=der[: _read_header(der, 0)[2]],
        serial=_read_integer(_item_at(body, 0)),
        issuer=_read_name(_item_at(body, 2)),
        subject=_read_name(_item_at(body, 4)),
        subject_key_id="" if extensions is None else _read_key_id(extensions),
    )


def _read_key_id(extensions: tuple[int, bytes]) -> str:
    for extension in _items_inside(_item_at(_read_items(extensions[1]), 0), _SEQUENCE):
        parts = _items_inside(extension, _SEQUENCE)
        if _content_of(_item_at(parts, 0), _OID) == _SUBJECT_KEY_ID:
            value = _content_of(_item_at(parts, len(parts) - 1), _OCTETS)
            return _content_of(_item_at(_read_items(value), 0), _OCTETS).hex()
    return ""


def _read_name(name: tuple[int, bytes]) -> str:
    """Return the common name, else organization, else e-mail address of an X.501 name."""
    attributes: dict[str, str] = {}
    for group in _items_inside(name, _SEQUENCE):
        for pair in _items_inside(group, _SET):
            parts = _items_inside(pair, _SEQUENCE)
            oid = _content_of(_item_at(parts, 0), _OID).hex()
            tag, text = _item_at(parts, 1)
            coding = "utf-16-be" if tag == 0x1E else "utf-8"  # 0x1E: BMPString
            attributes.setdefault(oid, text.decode(coding, "replace"))
    return next((attributes[oid] for oid in _NAME_OIDS if oid in attributes), "")


def _read_integer(item: tuple[int, bytes]) -> str:
    """Return a serial number in hex, without the zero byte that DER puts before a high bit."""
    content = _content_of(item, _INTEGER)
    return (content[1:] if len(content) > 1 and content[0] == 0 else content).hex()
