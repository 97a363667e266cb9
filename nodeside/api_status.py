"""What a server means that refuses: one reading for the node, for the controller, for registries.

Whoever asked adds its own words and hints. What must not be read differently stands here: what the
API server says in a `Status`, whether the same request may succeed later, and how long it asks to
wait.

Stdlib only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nodeside.errors import ExitCode, NodesideError

WORDS_LIMIT = 500  # characters of the server's own words that we repeat
OLD_DEFINITIONS = (
    "if they are older than what asks, update the definitions: nodeside-cluster install"
)

# What server-side apply says of a field that its schema does not have: with status 500, though the
# same document will be refused for ever.
_UNTYPED = "failed to create typed patch object"
_PASSING = (401, 408, 409, 410, 425, 429)  # and from 500 on

_LONGEST_WAIT = 300.0  # seconds that we wait because a server asks to; it may be wrong, or hostile


class KubernetesError(NodesideError):
    """The API server refused, or did not answer.

    `status` is the HTTP status (0: no answer). `retry_after` is what the server asked for, in
    seconds. Not retryable means that somebody must change something in the cluster first.
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
    """A JSON object; empty for whatever else came, such as the HTML page of a proxy."""
    with suppress(ValueError, RecursionError):
        document = json.loads(body)
        return document if isinstance(document, dict) else {}
    return {}


def words_of(document: Mapping[str, Any]) -> str:
    """The message of a `Status`, on one line and cut; empty if there is none."""
    said = str(document.get("message") or "")
    return " ".join("".join(c if c.isprintable() else " " for c in said).split())[:WORDS_LIMIT]


def meant_status(status: int, said: str) -> int:
    """The HTTP status that the API server should have answered with."""
    return 400 if said.startswith(_UNTYPED) else status


def may_pass(status: int) -> bool:
    """Whether the same request may succeed later without anybody changing anything."""
    return status in _PASSING or status >= 500


def seconds_of(header: str) -> float | None:
    """Seconds from now, five minutes at most: Retry-After has seconds or a date.

    RFC 9110, 10.2.3. A proxy that says "in a day" would stop us for a day.
    """
    if header.isdecimal() and len(header) < 10:
        return min(float(header), _LONGEST_WAIT)
    with suppress(ValueError, TypeError, OverflowError):
        from email.utils import parsedate_to_datetime  # late: rarely needed, and large

        wait = parsedate_to_datetime(header).timestamp() - time.time()
        return min(max(0.0, wait), _LONGEST_WAIT)
    return None
