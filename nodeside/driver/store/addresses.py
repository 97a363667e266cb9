"""Checks of URLs that others supply: redirects, uploads, token services, proxies.

A caller must know the origin of a URL before it sends a request, and must never be redirected from
https to plain http. An invalid URL is a FetchError or a ValueError. No message quotes a URL that
contains a password.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from nodeside.driver.http.failures import shown
from nodeside.driver.store.base import FetchError
from nodeside.driver.store.http_errors import wrong_proxy


def next_address(current: str, location: str) -> str:
    """Return the target of a redirect as an absolute URL.

    Raises FetchError if the target is invalid, not http(s), or a downgrade from https to http.
    """
    try:
        target = urljoin(current, location)
        old, new = origin(current), origin(target)
    except ValueError:
        raise FetchError(
            f"{shown(current)} redirects to an invalid URL", reason="Redirects"
        ) from None
    if not location or new.scheme not in ("http", "https") or not new.host:
        raise FetchError(
            f"{shown(current)} redirects to {shown(location)!r}, expected an http or https URL",
            reason="Redirects",
        )
    if old.scheme == "https" and new.scheme != "https":
        raise FetchError(
            f"{shown(current)} redirects from https to plain http: {shown(target)}",
            reason="Redirects",
            hint="behind a proxy that ends TLS, configure the server to redirect to https URLs",
        )
    return target


class Origin(NamedTuple):
    """The origin of a URL (RFC 6454)."""

    scheme: str
    host: str
    port: int | None


def origin(url: str) -> Origin:
    """Return the origin of a URL. Raises ValueError if the text is not a valid URL."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return Origin(parts.scheme, parts.hostname or "", port)


def check_proxy(url: str) -> None:
    """Raise FetchError if the environment names an unusable proxy for `url`.

    The messages of urllib3 would quote its address in full.
    """
    from requests.utils import get_environ_proxies, select_proxy

    proxy = select_proxy(url, get_environ_proxies(url))
    if not proxy:
        return
    try:
        address = origin(proxy if "://" in proxy else f"http://{proxy}")
    except ValueError:
        raise wrong_proxy() from None
    if not address.host or not proxy.isprintable() or " " in proxy:
        raise wrong_proxy()
