"""Requests of a container on a node to the Kubernetes API server: credentials, limits, errors.

Credentials are those that Kubernetes mounts into a pod. The token is read again for every request
(the kubelet replaces it before it expires) and never appears in a log line or an exception. Proxies
and netrc are ignored on purpose: the API server is inside the cluster, and netrc would replace the
token.

`requests` is imported with the first call. A connection stays open until `close`.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeside.errors import SystemRefused
from nodeside.http.status import (
    WORDS_LIMIT,
    KubernetesError,
    correct_status,
    document_of,
    is_transient,
    message_of,
    retry_after_seconds,
)
from nodeside.values import frozen

if TYPE_CHECKING:
    import requests

    from nodeside.http.deadline import Deadline

TOKEN_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_CONNECT = 5.0  # seconds
_READ = 10.0  # seconds without a byte
_REQUEST = 15.0  # seconds for a whole request
_ANSWER = 1 << 20  # bytes
_PIECE = 1 << 14  # bytes


@frozen
class ApiCall:
    """One request. `verb` and `resource` use the terms of RBAC rules."""

    verb: str
    resource: str
    name: str
    method: str
    path: str
    content_type: str = ""
    body: Mapping[str, Any] | None = None
    accept: str = "application/json"

    def in_words(self) -> str:
        """Return the request as text: `patch nodes "n1"`."""
        return f'{self.verb} {self.resource} "{self.name}"'


@frozen
class Caller:
    """Who asks, as its errors name it: `<container> container`, `<container> pod`.

    `rules` are the permissions that the pod's role needs: API group and verbs by resource.
    `meaning` returns the beginning of a message and a hint for a refusal that means something
    special, by its HTTP status.
    """

    container: str
    rules: Mapping[str, tuple[str, tuple[str, ...]]]
    meaning: Callable[[ApiCall, int], tuple[str, str] | None] = lambda *_: None


@frozen
class PodAccess:
    """The URL of the API server, and the directory with `token` and `ca.crt`."""

    url: str
    directory: Path

    @staticmethod
    def from_environment(environ: Mapping[str, str]) -> PodAccess | None:
        """Return the access of this pod, or None outside of a pod.

        NODESIDE_TOKEN_DIR overrides the token directory, for a projected token.
        """
        host = environ.get("KUBERNETES_SERVICE_HOST", "")
        if not host:
            return None
        port = environ.get("KUBERNETES_SERVICE_PORT", "") or "443"
        directory = environ.get("NODESIDE_TOKEN_DIR", "") or TOKEN_DIRECTORY
        address = f"[{host}]" if ":" in host else host
        return PodAccess(f"https://{address}:{port}", Path(directory))

    def read_token(self, container: str) -> str:
        """Read the current token of a container. Raises KubernetesError, which never quotes it."""
        path = self.directory / "token"
        try:
            token = path.read_text("ascii", errors="replace").strip()
        except OSError as exc:
            raise KubernetesError(
                f"cannot read the service account token {path}: {exc.strerror}",
                hint="project a serviceAccountToken, and kube-root-ca.crt as ca.crt, into "
                f"{self.directory} of the {container} container",
                retryable=True,
            ) from exc
        # The HTTP library quotes a header value that it refuses to send in its exception.
        if not token or set(token) - set(string.ascii_letters + string.digits + "-._~+/="):
            raise KubernetesError(f"{path} does not hold a token", retryable=True)
        return token


@frozen
class Response:
    """An HTTP response: status, JSON body (empty if none), Retry-After in seconds."""

    status: int
    document: Mapping[str, Any] = field(default_factory=dict)
    retry_after: float | None = None


class Client:
    """A client of the API server of the cluster that this pod runs in, for one thread at a time.

    Its timeouts are seconds to connect, without a byte, and for a whole request. `answer` is the
    size of the largest answer, in bytes. Every error is a KubernetesError.
    """

    def __init__(
        self,
        access: PodAccess,
        caller: Caller,
        *,
        connect: float = _CONNECT,
        read: float = _READ,
        whole: float = _REQUEST,
        answer: float = _ANSWER,
    ) -> None:
        self._access = access
        self._caller = caller
        self._timeout = (connect, read)
        self._whole = whole
        self._limit = answer
        self._session: requests.Session | None = None
        self._deadline: Deadline | None = None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._deadline is not None:
            self._deadline.close()
            self._deadline = None

    def send(self, call: ApiCall) -> Mapping[str, Any]:
        """Send a request; return the document of a successful response."""
        token = self._access.read_token(self._caller.container)
        answer = self._send_once(call, token)
        if (
            answer.status == 401
            and (fresh := self._access.read_token(self._caller.container)) != token
        ):
            answer = self._send_once(call, fresh)
        if answer.status >= 300 or answer.status < 200:
            raise api_error(self._caller, call, answer)
        return answer.document

    def _send_once(self, call: ApiCall, token: str) -> Response:
        """Send one request. Errors of the library and the system become KubernetesError."""
        try:
            deadline = self._open_deadline()
            with deadline.restart(), closing(self._send_request(call, token)) as response:
                answer = self._read_response(call, response)
                if deadline.has_passed:  # a body cut off there may look complete
                    raise self._limit_exceeded_error(call)
                return answer
        except SystemRefused as exc:
            raise KubernetesError(str(exc), retryable=True) from exc
        except OSError as exc:  # requests.RequestException is one
            if deadline.has_passed:
                raise self._limit_exceeded_error(call) from exc
            raise KubernetesError(
                f"no answer from the API server {self._access.url} to {call.in_words()}: "
                f"{_innermost_cause(exc)}",
                hint="check the pod's route to the API server; common causes are a network policy, "
                "a proxy on the node, or a certificate that ca.crt does not cover",
                retryable=True,
            ) from exc

    def _send_request(self, call: ApiCall, token: str) -> requests.Response:
        return self._open_session().request(
            call.method,
            self._access.url + call.path,
            data=None if call.body is None else json.dumps(call.body).encode(),
            headers=_make_headers(call, token),
            timeout=self._timeout,
            verify=str(self._access.directory / "ca.crt"),
            allow_redirects=False,
            stream=True,
        )

    def _open_session(self) -> requests.Session:
        if self._session is None:
            import requests

            self._session = requests.Session()
            self._session.trust_env = False
            self._open_deadline().watch_session(self._session)
        return self._session

    def _open_deadline(self) -> Deadline:
        if self._deadline is None:
            from nodeside.http.deadline import Deadline

            self._deadline = Deadline(self._whole)
        return self._deadline

    def _read_response(self, call: ApiCall, response: requests.Response) -> Response:
        """Read a response. Raises KubernetesError if it exceeds the size limit."""
        data = b""
        for piece in response.iter_content(_PIECE):
            data += piece
            if len(data) > self._limit:
                raise self._limit_exceeded_error(call)
        after = retry_after_seconds(response.headers.get("Retry-After", ""))
        return Response(response.status_code, document_of(data), after)

    def _limit_exceeded_error(self, call: ApiCall) -> KubernetesError:
        return KubernetesError(
            f"the answer to {call.in_words()} is too slow or too large: the limits "
            f"are {self._whole:g} s and {self._limit / (1 << 20):g} MiB",
            retryable=True,
        )


def api_error(caller: Caller, call: ApiCall, answer: Response) -> KubernetesError:
    """Return the error for an unsuccessful response, with a hint on how to fix it."""
    text = message_of(answer.document)
    status = correct_status(answer.status, text)
    kind, hint = caller.meaning(call, status) or _explain_status(caller, call, status)
    return KubernetesError(
        f"{kind} {call.in_words()}" + (f": {text}" if text else f" (HTTP status {answer.status})"),
        hint=hint,
        retryable=is_transient(status),
        status=answer.status,
        retry_after=answer.retry_after,
    )


def _explain_status(caller: Caller, call: ApiCall, status: int) -> tuple[str, str]:
    """Return the beginning of the message, and the hint."""
    match status:
        case 401:
            return (
                "the API server does not accept this pod's token: cannot",
                f"the token may have expired: does the {caller.container} container have it?",
            )
        case 403:
            return "this pod's service account may not", _missing_rbac_rule(caller, call)
        case 408 | 409 | 425 | 429:
            return "the API server asks to repeat the request to", ""
        case _:
            return f"the API server {'failed' if status >= 500 else 'refuses'} to", ""


def _missing_rbac_rule(caller: Caller, call: ApiCall) -> str:
    """Return a hint with the missing RBAC rule, in the form to add to a ClusterRole."""
    group, verbs = caller.rules[call.resource]
    words = ", ".join(f'"{verb}"' for verb in verbs)
    return (
        f"add to the ClusterRole of the {caller.container} pod's service account: "
        f'{{apiGroups: ["{group}"], resources: ["{call.resource}"], verbs: [{words}]}}'
    )


def _make_headers(call: ApiCall, token: str) -> dict[str, str]:
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": call.accept,
        "User-Agent": "nodeside-node",
    }
    if call.content_type:
        headers["Content-Type"] = call.content_type
    return headers


def _innermost_cause(exc: BaseException) -> str:
    """Return the innermost cause: the library wraps `Connection refused` in three layers."""
    while exc.__cause__ is not None or exc.__context__ is not None:
        exc = exc.__cause__ or exc.__context__ or exc
    return str(exc)[:WORDS_LIMIT] or type(exc).__name__
