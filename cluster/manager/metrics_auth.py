"""Token auth for the metrics: the API server decides who may `get` the path.

A TokenReview identifies the user of a bearer token, and a SubjectAccessReview checks the
permission; other components do the same behind a proxy. Verdicts are cached briefly, so a revoked
token stays valid for up to a minute. New tokens are rate-limited, so requests from strangers put no
significant load on the API server.

https://kubernetes.io/docs/reference/access-authn-authz/authorization/#non-resource-attributes
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from cluster.kube.client import Api
from cluster.kube.errors import ApiError
from cluster.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Resource
from cluster.model.names import METRICS_READER
from nodeside import log

_REQUEST = 5.0  # seconds for one review
_ALLOWED, _REFUSED = 60.0, 10.0  # seconds that a verdict is cached
_CACHED = 256  # maximum number of cached verdicts
_PER_SECOND, _AT_ONCE = 5.0, 20.0  # rate and burst of tokens that were never seen before
_TOKEN_LIMIT = 16 << 10  # characters; a service account token has about a thousand


@dataclass(frozen=True, slots=True)
class AccessVerdict:
    """An HTTP status, with a message if it is not a success."""

    status: HTTPStatus
    message: str = ""


@dataclass
class RateLimit:
    """A limit of `_PER_SECOND` on average, with bursts of `_AT_ONCE`."""

    now: Callable[[], float]
    _left: float = _AT_ONCE
    _then: float | None = None

    def allows_one_more(self) -> bool:
        now = self.now()
        if self._then is not None:
            self._left = min(_AT_ONCE, self._left + (now - self._then) * _PER_SECOND)
        self._then = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass
class TokenReviewer:
    """Reviews by the API server, with a short-lived cache."""

    api: Api
    now: Callable[[], float] = time.monotonic
    _cache: OrderedDict[str, tuple[float, AccessVerdict]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._budget = RateLimit(self.now)

    def judge_request(self, authorization: str, path: str) -> AccessVerdict:
        """Return whether the sender of this Authorization header may get `path`."""
        kind, _, token = authorization.strip().partition(" ")
        token = token.strip()
        if kind.lower() != "bearer" or not token:
            return AccessVerdict(HTTPStatus.UNAUTHORIZED, "a bearer token is required")
        if len(token) > _TOKEN_LIMIT:
            return AccessVerdict(HTTPStatus.UNAUTHORIZED, _UNKNOWN)
        key = hashlib.sha256(f"{path}\n{token}".encode()).hexdigest()
        with self._lock:
            verdict = self._cached_verdict(key)
            if verdict is None and not self._budget.allows_one_more():
                return AccessVerdict(
                    HTTPStatus.TOO_MANY_REQUESTS, "too many unknown tokens; try later"
                )
        return verdict or self._review_and_cache(key, token, path)

    def _cached_verdict(self, key: str) -> AccessVerdict | None:
        until, verdict = self._cache.get(key, (0.0, None))
        return verdict if until > self.now() else None

    def _review_and_cache(self, key: str, token: str, path: str) -> AccessVerdict:
        try:
            verdict = self._review_token(token, path)
        except ApiError as error:
            log.warning(f"cannot check the token of a metrics request: {error}", hint=error.hint)
            message = "the API server did not check your token; see the controller's log"
            return AccessVerdict(HTTPStatus.SERVICE_UNAVAILABLE, message)
        seconds = _ALLOWED if verdict.status is HTTPStatus.OK else _REFUSED
        with self._lock:
            self._cache[key] = (self.now() + seconds, verdict)
            self._cache.move_to_end(key)
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return verdict

    def _review_token(self, token: str, path: str) -> AccessVerdict:
        status = self._create_review(TOKEN_REVIEWS, {"token": token})
        user = status.get("user") or {}
        if status.get("authenticated") is not True or not user.get("username"):
            return AccessVerdict(HTTPStatus.UNAUTHORIZED, _UNKNOWN)
        access = {
            "user": user["username"],
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        if self._create_review(SUBJECT_ACCESS_REVIEWS, access).get("allowed") is True:
            return AccessVerdict(HTTPStatus.OK)
        name = user["username"]
        message = f"{name} may not get {path}; the ClusterRole {METRICS_READER} allows it"
        return AccessVerdict(HTTPStatus.FORBIDDEN, message)

    def _create_review(self, resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create a review and return its status. The API server does not store reviews."""
        review = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {},
            "spec": spec,
        }
        answer = self.api.create(review, deadline=_REQUEST, patient=False)
        status = answer.get("status")
        return status if isinstance(status, Mapping) else {}


_UNKNOWN = "the API server does not know this token, or it has expired"
