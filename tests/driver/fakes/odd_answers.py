"""Answers of a store that nobody would think of, each served by a real server on loopback.

`CONVERSATIONS` are known by name: every one of them has ended a process, or is the sibling of one
that did. `mutated` makes any number more out of a right conversation, from a seed, and
`hostile_bundles` bundles whose envelope is right: digests, lengths, checksums. A conversation is
what the server says to one request after the other; its last answer is given again and again.
`OddServer` serves it, `asked_both_ways` asks it as a driver does.
"""

from __future__ import annotations

import gzip
import json
import random
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nodeside.driver.bundle.archive import pack_bundle
from nodeside.driver.bundle.bundle import MANIFEST, Bundle, read_manifest
from nodeside.driver.bundle.manifest import digest_of
from nodeside.driver.store.base import FetchOptions, WantedBundle
from nodeside.driver.store.oci import _Blob, _blob_of, _image_manifest
from nodeside.driver.store.sources import FetchOutcome, ManifestOutcome, fetch_first, find_manifest
from nodeside.spec.model import PrebuiltSource, Trust
from tests.driver.fakes.bundles import END, tar_entry
from tests.loopback import TcpServer

OPTIONS = FetchOptions(timeout=20, size_limit=1 << 20, backoff=0, stall_timeout=10)
_NO_TRUST = Trust()


@dataclass(frozen=True)
class Answer:
    """The bytes of one answer. `endless` is sent again and again until the client goes."""

    data: bytes
    endless: bytes = b""


