"""Bundles in OCI registries: a real one, and a scripted one for everything that can go wrong."""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from nodeside.driver.bundle.archive import pack_bundle
from nodeside.driver.bundle.bundle import Bundle, verify_bundle
from nodeside.driver.bundle.manifest import BundleError, digest_of
from nodeside.driver.store.base import FetchError, FetchOptions
from nodeside.driver.store.oci import ARTIFACT_TYPE, CONFIG_TYPE, LAYER_TYPE, MANIFEST_TYPE
from nodeside.driver.store.publish import publish_bundle
from nodeside.driver.store.registry_auth import parse_repository
from nodeside.driver.store.sources import (
    FetchOutcome,
    SourceAnswer,
    fetch_first,
    find_manifest,
    open_source,
)
from nodeside.errors import SpecError
from nodeside.spec.model import PrebuiltSource, Trust
from nodeside.system import process
from tests.driver.fakes.bundles import TAG, WANTED, sample_bundle
from tests.driver.fakes.registry import PASSWORD, USER, certificates, forward, needed, registry
from tests.driver.fakes.webserver import Answer, Handler, WebServer, broken, file, silent, status
from tests.tries import sampled

OPTIONS = FetchOptions(timeout=60, size_limit=8 << 20, backoff=0, stall_timeout=20)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return sample_bundle(tmp_path / "bundle", contents={"edu": os.urandom(3 << 17)})


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "staging").mkdir()
    return tmp_path / "staging"


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server


def source(host: str, *, insecure: bool = True) -> PrebuiltSource:
    return PrebuiltSource(oci=f"{host}/team/edu", insecure=insecure)


def fetch(
    host: str,
    into: Path,
    *,
    trust: Trust = Trust(),  # noqa: B008
    options: FetchOptions = OPTIONS,
    insecure: bool = True,
) -> FetchOutcome:
    """Fetch, and check that nothing but the bundle is left behind."""
    outcome = fetch_first([source(host, insecure=insecure)], WANTED, trust, options, into)
    assert [path.name for path in into.iterdir()] == (["bundle"] if outcome.bundle else [])
    if outcome.bundle:
        verify_bundle(outcome.bundle)
    return outcome


def with_credentials(
    directory: Path, host: str, user: str = USER, password: str = PASSWORD, **more: str
) -> FetchOptions:
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    path = directory / "config.json"
    path.write_text(json.dumps({"auths": {host: {"auth": auth} | more}}))
    return dataclasses.replace(OPTIONS, credentials_file=path)


# --- the real registry --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry without passwords, shared by tests that use repositories of their own."""
    with registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.mark.registry
def test_what_was_published_is_fetched_again(bundle: Bundle, tmp_path: Path, into: Path) -> None:
    with registry(tmp_path / "registry") as host:
        nothing = fetch(host, into)
        published = publish_bundle(bundle, source(host), OPTIONS)
        outcome = fetch(host, into)
        known = find_manifest([source(host)], WANTED, Trust(), OPTIONS)

    assert nothing.why == f"{host}/team/edu: no tag {TAG} there"
    assert nothing.results[0].answer is SourceAnswer.NOT_THERE
    assert str(published) == f"{host}/team/edu:{TAG} published ({bundle.digest})"
    assert outcome.bundle is not None
    assert outcome.bundle.digest == bundle.digest
    assert known.manifest == bundle.manifest


@pytest.mark.registry
def test_publishing_again_is_a_success_and_another_bundle_is_refused(
    bundle: Bundle, tmp_path: Path, into: Path
) -> None:
    other = sample_bundle(tmp_path / "other", contents={"edu": b"other"})
    with registry(tmp_path / "registry") as host:
        publish_bundle(bundle, source(host), OPTIONS)
        assert publish_bundle(bundle, source(host), OPTIONS).already
        with pytest.raises(BundleError, match=f"has another bundle under {TAG}"):
            publish_bundle(other, source(host), OPTIONS)
        assert not publish_bundle(other, source(host), OPTIONS, overwrite=True).already
        outcome = fetch(host, into)

    assert outcome.bundle is not None
    assert outcome.bundle.digest == other.digest


