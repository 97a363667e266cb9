"""The four requests that a driver container makes to the Kubernetes API server.

`Cluster` sends the calls of documents.py. `NoCluster` records them, so that `nodeside try` and a
manual run can show and check what would be sent to a cluster.

Credentials are those that Kubernetes mounts into a pod. The token is read again for every request
(the kubelet replaces it before it expires) and never appears in a log line or an exception. Proxies
and netrc are ignored on purpose: the API server is inside the cluster, and netrc would replace the
token.

`requests` is imported with the first call. No connection stays open between announcements.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nodeside.api_status import (
    OLD_DEFINITIONS,
    WORDS_LIMIT,
    KubernetesError,
    document_of,
    may_pass,
    meant_status,
    seconds_of,
    words_of,
)
from nodeside.contract import API_GROUP
from nodeside.driver.announce.documents import (
    Call,
    event_call,
    label_call,
    node_call,
    node_driver_call,
)

if TYPE_CHECKING:
    import requests

    from nodeside.driver.http.deadline import Deadline

TOKEN_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_CONNECT = 5.0  # seconds
_READ = 10.0  # seconds without a byte
_REQUEST = 15.0  # seconds for a whole request
_ANSWER_LIMIT = 1 << 20  # bytes; a NodeDriver is 2 kB
_PIECE = 1 << 14  # bytes
_RECORDED = 100  # calls that `NoCluster` keeps, so that memory stays bounded in a long run

# Responses with a Node hold only its name, uid and labels, not its 10-30 kB of status.
# https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


class Api(Protocol):
    """The cluster interface for announcements. Every method raises KubernetesError only."""

    def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
        """Set labels of a node. Return the node's uid, "" if unknown."""

    def get_node(self, name: str) -> str:
        """Return the uid of a node, "" if unknown."""

    def apply_node_driver(self, document: Mapping[str, Any]) -> None:
        """Apply a NodeDriver document, including its status."""

    def create_event(self, event: Mapping[str, Any]) -> None:
        """Create an Event. An existing Event of the same name is not an error."""

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""


@dataclass(frozen=True)
class Access:
    """The URL of the API server, and the directory with `token` and `ca.crt`."""

    url: str
    directory: Path

    @staticmethod
    def from_environment(environ: Mapping[str, str]) -> Access | None:
        """Return the access of this pod, or None outside of a pod.

        NODESIDE_TOKEN_DIR overrides the token directory, for a projected token.
        """
        host = environ.get("KUBERNETES_SERVICE_HOST", "")
        if not host:
            return None
        port = environ.get("KUBERNETES_SERVICE_PORT", "") or "443"
        directory = environ.get("NODESIDE_TOKEN_DIR", "") or TOKEN_DIRECTORY
        address = f"[{host}]" if ":" in host else host
        return Access(f"https://{address}:{port}", Path(directory))

    def token(self) -> str:
        """Read the current token. Raises KubernetesError, which never quotes it."""
        path = self.directory / "token"
        try:
            token = path.read_text("ascii", errors="replace").strip()
        except OSError as exc:
            raise KubernetesError(
                f"cannot read the service account token {path}: {exc.strerror}",
                hint="project a serviceAccountToken, and kube-root-ca.crt as ca.crt, into "
                f"{self.directory} of the driver container",
                retryable=True,
            ) from exc
        # The HTTP library quotes a header value that it refuses to send in its exception.
        if not token or set(token) - set(string.ascii_letters + string.digits + "-._~+/="):
            raise KubernetesError(f"{path} does not hold a token", retryable=True)
        return token


@dataclass(frozen=True)
class Response:
    """An HTTP response: status, JSON body (empty if none), Retry-After in seconds."""

    status: int
    document: Mapping[str, Any] = field(default_factory=dict)
    retry_after: float | None = None


