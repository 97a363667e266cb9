"""What went wrong with an HTTP exchange, in words: exceptions of `requests`, and refusals.

The text of urllib3 is a pile of class names; this module finds the system's own word at the bottom
of it, says whether trying again can help, and keeps secrets out: a URL is shown without its query,
for the addresses of blobs are often signed. Called by `transport.py` only.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from nodeside.driver.store import FetchError
from nodeside.refusals import seconds_of

if TYPE_CHECKING:
    import requests

_DETAIL = 200  # characters of a server's own words


def shown(url: str) -> str:
    """A URL without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", ""))
    except ValueError:
        return "a URL that cannot be parsed"


def network_errors() -> tuple[type[Exception], ...]:
    """What an exchange may raise; the exceptions of `requests` are OSErrors."""
    import urllib3.exceptions

    return OSError, ValueError, urllib3.exceptions.HTTPError


def trouble(url: str, exc: Exception) -> FetchError:
    """The error to raise for one of `network_errors`."""
    import requests.exceptions
    import urllib3.exceptions

    where, cause = shown(url), _root_cause(exc)
    if isinstance(exc, requests.exceptions.SSLError | urllib3.exceptions.SSLError):
        hint = "give the CA certificate of the server with --ca-file"
        return FetchError(f"{where}: TLS: {cause}", reason="Tls", hint=hint)
    if isinstance(exc, requests.exceptions.ProxyError):
        return FetchError(
            f"{where}: the proxy does not work: {cause}",
            reason="Proxy",
            hint="look at HTTP_PROXY, HTTPS_PROXY and NO_PROXY",
            retryable=True,
        )
    if isinstance(exc, requests.exceptions.Timeout | urllib3.exceptions.TimeoutError):
        return FetchError(f"{where}: the server stalls: {cause}", reason="Timeout", retryable=True)
    broken = (
        requests.exceptions.ConnectionError,
        urllib3.exceptions.HTTPError,
        ConnectionError,
        TimeoutError,
    )
    if isinstance(exc, broken):
        return FetchError(f"{where}: {cause}", reason="Unreachable", retryable=True)
    return FetchError(f"{where}: {cause}")


def refusal(url: str, response: requests.Response, body: bytes) -> FetchError:
    """The error for an answer with a status of 400 or above."""
    status = response.status_code
    words = f"{shown(url)}: {status} {response.reason or ''}".rstrip()
    detail = _detail(body)
    message = f"{words}: {detail}" if detail else words
    if status == 401:
        hint = "name a docker config.json with credentials for this host (--credentials-file)"
        return FetchError(message, reason="Unauthorized", hint=hint)
    if status == 403:
        hint = "the credentials are known there, but may not do this"
        return FetchError(message, reason="Forbidden", hint=hint)
    after = seconds_of(response.headers.get("Retry-After", ""))
    if after is not None:
        message += f" (asks to come back in {after:g} s)"
    if status == 429:
        return FetchError(message, reason="TooManyRequests", retryable=True, after=after)
    if status >= 500:
        return FetchError(message, reason="ServerError", retryable=True, after=after)
    return FetchError(message, reason="HttpError")


def _detail(body: bytes) -> str:
    """What a registry says in its JSON errors; nothing of an HTML page."""
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        error = json.loads(body)["errors"][0]
        text = str(error.get("message") or error.get("code") or "")
        return "".join(c for c in text if c.isprintable())[:_DETAIL]
    return ""


def _root_cause(exc: BaseException) -> str:
    """The innermost reason in words: `Connection refused`, `certificate verify failed`."""
    seen: list[BaseException] = []
    here: BaseException | None = exc
    while here is not None and here not in seen:
        seen.append(here)
        here = _inner(here)
    last = next((e for e in reversed(seen) if isinstance(e, OSError) and e.strerror), seen[-1])
    text = getattr(last, "strerror", None) or str(last) or type(last).__name__
    return "".join(c for c in str(text) if c.isprintable())[:_DETAIL]


def _inner(exc: BaseException) -> BaseException | None:
    """What an exception is about: urllib3 keeps it in one of three places, Python in two more."""
    places = (
        getattr(exc, "reason", None),
        getattr(exc, "original_error", None),
        exc.args[0] if exc.args else None,
        exc.__cause__,
        exc.__context__,
    )
    return next((place for place in places if isinstance(place, BaseException)), None)
