"""Stores that are directories, local or shown by an HTTP server, and asking several in order."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nodeside import __version__
from nodeside.driver.bundle.archive import pack_bundle
from nodeside.driver.bundle.bundle import Bundle, read_manifest, verify_bundle
from nodeside.driver.bundle.manifest import BundleError
from nodeside.driver.store.base import Fetched, FetchError, FetchOptions, NotThere
from nodeside.driver.store.publish import publish_bundle
from nodeside.driver.store.sources import (
    FetchOutcome,
    SourceAnswer,
    fetch_first,
    find_manifest,
    make_acceptance,
    open_source,
)
from nodeside.driver.store.transport import Transport
from nodeside.errors import ExitCode, NoSpace, SpecError
from nodeside.spec.model import PrebuiltSource, Trust
from nodeside.system import process
from nodeside.system.host import Kernel
from tests.driver.fakes import webserver
from tests.driver.fakes.bundles import END, TAG, WANTED, sample_bundle, tar_entry
from tests.driver.fakes.registry import certificates
from tests.driver.fakes.webserver import WebServer, broken, dripping, file, silent, stalled, status

ARCHIVE = f"/b/{TAG}.tar.gz"
OPTIONS = FetchOptions(timeout=20, size_limit=8 << 20, backoff=0, stall_timeout=20)
NO_TRUST = Trust()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return sample_bundle(tmp_path / "bundle", contents={"edu": os.urandom(3 << 17)})


@pytest.fixture
def data(bundle: Bundle, tmp_path: Path) -> bytes:
    pack_bundle(bundle, tmp_path / "packed.tar.gz")
    return (tmp_path / "packed.tar.gz").read_bytes()


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "staging").mkdir()
    return tmp_path / "staging"


def source(web: WebServer) -> PrebuiltSource:
    return PrebuiltSource(http=f"{web.url}/b/")


def fetch(
    sources: PrebuiltSource | list[PrebuiltSource],
    into: Path,
    *,
    trust: Trust = NO_TRUST,
    options: FetchOptions = OPTIONS,
) -> FetchOutcome:
    """Fetch, and check that nothing but the bundle is left behind."""
    listed = [sources] if isinstance(sources, PrebuiltSource) else sources
    outcome = fetch_first(listed, WANTED, trust, options, into)
    assert [path.name for path in into.iterdir()] == (["bundle"] if outcome.bundle else [])
    if outcome.bundle:
        verify_bundle(outcome.bundle)
    return outcome


# --- directories --------------------------------------------------------------------------------


def test_what_was_published_in_a_directory_is_fetched_from_it(
    bundle: Bundle, tmp_path: Path, into: Path
) -> None:
    place = PrebuiltSource(directory=str(tmp_path / "store"))

    published = publish_bundle(bundle, place, OPTIONS)
    outcome = fetch(place, into)

    assert str(published) == f"{tmp_path}/store:{TAG} published ({bundle.digest})"
    assert outcome.bundle is not None
    assert outcome.bundle.digest == bundle.digest
    assert outcome.description == (
        f"{tmp_path}/store/{TAG}.tar.gz ({bundle.digest}), "
        "trusted because of where it came from (no digest, no certificate)"
    )
    checksum = (tmp_path / "store" / f"{TAG}.tar.gz.sha256").read_text()
    archive = (tmp_path / "store" / f"{TAG}.tar.gz").read_bytes()
    assert checksum == f"{hashlib.sha256(archive).hexdigest()}  {TAG}.tar.gz\n"


def test_publishing_the_same_bundle_again_is_a_success_that_says_so(
    bundle: Bundle, tmp_path: Path
) -> None:
    place = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(bundle, place, OPTIONS)

    again = publish_bundle(bundle, place, OPTIONS)

    assert again.already
    assert str(again).endswith(f"already exists ({bundle.digest})")


def test_the_same_modules_built_at_another_time_are_there_already(tmp_path: Path) -> None:
    place = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(sample_bundle(tmp_path / "a"), place, OPTIONS)

    assert publish_bundle(sample_bundle(tmp_path / "b", created="later"), place, OPTIONS).already


def test_another_bundle_of_the_same_tag_is_refused_unless_it_may_overwrite(
    bundle: Bundle, tmp_path: Path, into: Path
) -> None:
    place = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(sample_bundle(tmp_path / "old"), place, OPTIONS)

    with pytest.raises(BundleError, match=f"has another bundle under {TAG}: sha256:") as caught:
        publish_bundle(bundle, place, OPTIONS)
    assert "--overwrite" in caught.value.hint
    publish_bundle(bundle, place, OPTIONS, overwrite=True)

    outcome = fetch(place, into)
    assert outcome.bundle is not None
    assert outcome.bundle.digest == bundle.digest


def test_unsigned_modules_are_not_published_where_signed_ones_are_wanted(tmp_path: Path) -> None:
    bundle = sample_bundle(tmp_path / "bundle", certificate="c" * 64)

    with pytest.raises(BundleError, match="edu, edu_dma not signed, but the bundle is for"):
        publish_bundle(bundle, PrebuiltSource(directory=str(tmp_path / "store")), OPTIONS)

    assert not (tmp_path / "store").exists()


def test_a_damaged_bundle_is_not_published(bundle: Bundle, tmp_path: Path) -> None:
    os.truncate(bundle.module_path("edu"), 5)

    with pytest.raises(BundleError, match="has 5 bytes"):
        publish_bundle(bundle, PrebuiltSource(directory=str(tmp_path / "store")), OPTIONS)


def test_an_archive_that_does_not_fit_its_checksum_is_refused(
    bundle: Bundle, tmp_path: Path, into: Path
) -> None:
    place = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(bundle, place, OPTIONS)
    checksum = tmp_path / "store" / f"{TAG}.tar.gz.sha256"
    checksum.write_text("0" * 64)

    outcome = fetch(place, into)

    assert outcome.bundle is None
    assert f"expected {'0' * 64}" in outcome.why


@pytest.mark.parametrize("name", [f"{TAG}.tar.gz", f"{TAG}.tar.gz.sha256"])
def test_a_fifo_in_a_directory_makes_nobody_wait(
    bundle: Bundle, tmp_path: Path, into: Path, name: str
) -> None:
    place = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(bundle, place, OPTIONS)
    (tmp_path / "store" / name).unlink()
    os.mkfifo(tmp_path / "store" / name)

    assert "regular file" in fetch(place, into).why


def test_a_directory_that_cannot_be_read_does_not_keep_from_the_next_source(
    bundle: Bundle, tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an unreadable disk says is an error of that source, not of the node's own disk."""
    bad, good = (PrebuiltSource(directory=str(tmp_path / name)) for name in ("bad", "good"))
    publish_bundle(bundle, bad, OPTIONS)
    publish_bundle(bundle, good, OPTIONS)
    archive = tmp_path / "bad" / f"{TAG}.tar.gz"
    (tmp_path / "bad" / f"{TAG}.tar.gz.sha256").unlink()
    archive.unlink()
    archive.symlink_to("/proc/self/mem")  # a regular file whose first byte is an I/O error

    outcome = fetch([bad, good], into)

    assert outcome.bundle is not None
    assert f"{archive}: cannot be read: Input/output error" in outcome.results[0].message
    archive.unlink()
    archive.symlink_to(archive)
    assert "cannot read" in find_manifest([bad], WANTED, NO_TRUST, OPTIONS).results[0].message


