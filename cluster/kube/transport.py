"""Sends a single request to the API server: deadlines, retries, expired tokens.

Transient failures (no answer, 429 with its Retry-After, 5xx) are retried with jitter until the
deadline of the request. After a 401 the credentials are reloaded once. Every urllib3 exception is
converted to ApiError here. Thread-safe.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from cluster.kube.credentials import Access
from cluster.kube.errors import ApiError, RequestInfo, TooLarge, Unreachable, response_error
from cluster.kube.server_time import ServerTime
from nodeside.http.status import document_of
from nodeside.system.clock import backoff

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

Document = Mapping[str, Any]

USER_AGENT = "nodeside-cluster"
DEADLINE = 30.0  # default deadline in seconds for a request including retries

_CONNECT = 5.0  # seconds
_READ = 15.0  # read timeout in seconds
_PIECE = 1 << 16  # bytes
_ANSWER_LIMIT = 32 << 20  # bytes
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0  # seconds between retries

# Requests metadata only: a patched Node would be returned with its 10-30 kB of status.
# https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    path: str
    request: RequestInfo
    query: Mapping[str, str] = field(default_factory=dict)
    body: Document | Sequence[Document] | None = None
    content_type: str = ""
    metadata_only: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of a successful response, and what its `Warning` headers say."""

    body: bytes
    warnings: tuple[str, ...] = ()


