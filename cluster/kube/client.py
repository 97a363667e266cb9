"""The only access to the API server: raw JSON, every request with a deadline.

Lists are read in pages and trimmed item by item. Watches are read event by event. Writes are
server-side apply, merge patch, create, replace and delete. transport.py sends, retries and times
out requests.

`Api` is thread-safe and caches nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cluster.kube.credentials import Access
from cluster.kube.errors import (
    ApiError,
    NotFound,
    RequestInfo,
    TooLarge,
    Unreachable,
    response_error,
)
from cluster.kube.listing import Page, read_page
from cluster.kube.managed_fields import FIELD_MANAGER
from cluster.kube.nesting import decode_json
from cluster.kube.resources import PODS, Resource, resource_of
from cluster.kube.transport import ApiTransport, Call, Document, RequestCounts, translate_errors
from nodeside.http.status import document_of
from nodeside.protocol.labels import API_GROUP, API_VERSION

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

T = TypeVar("T")

PAGE = 500  # objects in one page of a list
_SMALLER = 8  # times fewer objects in the pages after one that is too large
# Bytes that a page of several objects may take in memory as text. One object takes up to 36 MiB:
# etcd stores 1.5 MiB, JSON may write six characters for one, of four bytes each in Python.
_TEXT_LIMIT = 32 << 20
_UP_TO_LATIN1 = bytes(range(0xC4))  # UTF-8: larger bytes begin a character beyond Latin-1
_UP_TO_U_FFFF = bytes(range(0xF0))  # larger ones begin one beyond U+FFFF

_READ = 15.0  # read timeout in seconds after the requested end of a watch
_SILENCE = 150.0  # read timeout of a watch in seconds: bookmarks come about every minute
_WATCH = 540.0  # approximate seconds after which the server ends a watch
_PIECE = 1 << 16  # bytes
_LINE = 1 << 20  # bytes of a log's line


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the object."""

    kind: str
    object: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a write would store, and the warnings of the API server about it."""

    object: dict[str, Any]
    warnings: tuple[str, ...] = ()


class Watch:
    """An open watch; iterate over it once. It ends when the server ends it or at `close`."""

    def __init__(self, request: RequestInfo, response: BaseHTTPResponse) -> None:
        self._request = request
        self._response = response
        self._closing = False

    def __iter__(self) -> Iterator[Event]:
        """Yield events. Raises Gone if the resource version is too old, ApiError otherwise.

        The lines grow in place: a Node of 8 MB comes in 500 pieces.
        """
        line = bytearray()
        with closing(self._response):
            while piece := self._read_more():
                *ends, begin = piece.split(b"\n")
                for end in ends:
                    line += end
                    yield _parse_event(self._request, bytes(line))
                    line = bytearray()
                line += begin

    def close(self) -> None:
        """End the watch from any thread; the reading thread sees a normal end."""
        self._closing = True
        with suppress(Exception):  # it may have ended already, in any state
            self._response.shutdown()

    def _read_more(self) -> bytes:
        try:
            with translate_errors(self._request):
                return bytes(self._response.read1(_PIECE))
        except Unreachable:
            if self._closing:
                return b""
            raise


class Api:
    """The API verbs. All methods raise only ApiError."""

    def __init__(self, transport: ApiTransport) -> None:
        self._transport = transport

    @property
    def tally(self) -> RequestCounts:
        """The request counters."""
        return self._transport.tally

    @property
    def url(self) -> str:
        return self._transport.url

    def now(self) -> float:
        """Return the API server's wall clock time; the local one before the first response."""
        return self._transport.time.now()

    def check_reachable(self) -> None:
        """Raise Unreachable after a single try if the API server does not answer.

        For interactive use: retrying does not fix a wrong address.
        """
        request = RequestInfo("get", "version")
        try:
            version = document_of(
                self._transport.send(Call("GET", "/version", request), patient=False)
            )
        except Unreachable as error:
            message = f"no answer from the API server {self.url}: {error.cause or error}"
            raise Unreachable(message, hint=error.hint) from error
        except ApiError as error:
            if error.status in (401, 403) or error.retryable:
                return  # it is an API server; the next request reports what is wrong
            version = {}
        if not version:
            raise ApiError(
                f"{self.url} is not a Kubernetes API server",
                hint="see `server` in the kubeconfig: kubectl config view --minify",
            )

    def get_version(self) -> dict[str, Any]:
        """Return the version of the API server: `major`, `minor`, `gitVersion`."""
        call = Call("GET", "/version", RequestInfo("get", "version"))
        return document_of(self._transport.send(call))

    def served_kinds(self, group_version: str) -> frozenset[str]:
        """Return the plural names of the kinds that are served in a group version, `apps/v1`."""
        request = RequestInfo("get", f"the kinds of {group_version}")
        try:
            call = Call("GET", f"/apis/{group_version}", request)
            found = document_of(self._transport.send(call))
        except NotFound:
            return frozenset()
        return frozenset(str(each.get("name")) for each in found.get("resources") or ())

    def served_schemas(self) -> dict[str, dict[str, Any]]:
        """Return the schemas of our kinds; any authenticated user may read them. One try."""
        request = RequestInfo("get", "the published schemas", group=API_GROUP)
        call = Call("GET", f"/openapi/v3/apis/{API_VERSION}", request)
        document = document_of(self._transport.send(call, patient=False))
        schemas = document.get("components", {}).get("schemas", {})
        return {name.rpartition(".")[2]: schema for name, schema in schemas.items()}

    def get(
        self, resource: Resource, name: str, *, namespace: str = "", **limits: Any
    ) -> dict[str, Any]:
        """Return one object. Raises NotFound."""
        request = RequestInfo("get", resource.plural, name, namespace, resource.group)
        call = Call("GET", resource.path(name, namespace=namespace), request)
        return _parse_object(request, self._transport.send(call, **limits))

    def list(
        self,
        resource: Resource,
        trim: Callable[[dict[str, Any]], T | None],
        *,
        namespace: str = "",
        selector: str = "",
        fields: str = "",
        deadline: float | None = None,
    ) -> Page[T]:
        """Return all objects, trimmed, and the resource version to watch from.

        `trim` gets each object with its `apiVersion` and `kind`, as `get` and `watch` give it. The
        API server leaves both out of the items of a list, except for custom resources.

        The deadline applies to each page, since the duration of a list depends on cluster size.
        Pages get smaller if one is too large: anybody in the cluster may make large objects. A page
        of one object is read however large it is.
        """
        request = RequestInfo("list", resource.plural, "", namespace, resource.group)
        path = resource.path(namespace=namespace)
        query = _without_empty(labelSelector=selector, fieldSelector=fields)
        whole: Page[T] = Page()
        size = PAGE
        of_kind = _with_kind(resource, trim)
        while True:
            paging = _without_empty(limit=str(size), **{"continue": whole.next})
            call = Call("GET", path, request, query | paging)
            try:
                limit = _TEXT_LIMIT if size > 1 else math.inf
                page = _parse_page(
                    request, self._transport.send(call, deadline=deadline), of_kind, limit
                )
            except TooLarge:
                if size == 1:
                    raise
                size = max(1, size // _SMALLER)
                continue
            whole.items += page.items
            whole.resource_version, whole.next = page.resource_version, page.next
            if not page.next:
                return whole

    def latest_resource_version(
        self, resource: Resource, *, namespace: str = "", selector: str = "", fields: str = ""
    ) -> str:
        """Return the resource version that a list of this kind has now. One try."""
        request = RequestInfo("list", resource.plural, "", namespace, resource.group)
        query = _without_empty(labelSelector=selector, fieldSelector=fields, limit="1")
        call = Call("GET", resource.path(namespace=namespace), request, query)
        answer = self._transport.send(call, patient=False)
        return _parse_page(request, answer, lambda _: None, math.inf).resource_version

    def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        namespace: str = "",
        selector: str = "",
        fields: str = "",
        seconds: float = _WATCH,
    ) -> Watch:
        """Watch changes after `resource_version`. One try; the caller restarts the watch."""
        request = RequestInfo("watch", resource.plural, "", namespace, resource.group)
        query = _without_empty(
            labelSelector=selector,
            fieldSelector=fields,
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(max(1, int(seconds * (0.75 + self._transport.jitter() / 2)))),
        )
        call = Call("GET", resource.path(namespace=namespace), request, query)
        silence = min(_SILENCE, seconds + _READ)
        response = self._transport.open(call, read=silence)
        return Watch(request, response)

    def stream_log(
        self,
        pod: str,
        container: str,
        *,
        namespace: str,
        seconds: float,
        follow: bool = True,
        previous: bool = False,
    ) -> Iterator[str]:
        """Yield the lines of a container's log as they arrive. One try.

        With `follow`, until the container ends; else those that are there. With `previous`, those
        of its run before the last restart. After `seconds` no more is read, which is an error if
        not all is there then. A line that is too long is yielded in parts.
        """
        request = RequestInfo("get", "pods/log", pod, namespace)
        path = PODS.path(pod, namespace=namespace, subresource="log")
        query = _without_empty(
            container=container,
            follow="true" if follow else "",
            previous="true" if previous else "",
        )
        call = Call("GET", path, request, query)
        rest, ends = b"", time.monotonic() + seconds
        with closing(self._transport.open(call, read=max(1.0, seconds))) as response:
            while piece := _read_chunk(request, response):
                if time.monotonic() >= ends:
                    if follow:
                        break
                    raise Unreachable(f"the answer to {request} did not end in {seconds:g} s")
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > _LINE:
                    lines, rest = [*lines, rest], b""
                yield from (line.decode(errors="replace") for line in lines)
        if rest:
            yield rest.decode(errors="replace")

    def apply(self, document: Document, *, dry_run: bool = False, **limits: Any) -> dict[str, Any]:
        """Apply server-side with force, which overrides conflicts. Return the resulting object.

        With `dry_run`, the document is checked and nothing is changed.
        """
        query = _without_empty(force="true", dryRun="All" if dry_run else "")
        content_type = "application/apply-patch+yaml"
        return self._send_document("patch", "PATCH", document, limits, content_type, **query)

    def try_create(self, document: Document) -> DryRun:
        """Return what `kubectl create` of this document would store; nothing is stored."""
        return self._try_out("create", "POST", document, document, "application/json")

    def try_merge_patch(self, document: Document, patch: Document) -> DryRun:
        """Return what a merge patch of the object of this name would store; nothing is stored."""
        kind = "application/merge-patch+json"
        return self._try_out("patch", "PATCH", document, patch, kind)

    def try_apply(self, document: Document, manager: str) -> DryRun:
        """Return what a server-side apply by this field manager would store; nothing is stored."""
        kind = "application/apply-patch+yaml"
        return self._try_out("patch", "PATCH", document, document, kind, fieldManager=manager)

    def _try_out(
        self,
        verb: str,
        method: str,
        document: Document,
        body: Document,
        content_type: str,
        **query: str,
    ) -> DryRun:
        """Send a write as a dry run. What kubectl refuses is refused, such as unknown fields."""
        resource, metadata = resource_of(document), document["metadata"]
        name, namespace = str(metadata["name"]), str(metadata.get("namespace", ""))
        request = RequestInfo(verb, resource.plural, name, namespace, resource.group)
        path = resource.path("" if method == "POST" else name, namespace=namespace)
        query = {"dryRun": "All", "fieldValidation": "Strict", **query}
        answer = self._transport.ask(Call(method, path, request, query, body, content_type))
        return DryRun(_parse_object(request, answer.body), answer.warnings)

    def create(self, document: Document, **limits: Any) -> dict[str, Any]:
        """Create an object. Raises Conflict if it exists, possibly from our own first try.

        An unknown field is refused, as by `apply`.
        """
        return self._send_document("create", "POST", document, limits, fieldValidation="Strict")

    def replace(self, document: Document, **limits: Any) -> dict[str, Any]:
        """Replace an object. Raises Conflict if its resource version is not the document's."""
        return self._send_document("update", "PUT", document, limits)

    def _send_document(
        self,
        verb: str,
        method: str,
        document: Document,
        limits: Mapping[str, Any],
        content_type: str = "application/json",
        **query: str,
    ) -> dict[str, Any]:
        """Send a whole document."""
        resource, metadata = resource_of(document), document.get("metadata", {})
        name, namespace = str(metadata.get("name", "")), str(metadata.get("namespace", ""))
        request = RequestInfo(verb, resource.plural, name, namespace, resource.group)
        path = resource.path("" if method == "POST" else name, namespace=namespace)
        query = {"fieldManager": FIELD_MANAGER, **query}
        call = Call(method, path, request, query, document, content_type)
        return _parse_object(request, self._transport.send(call, **limits))

    def merge_patch(
        self, resource: Resource, name: str, patch: Document, **more: Any
    ) -> dict[str, Any]:
        """Change only the fields in `patch` (RFC 7386). Return the object's metadata."""
        return self._send_patch(resource, name, patch, "application/merge-patch+json", **more)

    def json_patch(
        self, resource: Resource, name: str, patch: Sequence[Document], **more: Any
    ) -> dict[str, Any]:
        """Apply all steps or none (RFC 6902); a failed `test` is a 422. Return the metadata."""
        return self._send_patch(resource, name, patch, "application/json-patch+json", **more)

    def _send_patch(
        self,
        resource: Resource,
        name: str,
        patch: Document | Sequence[Document],
        content_type: str,
        *,
        namespace: str = "",
        subresource: str = "",
        **limits: Any,
    ) -> dict[str, Any]:
        plural = f"{resource.plural}/{subresource}" if subresource else resource.plural
        request = RequestInfo("patch", plural, name, namespace, resource.group)
        path = resource.path(name, namespace=namespace, subresource=subresource)
        query = {"fieldManager": FIELD_MANAGER}
        call = Call("PATCH", path, request, query, patch, content_type, metadata_only=True)
        return _parse_object(request, self._transport.send(call, **limits))

    def delete(
        self, resource: Resource, name: str, *, namespace: str = "", uid: str = "", **limits: Any
    ) -> None:
        """Delete an object, and its dependents in the background. Raises NotFound.

        With a `uid`, delete only that object. Raises Conflict if the name has another uid now.
        """
        request = RequestInfo("delete", resource.plural, name, namespace, resource.group)
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        path = resource.path(name, namespace=namespace)
        self._transport.send(
            Call("DELETE", path, request, {}, options, "application/json"), **limits
        )

    def read_log(
        self,
        pod: str,
        *,
        namespace: str,
        container: str,
        limit: int,
        tail: int | None = None,
        deadline: float | None = None,
    ) -> str:
        """Return at most `limit` bytes of the last `tail` lines of a container's log. One try.

        Raises TooLarge if there are more: only the kubelet limits a log, and root may replace it.
        https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#get-read-log
        """
        request = RequestInfo("get", "pods/log", pod, namespace)
        query = _without_empty(
            container=container, limitBytes=str(limit), tailLines="" if tail is None else str(tail)
        )
        path = PODS.path(pod, namespace=namespace, subresource="log")
        call = Call("GET", path, request, query)
        body = self._transport.send(call, deadline=deadline, patient=False, limit=limit)
        return body.decode(errors="replace")

    def evict(self, namespace: str, name: str, uid: str, **limits: Any) -> None:
        """Evict a pod. One try: waiting out a refusal (429) takes longer than a request may last.

        Raises NotFound if the pod is gone, Conflict if the name has another uid now.
        https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
        """
        request = RequestInfo("create", "pods/eviction", name, namespace)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = PODS.path(name, namespace=namespace, subresource="eviction")
        call = Call("POST", path, request, {}, body, "application/json")
        self._transport.send(call, patient=False, **limits)

    def close(self) -> None:
        self._transport.close()