def answer(status: str = "200 OK", body: bytes = b"", **headers: str) -> Answer:
    """An answer with any status line and headers; `Retry_After` stands for Retry-After."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if "Transfer-Encoding" not in given:
        given = {"Content-Length": str(len(body))} | given
    lines = [f"HTTP/1.1 {status}", *(f"{k}: {v}" for k, v in given.items())]
    head = "\r\n".join([*lines, "Connection: close", "", ""])
    return Answer(head.encode("latin-1") + body)


def chunked(first: bytes, endless: bytes = b"", status: str = "200 OK") -> Answer:
    """A chunked answer whose chunks are as given, with their sizes."""
    head = answer(status, Transfer_Encoding="chunked")
    return Answer(head.data + first, endless)


_NOT_THERE = answer("404 Not Found")
_LINE = b"a" * (1 << 16)

CONVERSATIONS: Mapping[str, Sequence[Answer]] = {
    "redirect to a port that is none": [answer("302 F", Location="http://127.0.0.1:99999/x")],
    "redirect to half an address": [answer("302 F", Location="http://[::1/x")],
    "redirect to a port of letters": [answer("302 F", Location="http://127.0.0.1:abc/x")],
    "redirect to no host": [answer("302 F", Location="http:///x")],
    "redirect to a host that is too long": [answer("302 F", Location=f"http://{'a' * 300}/x")],
    "redirect to control characters": [answer("302 F", Location="http://127.0.0.1:1/\x1b[2J x")],
    "redirect to nowhere": [answer("302 F")],
    "redirect with an endless body": [
        Answer(b"HTTP/1.1 302 F\r\nLocation: /x\r\n\r\n", endless=bytes(1 << 16)),
    ],
    "a length of letters": [_NOT_THERE, answer(body=b"x", Content_Length="abc")],
    "a length of a superscript": [answer(body=b"x", Content_Length="\u00b2")],
    "a length of 5,000 digits": [answer(body=b"x", Content_Length="9" * 5000)],
    "a negative length": [_NOT_THERE, answer(body=b"x", Content_Length="-5")],
    "two lengths": [_NOT_THERE, answer(body=b"x", Content_Length="1\r\nContent-Length: 2")],
    "come back in the year 9999999": [
        answer("503 X", Retry_After="Fri, 31 Dec 9999999 23:59:59 GMT")
    ],
    "come back without a time zone": [answer("503 X", Retry_After="Fri, 31 Dec 9999 23:59:59")],
    "come back in the year 1": [answer("503 X", Retry_After="Mon, 01 Jan 0001 00:00:00 +2359")],
    "a realm of half an address": [answer("401 X", WWW_Authenticate='Bearer realm="http://[::1"')],
    "a realm of a port that is none": [
        answer("401 X", WWW_Authenticate='Bearer realm="http://127.0.0.1:99999/t"')
    ],
    "a realm that is empty": [answer("401 X", WWW_Authenticate="Bearer")],
    "a challenge of one long word": [answer("401 X", WWW_Authenticate=f"Bearer {'a' * 60_000}")],
    "a challenge of nothing": [answer("401 X", WWW_Authenticate="")],
    "errors that are words": [answer("403 X", b'{"errors":["permission denied"]}')],
    "errors that are an object": [answer("400 X", b'{"errors":{"0":1}}')],
    "errors that are empty": [answer("400 X", b'{"errors":[]}')],
    "errors that are a list": [answer("400 X", b'["errors"]')],
    "errors with half a character": [answer("400 X", b'{"errors":[{"message":"\\ud800"}]}')],
    "errors that are deep": [answer("400 X", b"[" * 4000)],
    "an image of no number": [answer(body=b'{"config":{"mediaType":NaN},"layers":[]}')],
    "an image that is deep": [answer(body=b"[" * 100_000)],
    "an image of a large number": [answer(body=b'{"config":' + b"9" * 5000 + b"}")],
    "a reason that clears the screen": [answer("400 \x1b[2Joops")],
    "a status that is none": [answer("abc X")],
    "a status of four digits": [answer("2000 X")],
    "early hints": [answer("103 Early Hints")],
    "nothing changed": [answer("304 Not Modified")],
    "several choices": [answer("300 Multiple Choices")],
    "a part that nobody asked for": [answer("206 P", b"x", Content_Range="bytes 7-7/8")],
    "a range that cannot be": [answer("416 X")],
    "nothing at all": [Answer(b"")],
    "no HTTP": [Answer(b"SSH-2.0-OpenSSH_9.2\r\n")],
    "zeros without end": [Answer(b"", endless=bytes(1 << 16))],
    "headers without end": [Answer(b"HTTP/1.1 200 OK\r\n", endless=b"X: y\r\n" * 1000)],
    "a header without end": [Answer(b"HTTP/1.1 200 OK\r\nX: ", endless=_LINE)],
    "a folded header": [answer(ETag='"a\r\n b"', body=b"x", Content_Length="9"), _NOT_THERE],
    "a chunk size without end": [chunked(b"1;", endless=_LINE)],
    "a negative chunk size": [chunked(b"-1\r\n", endless=_LINE)],
    "a chunk size of letters": [chunked(b"xyz\r\n")],
    "a chunk of 2^64 bytes": [chunked(b"1" + b"0" * 16 + b"\r\n", endless=_LINE)],
    "a trailer without end": [chunked(b"1\r\na\r\n0\r\nX: ", endless=_LINE)],
    "an error without end": [chunked(b"", b"10000\r\n" + bytes(1 << 16) + b"\r\n", "500 X")],
    "a body without end": [Answer(b"HTTP/1.1 200 OK\r\n\r\n", endless=bytes(1 << 16))],
    "gzip that nobody asked for": [answer(body=b"x", Content_Encoding="gzip")],
    "a cookie of control characters": [answer("200 OK", b"x", Set_Cookie="a=\x01; Expires=\xff")],
}


class OddServer:
    """Says a conversation. Use as a context manager; `say` begins another one."""

    def __init__(self) -> None:
        self._answers: Sequence[Answer] = ()
        self._at = 0
        self.served = 0  # answers of all conversations, as far as the client took them
        self._server = TcpServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.closing = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def sources(self) -> tuple[PrebuiltSource, PrebuiltSource]:
        """This server as a directory, and as a registry."""
        host = f"127.0.0.1:{self._server.server_address[1]}"
        registry = PrebuiltSource(oci=f"{host}/team/edu", insecure=True)
        return PrebuiltSource(http=f"http://{host}/d"), registry

    def say(self, answers: Sequence[Answer]) -> None:
        self._answers, self._at = answers, 0

    def begin_again(self) -> None:
        """With the same conversation."""
        self._at = 0

    def _next(self) -> Answer:
        found = self._answers[min(self._at, len(self._answers) - 1)]
        self._at += 1
        return found

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        web = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while self.rfile.readline(1 << 16).strip():
                    pass
                said = web._next()
                web.served += 1
                with suppress(OSError):
                    self.wfile.write(said.data)
                    while said.endless and not web.closing.is_set():
                        self.wfile.write(said.endless)

        return Handler


def asked_both_ways(
    server: OddServer,
    answers: Sequence[Answer],
    wanted: WantedBundle,
    into: Path,
    *,
    sources: Sequence[PrebuiltSource] = (),
    trust: Trust = _NO_TRUST,
) -> Iterator[FetchOutcome | ManifestOutcome]:
    """What came of fetching, and of asking for the manifest only, from every kind of source."""
    for source in sources or server.sources:
        server.say(answers)
        yield fetch_first([source], wanted, trust, OPTIONS, into)
        server.say(answers)
        yield find_manifest([source], wanted, trust, OPTIONS)


def right_directory(bundle: Bundle, scratch: Path) -> list[Answer]:
    """What an HTTP directory with the bundle says: no checksum, then the archive."""
    pack_bundle(bundle, scratch / "archive")
    return _directory((scratch / "archive").read_bytes())


def right_registry(bundle: Bundle, scratch: Path) -> list[Answer]:
    """What a registry with the bundle says: image manifest, config, layer."""
    pack_bundle(bundle, scratch / "layer")
    config, layer = bundle.directory / MANIFEST, scratch / "layer"
    described = read_manifest(bundle.directory)
    image = _image_manifest(described, "tag", _blob_of(config), _blob_of(layer))
    return _registry((image, config.read_bytes(), layer.read_bytes()))


def _directory(archive: bytes) -> list[Answer]:
    return [_NOT_THERE, answer(body=archive)]


def _registry(bodies: Sequence[bytes]) -> list[Answer]:
    return [answer(body=body, Docker_Content_Digest=digest_of(body)) for body in bodies]


# --- more of them, from a seed --------------------------------------------------------------------

_STATUS = (
    b"000 X", b"100 Continue", b"103 X", b"199 X", b"206 P", b"301 M", b"304 N", b"401 U",
    b"403 F", b"404 N", b"416 R", b"429 T", b"500 E", b"503 S", b"999 X", b"", b"200",
)  # fmt: skip
_ODD = (
    b"", b"-1", b"\xb2", b"9" * 5000, b"http://[::1", b"http://127.0.0.1:99999/", b"\x1b[2J",
    b"\0", b"bytes 0-", b"bytes 5-9/3", b"chunked", b"gzip", b"Bearer realm=", b"W/\"x\"",
    b"Fri, 31 Dec 9999999 23:59:59 GMT", b"sha256:" + b"0" * 64,
)  # fmt: skip
_HEADERS = (
    b"Location", b"Content-Length", b"Content-Range", b"Transfer-Encoding", b"Retry-After",
    b"WWW-Authenticate", b"ETag", b"Last-Modified", b"Docker-Content-Digest", b"Content-Encoding",
    b"Set-Cookie", b"Connection",
)  # fmt: skip


def mutated(
    seed: int, count: int, right: Sequence[Answer]
) -> Iterator[tuple[str, Sequence[Answer]]]:
    """`count` conversations that differ from the right one, each with a name to repeat it by."""
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        answers = list(right)
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            at = chance.randrange(len(answers))
            answers[at] = Answer(chance.choice(_CHANGES)(chance, answers[at].data))
        yield f"seed {seed}, number {number}", answers


def _other_status(chance: random.Random, data: bytes) -> bytes:
    _, _, rest = data.partition(b"\r\n")
    return b"HTTP/1.1 " + chance.choice(_STATUS) + b"\r\n" + rest


def _more_header(chance: random.Random, data: bytes) -> bytes:
    first, _, rest = data.partition(b"\r\n")
    header = chance.choice(_HEADERS) + b": " + chance.choice(_ODD)
    return first + b"\r\n" + header + b"\r\n" + rest


def _other_status_and_header(chance: random.Random, data: bytes) -> bytes:
    return _more_header(chance, _other_status(chance, data))


def _cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _flipped(chance: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 4, 40))):
        if found:
            found[chance.randrange(len(found))] = chance.randrange(256)
    return bytes(found)


def _doubled(chance: random.Random, data: bytes) -> bytes:
    start = chance.randrange(len(data) + 1)
    stop = min(len(data), start + chance.choice((1, 10, 1000)))
    return data[:stop] + data[start:]


def _odd_word(chance: random.Random, data: bytes) -> bytes:
    """An odd value in place of some bytes of the body, which may be JSON."""
    head, _, body = data.partition(b"\r\n\r\n")
    at = chance.randrange(len(body) + 1)
    words = (b"null", b"[]", b"{}", b"1e999", b"NaN", b"-1", b'"\\ud800"', b"9" * 5000, b"[" * 2000)
    put = chance.choice(words)
    return head + b"\r\n\r\n" + body[:at] + put + body[at + len(put) :]


_CHANGES: Sequence[Callable[[random.Random, bytes], bytes]] = (
    _other_status,
    _more_header,
    _other_status_and_header,
    _cut,
    _flipped,
    _doubled,
    _odd_word,
)


# --- hostile bundles in a right envelope ----------------------------------------------------------

_VALUES: Sequence[Any] = (
    None, True, -1, 0, 1 << 63, 1e308, "", "../../etc", "\x1b[2J", "\ud800", "x" * 5000, [], {},
    [[]], {"\x1b": {}}, "modules/edu.ko", "0" * 64,
)  # fmt: skip


@dataclass(frozen=True)
class HostileBundle:
    """One bundle, as a directory and as a registry say it. `name` is to repeat it by."""

    name: str
    directory: Sequence[Answer]
    registry: Sequence[Answer]


def hostile_bundles(seed: int, count: int, bundle: Bundle) -> Iterator[HostileBundle]:
    """`count` bundles made of a right one by whoever can write to a store."""
    right = read_manifest(bundle.directory)
    modules = {
        file.file: (bundle.directory / file.file).read_bytes() for file in right.manifest.files()
    }
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        manifest = right.data
        if chance.random() < 0.7:
            manifest = _changed_manifest(chance, right.data)
        entries = [("manifest.json", manifest), *modules.items()]
        if chance.random() < 0.2:
            entries.append(chance.choice(entries))
        if chance.random() < 0.2:
            entries.insert(1, ("manifest.json.p7s", chance.randbytes(chance.choice((0, 9, 999)))))
        if chance.random() < 0.2:
            chance.shuffle(entries)
        tar = b"".join(tar_entry(*entry) for entry in entries) + END
        if chance.random() < 0.3:
            tar = chance.choice((_cut, _flipped, _doubled))(chance, tar)
        layer = gzip.compress(tar, 1, mtime=0)
        config, blob = _described(manifest), _described(layer)
        image = _image_manifest(right, "tag", config, blob)
        name = f"seed {seed}, bundle {number}"
        yield HostileBundle(name, _directory(layer), _registry((image, manifest, layer)))


def _described(data: bytes) -> _Blob:
    return _Blob(digest_of(data), len(data))


def _changed_manifest(chance: random.Random, data: bytes) -> bytes:
    """Some value of the manifest, wherever it stands, is another one or gone."""
    record = json.loads(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        here: Any = record
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not keys:
                break
            key = chance.choice(keys)
            inside = here[key]
            if isinstance(inside, dict | list) and inside and chance.random() < 0.7:
                here = inside
                continue
            if chance.random() < 0.2:
                del here[key]
            else:
                here[key] = chance.choice(_VALUES)
            break
    return json.dumps(record).encode()
