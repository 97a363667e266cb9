"""Addresses that others say: of a redirect, an upload, a token service, a proxy.

Whoever asks there must know who would answer, and must never be sent from https to plain http. What
is no address is a FetchError or a ValueError, and no text quotes one with a password in it. Called
by `transport.py` and the stores above it.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from nodeside.driver.http.failures import shown
from nodeside.driver.store.base import FetchError
from nodeside.driver.store.http_errors import wrong_proxy


def next_address(here: str, location: str) -> str:
    """Where a server sends us, as an absolute URL. Raises FetchError for what nobody should ask."""
    try:
        there = urljoin(here, location)
        old, new = origin(here), origin(there)
    except ValueError:
        raise FetchError(
            f"{shown(here)} redirects to an address that cannot be parsed", reason="Redirects"
        ) from None
    if not location or new.scheme not in ("http", "https") or not new.host:
        raise FetchError(f"{shown(here)} redirects to {shown(there)!r}", reason="Redirects")
    if old.scheme == "https" and new.scheme != "https":
        raise FetchError(
            f"{shown(here)} redirects from https to plain http: {shown(there)}",
            reason="Redirects",
            hint="a server behind a proxy that ends TLS must be told that it is reached by https",
        )
    return there


class Origin(NamedTuple):
    """Who answers at a URL (RFC 6454)."""

    scheme: str
    host: str
    port: int | None


def origin(url: str) -> Origin:
    """Raises ValueError for what is no URL."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return Origin(parts.scheme, parts.hostname or "", port)


def check_proxy(url: str) -> None:
    """Refuse a proxy that cannot be meant: the texts of urllib3 would quote it whole."""
    from requests.utils import get_environ_proxies, select_proxy

    proxy = select_proxy(url, get_environ_proxies(url))
    if not proxy:
        return
    try:
        there = origin(proxy if "://" in proxy else f"http://{proxy}")
    except ValueError:
        raise wrong_proxy() from None
    if not there.host or not proxy.isprintable() or " " in proxy:
        raise wrong_proxy()
