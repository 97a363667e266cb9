"""What pods need to ask for devices that a Driver exposes by dynamic resource allocation.

That is a DeviceClass and a ResourceClaimTemplate for each of its resources. An administrator
applies the classes once. Whoever runs pods applies the templates, in the namespace of the pods. The
controller may do neither. Pure.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

from typing import Any, Final

from cluster.model.names import DRIVER_LABEL
from nodeside.errors import SpecError
from nodeside.protocol.labels import dra_driver
from nodeside.spec import Driver
from nodeside.spec.devices import dra_devices

Document = dict[str, Any]

API_VERSION: Final = "resource.k8s.io/v1"  # since Kubernetes 1.34


def device_classes(driver: Driver, *, extended: bool = True) -> tuple[Document, ...]:
    """Return the classes, then the templates. Raises SpecError if no device is exposed by DRA.

    With `extended`, pods may also ask by `limits`, as for a device plugin's: KEP-5004, by default
    from Kubernetes 1.36 on. An older cluster drops the field.
    """
    resources = [device.resource for device in dra_devices(driver.spec.devices)]
    if not resources:
        raise SpecError(
            f"driver {driver.name} exposes no devices by dynamic resource allocation",
            hint="set `expose: dra` in an entry of its `devices`; a device plugin needs no class",
        )
    labels = {DRIVER_LABEL: driver.name}
    return (
        *(
            _device_class(dra_driver(driver.name), each, labels, extended=extended)
            for each in resources
        ),
        *(_claim_template(each, labels) for each in resources),
    )


def class_name(resource: str) -> str:
    """Return `edu.example.com` for `example.com/edu`."""
    domain, _, name = resource.partition("/")
    return f"{name}.{domain}"


def _device_class(
    driver: str, resource: str, labels: dict[str, str], *, extended: bool
) -> Document:
    expression = (
        f'device.driver == "{driver}" && device.attributes["{driver}"].resource == "{resource}"'
    )
    spec: Document = {"selectors": [{"cel": {"expression": expression}}]}
    if extended:
        spec["extendedResourceName"] = resource
    return {
        "apiVersion": API_VERSION,
        "kind": "DeviceClass",
        "metadata": {"name": class_name(resource), "labels": labels},
        "spec": spec,
    }


def _claim_template(resource: str, labels: dict[str, str]) -> Document:
    """Return a template for claims of one device, without a namespace."""
    request = {"name": "device", "exactly": {"deviceClassName": class_name(resource), "count": 1}}
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": class_name(resource), "labels": labels},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
