"""Of the image streams of a cluster those that somebody names, by watches of a real one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cluster.cache.image_streams import ImageStreamFilter
from cluster.kube.client import connect
from cluster.kube.reflector import Reflector, Selection
from cluster.kube.resources import IMAGE_STREAMS
from cluster.model.parse import driver_from
from cluster.model.snapshot import ImageStream
from tests.cluster.fakes.model import document
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.imagestreams import (
    DRIVER_TOOLKIT,
    install_image_streams,
    set_image_stream,
)

pytestmark = pytest.mark.cluster

OTHERS = ("openshift/nodejs", "openshift/ruby", "openshift/own-toolkit")
PATH = "/apis/image.openshift.io/v1/namespaces/openshift/imagestreams"


@dataclass
class Watched:
    """A reflector with its wakes."""

    control_plane: ControlPlane
    named: ImageStreamFilter
    reflector: Reflector[ImageStream]
    woken: list[None]

    def until(self, **tags: str) -> None:
        """These streams, by the end of their names, have one tag each, and there are no others."""

        def holds() -> bool:
            found = self.reflector.objects() or {}
            seen = {name.partition("/")[2]: min(each.tags) for name, each in found.items()}
            return seen == {name.replace("_", "-"): tag for name, tag in tags.items()}

        self.control_plane.wait_for(holds, f"{tags}")


@pytest.fixture
def watched(control_plane: ControlPlane) -> Iterator[Watched]:
    install_image_streams(control_plane)
    for name in (DRIVER_TOOLKIT, *OTHERS):
        set_image_stream(control_plane, {"1": "quay.example.com/image:1"}, name)
    api, named = connect(control_plane.kubeconfig), ImageStreamFilter()
    woken: list[None] = []
    selection = Selection(IMAGE_STREAMS, named.parse_if_named, optional=True)
    reflector = Reflector(api, selection, lambda: woken.append(None))
    reflector.start()
    yield Watched(control_plane, named, reflector, woken)
    reflector.stop()
    reflector.join(10)
    api.close()
    for name in OTHERS:
        control_plane.do("DELETE", f"{PATH}/{name.partition('/')[2]}")


def test_streams_that_nobody_names_are_not_kept_and_wake_nobody(watched: Watched) -> None:
    watched.until(driver_toolkit="1")
    assert len(watched.woken) == 1

    for name in OTHERS:
        set_image_stream(watched.control_plane, {"2": "quay.example.com/image:2"}, name)
    set_image_stream(watched.control_plane, {"2": "quay.example.com/toolkit:2"})

    watched.until(driver_toolkit="2")
    assert len(watched.woken) == 2


def test_one_that_a_driver_names_is_there_from_then_on(watched: Watched) -> None:
    watched.until(driver_toolkit="1")
    driver = driver_from(document(toolkit={"imageStream": "openshift/own-toolkit"}))

    watched.named.follow_drivers([driver], watched.reflector)
    watched.until(driver_toolkit="1", own_toolkit="1")
    set_image_stream(
        watched.control_plane, {"2": "quay.example.com/image:2"}, "openshift/own-toolkit"
    )

    watched.until(driver_toolkit="1", own_toolkit="2")
