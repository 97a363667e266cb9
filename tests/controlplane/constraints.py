"""A stand-in for OpenShift's SecurityContextConstraints: it is served, and admits nobody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.controlplane.api_server import APPLY_PATCH
from tests.controlplane.controlplane import ControlPlane

GROUP = "security.openshift.io"
PATH = f"/apis/{GROUP}/v1/securitycontextconstraints"

_CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/securitycontextconstraints.{GROUP}"
_DEFINITION: Mapping[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"securitycontextconstraints.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Cluster",
        "names": {
            "kind": "SecurityContextConstraints",
            "plural": "securitycontextconstraints",
            "singular": "securitycontextconstraints",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


@contextmanager
def constraints_served(control_plane: ControlPlane) -> Iterator[None]:
    """In the block there are SecurityContextConstraints, as on OpenShift."""
    asked = f"{_CRD}?fieldManager=nodeside-tests&force=true"
    control_plane.do("PATCH", asked, _DEFINITION, content_type=APPLY_PATCH)
    try:
        _until(control_plane, 200)
        yield
    finally:
        control_plane.do("DELETE", _CRD)
        _until(control_plane, 404)


def _until(control_plane: ControlPlane, status: int) -> None:
    control_plane.wait_for(
        lambda: control_plane.request("GET", PATH).status == status,
        f"{PATH} to be answered with {status}",
    )
