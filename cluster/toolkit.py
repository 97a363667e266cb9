"""Where the toolkit image of a pool comes from: a chain, and which link of it served.

Pure; called by plan.py and by `nodeside-cluster resolve`. The order is that of
`nodeside.spec.fleet.Toolkit`: what somebody wrote for this very kernel, then the image stream, then
the template. Where none of them serves: the image that the pool has now, else one that has built
for the same kernel elsewhere. What an image stream gave stays while nobody can ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from cluster.world import ImageStream, ImageStreams, Pool, Unseen, World
from nodeside.contract import Rung, State, assigned_label
from nodeside.spec.fleet import Toolkit

# By kernel release and architecture, an image that has compiled a module for it.
Proven = Mapping[tuple[str, str], str]
NO_PROOF: Proven = MappingProxyType({})


class Link(Enum):
    """Which link of the chain gave the image."""

    MAP = "map"
    STREAM = "image-stream"
    TEMPLATE = "template"
    KEPT = "kept"
    PROVEN = "proven"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Kept:
    """The image that a pool has now, and the link that gave it."""

    image: str = ""
    link: str = ""


NOTHING_KEPT = Kept()


@dataclass(frozen=True, slots=True)
class Resolution:
    """`image` is empty exactly if `link` is NONE; then `remedy` says what to do.

    `why` says which link served and why none before, of those that somebody set up. `tags_seen` are
    those of the image stream, newest text last.
    """

    image: str
    link: Link
    why: str
    tags_seen: tuple[str, ...] = ()
    remedy: str = ""


NOT_TOLD = Resolution("", Link.NONE, "the kubelet has not told the kernel yet")


def resolve(
    pool: Pool,
    toolkit: Toolkit,
    streams: ImageStreams,
    proven: Proven = NO_PROOF,
    kept: Kept = NOTHING_KEPT,
) -> Resolution:
    """The toolkit image of a pool.

    `kept` is what the pool has now: a tag that vanishes changes nothing there.
    """
    passed: list[str] = []
    stream = stream_of(toolkit, streams)
    seen = tuple(sorted(stream.tags)) if stream else ()
    for link, image, why in _chain(pool, toolkit, streams, proven, kept):
        if image:
            return Resolution(image, link, "; ".join([why, *passed]), seen)
        if why and link in (Link.MAP, Link.STREAM):
            passed.append(why)
    return Resolution("", Link.NONE, "; ".join(passed), seen, _remedy(stream, streams))


def stream_of(toolkit: Toolkit, streams: ImageStreams) -> ImageStream | None:
    """The image stream that a Driver names, None if it is not there or not known."""
    return streams.get(toolkit.image_stream) if isinstance(streams, Mapping) else None


def proven(world: World) -> Proven:
    """Toolkit images that have built a module, by kernel release and architecture."""
    built = {
        (report.driver, report.node)
        for report in world.node_drivers.values()
        if report.source == Rung.BUILT.value and report.state == State.READY.value
    }
    assigned = {
        (driver, node.labels.get(assigned_label(driver), ""))
        for driver, name in built
        if (node := world.nodes.get(name)) is not None
    }
    return {
        (found.pool.kernel, found.pool.architecture): found.toolkit
        for found in world.daemonsets.values()
        if found.toolkit and (found.driver, found.assignment) in assigned
    }


def _chain(
    pool: Pool,
    toolkit: Toolkit,
    streams: ImageStreams,
    proven: Proven,
    kept: Kept,
) -> Iterator[tuple[Link, str, str]]:
    """Each link in order: its image or nothing, and why; without words if nobody set it up."""
    mapped = toolkit.images.get(pool.kernel, "")
    word = "names" if mapped else "does not name"
    yield Link.MAP, mapped, f"toolkit.images {word} kernel {pool.kernel}" if toolkit.images else ""
    yield Link.STREAM, *_from_stream(pool, toolkit.image_stream, streams, kept)
    filled = fill(toolkit.image_template, pool)
    yield Link.TEMPLATE, filled, "toolkit.imageTemplate, filled in"
    link = Link.PROVEN if kept.link == Link.PROVEN.value else Link.KEPT
    yield link, kept.image, "the image used before"
    built = proven.get((pool.kernel, pool.architecture), "")
    yield Link.PROVEN, built, f"an image has built for {pool.kernel} before"


def _remedy(stream: ImageStream | None, streams: ImageStreams) -> str:
    if isinstance(streams, Unseen):
        return "it goes on once they are; or name an image in spec.toolkit.images"
    if stream is not None:
        return "wait for the tag, or name an image in spec.toolkit.images"
    return "name one in spec.toolkit.images, or all of them by spec.toolkit.imageTemplate"


def _from_stream(pool: Pool, name: str, streams: ImageStreams, kept: Kept) -> tuple[str, str]:
    if streams is None:
        return "", "this cluster has no image streams"
    if isinstance(streams, Unseen):
        before = kept.image if kept.link == Link.STREAM.value else ""
        return before, f"the image streams are not known: {streams.why}"
    if name not in streams:
        return "", f"there is no image stream {name}"
    image = streams[name].tags.get(pool.os_version, "")
    word = "has" if image else "has no"
    return image, f"image stream {name} {word} tag {pool.os_version}"


def fill(template: str, pool: Pool) -> str:
    """A pull spec for a pool. A tag holds no `+`, as kernel releases do: `_` stands for it."""
    values = {
        "{kernel}": pool.kernel.replace("+", "_"),
        "{osVersion}": pool.os_version,
        "{arch}": pool.architecture,
    }
    for word, value in values.items():
        template = template.replace(word, value)
    return template