@pytest.mark.registry
def test_skopeo_understands_and_copies_what_we_publish(
    bundle: Bundle, plain: str, into: Path
) -> None:
    skopeo = needed("skopeo", "skopeo")
    there = PrebuiltSource(oci=f"{plain}/vendor/first", insecure=True)
    publish_bundle(bundle, there, OPTIONS)
    first = f"docker://{plain}/vendor/first:{TAG}"

    raw = process.run([skopeo, "inspect", "--raw", "--tls-verify=false", first], timeout=60)
    tags = process.run(
        [skopeo, "list-tags", "--tls-verify=false", f"docker://{plain}/vendor/first"], timeout=60
    )
    process.run(
        [
            skopeo, "copy", "--src-tls-verify=false", "--dest-tls-verify=false",
            first, f"docker://{plain}/team/edu:{TAG}",
        ],
        timeout=60,
    )  # fmt: skip

    image = json.loads(raw.output)
    assert image["artifactType"] == ARTIFACT_TYPE
    assert image["config"]["mediaType"] == CONFIG_TYPE
    assert image["config"]["digest"] == bundle.digest
    assert [layer["mediaType"] for layer in image["layers"]] == [LAYER_TYPE]
    assert image["annotations"]["org.opencontainers.image.version"] == "1.2.0"
    assert image["annotations"]["org.opencontainers.image.created"] == bundle.manifest.created
    assert json.loads(tags.output)["Tags"] == [TAG]
    outcome = fetch(plain, into)
    assert outcome.bundle is not None
    assert outcome.bundle.digest == bundle.digest


