"""Readable messages for failed HTTP exchanges: root causes of exceptions, and printable URLs.

urllib3's messages are mostly nested class names. URLs are shown without their query, because blob
URLs often contain signatures. Text from a server is truncated and stripped of control characters.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

_DETAIL = 200  # characters of server text
_ADDRESS = 400  # characters of a URL


def safe_url(url: str) -> str:
    """Return a URL without user, password, query and fragment."""
    if "\\" in url:  # parsers disagree about where its password ends
        return "a URL that cannot be parsed"
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return make_printable(urlunsplit((parts.scheme, host, parts.path, "", "")), _ADDRESS)
    except ValueError:
        return "a URL that cannot be parsed"


def root_cause(exc: BaseException) -> str:
    """Return the innermost reason as text: `Connection refused`, `certificate verify failed`."""
    chain = list(chain_of_causes(exc))
    last = next((e for e in reversed(chain) if isinstance(e, OSError) and e.strerror), chain[-1])
    text = getattr(last, "strerror", None) or str(last) or type(last).__name__
    return make_printable(str(text))


def chain_of_causes(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its chain of causes, outermost first."""
    visited: list[BaseException] = []
    current: BaseException | None = exc
    while current is not None and current not in visited:
        visited.append(current)
        yield current
        current = _direct_cause(current)


def make_printable(text: str, limit: int = _DETAIL) -> str:
    """Return foreign text cut and without control characters, to embed in a single line."""
    return "".join(c for c in text if c.isprintable())[:limit]


def _direct_cause(exc: BaseException) -> BaseException | None:
    """Return the direct cause: urllib3 stores it in one of three places, Python in two more."""
    places = (
        getattr(exc, "reason", None),
        getattr(exc, "original_error", None),
        exc.args[0] if exc.args else None,
        exc.__cause__,
        exc.__context__,
    )
    return next((place for place in places if isinstance(place, BaseException)), None)