def test_a_checksum_may_be_a_link_and_no_larger_than_one(
    bundle: Bundle, tmp_path: Path, into: Path
) -> None:
    place = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(bundle, place, OPTIONS)
    checksum = tmp_path / "store" / f"{TAG}.tar.gz.sha256"
    checksum.rename(tmp_path / "elsewhere")
    checksum.symlink_to(tmp_path / "elsewhere")
    assert fetch(place, into).bundle is not None

    os.truncate(tmp_path / "elsewhere", 1 << 30)
    (into / "bundle").rename(tmp_path / "fetched")
    assert "at most 4096 are read" in fetch(place, into).why

    checksum.unlink()
    checksum.symlink_to(checksum)
    assert f"cannot read {checksum}" in fetch(place, into).why


def test_a_directory_that_is_not_there_has_no_bundle(tmp_path: Path, into: Path) -> None:
    outcome = fetch(PrebuiltSource(directory=str(tmp_path / "store")), into)

    assert outcome.results[0].answer is SourceAnswer.NOT_THERE
    assert outcome.why == f"{tmp_path}/store: no directory {tmp_path}/store"


def test_an_http_directory_is_read_only(bundle: Bundle, web: WebServer) -> None:
    with pytest.raises(FetchError, match="an HTTP directory is read-only") as caught:
        publish_bundle(bundle, source(web), OPTIONS)

    assert "local directory" in caught.value.hint
    assert web.requests == []


