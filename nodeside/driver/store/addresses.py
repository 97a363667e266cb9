"""Checks of URLs that others supply: redirects, uploads, token services, proxies.

A caller must know the origin of a URL before it sends a request, and must never be redirected from
https to plain http. The origin is taken from `urllib3.util.parse_url`, because requests connects to
the host that this parser finds: `urllib.parse` finds another one in `https://evil\\@registry/`. An
ambiguous URL is refused. An invalid URL is a FetchError or a ValueError. No message quotes a URL
that contains a password.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from nodeside.driver.store.base import FetchError
from nodeside.driver.store.http_errors import wrong_proxy_error
from nodeside.http.failures import safe_url

_AMBIGUOUS = "expected one without backslashes, whitespace, control characters and user names"


def next_address(current: str, location: str) -> str:
    """Return the target of a redirect as an absolute URL.

    Raises FetchError if the target is invalid, not http(s), or a downgrade from https to http.
    """
    try:
        target = urljoin(current, location)
        check_characters(location)
        old, new = origin(current), origin(target)
    except ValueError:
        raise FetchError(
            f"{safe_url(current)} redirects to an invalid URL, {_AMBIGUOUS}", reason="Redirects"
        ) from None
    if not location or new.scheme not in ("http", "https") or not new.host:
        raise FetchError(
            f"{safe_url(current)} redirects to {safe_url(location)!r}, "
            "expected an http or https URL",
            reason="Redirects",
        )
    if old.scheme == "https" and new.scheme != "https":
        raise FetchError(
            f"{safe_url(current)} redirects from https to plain http: {safe_url(target)}",
            reason="Redirects",
            hint="behind a proxy that ends TLS, configure the server to redirect to https URLs",
        )
    return target


class Origin(NamedTuple):
    """The origin of a URL (RFC 6454)."""

    scheme: str
    host: str
    port: int | None


def origin(url: str, *, user_allowed: bool = False) -> Origin:
    """Return the origin that a request for `url` connects to.

    Raises ValueError if the text is not a valid URL, or if parsers may disagree about its host.
    """
    from urllib3.util import parse_url  # late: as requests, it costs memory that few starts need

    check_characters(url)
    parts = parse_url(url)
    if not user_allowed and (parts.auth is not None or "@" in urlsplit(url).netloc):
        raise ValueError("a URL with a user name or password")
    scheme = parts.scheme or ""
    return Origin(scheme, parts.host or "", parts.port or {"http": 80, "https": 443}.get(scheme))


def origin_to_ask(url: str) -> Origin:
    """Return the origin of a URL that is about to be requested. Raises FetchError."""
    try:
        found = origin(url)
    except ValueError:
        raise FetchError(f"{safe_url(url)}: not a valid URL, {_AMBIGUOUS}") from None
    if found.scheme not in ("http", "https") or not found.host:
        raise FetchError(f"{safe_url(url)}: expected an http or https URL")
    return found


def check_characters(url: str) -> None:
    """Raise ValueError for characters that some parsers drop and others take for a separator."""
    if "\\" in url or " " in url or not url.isprintable():
        raise ValueError("a URL with a backslash, whitespace or a control character")


def check_proxy(url: str) -> None:
    """Raise FetchError if the environment names an unusable proxy for `url`.

    The messages of urllib3 would quote its address in full.
    """
    from requests.utils import get_environ_proxies, select_proxy

    proxy = select_proxy(url, get_environ_proxies(url))
    if not proxy:
        return
    try:
        address = origin(proxy if "://" in proxy else f"http://{proxy}", user_allowed=True)
    except ValueError:
        raise wrong_proxy_error() from None
    if not address.host:
        raise wrong_proxy_error()