class Cluster:
    """Client of the API server of the cluster that this pod runs in."""

    def __init__(
        self,
        access: Access,
        *,
        connect: float = _CONNECT,
        read: float = _READ,
        whole: float = _REQUEST,
    ) -> None:
        self._access = access
        self._timeout = (connect, read)
        self._whole = whole
        self._session: requests.Session | None = None
        self._deadline: Deadline | None = None
        self._status_apart = False  # learned from responses

    def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
        return _uid(self._send(label_call(node, labels)))

    def get_node(self, name: str) -> str:
        """Return the uid of a node."""
        return _uid(self._send(node_call(name)))

    def apply_node_driver(self, document: Mapping[str, Any]) -> None:
        """Apply a NodeDriver in one request; two if it is new and has a status subresource.

        With a status subresource in the CRD, the API server drops `status` from a write to the
        object itself. Without it, `status` is an ordinary field. The response shows which case it
        is. (The other order, status first, costs a 404 on every node of a first rollout.)
        """
        if self._status_apart and self._apply_status(document):
            return
        stored = self._send(node_driver_call(document)).get("status") or {}
        desired = document.get("status", {})
        if any(stored.get(key) != value for key, value in desired.items()):
            self._status_apart = self._apply_status(document)

    def _apply_status(self, document: Mapping[str, Any]) -> bool:
        """Apply the status; return False if the object or the subresource does not exist."""
        only = {key: document[key] for key in ("apiVersion", "kind", "status")}
        only["metadata"] = {"name": document["metadata"]["name"]}
        try:
            self._send(node_driver_call(only, "status"))
        except KubernetesError as error:
            if error.status == 404:
                return False
            raise
        return True

    def create_event(self, event: Mapping[str, Any]) -> None:
        try:
            self._send(event_call(event))
        except KubernetesError as error:
            if error.status != 409:  # 409: exists; our first response was lost
                raise

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._deadline is not None:
            self._deadline.close()
            self._deadline = None

    def _send(self, call: Call) -> Mapping[str, Any]:
        token = self._access.token()
        answer = self._exchange(call, token)
        if answer.status == 401 and (fresh := self._access.token()) != token:
            answer = self._exchange(call, fresh)
        if answer.status >= 300 or answer.status < 200:
            raise api_error(call, answer)
        return answer.document

    def _exchange(self, call: Call, token: str) -> Response:
        """Send one request. Errors of the library and the system become KubernetesError."""
        deadline = self._timed()
        try:
            with deadline.anew(), closing(self._request(call, token)) as response:
                answer = self._read(call, response)
                if deadline.passed:  # a body cut off there may look complete
                    raise self._too_much(call)
                return answer
        except OSError as exc:  # requests.RequestException is one
            if deadline.passed:
                raise self._too_much(call) from exc
            raise KubernetesError(
                f"no answer from the API server {self._access.url} to {call.words}: {_cause(exc)}",
                hint="check the pod's route to the API server; common causes are a network policy, "
                "a proxy on the node, or a certificate that ca.crt does not cover",
                retryable=True,
            ) from exc

    def _request(self, call: Call, token: str) -> requests.Response:
        return self._connected().request(
            call.method,
            self._access.url + call.path,
            data=None if call.body is None else json.dumps(call.body).encode(),
            headers=_headers(call, token),
            timeout=self._timeout,
            verify=str(self._access.directory / "ca.crt"),
            allow_redirects=False,
            stream=True,
        )

    def _connected(self) -> requests.Session:
        if self._session is None:
            import requests

            self._session = requests.Session()
            self._session.trust_env = False
            self._timed().watch(self._session)
        return self._session

    def _timed(self) -> Deadline:
        if self._deadline is None:
            from nodeside.driver.http.deadline import Deadline

            self._deadline = Deadline(self._whole)
        return self._deadline

    def _read(self, call: Call, response: requests.Response) -> Response:
        """Read a response. Raises KubernetesError if it exceeds the size limit."""
        data = b""
        for piece in response.iter_content(_PIECE):
            data += piece
            if len(data) > _ANSWER_LIMIT:
                raise self._too_much(call)
        after = seconds_of(response.headers.get("Retry-After", ""))
        return Response(response.status_code, document_of(data), after)

    def _too_much(self, call: Call) -> KubernetesError:
        return KubernetesError(
            f"the answer to {call.words} is too slow or too large: the limits "
            f"are {self._whole:g} s and {_ANSWER_LIMIT >> 20} MiB",
            retryable=True,
        )


