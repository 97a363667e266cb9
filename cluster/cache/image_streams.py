"""Selects the image streams to keep: those that a Driver names, and OpenShift's own.

A cluster may have thousands, each with its history, and other people's builds change them all day.
They can be in any namespace, so all are watched. Streams that no Driver names are not kept and do
not wake the controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cluster.kube.reflector import Reflector
from cluster.model.parse import image_stream_from
from cluster.model.snapshot import DriverObject, ImageStream
from nodeside.spec.fleet import Toolkit

_ALWAYS_KEPT: Final = frozenset((Toolkit().image_stream,))
_LISTED = 2.0  # seconds to wait for the list when a Driver names a new stream


class ImageStreamFilter:
    """The set of named streams. It only grows, so a Driver that reverts a change needs no list."""

    def __init__(self) -> None:
        self._names = _ALWAYS_KEPT

    def parse_if_named(self, document: Mapping[str, Any]) -> ImageStream | None:
        """Return the stream if a Driver names it, else None."""
        stream = image_stream_from(document)
        return stream if stream.name in self._names else None

    def follow_drivers(
        self, drivers: Iterable[DriverObject], reflector: Reflector[ImageStream]
    ) -> None:
        """Keep all streams that these Drivers name; wait a limited time for a new list."""
        named = {each.driver.spec.toolkit.image_stream for each in drivers if each.driver}
        if more := named - self._names:
            self._names |= more
            reflector.list_anew()
            reflector.wait_synced(_LISTED)