@pytest.mark.registry
def test_passwords_are_asked_for_told_and_never_shown(
    bundle: Bundle, tmp_path: Path, into: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with registry(tmp_path / "registry", password=True) as host:
        good = with_credentials(tmp_path, host)
        publish_bundle(bundle, source(host), good)
        served = fetch(host, into, options=good)
        assert served.bundle is not None
        served.bundle.directory.rename(tmp_path / "served")
        anonymous = fetch(host, into)
        wrong = fetch(host, into, options=with_credentials(tmp_path, host, password="no"))

    for refused in (anonymous, wrong):
        assert refused.results[0].answer is SourceAnswer.FAILED
        assert "401 Unauthorized: authentication required" in refused.why
        assert not refused.retryable
    assert PASSWORD not in caplog.text
    assert base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode() not in caplog.text


@pytest.mark.registry
def test_publishing_without_a_password_says_what_to_do(bundle: Bundle, tmp_path: Path) -> None:
    with (
        registry(tmp_path / "registry", password=True) as host,
        pytest.raises(FetchError, match="401 Unauthorized") as caught,
    ):
        publish_bundle(bundle, source(host), OPTIONS)

    assert "docker config.json" in caught.value.hint


@pytest.mark.registry
def test_a_certificate_of_ones_own_is_trusted_by_a_ca_file_and_by_nothing_else(
    bundle: Bundle, tmp_path: Path, into: Path
) -> None:
    ca, own = certificates(tmp_path / "pki")
    trusting = dataclasses.replace(OPTIONS, ca_file=ca)
    with registry(tmp_path / "registry", tls=own) as host:
        secure = source(host, insecure=False)
        publish_bundle(bundle, secure, trusting)
        served = fetch(host, into, options=trusting, insecure=False)
        assert served.bundle is not None
        served.bundle.directory.rename(tmp_path / "served")
        refused = fetch(host, into, insecure=False)
        with pytest.raises(FetchError, match="certificate verify failed") as caught:
            publish_bundle(bundle, secure, OPTIONS)

    assert served.description.endswith(
        "trusted because of where it came from (no digest, no certificate)"
    )
    assert "TLS: " in refused.why
    assert not refused.retryable
    assert caught.value.hint == "pass the CA certificate of the server with --ca-file"


def test_a_ca_file_that_is_not_there_is_said(tmp_path: Path, into: Path) -> None:
    options = dataclasses.replace(OPTIONS, ca_file=tmp_path / "ca.pem")

    assert f"no CA file at {tmp_path}/ca.pem" in fetch("localhost:1", into, options=options).why


# --- tokens -------------------------------------------------------------------------------------


class Gate:
    """A token service, and a registry behind it that wants its tokens."""

    def __init__(self, web: WebServer, behind: str) -> None:
        self.web, self.behind = web, behind
        self.scopes: list[str] = []
        self.valid: set[str] = set()
        self.field = "token"
        self.once = False  # whether a token is good for one request only
        web.on("/token", self.token)
        web.otherwise(self.pass_on)

    def token(self, handler: Handler) -> None:
        if handler.command == "POST":
            length = int(handler.headers["Content-Length"])
            asked = parse_qs(handler.rfile.read(length).decode())
            allowed = asked.get("refresh_token") == ["identity-geheim"]
        else:
            asked = parse_qs(urlsplit(handler.path).query)
            pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            allowed = handler.headers.get("Authorization") == f"Basic {pair}"
        if not allowed or asked["service"] != ["the registry"]:
            handler.reply(401)
            return
        self.scopes += asked["scope"]
        token = f"token-{len(self.scopes)}"
        self.valid = {f"Bearer {token}"}
        handler.reply(200, json.dumps({self.field: token}).encode())

    def pass_on(self, handler: Handler) -> None:
        if handler.headers.get("Authorization") in self.valid:
            if self.once:  # before the answer: what comes after it brings a token of its own
                self.valid.clear()
            forward(handler, self.behind)
            return
        length = int(handler.headers.get("Content-Length") or 0)
        handler.rfile.read(length)
        actions = "pull" if handler.command in ("GET", "HEAD") else "pull,push"
        challenge = (
            f'Bearer realm="{self.web.url}/token",service="the registry",'
            f'scope="repository:team/edu:{actions}"'
        )
        handler.reply(401, b"", {"WWW-Authenticate": challenge})


@pytest.mark.registry
def test_a_token_is_fetched_and_used(
    bundle: Bundle, web: WebServer, tmp_path: Path, into: Path
) -> None:
    with registry(tmp_path / "registry") as host:
        gate = Gate(web, host)
        options = with_credentials(tmp_path, web.host)
        publish_bundle(bundle, source(web.host), options)
        gate.field = "access_token"
        gate.valid.clear()
        outcome = fetch(web.host, into, options=options)

    assert outcome.bundle is not None
    assert gate.scopes[-1] == "repository:team/edu:pull"


@pytest.mark.registry
def test_a_token_that_expires_in_between_is_renewed(
    bundle: Bundle, web: WebServer, tmp_path: Path, into: Path
) -> None:
    with registry(tmp_path / "registry") as host:
        gate = Gate(web, host)
        options = with_credentials(tmp_path, web.host)
        publish_bundle(bundle, source(web.host), options)
        gate.once = True
        outcome = fetch(web.host, into, options=options)

    assert outcome.bundle is not None
    assert len(gate.scopes) >= 4


@pytest.mark.registry
def test_an_identity_token_is_exchanged(
    bundle: Bundle, web: WebServer, tmp_path: Path, into: Path
) -> None:
    with registry(tmp_path / "registry") as host:
        Gate(web, host)
        options = with_credentials(
            tmp_path, web.host, "00000000", "", identitytoken="identity-geheim"
        )
        publish_bundle(bundle, source(web.host), options)
        assert fetch(web.host, into, options=options).bundle is not None


def test_a_token_service_that_refuses_is_named(web: WebServer, tmp_path: Path, into: Path) -> None:
    Gate(web, "127.0.0.1:1")

    outcome = fetch(web.host, into, options=with_credentials(tmp_path, web.host, password="no"))

    assert f"{web.url}/token: 401 Unauthorized" in outcome.why
    assert "scope" not in outcome.why


def test_a_password_does_not_go_over_plain_http_because_an_https_registry_says_so(
    web: WebServer, tmp_path: Path, into: Path
) -> None:
    ca, own = certificates(tmp_path / "pki")
    with WebServer(own) as secure:
        challenge = f'Bearer realm="{web.url}/token",service="x"'
        secure.otherwise(status(401, WWW_Authenticate=challenge))
        options = dataclasses.replace(with_credentials(tmp_path, secure.host), ca_file=ca)

        outcome = fetch(secure.host, into, options=options, insecure=False)

    assert f"requires sending a password over plain HTTP: {web.url}/token" in outcome.why
    assert web.requests == []


def test_an_https_registry_has_nothing_asked_over_plain_http(
    web: WebServer, tmp_path: Path, into: Path
) -> None:
    ca, own = certificates(tmp_path / "pki")
    with WebServer(own) as secure:
        challenge = f'Bearer realm="{web.url}/latest/meta-data",service="x"'
        secure.otherwise(status(401, WWW_Authenticate=challenge))
        options = dataclasses.replace(OPTIONS, ca_file=ca)

        outcome = fetch(secure.host, into, options=options, insecure=False)

    assert f"requires requesting a token over plain HTTP: {web.url}/latest" in outcome.why
    assert web.requests == []


def test_a_challenge_of_any_length_is_not_searched(web: WebServer, into: Path) -> None:
    challenge = f'Bearer realm="{web.url}/token",service="x",scope="{"a" * 5000}"'
    web.otherwise(status(401, WWW_Authenticate=challenge))

    outcome = fetch(web.host, into)

    assert "the registry's challenge has" in outcome.why
    assert web.asked("/token") == []


def taking(handler: Handler) -> None:
    """A storage that takes uploads, or would."""
    handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    handler.reply(201)


def with_password(answer: Answer) -> Answer:
    """An answer for who has told a password."""
    asked = status(401, WWW_Authenticate='Basic realm="x"')
    return lambda handler: (answer if handler.headers.get("Authorization") else asked)(handler)


@pytest.mark.parametrize("tls", sampled([False, True], 2))
def test_an_upload_elsewhere_is_told_no_password(
    bundle: Bundle, tmp_path: Path, *, tls: bool
) -> None:
    ca, own = certificates(tmp_path / "pki")
    with WebServer(own) as registry_, WebServer(own if tls else None) as storage:
        storage.otherwise(taking)
        registry_.otherwise(with_password(status(404)))
        upload = status(202, Location=f"{storage.url}/upload/1")
        registry_.on("/v2/team/edu/blobs/uploads/", with_password(upload))
        options = dataclasses.replace(with_credentials(tmp_path, registry_.host), ca_file=ca)
        with pytest.raises(FetchError) as caught:
            publish_bundle(bundle, source(registry_.host, insecure=False), options)

    if tls:  # another host may take it, and the registry lacks the image in the end
        assert len(storage.requests) == 2
        assert all("authorization" not in request.headers for request in storage.requests)
    else:
        assert "redirects from https to plain http" in str(caught.value)
        assert storage.requests == []


def test_a_redirect_that_parsers_read_differently_gets_no_password(
    web: WebServer, tmp_path: Path, into: Path
) -> None:
    """urllib.parse finds the registry in it, and the connection goes to the other server."""
    with WebServer() as there:
        location = f"http://{there.host}\\@{web.host}/x"
        web.otherwise(with_password(status(307, Location=location)))

        outcome = fetch(web.host, into, options=with_credentials(tmp_path, web.host))

    assert there.requests == []
    assert "redirects to an invalid URL" in outcome.why


def test_an_upload_that_parsers_read_differently_gets_no_password(
    bundle: Bundle, web: WebServer, tmp_path: Path
) -> None:
    with WebServer() as there:
        web.otherwise(with_password(status(404)))
        upload = status(202, Location=f"http://{there.host}\\@{web.host}/upload/1")
        web.on("/v2/team/edu/blobs/uploads/", with_password(upload))
        with pytest.raises(FetchError, match="redirects to an invalid URL"):
            publish_bundle(bundle, source(web.host), with_credentials(tmp_path, web.host))

    assert there.requests == []


@pytest.mark.parametrize("template", ["http://{there}\\@{home}/t", "http://me@{there}/t"])
def test_a_token_service_that_parsers_read_differently_is_not_asked(
    template: str, web: WebServer, tmp_path: Path, into: Path
) -> None:
    with WebServer() as there:
        realm = template.format(there=there.host, home=web.host)
        web.otherwise(status(401, WWW_Authenticate=f'Bearer realm="{realm}",service="x"'))

        outcome = fetch(web.host, into, options=with_credentials(tmp_path, web.host))

    assert there.requests == []
    assert "no valid URL of a token service" in outcome.why


def test_an_upload_that_is_redirected_is_no_success(bundle: Bundle, web: WebServer) -> None:
    web.on("/v2/team/edu/blobs/uploads/", status(202, Location="/upload/1"))
    web.on("/upload/1", status(307, Location="/upload/2"))

    with pytest.raises(FetchError, match="307 Temporary Redirect"):
        publish_bundle(bundle, source(web.host), OPTIONS)


def test_a_registry_without_tls_is_named_as_one(web: WebServer, into: Path) -> None:
    with pytest.raises(FetchError, match="the server does not speak TLS") as caught:
        publish_nothing(source(web.host, insecure=False))

    assert "insecure: true" in caught.value.hint
    assert "oci+http:" in caught.value.hint
    assert "--ca-file" not in caught.value.hint
    assert "does not speak TLS" in fetch(web.host, into, insecure=False).why


def publish_nothing(place: PrebuiltSource) -> None:
    with open_source(place, OPTIONS) as store:
        store.describe(TAG)


# --- a registry that does something wrong -------------------------------------------------------


class Scripted:
    """A registry of one bundle, as files that a test may exchange."""

    def __init__(self, web: WebServer, bundle: Bundle, directory: Path) -> None:
        pack_bundle(bundle, directory / "layer.tar.gz")
        self.web = web
        self.config = (bundle.directory / "manifest.json").read_bytes()
        self.layer = (directory / "layer.tar.gz").read_bytes()
        self.image: dict[str, Any] = {
            "schemaVersion": 2,
            "config": descriptor(CONFIG_TYPE, self.config),
            "layers": [descriptor(LAYER_TYPE, self.layer)],
        }
        self.manifest_path = f"/v2/team/edu/manifests/{TAG}"
        self.config_path = f"/v2/team/edu/blobs/{digest_of(self.config)}"
        self.layer_path = f"/v2/team/edu/blobs/{digest_of(self.layer)}"
        web.on(self.config_path, file(self.config))
        web.on(self.layer_path, file(self.layer))
        self.serve()

    def serve(self) -> None:
        self.web.on(self.manifest_path, status(200, json.dumps(self.image).encode()))


def descriptor(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}


@pytest.fixture
def scripted(web: WebServer, bundle: Bundle, tmp_path: Path) -> Scripted:
    return Scripted(web, bundle, tmp_path)


def test_the_scripted_registry_serves(scripted: Scripted, bundle: Bundle, into: Path) -> None:
    outcome = fetch(scripted.web.host, into)

    assert outcome.bundle is not None
    assert outcome.bundle.digest == bundle.digest
    asked = scripted.web.asked(scripted.manifest_path)[0]
    assert asked.headers["accept"] == MANIFEST_TYPE


def test_a_broken_blob_is_resumed(scripted: Scripted, into: Path) -> None:
    scripted.web.on(
        scripted.layer_path, broken(scripted.layer, after=150_000), file(scripted.layer)
    )

    assert fetch(scripted.web.host, into).bundle is not None
    ranges = [r.headers.get("range") for r in scripted.web.asked(scripted.layer_path)]
    assert ranges == [None, "bytes=150000-"]


def test_a_registry_that_ignores_range_is_read_from_the_beginning(
    scripted: Scripted, into: Path
) -> None:
    scripted.web.on(
        scripted.layer_path,
        broken(scripted.layer, after=150_000),
        file(scripted.layer, ranges=False),
    )

    assert fetch(scripted.web.host, into).bundle is not None


def test_a_blob_on_another_host_is_fetched_there_without_our_token(
    scripted: Scripted, tmp_path: Path, into: Path
) -> None:
    web = scripted.web
    basic = status(401, WWW_Authenticate='Basic realm="x"')
    image = status(200, json.dumps(scripted.image).encode())
    web.on(scripted.manifest_path, basic, image)
    with WebServer() as storage:
        storage.on("/blob", broken(scripted.layer, after=100_000), file(scripted.layer))
        web.on(scripted.layer_path, status(307, Location=f"{storage.url}/blob?sig=geheim"))

        outcome = fetch(web.host, into, options=with_credentials(tmp_path, web.host))

        assert outcome.bundle is not None
        assert "authorization" in web.asked(scripted.layer_path)[0].headers
        assert all("authorization" not in request.headers for request in storage.requests)
        assert storage.requests[1].headers["range"] == "bytes=100000-"


def test_a_blob_that_is_not_the_announced_one_is_refused(scripted: Scripted, into: Path) -> None:
    scripted.web.on(scripted.layer_path, file(scripted.layer[:-1] + b"x"))

    outcome = fetch(scripted.web.host, into)

    assert f"expected {digest_of(scripted.layer).removeprefix('sha256:')}" in outcome.why


def test_a_blob_that_is_larger_than_announced_is_cut_off(scripted: Scripted, into: Path) -> None:
    scripted.web.on(scripted.layer_path, file(scripted.layer + bytes(1 << 20)))

    assert f"has more than {len(scripted.layer)} bytes" in fetch(scripted.web.host, into).why


def test_a_blob_above_the_size_limit_is_not_asked_for(scripted: Scripted, into: Path) -> None:
    options = dataclasses.replace(OPTIONS, size_limit=1000)

    outcome = fetch(scripted.web.host, into, options=options)

    assert "has more than 1000 bytes" in outcome.why
    assert scripted.web.asked(scripted.layer_path) == []


def test_a_bundle_that_is_not_pinned_is_refused_before_its_modules_are_fetched(
    scripted: Scripted, bundle: Bundle, into: Path
) -> None:
    outcome = fetch(scripted.web.host, into, trust=Trust(digests=("sha256:" + "0" * 64,)))

    assert f"the bundle has the digest {bundle.digest}, which is not among" in outcome.why
    assert scripted.web.asked(scripted.layer_path) == []


def test_an_archive_with_another_manifest_than_the_registry_showed_is_refused(
    scripted: Scripted, tmp_path: Path, into: Path
) -> None:
    (tmp_path / "evil").mkdir()
    other = sample_bundle(tmp_path / "evil" / "b", contents={"edu": b"evil"})
    evil = Scripted(scripted.web, other, tmp_path / "evil")
    scripted.image["layers"] = evil.image["layers"]
    scripted.serve()

    outcome = fetch(scripted.web.host, into, trust=Trust(digests=(digest_of(scripted.config),)))

    assert f"the archive holds a bundle with digest {other.digest}" in outcome.why
    assert outcome.results[0].answer is SourceAnswer.REFUSED


def test_a_manifest_that_is_not_the_announced_one_is_refused(
    scripted: Scripted, into: Path
) -> None:
    scripted.web.on(scripted.config_path, file(scripted.config + b" "))

    assert f"expected {digest_of(scripted.config)}" in fetch(scripted.web.host, into).why


def test_an_image_manifest_damaged_on_the_way_is_refused(scripted: Scripted, into: Path) -> None:
    body = json.dumps(scripted.image).encode()
    scripted.web.on(
        scripted.manifest_path, status(200, body, Docker_Content_Digest="sha256:" + "1" * 64)
    )

    outcome = fetch(scripted.web.host, into)

    assert "is not what the registry announced" in outcome.why


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": {"mediaType": "application/vnd.oci.image.config.v1+json"}}, "is not a bundle"),
        ({"config": None}, "is not an image manifest, so it is not a bundle"),
        ({"manifests": [], "config": 3}, "is not an image manifest, so it is not a bundle"),
        ({"layers": []}, "expected exactly one layer"),
        ({"layers": [{"digest": "md5:1", "size": 1}]}, "expected a sha256 digest, got 'md5:1'"),
        ({"layers": [{"digest": "sha256:" + "0" * 64, "size": -1}]}, "expected a size in bytes"),
        ({"layers": [7]}, "expected a sha256 digest, got None"),
    ],
)
def test_an_image_that_is_no_bundle_is_refused(
    scripted: Scripted, into: Path, change: dict[str, Any], words: str
) -> None:
    scripted.image |= change
    scripted.serve()

    outcome = fetch(scripted.web.host, into)

    assert words in outcome.why
    assert outcome.results[0].answer is SourceAnswer.REFUSED


