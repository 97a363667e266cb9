"""What the API server refuses, in words, with what to do about it.

Made by api.py, which lets nothing else out; caught by whoever has another way.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

from nodeside.errors import ExitCode, NodesideError

_CANNOT = re.compile(r"\bcannot ([a-z]+) resource\b")
_OUTAGE = (0, 401, 429, 502, 503, 504)  # HTTP statuses; 0: no answer
_WORDS_LIMIT = 500  # characters of the server's own words that we repeat


class ApiError(NodesideError):
    """The API server refused, or did not answer.

    `status` is the HTTP status (0: no answer). `retry_after` is what the server asked for, in
    seconds. `budgets` are the PodDisruptionBudgets that refuse an eviction, in its words. Not
    retryable means that somebody must change something in the cluster first.
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
        budgets: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint, retryable=retryable)
        self.status = status
        self.retry_after = retry_after
        self.budgets = budgets

    @property
    def concerns_all(self) -> bool:
        """Whether the API server is gone or overloaded, rather than against this one request."""
        return self.retryable and self.status in _OUTAGE


class Unreachable(ApiError):
    """No answer at all: refused, cut, or too slow."""

    reason = "ApiServerUnreachable"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, retryable=True)


class NotFound(ApiError):
    """404: no such object, or no such kind."""

    reason = "NotFound"


class Conflict(ApiError):
    """409: it exists already, or somebody else changed it first."""

    reason = "Conflict"


class Gone(ApiError):
    """410: what a watch or a list wanted to go on from is no longer kept; list anew."""

    reason = "Expired"


class Forbidden(ApiError):
    """403: a rule is missing."""

    reason = "Forbidden"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request was about, in the words that RBAC rules are written in."""

    verb: str
    plural: str
    name: str = ""
    namespace: str = ""
    group: str = ""

    def __str__(self) -> str:
        words = f"{self.verb} {self.plural}"
        if self.name:
            words += f' "{self.name}"'
        return words + (f" in namespace {self.namespace}" if self.namespace else "")

    @property
    def can_i(self) -> str:
        """The command that shows whether a rule is there."""
        plural, _, subresource = self.plural.partition("/")
        kind = f"{plural}.{self.group}" if self.group else plural
        words = f"kubectl auth can-i {self.verb} {kind}"
        words += f" --subresource={subresource}" if subresource else ""
        return words + (f" -n {self.namespace}" if self.namespace else "")


def refusal(asked: Asked, status: int, body: bytes, retry_after: str = "") -> ApiError:
    """The error for an answer that is no success."""
    said = _message(body)
    kind, words, retryable = _meaning(400 if said.startswith(_UNTYPED) else status)
    return kind(
        f"{words} {asked}" + (f": {said}" if said else f" (HTTP status {status})"),
        hint=_hint(asked, status, said),
        retryable=retryable,
        status=status,
        retry_after=_seconds(retry_after),
        budgets=_budgets(body) if status == 429 else (),
    )


def refusal_of_status(asked: Asked, document: dict[str, Any]) -> ApiError:
    """The error for a `Status` object, as a watch sends it."""
    code = document.get("code", 0)
    return refusal(asked, code if isinstance(code, int) else 0, json.dumps(document).encode())


# What server-side apply says of a field that its schema does not have: with status 500, though the
# same document will be refused for ever.
_UNTYPED = "failed to create typed patch object"

_REPEAT = (ApiError, "the API server asks to repeat the request to", True)
_MEANING: dict[int, tuple[type[ApiError], str, bool]] = {
    401: (ApiError, "the API server does not know who asks to", True),
    403: (Forbidden, "no permission to", False),
    404: (NotFound, "the API server does not find what to", False),
    408: _REPEAT,
    409: (Conflict, "somebody else was faster; cannot", True),
    410: (Gone, "no longer kept by the API server, asked to", True),
    425: _REPEAT,
    429: _REPEAT,
}


def _meaning(status: int) -> tuple[type[ApiError], str, bool]:
    """The class, the first words of the message, and whether to try again soon."""
    if status in _MEANING:
        return _MEANING[status]
    failed = status >= 500
    return ApiError, f"the API server {'failed' if failed else 'refuses'} to", failed


def _hint(asked: Asked, status: int, said: str) -> str:
    match status:
        case 401:
            return "the token or certificate may have expired: kubectl auth whoami"
        case 403:
            missing = _missing(asked, said).can_i
            return f"see what is missing: {missing}; `nodeside-cluster install` adds the rules"
        case 404 if asked.group == "nodeside.io" and not asked.name:
            return "install the custom resource definitions: nodeside-cluster install"
        case 404 if asked.group == "monitoring.coreos.com":
            return "it takes the Prometheus Operator; without it, leave --service-monitor out"
        case _:
            return ""


def _missing(asked: Asked, said: str) -> Asked:
    """What the rule would have to allow: an apply of what is not there yet is a `create` too."""
    refused = _CANNOT.search(said)
    return replace(asked, verb=refused[1]) if refused else asked


def _message(body: bytes) -> str:
    """The message of a `Status`; nothing of a proxy's HTML page."""
    with suppress(ValueError, RecursionError, AttributeError):
        said = str(json.loads(body).get("message", ""))
        return " ".join("".join(c if c.isprintable() else " " for c in said).split())[:_WORDS_LIMIT]
    return ""


def _budgets(body: bytes) -> tuple[str, ...]:
    """The causes of a refused eviction; they name the budget and count its pods."""
    with suppress(ValueError, RecursionError, AttributeError, TypeError):
        causes = json.loads(body).get("details", {}).get("causes", ())
        said = [str(c.get("message", "")) for c in causes if c.get("reason") == "DisruptionBudget"]
        return tuple(words[:_WORDS_LIMIT].replace("The ", "the ", 1) for words in said)
    return ()


def _seconds(header: str) -> float | None:
    """Seconds from now: the header has seconds or a date (RFC 9110, 10.2.3)."""
    if header.isdecimal() and len(header) < 10:
        return float(header)
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    return None
