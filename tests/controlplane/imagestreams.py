"""A stand-in for OpenShift's ImageStreams: the same path, group and version on any API server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.controlplane.api_server import APPLY_PATCH, MERGE_PATCH, ApiServer

GROUP = "image.openshift.io"
DRIVER_TOOLKIT = "openshift/driver-toolkit"

_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_DEFINITION: Mapping[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"imagestreams.{GROUP}",
        # The group is under the protection of the API review; this is a test's copy of it.
        "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"},
    },
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "ImageStream", "plural": "imagestreams", "singular": "imagestream"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": _ANYTHING, "status": _ANYTHING},
                    }
                },
            }
        ],
    },
}


def install_image_streams(control_plane: ApiServer) -> None:
    """Serve ImageStreams, and have OpenShift's own namespace for them. Harmless if repeated."""
    _apply(control_plane, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _DEFINITION)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "openshift"}}
    _apply(control_plane, "/api/v1/namespaces", namespace)
    _until(control_plane, 200, "ImageStreams to be served")


@contextmanager
def aggregated_away(control_plane: ApiServer) -> Iterator[None]:
    """In the block the group belongs to a server that is down: the API server answers 503.

    On OpenShift it is served by a server of its own, behind the API server. Here the API server
    serves it by itself again as soon as nobody says otherwise.
    """
    path = f"/apis/apiregistration.k8s.io/v1/apiservices/v1.{GROUP}"
    elsewhere = {
        "metadata": {"labels": {"kube-aggregator.kubernetes.io/automanaged": None}},
        "spec": {
            "service": {"namespace": "openshift", "name": "api", "port": 443},
            "insecureSkipTLSVerify": True,
        },
    }
    control_plane.do("PATCH", path, elsewhere, content_type=MERGE_PATCH)
    try:
        _until(control_plane, 503, "ImageStreams to be gone with their server")
        yield
    finally:
        control_plane.do("DELETE", path)
        _until(control_plane, 200, "ImageStreams to be served again")


def remove_image_streams(control_plane: ApiServer) -> None:
    """As on a cluster that is no OpenShift: the API server knows no such kind."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    control_plane.request("DELETE", f"{path}/{_DEFINITION['metadata']['name']}")
    path = f"/apis/{GROUP}/v1/imagestreams"
    control_plane.wait_for(
        lambda: control_plane.request("GET", path).status == 404, "ImageStreams to be unknown"
    )


def set_image_stream(
    control_plane: ApiServer, tags: Mapping[str, str], name: str = DRIVER_TOOLKIT
) -> None:
    """Make an ImageStream have these tags (name to pull spec) and no others."""
    namespace, _, name = name.partition("/")
    spec = {
        "tags": [
            {"name": tag, "from": {"kind": "DockerImage", "name": image}}
            for tag, image in tags.items()
        ]
    }
    path = f"/apis/{GROUP}/v1/namespaces/{namespace}/imagestreams/{name}"
    patched = control_plane.request("PATCH", path, {"spec": spec}, content_type=MERGE_PATCH)
    if patched.status == 404:
        metadata = {"name": name, "namespace": namespace}
        stream = {"apiVersion": f"{GROUP}/v1", "kind": "ImageStream", "metadata": metadata}
        control_plane.do("POST", path.rpartition("/")[0], {**stream, "spec": spec})


def _until(control_plane: ApiServer, status: int, words: str) -> None:
    path = f"/apis/{GROUP}/v1/imagestreams"
    control_plane.wait_for(lambda: control_plane.request("GET", path).status == status, words)


def _apply(control_plane: ApiServer, path: str, document: Mapping[str, Any]) -> None:
    where = f"{path}/{document['metadata']['name']}?fieldManager=nodeside-tests&force=true"
    control_plane.do("PATCH", where, document, content_type=APPLY_PATCH)