def test_a_blob_that_the_registry_lost_is_an_error(scripted: Scripted, into: Path) -> None:
    scripted.web.on(scripted.layer_path, status(404))

    assert "the registry has lost the blob sha256:" in fetch(scripted.web.host, into).why


def test_a_registry_that_stalls_is_given_up(scripted: Scripted, into: Path) -> None:
    scripted.web.on(scripted.manifest_path, silent)
    options = dataclasses.replace(OPTIONS, stall_timeout=0.05)

    outcome = fetch(scripted.web.host, into, options=options)

    assert "the server stalls" in outcome.why
    assert outcome.retryable


def test_the_registrys_own_words_are_passed_on(scripted: Scripted, into: Path) -> None:
    body = b'{"errors": [{"code": "DENIED", "message": "quota\\u001b[2J exceeded"}]}'
    scripted.web.on(scripted.manifest_path, status(403, body))

    assert "403 Forbidden: quota[2J exceeded" in fetch(scripted.web.host, into).why


def test_a_registry_that_takes_no_uploads_is_named(
    bundle: Bundle, web: WebServer, tmp_path: Path
) -> None:
    web.on("/v2/team/edu/blobs/uploads/", status(405))

    with pytest.raises(FetchError, match="405 Method Not Allowed"):
        publish_bundle(bundle, source(web.host), OPTIONS)


