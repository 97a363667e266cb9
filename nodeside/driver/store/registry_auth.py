"""How to name a repository of an OCI registry, and how to prove who asks.

A registry answers the first request with a challenge: `Basic`, or `Bearer` with the address of a
token service (https://distribution.github.io/distribution/spec/auth/token/). Tokens are kept for
one conversation only.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from nodeside.driver.http.failures import shown
from nodeside.driver.store.addresses import origin
from nodeside.driver.store.base import FetchError
from nodeside.driver.store.credentials import Credentials
from nodeside.driver.store.transport import Transport
from nodeside.errors import SpecError

_PATH = re.compile(
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
)
_HOST = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_PARAMETER = re.compile(r'(?<![A-Za-z_])([A-Za-z_]{1,32})\s*=\s*(?:"([^"]*)"|([^\s,"]+))')
_CHALLENGE_LIMIT = 4096  # characters; a real one has a few hundred
_TOKEN_LIMIT = 1 << 18
_CLIENT = "nodeside"


@dataclass(frozen=True)
class Repository:
    """A registry's host (with its port) and the path of a repository there."""

    host: str
    path: str

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"

    def url(self, scheme: str) -> str:
        """Where the distribution API of this repository begins."""
        host = "registry-1.docker.io" if self.host == "docker.io" else self.host
        return f"{scheme}://{host}/v2/{self.path}"


def parse_repository(text: str) -> Repository:
    """`registry.example.com/team/edu` in parts. Raises SpecError."""
    host, _, path = text.removeprefix("oci://").partition("/")
    named = "." in host or ":" in host or host == "localhost"
    if not named or not _HOST.fullmatch(host):
        raise SpecError(
            f"{text!r} names no registry: expected something like registry.example.com/team/edu"
        )
    if "@" in path or ":" in path:
        raise SpecError(f"{text!r} has a tag or digest: the tag follows from version and kernel")
    if not _PATH.fullmatch(path):
        raise SpecError(
            f"{text!r}: {path!r} is not the name of a repository (lower case, a-z0-9._-/)"
        )
    if host == "docker.io" and "/" not in path:
        path = f"library/{path}"
    return Repository(host, path)


class RegistryAuthorization:
    """Answers the challenges of one registry for one repository."""

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

    def learn(self, challenge: str) -> bool:
        """Understand `Basic` or `Bearer`; False if there is nothing to answer with."""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            known = self._credentials.basic if self._credentials else ""
            tried, self._header = self._header, known
            return bool(known) and known != tried
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
        self._header = f"Bearer {self._token(realm, parameters.get('service', ''), scope)}"
        return True

    def _check_realm(self, realm: str) -> None:
        """A token service is asked over plain HTTP only where the registry is, password or not.

        Whoever answers for an https registry cannot have us ask what stands in our own network.
        """
        try:
            there = origin(realm)
        except ValueError:
            there = None
        if there is None or there.scheme not in ("http", "https") or not there.host:
            raise FetchError(f"the registry names no token service: {shown(realm)!r}")
        if there.scheme == "http" and not self._transport.insecure:
            what = "a password sent" if self._credentials else "a token asked for"
            raise FetchError(
                f"the registry wants {what} over plain HTTP to {shown(realm)}",
                reason="Unauthorized",
            )

    def _token(self, realm: str, service: str, scope: str) -> str:
        if self._credentials and self._credentials.identity_token:
            return self._exchange(realm, service, scope, self._credentials.identity_token)
        parts = urlsplit(realm)
        query = [*parse_qsl(parts.query), ("service", service), ("scope", scope)]
        url = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(query), ""))
        headers = {"Authorization": self._credentials.basic} if self._credentials else {}
        return self._ask("GET", url, headers, None)

    def _exchange(self, realm: str, service: str, scope: str, identity: str) -> str:
        """An identity token for an access token, as OAuth 2.0 does it."""
        form = {
            "grant_type": "refresh_token",
            "service": service,
            "scope": scope,
            "client_id": _CLIENT,
            "refresh_token": identity,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._ask("POST", realm, headers, urlencode(form).encode())

    def _ask(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> str:
        with self._transport.speaking_for_nobody():
            reply = self._transport.ask(method, url, headers=headers, body=body, limit=_TOKEN_LIMIT)
        try:
            record = json.loads(reply.body) if reply else {}
            token = record.get("token") or record.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise FetchError(f"the token service {shown(url)} gave no token", reason="Unauthorized")
        return token
