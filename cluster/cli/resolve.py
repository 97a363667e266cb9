"""`nodeside-cluster resolve`: shows the toolkit image with which a node would build."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from cluster.cache.image_labels import Known, TagLabels
from cluster.cli.status import NoSuchObject, no_driver
from cluster.driver import toolkit_image
from cluster.driver.toolkit_image import Evidence
from cluster.kube.client import Api
from cluster.kube.errors import NotFound
from cluster.kube.resources import DRIVERS, IMAGE_STREAMS
from cluster.model.parse import driver_from, image_stream_from
from cluster.model.snapshot import ImageStream, ImageStreams, Pool, Tag
from nodeside.errors import ExitCode, NodesideError
from nodeside.spec.fleet import Toolkit
from nodeside.text.table import table

_KERNEL = "{kernel}"


class KernelNeeded(NodesideError):
    """A Driver's toolkit images are named by kernel, and no kernel was given."""

    exit_code = ExitCode.USAGE
    reason = "KernelNeeded"


@dataclass(frozen=True)
class ResolvedImage:
    """The toolkit image for a pool given on the command line."""

    pool: Pool
    image: str
    link: str
    why: str
    tags_seen: tuple[str, ...]

    def text(self) -> str:
        rows = [
            ("image", self.image or "none"),
            ("found by", self.link),
            ("why", self.why),
            ("tags seen", ", ".join(self.tags_seen) or "none"),
        ]
        return table(rows)

    def json(self) -> str:
        return json.dumps(asdict(self), indent=2)


def resolve(api: Api, pool: Pool, driver: str = "") -> ResolvedImage:
    """Run the chain of toolkit_image.py with the settings of a Driver, or with the defaults.

    Raises NoSuchObject, and KernelNeeded if the image depends on the kernel and none is given.
    """
    toolkit = _read_toolkit(api, driver) if driver else Toolkit()
    if not pool.kernel and _KERNEL in toolkit.image_template:
        raise KernelNeeded(
            f"toolkit.imageTemplate of driver {driver} contains {_KERNEL}, and no kernel is given",
            hint=f"give it, as printed by `uname -r`: nodeside-cluster resolve {pool.os_version} "
            f"--driver {driver} --kernel RELEASE",
        )
    streams = image_streams(api)
    known = read_evidence(api, pool, toolkit, streams)
    pool = replace(pool, kernel=pool.kernel or "(none named)")
    resolution = toolkit_image.resolve_toolkit_image(pool, toolkit, streams, known)
    why = "; ".join(part for part in (resolution.why, resolution.remedy) if part)
    return ResolvedImage(pool, resolution.image, resolution.link.value, why, resolution.tags_seen)


def read_evidence(api: Api, pool: Pool, toolkit: Toolkit, streams: ImageStreams) -> Evidence:
    """Return the evidence from the labels of the image stream's images, as far as readable."""

    def ask_tags(known: Known) -> Iterable[Tag]:
        return toolkit_image.tags_to_read(pool, toolkit, streams, Evidence(known))

    return Evidence(TagLabels(api).read_labels(ask_tags))


def _read_toolkit(api: Api, driver: str) -> Toolkit:
    try:
        observed = driver_from(api.get(DRIVERS, driver))
    except NotFound:
        names = api.list(DRIVERS, lambda each: str(each["metadata"]["name"])).items
        raise no_driver(driver, names) from None
    if observed.driver is None:
        raise NoSuchObject(f"driver {driver} cannot be used: {observed.mistakes}")
    return observed.driver.spec.toolkit


def image_streams(api: Api) -> Mapping[str, ImageStream] | None:
    """Return the image streams by name; None if the API server does not serve the kind."""
    try:
        page = api.list(IMAGE_STREAMS, image_stream_from)
    except NotFound:
        return None
    return {stream.name: stream for stream in page.items}
