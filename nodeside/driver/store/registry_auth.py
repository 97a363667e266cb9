"""Repository names of OCI registries, and authentication to a registry.

A registry answers the first request with a challenge: `Basic`, or `Bearer` with the URL of a token
service (https://distribution.github.io/distribution/spec/auth/token/). A token is kept in memory,
for one session.
"""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from nodeside.driver.store.addresses import origin
from nodeside.driver.store.base import FetchError
from nodeside.driver.store.credentials import Credentials
from nodeside.driver.store.transport import Transport
from nodeside.errors import SpecError
from nodeside.http.failures import safe_url
from nodeside.spec import image_names
from nodeside.values import frozen

_HOST, _PATH = re.compile(image_names.PLAIN.host), re.compile(image_names.PLAIN.path)
_PARAMETER = re.compile(r'(?<![A-Za-z_])([A-Za-z_]{1,32})\s*=\s*(?:"([^"]*)"|([^\s,"]+))')
_CHALLENGE_LIMIT = 4096  # characters; real challenges have a few hundred
_TOKEN_LIMIT = 1 << 18
_CLIENT = "nodeside"


@frozen
class Repository:
    """A registry's host (with its port) and the path of a repository on it."""

    host: str
    path: str

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"

    def url(self, scheme: str) -> str:
        """Return the base URL of the distribution API for this repository."""
        host = "registry-1.docker.io" if self.host == "docker.io" else self.host
        return f"{scheme}://{host}/v2/{self.path}"


def parse_repository(text: str) -> Repository:
    """Parse text like `registry.example.com/team/edu`. Raises SpecError."""
    host, _, path = text.removeprefix("oci://").partition("/")
    is_host = "." in host or ":" in host or host == "localhost"
    if not is_host or not _HOST.fullmatch(host):
        raise SpecError(
            f"{text!r} names no registry: expected something like registry.example.com/team/edu"
        )
    if "@" in path or ":" in path:
        raise SpecError(f"{text!r} has a tag or digest: the tag follows from version and kernel")
    if not _PATH.fullmatch(path):
        raise SpecError(
            f"{text!r}: {path!r} is not a valid repository name (lower case, a-z0-9._-/)"
        )
    if host == "docker.io" and "/" not in path:
        path = f"library/{path}"
    return Repository(host, path)


class RegistryAuthorization:
    """The Authorization header for one repository, made from the registry's challenges."""

    def __init__(
        self,
        repository: Repository,
        credentials: Credentials | None,
        transport: Transport,
        *,
        push: bool,
    ) -> None:
        actions = "pull,push" if push else "pull"
        self._scope = f"repository:{repository.path}:{actions}"
        self._credentials = credentials
        self._transport = transport
        self._header = ""

    def header(self) -> str:
        return self._header

    def answer_challenge(self, challenge: str) -> bool:
        """Answer a `Basic` or `Bearer` challenge; return whether the request is worth a retry.

        Raises FetchError if the token service is not acceptable or returns no token.
        """
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            basic = self._credentials.basic if self._credentials else ""
            previous, self._header = self._header, basic
            return bool(basic) and basic != previous
        if scheme.lower() != "bearer":
            return False
        if len(rest) > _CHALLENGE_LIMIT:
            raise FetchError(
                f"the registry's challenge has {len(rest)} characters, "
                f"at most {_CHALLENGE_LIMIT} are read",
                reason="Unauthorized",
            )
        parameters = {m[1].lower(): m[2] or m[3] or "" for m in _PARAMETER.finditer(rest)}
        realm = parameters.get("realm", "")
        self._check_realm(realm)
        scope = parameters.get("scope") or self._scope
        self._header = f"Bearer {self._fetch_token(realm, parameters.get('service', ''), scope)}"
        return True

    def _check_realm(self, realm: str) -> None:
        """Raise FetchError if the URL of the token service is not acceptable.

        Plain HTTP is accepted only if the registry itself uses it, even if no password is sent:
        otherwise an https registry could make us send requests to hosts in our own network.
        """
        try:
            service = origin(realm)
        except ValueError:
            service = None
        if service is None or service.scheme not in ("http", "https") or not service.host:
            raise FetchError(
                f"the registry's challenge has no valid URL of a token service: {safe_url(realm)!r}"
            )
        if service.scheme == "http" and not self._transport.insecure:
            what = "sending a password" if self._credentials else "requesting a token"
            raise FetchError(
                f"the registry requires {what} over plain HTTP: {safe_url(realm)}",
                reason="Unauthorized",
            )

    def _fetch_token(self, realm: str, service: str, scope: str) -> str:
        if self._credentials and self._credentials.identity_token:
            return self._exchange_token(realm, service, scope, self._credentials.identity_token)
        parts = urlsplit(realm)
        query = [*parse_qsl(parts.query), ("service", service), ("scope", scope)]
        url = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(query), ""))
        headers = {"Authorization": self._credentials.basic} if self._credentials else {}
        return self._request_token("GET", url, headers, None)

    def _exchange_token(self, realm: str, service: str, scope: str, identity: str) -> str:
        """Exchange an identity token for an access token (OAuth 2.0 refresh token grant)."""
        form = {
            "grant_type": "refresh_token",
            "service": service,
            "scope": scope,
            "client_id": _CLIENT,
            "refresh_token": identity,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._request_token("POST", realm, headers, urlencode(form).encode())

    def _request_token(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None
    ) -> str:
        with self._transport.without_authorization():
            reply = self._transport.send_request(
                method, url, headers=headers, body=body, limit=_TOKEN_LIMIT
            )
        try:
            record = json.loads(reply.body) if reply else {}
            token = record.get("token") or record.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise FetchError(
                f"token service {safe_url(url)} returned no token", reason="Unauthorized"
            )
        return token
