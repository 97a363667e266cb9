"""Which image streams are kept: those that a Driver names, and OpenShift's own.

A cluster may have thousands, each with its history, and what others build changes them all day.
They can be in any namespace, so all are watched; but of one that nobody names nothing is kept, and
nobody is woken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cluster.kube.reflector import Reflector
from cluster.model.parse import image_stream_from
from cluster.model.snapshot import DriverObject, ImageStream
from nodeside.spec.fleet import Toolkit

_OFTEN: Final = frozenset((Toolkit().image_stream,))
_LISTED = 2.0  # seconds for a list, when a Driver names one that none named before


class NamedStreams:
    """Its names only grow: a Driver that goes back finds what it named before."""

    def __init__(self) -> None:
        self._names = _OFTEN

    def trim(self, document: Mapping[str, Any]) -> ImageStream | None:
        """One that somebody names."""
        found = image_stream_from(document)
        return found if found.name in self._names else None

    def follow(self, drivers: Iterable[DriverObject], reflector: Reflector[ImageStream]) -> None:
        """Have all that these Drivers name, as far as that takes no longer than a list does."""
        named = {each.driver.spec.toolkit.image_stream for each in drivers if each.driver}
        if more := named - self._names:
            self._names |= more
            reflector.anew()
            reflector.wait_synced(_LISTED)
