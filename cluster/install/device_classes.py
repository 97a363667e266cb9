"""What pods need to ask for devices that a Driver exposes by dynamic resource allocation.

A DeviceClass and a ResourceClaimTemplate for each of its resources. An administrator applies the
classes once, whoever runs pods the templates, in the namespace of the pods. The controller may do
neither. Pure.

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

    With `extended`, pods may ask by `limits` too, as of a device plugin: KEP-5004, from Kubernetes
    1.36 on by default. An older cluster drops the field.
    """
    resources = [device.resource for device in dra_devices(driver.spec.devices)]
    if not resources:
        raise SpecError(
            f"driver {driver.name} exposes no devices by dynamic resource allocation",
            hint="set `expose: dra` in an entry of its `devices`; a device plugin needs no class",
        )
    labels = {DRIVER_LABEL: driver.name}
    return (
        *(_class(dra_driver(driver.name), each, labels, extended=extended) for each in resources),
        *(_template(each, labels) for each in resources),
    )


def class_name(resource: str) -> str:
    """Return `edu.example.com` for `example.com/edu`."""
    domain, _, name = resource.partition("/")
    return f"{name}.{domain}"


def _class(driver: str, resource: str, labels: dict[str, str], *, extended: bool) -> Document:
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


def _template(resource: str, labels: dict[str, str]) -> Document:
    """Return a template for claims of one device, without a namespace."""
    request = {"name": "device", "exactly": {"deviceClassName": class_name(resource), "count": 1}}
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": class_name(resource), "labels": labels},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