class ApiTransport:
    """A sender of calls. All methods raise only ApiError."""

    def __init__(
        self,
        access: Access,
        *,
        deadline: float = DEADLINE,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
        jitter: Callable[[], float] = random.random,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._access = access
        self._deadline = deadline
        self._now = now
        self._pause = pause
        self.jitter = jitter
        self.tally = RequestCounts()
        self.time = ServerTime(wall)

    @property
    def url(self) -> str:
        return self._access.url

    def close(self) -> None:
        self._access.close()

    def open(self, call: Call, *, read: float) -> BaseHTTPResponse:
        """Return the unread response to a watch. One try; `read` is the read timeout in seconds."""
        return self._open_response(call, read=read)

    def send(
        self,
        call: Call,
        *,
        deadline: float | None = None,
        patient: bool = True,
        limit: int = _ANSWER_LIMIT,
    ) -> bytes:
        """Return the body of a successful response. Raises TooLarge beyond `limit` bytes.

        `deadline` is in seconds and includes retries; without `patient` there is only one try.
        """
        return self.ask(call, deadline=deadline, patient=patient, limit=limit).body

    def ask(
        self,
        call: Call,
        *,
        deadline: float | None = None,
        patient: bool = True,
        limit: int = _ANSWER_LIMIT,
    ) -> Answer:
        """Do the same as `send`, and return the warnings too."""
        ends = self._now() + (self._deadline if deadline is None else deadline)
        failures = 0
        while True:
            try:
                return self._try_once(call, ends, limit)
            except ApiError as error:
                failures += 1
                wait = self._seconds_to_retry(error, failures)
                if not (patient and _is_repeatable(error)) or self._now() + wait >= ends:
                    raise
                self._pause(wait)
                self.tally.count_retry(call.request)

    def _try_once(self, call: Call, ends: float, limit: int) -> Answer:
        left = ends - self._now()
        if left <= 0:
            raise Unreachable(f"no time left: cannot {call.request}")
        response = self._open_response(call, read=_READ, whole=left)
        warnings = parse_warnings(response.headers.get("Warning", ""))
        with translate_errors(call.request), closing(response):
            return Answer(self._read_body(call.request, response, ends, limit), warnings)

    def _open_response(
        self, call: Call, *, read: float, whole: float | None = None
    ) -> BaseHTTPResponse:
        """Return a successful response with its body unread; an expired token is renewed once.

        `whole` limits the seconds for connecting, sending and the start of the response; None for
        a watch. By then the request has either taken effect or failed here.
        """
        ends = self._now() + (whole or _READ)
        response, generation = self._send_request(call, read, whole)
        if response.status == 401:
            with translate_errors(call.request):
                self._read_body(call.request, response, ends)
            self._access.renew(generation)
            response, _ = self._send_request(call, read, whole and max(0.1, ends - self._now()))
        if 200 <= response.status < 300:
            return response
        with translate_errors(call.request), closing(response):
            body = self._read_body(call.request, response, ends)
        after = response.headers.get("Retry-After", "")
        raise response_error(call.request, response.status, document_of(body), after)

    def _send_request(
        self, call: Call, read: float, whole: float | None
    ) -> tuple[BaseHTTPResponse, int]:
        from urllib3 import Timeout
        from urllib3.exceptions import SSLError

        pool, headers, generation = self._access.open_pool()
        headers["Accept"] = _METADATA_ONLY if call.metadata_only else "application/json"
        headers["User-Agent"] = USER_AGENT
        if call.content_type:
            headers["Content-Type"] = call.content_type
        query = f"?{urlencode(call.query)}" if call.query else ""
        status = 0
        with translate_errors(call.request):
            try:
                response = pool.request(
                    call.method,
                    self._access.url + call.path + query,
                    body=None if call.body is None else json.dumps(call.body).encode(),
                    headers=headers,
                    timeout=Timeout(connect=_CONNECT, read=read, total=whole),
                    retries=False,
                    redirect=False,
                    preload_content=False,
                )
                status = response.status
                self.time.update_from_response(response.headers.get("Date", ""))
            except SSLError:
                self._access.renew(generation)  # the cluster's CA may have changed
                raise
            finally:
                self.tally.count_request(call.request, status)
        return response, generation

    def _read_body(
        self,
        request: RequestInfo,
        response: BaseHTTPResponse,
        ends: float,
        limit: int = _ANSWER_LIMIT,
    ) -> bytes:
        """Read the whole body within deadline and size limit, then release the connection."""
        data = bytearray()
        while piece := response.read1(_PIECE):
            data += piece
            if len(data) > limit:
                raise TooLarge(f"the answer to {request} has more than {limit >> 10} KiB")
            if self._now() > ends:
                raise Unreachable(f"the answer to {request} is too slow")
        response.release_conn()
        return bytes(data)

    def _seconds_to_retry(self, error: ApiError, failures: int) -> float:
        """Return the seconds until the next try, with jitter and never less than Retry-After."""
        pause = backoff(failures, _FIRST_PAUSE, _LONGEST_PAUSE)
        if error.retry_after is not None:
            return error.retry_after + pause * self.jitter()
        return pause * (0.5 + self.jitter() / 2)


# Several of one response are joined by commas, which may also be within the quotes.
# https://www.rfc-editor.org/rfc/rfc7234#section-5.5
_WARNING = re.compile(r'\b\d{3} \S+ "((?:[^"\\]|\\.)*)"')


def parse_warnings(header: str) -> tuple[str, ...]:
    """Return the texts of `Warning` headers: `299 - "unknown field \\"spec.x\\""`."""
    return tuple(re.sub(r"\\(.)", r"\1", text) for text in _WARNING.findall(header))


def _is_repeatable(error: ApiError) -> bool:
    """Return whether a retry can succeed; 409 and 410 stay the same however long we wait."""
    return error.retryable and error.status not in (401, 409, 410)


_IS_IT_UP = "is it up, and is there a way to it? kubectl get --raw /readyz"
_OTHER_CERTIFICATE = (
    "the certificate authority of the kubeconfig is not that server's, or a proxy stands between: "
    "kubectl config view --minify"
)
_OF_OPENSSL = re.compile(r"^\[SSL[^]]*\] | \(_ssl\.c:[0-9]+\)$")


class translate_errors:  # noqa: N801  (a context manager, written as a class for its speed)
    """A context manager that converts urllib3 and system errors to Unreachable."""

    __slots__ = ("_request",)

    def __init__(self, request: RequestInfo) -> None:
        self._request = request

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        from urllib3.exceptions import HTTPError, SSLError

        if isinstance(value, (HTTPError, OSError, ValueError)):
            hint = _OTHER_CERTIFICATE if isinstance(value, SSLError) else _IS_IT_UP
            cause = _innermost_cause(value)
            message = f"no answer from the API server to {self._request}: {cause}"
            raise Unreachable(message, hint=hint, cause=cause) from value


def _innermost_cause(exc: BaseException) -> str:
    """Return the innermost cause: urllib3 wraps `Connection refused` into three layers."""
    seen: list[BaseException] = []
    here: BaseException | None = exc
    while here is not None and here not in seen:
        seen.append(here)
        here = getattr(here, "reason", None) or here.__cause__ or here.__context__
        here = here if isinstance(here, BaseException) else None
    last = next((e for e in reversed(seen) if isinstance(e, OSError) and e.strerror), seen[-1])
    text = getattr(last, "strerror", None) or str(last) or type(last).__name__
    text = _OF_OPENSSL.sub("", str(text))
    return "".join(c for c in str(text) if c.isprintable())[:300]


NO_ANSWER = "none"  # the code counted for a request without an answer


@dataclass
class RequestCounts:
    """Request counters: `requests` by verb, resource and code; `repeats` by verb and resource."""

    requests: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    retries: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count_request(self, request: RequestInfo, status: int) -> None:
        """Count one request; `status` is the HTTP status, 0 for no answer."""
        with self._lock:
            self.requests[request.verb, request.plural, str(status or NO_ANSWER)] += 1

    def count_retry(self, request: RequestInfo) -> None:
        """Count one retry."""
        with self._lock:
            self.retries[request.verb, request.plural] += 1

    def copy_counts(self) -> tuple[dict[tuple[str, str, str], int], dict[tuple[str, str], int]]:
        """Return copies of both counters."""
        with self._lock:
            return dict(self.requests), dict(self.retries)

    @property
    def counts_by_verb(self) -> dict[str, int]:
        """The number of requests by verb."""
        counts: Counter[str] = Counter()
        for (verb, _, _), number in self.copy_counts()[0].items():
            counts[verb] += number
        return dict(counts)