def connect(kubeconfig: Path | None = None, context: str = "") -> Api:
    """Connect to the API server of a kubeconfig, or of the cluster this pod runs in."""
    return Api(ApiTransport(Access(kubeconfig, context)))


def _read_chunk(request: RequestInfo, response: BaseHTTPResponse) -> bytes:
    with translate_errors(request):
        return bytes(response.read1(_PIECE))


def _parse_event(request: RequestInfo, line: bytes) -> Event:
    try:
        document = decode_json(line)
        event = Event(str(document["type"]), document["object"])
    except (ValueError, KeyError, TypeError) as exc:
        raise Unreachable(
            f"an answer to {request} that is not a watch event: {line[:100]!r}"
        ) from exc
    if event.kind == "ERROR":
        code = event.object.get("code")
        raise response_error(request, code if isinstance(code, int) else 0, event.object)
    return event


def _parse_object(request: RequestInfo, body: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        document = decode_json(body)
        if isinstance(document, dict):
            return document
    raise Unreachable(f"the answer to {request} is not a JSON object: {body[:100]!r}")


def _parse_page(
    request: RequestInfo,
    body: bytes,
    trim: Callable[[dict[str, Any]], T | None],
    limit: float,
) -> Page[T]:
    """Parse a page. Raises TooLarge if its text would take more than `limit` bytes in memory."""
    if len(body) * _bytes_per_char(body) > limit:
        raise TooLarge(f"the answer to {request} takes more than {_TEXT_LIMIT >> 10} KiB as text")
    try:
        text = body.decode()
    except UnicodeDecodeError as exc:
        raise Unreachable(f"the answer to {request} is not UTF-8") from exc
    del body
    try:
        return read_page(text, trim)
    except ValueError as exc:
        raise Unreachable(f"the answer to {request} is not a list: {exc}") from exc


def _with_kind(
    resource: Resource, trim: Callable[[dict[str, Any]], T | None]
) -> Callable[[dict[str, Any]], T | None]:
    """Return `trim` for the items of a list, which states `apiVersion` and `kind` only once."""
    kinds = {"apiVersion": resource.api_version, "kind": resource.kind}
    return lambda item: trim({**kinds, **item})


def _bytes_per_char(body: bytes) -> int:
    """Return the bytes that Python gives each character of a text: what the widest one needs."""
    if body.isascii() or not (wide := body.translate(None, _UP_TO_LATIN1)):
        return 1
    return 4 if wide.translate(None, _UP_TO_U_FFFF) else 2


def _without_empty(**query: str) -> dict[str, str]:
    """Return the query without empty values."""
    return {key: value for key, value in query.items() if value}
