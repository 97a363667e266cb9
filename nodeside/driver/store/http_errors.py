"""Converts failed HTTP exchanges into FetchErrors: exceptions of `requests` and error statuses.

The messages of urllib3 are nested class names. This module extracts the system error at the
bottom, decides whether a retry can help, and keeps secrets out of messages. A URL is shown without
its query, because blob URLs are often signed. A proxy URL is not shown at all. Text from a server
is truncated and cannot contain terminal control characters.
"""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING

from nodeside.driver.store.base import FetchError
from nodeside.http.failures import chain_of_causes, make_printable, root_cause, safe_url
from nodeside.http.status import retry_after_seconds

if TYPE_CHECKING:
    import requests

# ssl.SSLError.reason for a response that is not TLS, across OpenSSL versions.
_NO_TLS = (
    "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
)  # fmt: skip
_PROXY_HINT = "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"


def network_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions an exchange may raise; those of `requests` are OSErrors."""
    import urllib3.exceptions

    return OSError, ValueError, urllib3.exceptions.HTTPError


def exchange_error(url: str, exc: Exception) -> FetchError:
    """Return the FetchError for one of `network_errors`."""
    import requests.exceptions
    import urllib3.exceptions

    where, cause = safe_url(url), root_cause(exc)
    if isinstance(exc, requests.exceptions.SSLError | urllib3.exceptions.SSLError):
        return _tls_error(where, exc, cause)
    if isinstance(exc, requests.exceptions.ProxyError):
        return FetchError(
            f"{where}: the proxy does not work: {cause}",
            reason="Proxy",
            hint=_PROXY_HINT,
            retryable=True,
        )
    if isinstance(exc, requests.exceptions.InvalidURL | urllib3.exceptions.LocationValueError):
        # Their messages quote the URL, which may be the proxy's, including its password.
        return FetchError(f"{where}: not a valid URL", hint=_PROXY_HINT)
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


def wrong_proxy_error() -> FetchError:
    """Return the error for an unusable proxy. Its URL may hold a password and is not quoted."""
    return FetchError(
        "the proxy set in the environment is not a valid URL",
        reason="Proxy",
        hint=f"{_PROXY_HINT}: expected http://host:port or http://user:password@host:port, "
        "with %-escapes for / # @ \\ and blanks in a password",
    )


def _tls_error(where: str, exc: Exception, cause: str) -> FetchError:
    hint = ""
    for each in chain_of_causes(exc):
        if isinstance(each, ssl.SSLCertVerificationError):
            hint = "pass the CA certificate of the server with --ca-file"
        elif isinstance(each, ssl.SSLError) and each.reason in _NO_TLS:
            cause = "the server does not speak TLS"
            hint = (
                "for plain HTTP, set `insecure: true` beside the oci source of driver.yaml, "
                "or use `--to oci+http:...` or an http:// URL"
            )
    return FetchError(f"{where}: TLS: {cause}", reason="Tls", hint=hint)


def status_error(url: str, response: requests.Response, body: bytes) -> FetchError:
    """Return the error for a response that is neither a success nor a redirect to follow."""
    status = response.status_code
    words = f"{safe_url(url)}: {status} {make_printable(response.reason or '')}".rstrip()
    detail = _registry_message(body)
    message = f"{words}: {detail}" if detail else words
    if status == 401:
        hint = "pass a docker config.json with credentials for this host (--credentials-file)"
        return FetchError(message, reason="Unauthorized", hint=hint)
    if status == 403:
        hint = "check what the credentials for this host permit (--credentials-file)"
        return FetchError(message, reason="Forbidden", hint=hint)
    after = retry_after_seconds(response.headers.get("Retry-After", ""))
    if after is not None:
        message += f" (the server asks to retry after {after:g} s)"
    if status == 429:
        return FetchError(message, reason="TooManyRequests", retryable=True, after=after)
    if status >= 500:
        return FetchError(message, reason="ServerError", retryable=True, after=after)
    return FetchError(message, reason="HttpError")


def _registry_message(body: bytes) -> str:
    """Return the message from a registry's JSON errors; "" for any other body, such as HTML."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    errors = document.get("errors") if isinstance(document, dict) else None
    first = errors[0] if isinstance(errors, list) and errors else None
    if isinstance(first, dict):
        first = first.get("message") or first.get("code")
    return make_printable(first) if isinstance(first, str) else ""
