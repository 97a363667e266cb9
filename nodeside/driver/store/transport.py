"""HTTP for the stores: one deadline, size limits, resume, safe redirects, readable errors.

A `Transport` is one session with one server and the servers it redirects to. Every exception of
`requests` and urllib3 is converted here to a FetchError that says whether a retry can help.
Transient failures (a broken connection, 429, 5xx) are retried here, within the deadline; a broken
download resumes where it stopped. Credentials are sent only to the configured server (`home`),
whatever a redirect or the Location of an upload says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from nodeside import __version__
from nodeside.driver.bundle.bundle import CHUNK
from nodeside.driver.store.addresses import check_proxy, next_address, origin, origin_to_ask
from nodeside.driver.store.base import FetchError, FetchOptions, Store
from nodeside.driver.store.download import (
    Partial,
    announced_length,
    range_validator,
    starts_at,
    too_large_error,
)
from nodeside.driver.store.http_errors import exchange_error, network_errors, status_error
from nodeside.errors import SystemRefused
from nodeside.http.failures import safe_url
from nodeside.system.clock import backoff
from nodeside.system.files import disk_errors
from nodeside.values import frozen

if TYPE_CHECKING:
    import requests

    from nodeside.http.deadline import Deadline

T = TypeVar("T")

_ATTEMPTS = 4  # consecutive attempts without a byte of progress
_RESUMES = 256  # per download, however little each resume transferred
_REDIRECTS = 5
_SMALL_CHUNK = 1 << 14  # bytes per read if the reader may stop early
_REDIRECT_CODES = (301, 302, 303, 307, 308)


class Authorization(Protocol):
    """Authentication of requests to the configured server."""

    def header(self) -> str:
        """Return the value of the Authorization header; "" for none."""

    def answer_challenge(self, challenge: str) -> bool:
        """Process a WWW-Authenticate header; return whether a retry makes sense."""


@frozen
class Reply:
    """A response with its complete body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ServedStore(Store):
    """A store behind HTTP. Its session lasts as long as the `with` block around it."""

    _transport: Transport

    def __enter__(self) -> Self:
        self._transport.authorization = self._make_authorization()
        self._transport.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._transport.__exit__(*exc)

    @abstractmethod
    def _make_authorization(self) -> Authorization | None:
        """Return the authentication for reads, None if there is none. Raises FetchError."""


