"""User names and passwords for registries, from a file in the format of docker's config.json.

The file maps hosts to credentials: `{"auths": {"registry.example.com": {"auth": "<base64>"}}}`.
Depending on the tool that wrote the file, its keys have a scheme, port and path or not, and
podman's auth.json also has repositories as keys. The longest matching key wins. Credential helpers
are programs and are not run. No message quotes a secret from the file.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from nodeside.driver.store.base import FetchError
from nodeside.system.files import UntrustedFile, open_untrusted
from nodeside.values import frozen

_LIMIT = 1 << 20
_DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")


@frozen
class Credentials:
    """A user and a password, or an identity token that replaces both."""

    user: str
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """Return the value of a Basic Authorization header."""
        pair = f"{self.user}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


def find_credentials(path: Path | None, host: str, repository: str = "") -> Credentials | None:
    """Return the credentials for a host (with its port) and a repository on it, or None.

    Raises FetchError if the file cannot be read or is malformed.
    """
    if path is None:
        return None
    config = _read_file(path)
    auths = config.get("auths", {})
    if not isinstance(auths, dict):
        raise _malformed_error(path, "auths is not an object")
    best = max(
        (key for key in auths if _fits_repository(key, host, repository)), key=len, default=None
    )
    if best is None:
        return None
    return _decode_entry(auths[best], path, best)


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        # Files of a Secret mounted into a pod are symlinks into a versioned directory.
        with open_untrusted(Path(os.path.realpath(path)), limit=_LIMIT) as file:
            config = json.loads(file.read(_LIMIT + 1))
    except FileNotFoundError:
        raise FetchError(
            f"no credentials file at {path}",
            reason="BadCredentials",
            hint="pass a docker config.json, or omit the option to fetch without credentials",
        ) from None
    except (UntrustedFile, OSError) as exc:
        raise FetchError(f"credentials file: {exc}", reason="BadCredentials") from exc
    except (ValueError, RecursionError):
        raise _malformed_error(path, "not JSON") from None  # the cause would quote the content
    if not isinstance(config, dict):
        raise _malformed_error(path, "not a JSON object")
    return config


def _fits_repository(key: str, host: str, repository: str) -> bool:
    """Return whether a key of `auths` matches this host and repository."""
    scheme, separator, rest = key.partition("://")
    authority, _, path = (rest if separator else scheme).partition("/")
    if _plain_host(authority) != _plain_host(host):
        return False
    path = path.strip("/")
    if separator or path in ("", "v1", "v2"):
        return True
    return repository == path or repository.startswith(f"{path}/")


def _plain_host(authority: str) -> str:
    host = authority.lower().removesuffix(":443").removesuffix(":80")
    return "docker.io" if host in _DOCKER_HUB else host


def _decode_entry(entry: object, path: Path, key: str) -> Credentials:
    if not isinstance(entry, dict):
        raise _malformed_error(path, f"the entry of {key} is not an object")
    user, password = entry.get("username", ""), entry.get("password", "")
    token = entry.get("identitytoken", "")
    if entry.get("auth"):
        try:
            pair = base64.b64decode(str(entry["auth"]), validate=True).decode()
        except ValueError:
            raise _malformed_error(path, f"the auth of {key} is not base64") from None
        user, separator, password = pair.rstrip("\0").partition(":")
        if not separator:
            raise _malformed_error(path, f"the auth of {key} is not base64 of user:password")
    if not all(isinstance(value, str) for value in (user, password, token)):
        raise _malformed_error(path, f"the entry of {key} has values that are not strings")
    return Credentials(user, password, token)


def _malformed_error(path: Path, problem: str) -> FetchError:
    return FetchError(
        f"credentials file {path}: {problem}",
        reason="BadCredentials",
        hint='expected {"auths": {"registry.example.com": {"auth": "<base64 of user:password>"}}}',
    )
