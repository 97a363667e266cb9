"""State of a running download: bytes on disk, digest so far, and checks for a resume."""

from __future__ import annotations

import hashlib
from typing import IO, TYPE_CHECKING

from nodeside.driver.store.base import FetchError
from nodeside.http.failures import safe_url

if TYPE_CHECKING:
    import requests

_LENGTH_DIGITS = 18  # of a Content-Length


class Partial:
    """A partial download: the bytes on disk and their sha256 so far."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file = file
        self.limit = limit
        self.validator = ""
        self.restart()

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self.size = 0
        self._hash = hashlib.sha256()

    def add_chunk(self, chunk: bytes, url: str) -> None:
        if self.size + len(chunk) > self.limit:
            raise too_large_error(url, self.limit)
        self._file.write(chunk)
        self._hash.update(chunk)
        self.size += len(chunk)

    def compare_digest(self, url: str, size: int | None, sha256: str) -> None:
        """Raise FetchError if size or sha256 differ from the expected ones."""
        actual = self._hash.hexdigest()
        if size is not None and self.size != size:
            raise FetchError(
                f"{safe_url(url)} has {self.size} bytes, expected {size}", reason="WrongDigest"
            )
        if sha256 and actual != sha256:
            raise FetchError(
                f"{safe_url(url)} has sha256 {actual}, expected {sha256}: "
                "damaged in transit, or replaced",
                reason="WrongDigest",
            )


def starts_at(response: requests.Response, offset: int) -> bool:
    """Return whether the body starts at `offset`. A server may ignore Range and send the file."""
    if response.status_code != 206:
        return False
    return response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")


def range_validator(response: requests.Response) -> str:
    """Return the validator for If-Range, which detects a replaced file (RFC 9110, 13.1.5).

    "" if the response has no usable one.
    """
    etag = response.headers.get("ETag", "")
    strong = etag and not etag.startswith("W/")
    value = etag if strong else response.headers.get("Last-Modified", "")
    return value if value.isascii() and value.isprintable() else ""  # sent back to the server


def announced_length(response: requests.Response, url: str) -> int | None:
    """Return Content-Length, or None if absent. Raises FetchError if it is not a number."""
    text = response.headers.get("Content-Length", "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > _LENGTH_DIGITS:
        raise FetchError(
            f"{safe_url(url)} has an invalid Content-Length: {text!r:.40}", reason="HttpError"
        )
    return int(text)


def too_large_error(url: str, limit: int) -> FetchError:
    return FetchError(
        f"{safe_url(url)} has more than {limit} bytes",
        reason="TooLarge",
        hint="raise spec.prebuilt.sizeLimitMib in driver.yaml if the bundle is that large",
    )