class Transport:
    """An HTTP session with one deadline. Use as a context manager.

    The deadline starts on entry. `home` is a URL of the configured server.
    """

    def __init__(self, options: FetchOptions, home: str) -> None:
        self._options = options
        self._home = home
        self.authorization: Authorization | None = None
        self._stack = ExitStack()
        self._session: requests.Session
        self.deadline: Deadline

    def __enter__(self) -> Self:
        import requests  # late: 15 MiB and 80 ms that most starts of a driver do not need

        from nodeside.http.deadline import Deadline

        ca_file = self._options.ca_file
        if ca_file is not None and not ca_file.is_file():
            raise FetchError(f"no CA file at {ca_file}", reason="Tls")
        with ExitStack() as stack:
            try:
                self.deadline = Deadline(self._options.timeout)
            except SystemRefused as error:  # another source may need no thread
                raise FetchError(str(error), retryable=True) from error
            stack.callback(self.deadline.close)
            self._session = stack.enter_context(requests.Session())
            # requests would read the whole body of a redirect; `_follow_redirects` does not.
            setattr(self._session, "get_redirect_target", _no_redirect)  # noqa: B010
            self._session.headers.update(
                {"User-Agent": f"nodeside/{__version__}", "Accept-Encoding": "identity"}
            )
            self.deadline.watch_session(self._session)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get_document(self, url: str, *, limit: int, accept: str = "*/*") -> Reply | None:
        """Get a small document of at most `limit` bytes, or None if there is none (404)."""
        return self.retry_call(
            lambda: self.send_request("GET", url, limit=limit, headers={"Accept": accept})
        )

    def send_request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Path | None = None,
        limit: int = CHUNK,
    ) -> Reply | None:
        """Send one request without retries; None for 404. Raises FetchError for other failures."""
        with self._open_response(method, url, headers or {}, body) as response:
            if response.status_code == 404:
                return None
            data = bytearray()
            for chunk in self._read_chunks(response, url):
                data += chunk
                if len(data) > limit:
                    raise too_large_error(url, limit)
            return Reply(response.status_code, response.headers, bytes(data))

    def download(
        self, url: str, to: Path, *, limit: int, size: int | None = None, sha256: str = ""
    ) -> bool:
        """Download to the new file `to`; False if the URL does not exist (404).

        A broken transfer resumes where it stopped if the server supports that. At most `limit`
        bytes are written. With `size` and `sha256`, only an exact match is accepted.
        """
        if size is not None and size > limit:
            raise too_large_error(url, limit)
        with disk_errors(to), open(to, "xb") as file:
            partial = Partial(file, limit if size is None else size)
            failures = 0
            for resumes in count():
                before = partial.size
                try:
                    if not self._continue_download(url, partial):
                        return False
                    break
                except FetchError as exc:
                    failures = 0 if partial.size > before else failures + 1
                    self._wait_or_raise(exc, _ATTEMPTS if resumes == _RESUMES else failures)
        partial.compare_digest(url, size, sha256)
        return True

    @contextmanager
    def stream_body(self, url: str) -> Iterator[Body | None]:
        """Yield the body of a document, read only as far as the caller needs; None for 404."""
        with self._open_response("GET", url, {}, None) as response:
            exists = response.status_code != 404
            yield Body(self._read_chunks(response, url, _SMALL_CHUNK)) if exists else None

    @property
    def insecure(self) -> bool:
        """Return whether the configured server uses plain HTTP."""
        return origin(self._home).scheme == "http"

    @contextmanager
    def without_authorization(self) -> Iterator[None]:
        """Send requests in this block without Authorization, except from their own headers."""
        previous, self.authorization = self.authorization, None
        try:
            yield
        finally:
            self.authorization = previous

    def retry_call(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it succeeds, with backoff while its FetchErrors are retryable."""
        failures = 0
        while True:
            try:
                return attempt()
            except FetchError as exc:
                failures += 1
                self._wait_or_raise(exc, failures)

    def _wait_or_raise(self, exc: FetchError, failures: int) -> None:
        if not exc.retryable or failures >= _ATTEMPTS or self.deadline.has_passed:
            raise exc
        pause = backoff(failures, self._options.backoff)
        if exc.after is not None:
            pause = exc.after
        if pause >= self.deadline.seconds_left:
            raise exc
        self.deadline.pause(pause)

    def _continue_download(self, url: str, partial: Partial) -> bool:
        """Fetch the missing rest of a partial download; False for 404."""
        headers = {}
        if partial.size:
            headers["Range"] = f"bytes={partial.size}-"
            if partial.validator:
                headers["If-Range"] = partial.validator
        with self._open_response("GET", url, headers, None, allowed=(416,)) as response:
            if response.status_code == 404:
                return False
            if not starts_at(response, partial.size):
                partial.restart()
            if response.status_code == 416:  # the file changed, or is complete already
                raise FetchError(f"{safe_url(url)} cannot be resumed", retryable=True)
            partial.validator = range_validator(response)
            if (announced_length(response, url) or 0) + partial.size > partial.limit:
                raise too_large_error(url, partial.limit)
            for chunk in self._read_chunks(response, url):
                partial.add_chunk(chunk, url)
        return True

    # --- one request ----------------------------------------------------------------------------

    @contextmanager
    def _open_response(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | Path | None,
        allowed: tuple[int, ...] = (),
    ) -> Iterator[requests.Response]:
        """Yield a response with unread body: 2xx, 404 or one of `allowed`. Raises FetchError."""
        response = self._follow_redirects(method, url, headers, body)
        try:
            status = response.status_code
            if not 200 <= status < 300 and status not in (404, *allowed):
                raise status_error(url, response, self._read_detail(response))
            yield response
        finally:
            response.close()

    def _follow_redirects(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | Path | None
    ) -> requests.Response:
        """Follow redirects, and answer one challenge of the configured server.

        An Authorization in `headers` is sent to the server of `url` only.
        """
        current, learned, request_headers = url, False, dict(headers)
        home, first = origin(self._home), origin_to_ask(url)
        for _ in range(_REDIRECTS + 2):
            here = origin_to_ask(current)
            at_home = here == home
            if here != first:
                request_headers.pop("Authorization", None)
            response = self._send_once(method, current, request_headers, body, at_home=at_home)
            if response.status_code == 401 and at_home and not learned:
                learned = True
                if self._answer_challenge(response):
                    continue
            if response.status_code not in _REDIRECT_CODES or method not in ("GET", "HEAD"):
                return response
            response.close()
            current = next_address(current, response.headers.get("Location", ""))
        raise FetchError(f"{safe_url(url)}: more than {_REDIRECTS} redirects", reason="Redirects")

    def _answer_challenge(self, response: requests.Response) -> bool:
        """Return whether the challenge in a 401 can be answered; if so, close the response."""
        if self.authorization is None:
            return False
        with ExitStack() as stack:
            stack.callback(response.close)
            if self.authorization.answer_challenge(response.headers.get("WWW-Authenticate", "")):
                return True
            stack.pop_all()
        return False

    def _send_once(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | Path | None,
        *,
        at_home: bool,
    ) -> requests.Response:
        request_headers = dict(headers)
        if at_home and self.authorization and (value := self.authorization.header()):
            request_headers["Authorization"] = value
        left = self.deadline.seconds_left
        if self.deadline.has_passed or left <= 0:
            raise self._deadline_error(url)
        options = self._options
        stall = left if body is not None else min(options.stall_timeout, left)
        with ExitStack() as stack:
            data = stack.enter_context(open(body, "rb")) if isinstance(body, Path) else body
            try:
                check_proxy(url)
                return self._session.request(
                    method,
                    url,
                    headers=request_headers,
                    data=data,
                    stream=True,
                    allow_redirects=False,
                    timeout=(min(options.connect_timeout, left), stall),
                    verify=str(options.ca_file) if options.ca_file else None,
                    auth=_keep_auth,
                )
            except network_errors() as exc:
                raise self._exchange_error(url, exc) from exc

    def _read_chunks(
        self, response: requests.Response, url: str, piece: int = CHUNK
    ) -> Iterator[bytes]:
        """Yield the raw body in pieces. Raises FetchError if it ends early."""
        received, expected = 0, announced_length(response, url)
        try:
            for chunk in response.raw.stream(piece, decode_content=False):
                received += len(chunk)
                yield chunk
        except network_errors() as exc:
            raise self._exchange_error(url, exc) from exc
        if self.deadline.has_passed:
            raise self._deadline_error(url)
        if expected is not None and received < expected:
            raise FetchError(
                f"{safe_url(url)} broke off after {received} of {expected} bytes",
                reason="Truncated",
                retryable=True,
            )

    def _read_detail(self, response: requests.Response) -> bytes:
        """Return the first bytes of an error response; b"" if they cannot be read."""
        try:
            return bytes(next(response.raw.stream(4096, decode_content=False), b""))
        except network_errors():  # the status is enough
            return b""

    def _exchange_error(self, url: str, exc: Exception) -> FetchError:
        return self._deadline_error(url) if self.deadline.has_passed else exchange_error(url, exc)

    def _deadline_error(self, url: str) -> FetchError:
        return FetchError(
            f"{safe_url(url)}: not finished after {self.deadline.seconds:g} s",
            reason="Timeout",
            hint="raise spec.prebuilt.timeoutSeconds in driver.yaml if the server is just slow",
            retryable=True,
        )


class Body:
    """A readable object over the pieces of a body."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, count: int) -> bytes:
        """Return at most `count` bytes; b"" at the end."""
        data = self._rest or next(self._chunks, b"")
        self._rest = data[count:]
        return data[:count]


def _no_redirect(response: requests.Response) -> None:
    """Keep requests from following a redirect."""


def _keep_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Return the request as it is: an `auth` that keeps requests from reading ~/.netrc."""
    return request