class NoCluster:
    """Replacement for a cluster that records the calls instead, newest last."""

    def __init__(self) -> None:
        self.would_write: list[Call] = []

    def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
        self._record(label_call(node, labels))
        return ""

    def get_node(self, name: str) -> str:  # noqa: ARG002 - nothing is written, so nothing is kept
        return ""

    def apply_node_driver(self, document: Mapping[str, Any]) -> None:
        self._record(node_driver_call(document))

    def create_event(self, event: Mapping[str, Any]) -> None:
        self._record(event_call(event))

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _record(self, call: Call) -> None:
        self.would_write = [*self.would_write[1 - _RECORDED :], call]


def connect(environ: Mapping[str, str]) -> Cluster | NoCluster:
    """Return the cluster of this pod; outside of a pod, a NoCluster that records the calls."""
    access = Access.from_environment(environ)
    return NoCluster() if access is None else Cluster(access)


def api_error(call: Call, answer: Response) -> KubernetesError:
    """Return the error for an unsuccessful response, with a hint on how to fix it."""
    text = words_of(answer.document)
    status = meant_status(answer.status, text)
    kind, hint = _meaning(call, status)
    return KubernetesError(
        f"{kind} {call.words}" + (f": {text}" if text else f" (HTTP status {answer.status})"),
        hint=hint,
        retryable=may_pass(status),
        status=answer.status,
        retry_after=answer.retry_after,
    )


def _meaning(call: Call, status: int) -> tuple[str, str]:
    """Return the beginning of the message, and the hint."""
    match status:
        case 401:
            return (
                "the API server does not accept this pod's token: cannot",
                "the token may have expired: is it projected into the driver container?",
            )
        case 403:
            return "this pod's service account may not", _rule(call)
        case 404 if call.resource.startswith("nodedrivers"):
            return (
                "the API server has no resource NodeDriver: cannot",
                "install the custom resource definitions: kubectl get crd nodedrivers.nodeside.io",
            )
        case 400 if call.resource.startswith("nodedrivers"):
            return "the API server refuses to", OLD_DEFINITIONS
        case 408 | 409 | 425 | 429:
            return "the API server asks to repeat the request to", ""
        case _:
            return f"the API server {'failed' if status >= 500 else 'refuses'} to", ""


# Permissions that the driver pod's role needs: API group and verbs by resource. A server-side apply
# is a patch, and also needs `create` if it creates the object.
_RULES = {
    "nodes": ("", ("get", "patch")),
    "nodedrivers": (API_GROUP, ("create", "patch")),
    "nodedrivers/status": (API_GROUP, ("patch",)),
    "events": ("events.k8s.io", ("create",)),
}


def _rule(call: Call) -> str:
    """Return a hint with the missing RBAC rule, in the form to add to a ClusterRole."""
    group, verbs = _RULES[call.resource]
    words = ", ".join(f'"{verb}"' for verb in verbs)
    return (
        "add to the ClusterRole of the driver pod's service account: "
        f'{{apiGroups: ["{group}"], resources: ["{call.resource}"], verbs: [{words}]}}'
    )


def _headers(call: Call, token: str) -> dict[str, str]:
    metadata_only = call.resource == "nodes"
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": _METADATA_ONLY if metadata_only else "application/json",
        "User-Agent": "nodeside-node",
    }
    if call.content_type:
        headers["Content-Type"] = call.content_type
    return headers


def _uid(document: Mapping[str, Any]) -> str:
    return str(document.get("metadata", {}).get("uid", ""))


def _cause(exc: BaseException) -> str:
    """Return the innermost cause: the library wraps `Connection refused` in three layers."""
    while exc.__cause__ is not None or exc.__context__ is not None:
        exc = exc.__cause__ or exc.__context__ or exc
    return str(exc)[:WORDS_LIMIT] or type(exc).__name__
