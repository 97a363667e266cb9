"""Plain words for failed HTTP exchanges: the cause at the bottom of an exception; URLs to show.

The text of urllib3 is a pile of class names. A URL is shown without its query, for the addresses of
blobs are often signed. What a server says is cut, and cannot move the cursor of a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    pass


_DETAIL = 200  # characters of a server's own words


_ADDRESS = 400  # characters of a URL


def shown(url: str) -> str:
    """A URL without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return printable(urlunsplit((parts.scheme, host, parts.path, "", "")), _ADDRESS)
    except ValueError:
        return "a URL that cannot be parsed"


def root_cause(exc: BaseException) -> str:
    """The innermost reason in words: `Connection refused`, `certificate verify failed`."""
    seen = list(causes(exc))
    last = next((e for e in reversed(seen) if isinstance(e, OSError) and e.strerror), seen[-1])
    text = getattr(last, "strerror", None) or str(last) or type(last).__name__
    return printable(str(text))


def causes(exc: BaseException) -> Iterator[BaseException]:
    """An exception and what it is about, down to the bottom."""
    seen: list[BaseException] = []
    here: BaseException | None = exc
    while here is not None and here not in seen:
        seen.append(here)
        yield here
        here = _inner(here)


def printable(text: str, limit: int = _DETAIL) -> str:
    """Words of others as a part of one line of ours."""
    return "".join(c for c in text if c.isprintable())[:limit]


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
