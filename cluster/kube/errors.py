"""API server errors as exceptions, each with a message and a hint.

client.py raises nothing else. Callers that have a fallback catch them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from nodeside.http.status import (
    OLD_DEFINITIONS,
    WORDS_LIMIT,
    KubernetesError,
    correct_status,
    is_transient,
    message_of,
    retry_after_seconds,
)

_CANNOT = re.compile(r"\bcannot ([a-z]+) resource\b")
_OUTAGE = (0, 401, 429, 502, 503, 504)  # HTTP statuses; 0: no answer


class ApiError(KubernetesError):
    """A failed request of the controller or its commands.

    `budgets` are the server's messages about the PodDisruptionBudgets that block an eviction.
    """

    def __init__(
        self, message: str, *, budgets: tuple[str, ...] = (), hint: str = "", **facts: Any
    ) -> None:
        super().__init__(message, hint=hint, **facts)
        self.budgets = budgets

    @property
    def concerns_all(self) -> bool:
        """Whether the API server is down or overloaded, rather than rejecting this request."""
        return self.retryable and self.status in _OUTAGE

    @property
    def concerns_one(self) -> bool:
        """Whether the error may concern the requested object only.

        False if we are not authenticated, an RBAC rule is missing, or the object, its kind or its
        namespace does not exist.
        """
        no_rule = self.status == 403 and _CANNOT.search(str(self))
        return not (self.concerns_all or self.status in (401, 404) or no_rule)


class Unreachable(ApiError):
    """No usable answer: the connection was refused, interrupted, or too slow.

    `cause` is the error of the connection, if that is what failed.
    """

    reason = "ApiServerUnreachable"

    def __init__(self, message: str, *, hint: str = "", cause: str = "") -> None:
        super().__init__(message, hint=hint, retryable=True)
        self.cause = cause


class TooLarge(ApiError):
    """An answer with more bytes than it may have. The same request would get the same answer."""

    reason = "AnswerTooLarge"


class NotFound(ApiError):
    """404: no such object, or no such kind."""

    reason = "NotFound"


class NoSuchKind(NotFound):
    """404 without a status message: the API server does not serve this kind."""


class Conflict(ApiError):
    """409: the object exists already, or another client changed it first."""

    reason = "Conflict"


class Gone(ApiError):
    """410: the resource version or continue token has expired; a new list is needed."""

    reason = "Expired"


class Forbidden(ApiError):
    """403: an RBAC rule is missing. `check_hint` names the command that shows which."""

    reason = "Forbidden"

    def __init__(self, message: str, *, check_hint: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.check_hint = check_hint


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A description of a request in RBAC terms."""

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
        """The command that shows whether an RBAC rule permits the request."""
        plural, _, subresource = self.plural.partition("/")
        kind = f"{plural}.{self.group}" if self.group else plural
        words = f"kubectl auth can-i {self.verb} {kind}"
        words += f" --subresource={subresource}" if subresource else ""
        return words + (f" -n {self.namespace}" if self.namespace else "")


def response_error(
    request: RequestInfo, status: int, document: Mapping[str, Any], retry_after: str = ""
) -> ApiError:
    """Return the error for an unsuccessful response, or for a `Status` object sent by a watch."""
    message = message_of(document)
    meant = correct_status(status, message)
    kind, words = _class_and_start(meant)
    if meant == 404 and not message:
        kind = NoSuchKind
        words = "the API server does not serve this kind: cannot"
    return kind(
        f"{words} {request}" + (f": {message}" if message else f" (HTTP status {status})"),
        hint=_hint_for(request, meant, message),
        retryable=is_transient(meant),
        status=status,
        retry_after=retry_after_seconds(retry_after),
        budgets=_budget_causes(document) if status == 429 else (),
        **({"check_hint": _check_hint(request, message)} if kind is Forbidden else {}),
    )


_REPEAT = (ApiError, "the API server asks to repeat the request to")
_MEANING: dict[int, tuple[type[ApiError], str]] = {
    401: (ApiError, "the API server does not accept our credentials: cannot"),
    403: (Forbidden, "no permission to"),
    404: (NotFound, "object not found: cannot"),
    408: _REPEAT,
    409: (Conflict, "conflict: cannot"),
    410: (Gone, "the resource version has expired: cannot"),
    425: _REPEAT,
    429: _REPEAT,
}


def _class_and_start(status: int) -> tuple[type[ApiError], str]:
    """Return the exception class and the start of the message."""
    failed = "failed" if status >= 500 else "refuses"
    return _MEANING.get(status, (ApiError, f"the API server {failed} to"))


def _hint_for(request: RequestInfo, status: int, message: str) -> str:
    match status:
        case 400 if request.group == "nodeside.io":
            return OLD_DEFINITIONS
        case 401:
            return "the token or certificate may have expired: kubectl auth whoami"
        case 403:
            return f"{_check_hint(request, message)}; `nodeside-cluster install` adds the rules"
        case 404 if request.group == "nodeside.io" and not message:
            return "install the custom resource definitions: nodeside-cluster install"
        case 404 if request.group == "monitoring.coreos.com":
            return "install the Prometheus Operator, or leave out --service-monitor"
        case _:
            return ""


def _check_hint(request: RequestInfo, message: str) -> str:
    return f"see what is missing: {_missing_rule(request, message).can_i}"


def _missing_rule(request: RequestInfo, message: str) -> RequestInfo:
    """Return the request that a rule must allow.

    The verb comes from the server's message: applying an object that does not exist needs
    `create` too.
    """
    refused = _CANNOT.search(message)
    return replace(request, verb=refused[1]) if refused else request


def _budget_causes(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the causes of a refused eviction; each names the budget and its pod counts."""
    with suppress(AttributeError, TypeError):
        causes = document.get("details", {}).get("causes", ())
        messages = [
            str(c.get("message", "")) for c in causes if c.get("reason") == "DisruptionBudget"
        ]
        return tuple(message[:WORDS_LIMIT].replace("The ", "the ", 1) for message in messages)
    return ()
