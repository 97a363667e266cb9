"""The requests of a DRA driver to the API server: ResourceSlices, ResourceClaims, its Node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote, urlencode

from nodeside.device_agent.dra.slices import API, Document, Write, mapping_at
from nodeside.kube.client import ApiCall, Caller, Client, PodAccess
from nodeside.kube.nodes import read_node

_SLICES, _CLAIMS = "resourceslices", "resourceclaims"
_PATH = f"/apis/{API}/{_SLICES}"
_PAGE = 8  # slices per page of a list; each has at most some hundred kB
_LARGEST = 8 << 20  # bytes of a response
_PAGES = 64  # that are read of one list
# https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def _explain_missing_api(call: ApiCall, status: int) -> tuple[str, str] | None:
    if status != 404 or call.verb != "list":
        return None
    return (
        f"the API server has no {API}: cannot",
        "devices with expose: dra need Kubernetes 1.34; offer them with expose: devicePlugin",
    )


CALLER: Final = Caller(
    "device agent",
    {
        "nodes": ("", ("get",)),
        _SLICES: ("resource.k8s.io", ("list", "create", "update", "delete")),
        _CLAIMS: ("resource.k8s.io", ("get",)),
    },
    _explain_missing_api,
)


class DraClient:
    """A client of the API server, for one thread. Every method raises KubernetesError only."""

    def __init__(self, access: PodAccess) -> None:
        self._client = Client(access, CALLER, answer=_LARGEST)

    def fetch_node_uid(self, node: str) -> str:
        return str(mapping_at(self._client.send(read_node(node)), "metadata").get("uid", ""))

    def fetch_claim(self, namespace: str, name: str) -> Document:
        path = f"/apis/{API}/namespaces/{quote(namespace, safe='')}/{_CLAIMS}/"
        path += quote(name, safe="")
        return self._client.send(ApiCall("get", _CLAIMS, f"{namespace}/{name}", "GET", path))

    def list_slices(self, driver: str, node: str) -> list[Document]:
        """Return the ResourceSlices of a driver on a node."""
        return list(self._list_slices(driver, node, {"limit": str(_PAGE)}))

    def list_versions(self, driver: str, node: str) -> Mapping[str, str]:
        """Return the resourceVersion of each slice by name, from the API server's cache."""
        found = self._list_slices(driver, node, {"resourceVersion": "0"}, _METADATA_ONLY)
        return {_object_name(each): resource_version(each) for each in found}

    def _list_slices(
        self, driver: str, node: str, options: Mapping[str, str], accept: str = ApiCall.accept
    ) -> Iterator[Document]:
        query = {"fieldSelector": f"spec.driver={driver},spec.nodeName={node}", **options}
        for _ in range(_PAGES):
            path = f"{_PATH}?{urlencode(query)}"
            answer = self._client.send(ApiCall("list", _SLICES, driver, "GET", path, accept=accept))
            items = answer.get("items") or ()
            yield from (each for each in items if isinstance(each, Mapping) and _object_name(each))
            next_page = str(mapping_at(answer, "metadata").get("continue", ""))
            if not next_page:
                return
            query["continue"] = next_page

    def send_write(self, write: Write) -> Document:
        """Send a write; return the slice as it is stored now, or the answer to a DELETE."""
        path = _PATH if write.verb == "create" else f"{_PATH}/{quote(write.name, safe='')}"
        method = {"create": "POST", "update": "PUT", "delete": "DELETE"}[write.verb]
        body = None if write.verb == "delete" else write.document
        kind = "application/json" if body else ""
        return self._client.send(ApiCall(write.verb, _SLICES, write.name, method, path, kind, body))

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._client.close()


def resource_version(document: Document) -> str:
    """Return the resourceVersion of an object."""
    return str(mapping_at(document, "metadata").get("resourceVersion", ""))


def _object_name(document: Document) -> str:
    return str(mapping_at(document, "metadata").get("name", ""))
