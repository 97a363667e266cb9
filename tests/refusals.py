"""What a Kubernetes API server says when it refuses a request, in the shape of a real one.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
"""

from __future__ import annotations

from typing import Any, Final

NO_SUCH_PATH: Final = "404 page not found\n"  # of a group or kind that is not served: no JSON
_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


def refusal(code: int, message: str, reason: str = "", **details: Any) -> dict[str, Any]:
    """A Status document. `details` are name, group, kind (the plural) and causes."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason or _REASONS.get(code, ""),
        **({"details": details} if details else {}),
        "code": code,
    }


def not_found(plural: str, name: str, group: str = "") -> dict[str, Any]:
    kind, details = _about(plural, name, group)
    return refusal(404, f'{kind} "{name}" not found', **details)


def already_exists(plural: str, name: str, group: str = "") -> dict[str, Any]:
    kind, details = _about(plural, name, group)
    return refusal(409, f'{kind} "{name}" already exists', "AlreadyExists", **details)


def modified(plural: str, name: str, group: str = "") -> dict[str, Any]:
    """Of a PUT with the resource version of an earlier state."""
    kind, details = _about(plural, name, group)
    words = "the object has been modified; please apply your changes to the latest version and try"
    message = f'Operation cannot be fulfilled on {kind} "{name}": {words} again'
    return refusal(409, message, **details)


def _about(plural: str, name: str, group: str) -> tuple[str, dict[str, str]]:
    kind = f"{plural}.{group}" if group else plural
    return kind, {"name": name, **({"group": group} if group else {}), "kind": plural}