def test_a_registry_that_does_not_give_back_what_it_took_is_an_error(
    bundle: Bundle, web: WebServer
) -> None:
    def anything(handler: Handler) -> None:
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        found = handler.command in ("HEAD", "PUT", "POST")
        handler.reply(201 if found else 404)

    web.otherwise(anything)

    with pytest.raises(FetchError, match="does not return what was published"):
        publish_bundle(bundle, source(web.host), OPTIONS)


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("registry.example.com/team/edu", "https://registry.example.com/v2/team/edu"),
        ("oci://localhost:5000/edu", "https://localhost:5000/v2/edu"),
        ("[::1]:5000/edu", "https://[::1]:5000/v2/edu"),
        ("docker.io/edu", "https://registry-1.docker.io/v2/library/edu"),
    ],
)
def test_a_repository_has_an_address(text: str, url: str) -> None:
    assert parse_repository(text).url("https") == url


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("team/edu", "names no registry: expected something like registry.example.com/team/edu"),
        ("registry.example.com", "is not a valid repository name"),
        ("registry.example.com/Team", "is not a valid repository name"),
        ("registry.example.com/team/../x", "is not a valid repository name"),
        ("registry.example.com/edu:latest", "has a tag or digest"),
        ("registry.example.com/edu@sha256:0", "has a tag or digest"),
        ("me:geheim@example.com/edu", "names no registry"),
        ("https://example.com/edu", "names no registry"),
    ],
)
def test_what_is_no_repository_is_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        parse_repository(text)