# --- HTTP ---------------------------------------------------------------------------------------


def test_a_bundle_is_fetched_over_http(
    bundle: Bundle, data: bytes, web: WebServer, into: Path
) -> None:
    web.on(ARCHIVE, file(data))

    outcome = fetch(source(web), into)

    assert outcome.bundle is not None
    assert outcome.bundle.digest == bundle.digest
    assert "not authenticated: plain HTTP, no digest, no certificate" in outcome.description
    assert {r.headers["user-agent"] for r in web.requests} == {f"nodeside/{__version__}"}


def test_404_is_not_an_error(web: WebServer, into: Path) -> None:
    outcome = fetch(source(web), into)

    assert outcome.results[0].answer is SourceAnswer.NOT_THERE
    assert not outcome.retryable
    assert outcome.why == f"{web.url}/b: 404 for {TAG}.tar.gz"


def test_a_broken_download_goes_on_where_it_stopped(
    data: bytes, web: WebServer, into: Path
) -> None:
    web.on(ARCHIVE, *[broken(data, after=100_000)] * 3, file(data))

    assert fetch(source(web), into).bundle is not None

    ranges = [request.headers.get("range") for request in web.asked(ARCHIVE)]
    assert ranges == [None, "bytes=100000-", "bytes=200000-", "bytes=300000-"]
    assert web.asked(ARCHIVE)[1].headers["if-range"] == '"one"'


def test_a_server_that_ignores_range_is_read_from_the_beginning(
    data: bytes, web: WebServer, into: Path
) -> None:
    web.on(ARCHIVE, broken(data, after=150_000), file(data, ranges=False))

    assert fetch(source(web), into).bundle is not None


def test_a_file_that_was_replaced_during_the_download_is_read_from_the_beginning(
    data: bytes, web: WebServer, into: Path
) -> None:
    old = bytes(len(data))
    web.on(ARCHIVE, broken(old, after=150_000), file(data, etag='"two"'))

    assert fetch(source(web), into).bundle is not None


def test_a_range_that_cannot_be_satisfied_is_read_from_the_beginning(
    data: bytes, web: WebServer, into: Path
) -> None:
    web.on(ARCHIVE, broken(data, after=150_000), status(416), file(data))

    assert fetch(source(web), into).bundle is not None
    assert web.asked(ARCHIVE)[2].headers.get("range") is None


def test_a_server_that_always_breaks_off_is_given_up(
    data: bytes, web: WebServer, into: Path
) -> None:
    web.on(ARCHIVE, broken(data, after=0))

    outcome = fetch(source(web), into)

    assert len(web.asked(ARCHIVE)) == 4
    assert outcome.results[0].answer is SourceAnswer.FAILED
    assert outcome.retryable


