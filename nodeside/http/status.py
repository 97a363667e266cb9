"""Interpretation of HTTP error responses, shared by the node, the controller and registries.

Callers add their own messages and hints. This module holds the parts that must be interpreted
consistently: the message in the API server's `Status`, whether a retry may succeed, and how long
the server asks to wait.

Stdlib only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nodeside.errors import ExitCode, NodesideError

WORDS_LIMIT = 500  # characters of the server's message that we repeat
OLD_DEFINITIONS = (
    "if the custom resource definitions are older than this program, update them: "
    "nodeside-cluster install"
)

# The server-side apply error for a field that is missing in the schema. It comes with status 500,
# although the server will always refuse this document.
_UNTYPED = "failed to create typed patch object"
_PASSING = (401, 408, 409, 410, 425, 429)  # and 500 or above

_LONGEST_WAIT = 300.0  # seconds to wait at a server's request; it may be wrong, or hostile


class KubernetesError(NodesideError):
    """The API server refused, or did not answer.

    `status` is the HTTP status (0: no answer). `retry_after` is the wait that the server requested,
    in seconds. Not retryable means that something in the cluster must be changed first.
    """

    exit_code = ExitCode.CLUSTER
    reason = "ApiServerRefused"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        retryable: bool = False,
        status: int = 0,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint, retryable=retryable)
        self.status = status
        self.retry_after = retry_after


def document_of(body: bytes) -> dict[str, Any]:
    """Parse a JSON object; return {} for anything else, such as a proxy's HTML page."""
    with suppress(ValueError, RecursionError):
        document = json.loads(body)
        return document if isinstance(document, dict) else {}
    return {}


def message_of(document: Mapping[str, Any]) -> str:
    """Return the message of a `Status`, truncated, on one line; empty if there is none."""
    message = str(document.get("message") or "")
    return " ".join("".join(c if c.isprintable() else " " for c in message).split())[:WORDS_LIMIT]


def correct_status(status: int, message: str) -> int:
    """Return the HTTP status that the API server should have used."""
    return 400 if message.startswith(_UNTYPED) else status


def is_transient(status: int) -> bool:
    """Return whether the same request may succeed later without any change."""
    return status in _PASSING or status >= 500


def retry_after_seconds(header: str) -> float | None:
    """Parse Retry-After, in seconds or as a date, into seconds from now; None if invalid.

    RFC 9110, 10.2.3. The result is at most 300 s, or a proxy could stall us for a day.
    """
    if header.isdecimal() and len(header) < 10:
        return min(float(header), _LONGEST_WAIT)
    with suppress(ValueError, TypeError, OverflowError):
        from email.utils import parsedate_to_datetime  # imported late: rarely needed, and large

        wait = parsedate_to_datetime(header).timestamp() - time.time()
        return min(max(0.0, wait), _LONGEST_WAIT)
    return None