def test_a_server_that_sends_a_byte_at_a_time_is_given_up(
    data: bytes, web: WebServer, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeside.driver.store.transport._RESUMES", 32)
    web.on(ARCHIVE, broken(data, after=1))

    outcome = fetch(source(web), into)

    assert len(web.asked(ARCHIVE)) == 33
    assert outcome.retryable


@pytest.mark.slow
def test_cookies_are_not_kept_and_old_connections_neither(
    data: bytes, web: WebServer, tmp_path: Path
) -> None:
    def setting(handler: webserver.Handler) -> None:
        handler.reply(200, b"x", {"Set-Cookie": "a=b; Path=/", "Connection": "close"})

    web.on("/x", setting)
    with Transport(OPTIONS, web.url) as transport:
        before = psutil.Process().num_fds()
        for _ in range(100):
            transport.get_document(f"{web.url}/x", limit=9)
        kept = len(transport._session.cookies)
        opened = psutil.Process().num_fds() - before

    assert kept == 0
    assert {"cookie" in request.headers for request in web.asked("/x")} == {False}
    assert opened < 90


@pytest.mark.parametrize("code", [500, 502, 503])
def test_an_error_of_the_server_that_passes_is_tried_again(
    data: bytes, web: WebServer, into: Path, code: int
) -> None:
    web.on(ARCHIVE, status(code), file(data))

    assert fetch(source(web), into).bundle is not None


def test_an_error_of_the_server_that_stays_is_said(web: WebServer, into: Path) -> None:
    web.on(ARCHIVE, status(500))

    outcome = fetch(source(web), into)

    assert outcome.why == f"{web.url}/b: {web.url}{ARCHIVE}: 500 Internal Server Error"
    assert outcome.retryable


def test_too_many_requests_waits_as_long_as_asked(data: bytes, web: WebServer, into: Path) -> None:
    web.on(ARCHIVE, status(429, Retry_After="0"), file(data))

    assert fetch(source(web), into).bundle is not None


def test_too_many_requests_does_not_wait_beyond_the_deadline(web: WebServer, into: Path) -> None:
    web.on(ARCHIVE, status(429, Retry_After="3600"))

    outcome = fetch(source(web), into)

    assert "429 Too Many Requests (the server asks to retry after 300 s)" in outcome.why
    assert len(web.asked(ARCHIVE)) == 1
    assert outcome.retryable


@pytest.mark.parametrize(("code", "word"), [(401, "Unauthorized"), (403, "Forbidden")])
def test_a_refusal_is_said_and_not_tried_again(
    web: WebServer, into: Path, code: int, word: str
) -> None:
    web.on(ARCHIVE, status(code))

    outcome = fetch(source(web), into)

    assert outcome.results[0].answer is SourceAnswer.FAILED
    assert f"{code} {word}" in outcome.why
    assert len(web.asked(ARCHIVE)) == 1
    assert not outcome.retryable


def test_a_server_that_stalls_is_given_up(data: bytes, web: WebServer, into: Path) -> None:
    web.on(ARCHIVE, stalled(data[:1000]))
    options = dataclasses.replace(OPTIONS, stall_timeout=0.05)

    outcome = fetch(source(web), into, options=options)

    assert f"{ARCHIVE}: the server stalls: " in outcome.why
    assert outcome.retryable


def test_a_server_that_never_answers_is_given_up(web: WebServer, into: Path) -> None:
    web.on(ARCHIVE, silent)
    options = dataclasses.replace(OPTIONS, stall_timeout=0.05)

    assert "the server stalls" in fetch(source(web), into, options=options).why


def test_a_server_that_sends_a_byte_now_and_then_does_not_stretch_the_deadline(
    web: WebServer, into: Path
) -> None:
    web.on(ARCHIVE, dripping)
    options = dataclasses.replace(OPTIONS, timeout=0.5)

    outcome = fetch(source(web), into, options=options)

    assert f"{ARCHIVE}: not finished after 0.5 s" in outcome.why
    assert outcome.retryable


def test_a_file_above_the_size_limit_is_not_fetched(
    data: bytes, web: WebServer, into: Path
) -> None:
    web.on(ARCHIVE, file(data))
    options = dataclasses.replace(OPTIONS, size_limit=1 << 17)

    outcome = fetch(source(web), into, options=options)

    assert f"{ARCHIVE} has more than 131072 bytes" in outcome.why


def test_a_body_of_unknown_length_is_cut_at_the_size_limit(
    data: bytes, web: WebServer, into: Path
) -> None:
    def endless(handler: webserver.Handler) -> None:
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        try:
            while not handler.web.closing.is_set():
                handler.wfile.write(bytes(1 << 16))
        except OSError:
            pass

    web.on(ARCHIVE, endless)

    assert f"has more than {OPTIONS.size_limit} bytes" in fetch(source(web), into).why


def test_the_checksum_beside_an_archive_is_compared(
    data: bytes, web: WebServer, into: Path
) -> None:
    right = f"{hashlib.sha256(data).hexdigest()}  {TAG}.tar.gz\n".encode()
    web.on(ARCHIVE, file(data))
    web.on(f"{ARCHIVE}.sha256", status(200, b"f" * 64), status(200, right))

    refused = fetch(source(web), into)
    served = fetch(source(web), into)

    assert refused.bundle is None
    assert f"expected {'f' * 64}: damaged in transit, or replaced" in refused.why
    assert served.bundle is not None


def test_a_checksum_that_is_a_login_page_is_refused(
    data: bytes, web: WebServer, into: Path
) -> None:
    web.on(ARCHIVE, file(data))
    web.on(f"{ARCHIVE}.sha256", status(200, b"<html>please log in"))

    assert "does not begin with a sha256" in fetch(source(web), into).why


def test_a_tampered_archive_is_refused_and_the_next_source_is_asked(
    bundle: Bundle, data: bytes, web: WebServer, tmp_path: Path, into: Path
) -> None:
    web.on(ARCHIVE, file(data[:-100] + bytes(100)))
    good = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(bundle, good, OPTIONS)

    outcome = fetch([PrebuiltSource(directory=str(tmp_path / "no")), source(web), good], into)

    assert outcome.bundle is not None
    assert [result.answer for result in outcome.results] == [
        SourceAnswer.NOT_THERE,
        SourceAnswer.REFUSED,
        SourceAnswer.SERVED,
    ]


def test_a_hostile_archive_is_refused_by_name(web: WebServer, into: Path) -> None:
    web.on(ARCHIVE, file(gzip.compress(tar_entry("../../etc/x", b"x") + END)))

    assert "unexpected entry '../../etc/x'; only manifest.json" in fetch(source(web), into).why


def knowing(web: WebServer, directory: Path, ca: Path | None = None) -> FetchOptions:
    """Options with a password for a server."""
    config = directory / "config.json"
    known = {web.host: {"username": "me", "password": "geheim"}}
    config.write_text(json.dumps({"auths": known}))
    return dataclasses.replace(OPTIONS, credentials_file=config, ca_file=ca)


def test_a_redirect_is_followed_and_tells_no_other_server_the_password(
    data: bytes, tmp_path: Path, into: Path
) -> None:
    ca, own = certificates(tmp_path / "pki")
    with WebServer(own) as web, WebServer(own) as other:
        other.on("/blob", status(401, WWW_Authenticate='Basic realm="x"'), file(data))
        web.on(ARCHIVE, status(401, WWW_Authenticate='Basic realm="x"'), redirect(other))
        options = knowing(web, tmp_path, ca)

        refused = fetch(source(web), into, options=options)
        served = fetch(source(web), into, options=options)

        assert "401" in refused.why
        assert served.bundle is not None
        assert web.asked(ARCHIVE)[1].headers["authorization"].startswith("Basic ")
        assert all("authorization" not in request.headers for request in other.requests)


def test_a_password_does_not_go_to_a_directory_over_plain_http(
    web: WebServer, tmp_path: Path, into: Path
) -> None:
    web.otherwise(status(401, WWW_Authenticate='Basic realm="x"'))

    outcome = fetch(source(web), into, options=knowing(web, tmp_path))

    assert outcome.why.endswith("the server asks for a password over plain HTTP")
    assert all("authorization" not in request.headers for request in web.requests)


def redirect(web: WebServer) -> webserver.Answer:
    return status(307, Location=f"{web.url}/blob?signature=secret")


def test_the_secret_part_of_a_signed_address_is_not_shown(web: WebServer, into: Path) -> None:
    web.on(ARCHIVE, redirect(web))
    web.on("/blob", status(403))

    assert "secret" not in fetch(source(web), into).why


def test_redirects_without_end_are_given_up(web: WebServer, into: Path) -> None:
    web.on(ARCHIVE, status(302, Location=ARCHIVE))

    assert "more than 5 redirects" in fetch(source(web), into).why


def test_a_redirect_to_a_local_file_is_refused(web: WebServer, into: Path) -> None:
    web.on(ARCHIVE, status(302, Location="file:///etc/passwd"))

    assert "redirects to 'file:///etc/passwd'" in fetch(source(web), into).why


def test_a_server_that_is_not_there_is_said_in_plain_words(into: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/b"

        outcome = fetch(PrebuiltSource(http=url), into)

    assert outcome.why == f"{url}: {url}/{TAG}.tar.gz.sha256: Connection refused"
    assert outcome.retryable


def test_a_name_that_does_not_resolve_is_said_in_plain_words(into: Path) -> None:
    outcome = fetch(PrebuiltSource(http="http://no-such-host.invalid/b"), into)

    assert ".sha256: " in outcome.why
    assert "HTTPConnectionPool" not in outcome.why
    assert outcome.retryable


def test_a_proxy_from_the_environment_is_used(
    data: bytes, web: WebServer, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", web.url)
    web.on(f"http://modules.example.com{ARCHIVE}", file(data))

    outcome = fetch(PrebuiltSource(http="http://modules.example.com/b"), into)

    assert outcome.bundle is not None


def test_a_proxy_that_is_not_there_is_said(into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    outcome = fetch(PrebuiltSource(http="http://modules.example.com/b"), into)

    assert "the proxy does not work: Connection refused" in outcome.why


@pytest.mark.parametrize(
    "proxy",
    [
        "http://me:geheim@127.0.0.1:1",
        "http://me:geheim@127.0.0.1:99999",
        "http://me:geheim@[::1:3128",
        "me:geheim@127.0.0.1:1",
        "http://me:geheim#x@127.0.0.1:1",
        "http://me:geheim/x@127.0.0.1:1",
        "http://me:geheim@",
        "htp://me:geheim@127.0.0.1:1",
        "http://me:geheim@proxy:31 28",
        "socks5://me:geheim@127.0.0.1:1",
    ],
)
def test_the_password_of_a_proxy_is_never_said(
    proxy: str, into: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy)
    sources = [PrebuiltSource(http="http://a.example/b"), PrebuiltSource(oci="b.example/t/edu")]

    outcome = fetch(sources, into)

    assert [result.answer for result in outcome.results] == [SourceAnswer.FAILED] * 2
    assert "geheim" not in outcome.why + caplog.text
    assert "a bug in nodeside" not in outcome.why


def test_a_bug_in_the_reading_of_one_source_does_not_keep_from_the_next(
    bundle: Bundle,
    tmp_path: Path,
    into: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from nodeside.driver.store import http_directory

    def surprised(*_: object) -> None:
        raise KeyError("nobody thought of \x1b[2J this")

    monkeypatch.setattr(http_directory.HttpStore, "fetch", surprised)
    good = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(bundle, good, OPTIONS)

    outcome = fetch([PrebuiltSource(http="http://a.example/b"), good], into)

    assert outcome.bundle is not None
    assert outcome.results[0].answer is SourceAnswer.REFUSED
    assert outcome.results[0].message.startswith("a bug in nodeside: KeyError: 'nobody thought of")
    assert outcome.results[0].retryable
    assert "in surprised" in caplog.text


def test_the_manifest_alone_does_not_fetch_the_modules(
    bundle: Bundle, data: bytes, web: WebServer
) -> None:
    web.on(ARCHIVE, stalled(data[:100_000]))

    outcome = find_manifest(
        [source(web)], WANTED, NO_TRUST, dataclasses.replace(OPTIONS, stall_timeout=5)
    )

    assert outcome.manifest == bundle.manifest


def test_a_password_in_a_url_is_refused_and_not_repeated(into: Path) -> None:
    with (
        pytest.raises(SpecError) as caught,
        open_source(PrebuiltSource(http="http://me:geheim@example.com/b"), OPTIONS),
    ):
        pass

    assert "geheim" not in str(caught.value)
    assert "credentials file" in caught.value.hint


def test_a_password_in_a_url_is_in_nothing_that_a_source_said(into: Path) -> None:
    outcome = fetch(PrebuiltSource(http="http://me:geheim@example.com/b"), into)

    assert outcome.why.startswith("http://example.com/b: ")
    assert "geheim" not in outcome.why


@pytest.mark.parametrize("url", ["https://evil.com\\@example.com/b", "https://example.com/b c"])
def test_a_source_that_parsers_read_differently_is_refused(url: str) -> None:
    with pytest.raises(SpecError, match="invalid URL"):
        open_source(PrebuiltSource(http=url), OPTIONS)


@pytest.mark.parametrize(
    "wrong", [PrebuiltSource(), PrebuiltSource(http="http://a/", directory="/b")]
)
def test_a_source_names_exactly_one_place(wrong: PrebuiltSource) -> None:
    with pytest.raises(SpecError, match="exactly one of oci, http, directory"):
        open_source(wrong, OPTIONS)


def test_a_store_can_be_asked_directly(bundle: Bundle, tmp_path: Path) -> None:
    place = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(bundle, place, OPTIONS)

    with open_source(place, OPTIONS) as store:
        accept = make_acceptance(WANTED, NO_TRUST)
        described = store.describe(TAG)
        assert described is not None
        assert described.manifest == bundle.manifest
        assert store.describe("other") is None
        assert isinstance(store.fetch(TAG, tmp_path / "new", accept), Fetched)
        assert isinstance(store.fetch("other", tmp_path / "new2", accept), NotThere)


def test_stores_cost_no_network_library_until_one_is_used(tmp_path: Path) -> None:
    script = (
        "import sys; from nodeside.driver.bundle import archive, cache; "
        "from nodeside.driver.store import publish, sources; "
        "sys.exit('requests' in sys.modules or 'urllib3' in sys.modules)"
    )

    process.run([sys.executable, "-c", script], timeout=30)


# --- what is acceptable ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"driver": "other"}, "the bundle is for driver edu, expected other"),
        ({"key": "f" * 64}, r"the bundle is for key \w{64}, expected f{64}"),
        (
            {"kernel": dataclasses.replace(WANTED.kernel, release="6.1.0-99-amd64")},
            "for kernel 6.1.0-50-cloud-amd64, expected 6.1.0-99-amd64",
        ),
        (
            {"kernel": dataclasses.replace(WANTED.kernel, version="#2 SMP")},
            "for kernel build #1 SMP Debian .*, expected #2 SMP",
        ),
        ({"kernel": Kernel(WANTED.kernel.release, WANTED.kernel.version, "aarch64")}, "aarch64"),
    ],
)
def test_a_bundle_that_is_not_the_asked_one_is_refused(
    bundle: Bundle, change: dict[str, str], words: str
) -> None:
    wanted = dataclasses.replace(WANTED, **change)  # type: ignore[arg-type]

    with pytest.raises(BundleError, match=words):
        make_acceptance(wanted, NO_TRUST)(read_manifest(bundle.directory))


def test_a_pinned_digest_is_enough_and_any_other_is_refused(
    bundle: Bundle, data: bytes, web: WebServer, into: Path
) -> None:
    web.on(ARCHIVE, file(data))

    refused = fetch(source(web), into, trust=Trust(digests=("sha256:" + "0" * 64,)))
    served = fetch(source(web), into, trust=Trust(digests=("sha256:" + "0" * 64, bundle.digest)))

    assert refused.results[0].answer is SourceAnswer.REFUSED
    assert f"the bundle has the digest {bundle.digest}, which is not among those" in refused.why
    assert served.description.endswith("its digest is pinned")


def test_with_a_certificate_every_module_must_be_signed_by_it(
    data: bytes, web: WebServer, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nodeside.driver.module import signing

    web.on(ARCHIVE, file(data))
    verified: list[str] = []

    def verify_module(module: Path, certificate: Path) -> None:
        verified.append(f"{module.name} {certificate}")
        if len(verified) > 1:
            raise signing.SigningError(f"{module}: not signed")

    monkeypatch.setattr(signing, "verify_module", verify_module)
    monkeypatch.setattr(signing, "verify_manifest", lambda *_: None)
    trust = Trust(certificate="/etc/vendor.pem")

    served = fetch(source(web), into, trust=trust)
    (into / "bundle").rename(into.parent / "first")
    refused = fetch(source(web), into, trust=trust)

    assert served.description.endswith(
        "manifest and modules are signed by the key of /etc/vendor.pem"
    )
    assert verified == ["edu.ko /etc/vendor.pem"] * 2
    assert refused.results[0].answer is SourceAnswer.REFUSED
    assert "not signed" in refused.why


def test_a_full_disk_ends_the_fetch_at_once(
    data: bytes, web: WebServer, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nodeside.driver.store import download

    web.on(ARCHIVE, file(data))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download.Partial, "add_chunk", full)

    with pytest.raises(NoSpace, match="no space left writing") as caught:
        fetch_first([source(web)], WANTED, NO_TRUST, OPTIONS, into)

    assert caught.value.exit_code is ExitCode.NO_SPACE
    assert list(into.iterdir()) == []


def test_plain_http_without_a_proof_is_warned_about(
    data: bytes, web: WebServer, into: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("nodeside")
    logger.propagate = True
    web.on(ARCHIVE, file(data))

    fetch(source(web), into)

    assert "prebuilt modules came over plain HTTP and nothing proves their origin" in caplog.text


def test_a_bundle_that_the_caller_cannot_use_is_that_sources_answer(
    bundle: Bundle, tmp_path: Path, into: Path
) -> None:
    """Else the cache would keep it for ever, and nobody else be asked."""
    places = [PrebuiltSource(directory=str(tmp_path / name)) for name in ("first", "second")]
    for place in places:
        publish_bundle(bundle, place, OPTIONS)
    seen: list[Path] = []

    def inspect(found: Bundle) -> None:
        seen.append(found.directory)
        if len(seen) == 1:
            raise BundleError("edu.ko is no kernel module")

    outcome = fetch_first(places, WANTED, Trust(), OPTIONS, into, inspect=inspect)

    assert outcome.bundle is not None
    assert [str(each.answer.name) for each in outcome.results] == ["REFUSED", "SERVED"]
    assert "edu.ko is no kernel module" in str(outcome.results[0])


def test_where_no_thread_can_be_started_the_next_source_is_asked_and_nobody_says_a_bug(
    web: WebServer, bundle: Bundle, into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a limit of processes: a deadline is a thread, a directory needs none."""
    good = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(bundle, good, OPTIONS)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Timer, "start", start)
        outcome = fetch([PrebuiltSource(http=web.url), good], into)

    refused, served = outcome.results
    assert refused.message == "cannot start a thread: can't start new thread"
    assert refused.answer is SourceAnswer.FAILED
    assert refused.retryable
    assert served.answer is SourceAnswer.SERVED
