"""Where the toolkit image of a pool comes from: a chain, and which link of it served.

Pure. The order is that of `nodeside.spec.fleet.Toolkit`: what somebody wrote for this very kernel;
then of the image stream the tag of the OS version, or else one whose image says that it is for the
kernel; then the template. Where none of them serves: the image that the pool has now, else one that
has built for the same kernel elsewhere. What an image stream gave stays while nobody can ask for
it.

An image of which toolkit_evidence.py knows that it is for another kernel is passed over. Where it
is in use and nothing else serves, it stays: modules that are there need no toolkit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from cluster.model.snapshot import (
    DaemonSetObject,
    ImageStream,
    ImageStreams,
    NodeDriverObject,
    Pool,
    Snapshot,
    Tag,
    Unseen,
    tag_order,
)
from cluster.plan.builds.toolkit_evidence import NO_EVIDENCE, Evidence, has_built
from nodeside.contract import assigned_label
from nodeside.spec.fleet import Toolkit

# By kernel release and architecture, images that have compiled a module for it.
Proven = Mapping[tuple[str, str], tuple[str, ...]]
NO_PROOF: Proven = MappingProxyType({})

_READ = 50  # tags of an image stream whose labels are read: the newest


class Link(Enum):
    """Which link of the chain gave the image."""

    MAP = "map"
    STREAM = "image-stream"
    LABELS = "image-labels"
    TEMPLATE = "template"
    KEPT = "kept"
    PROVEN = "proven"
    NONE = "none"

    @property
    def of_a_stream(self) -> bool:
        return self in (Link.STREAM, Link.LABELS)


@dataclass(frozen=True, slots=True)
class CurrentImage:
    """The image that a pool has now, and the link that gave it."""

    image: str = ""
    link: str = ""


NOTHING_KEPT = CurrentImage()


@dataclass(frozen=True, slots=True)
class Resolution:
    """`image` is empty exactly if `link` is NONE; then `remedy` says what to do.

    `why` says which link served and why none before, of those that somebody set up. `tags_seen` are
    those of the image stream, newest text last. `in_doubt`: some image was passed over since it is
    for another kernel, or stays though it is, since nothing else serves.
    """

    image: str
    link: Link
    why: str
    tags_seen: tuple[str, ...] = ()
    remedy: str = ""
    in_doubt: bool = False


NOT_TOLD = Resolution("", Link.NONE, "the kubelet has not told the kernel yet")


def resolve(
    pool: Pool,
    toolkit: Toolkit,
    streams: ImageStreams,
    evidence: Evidence = NO_EVIDENCE,
    kept: CurrentImage = NOTHING_KEPT,
    *,
    lost: bool = False,
) -> Resolution:
    """The toolkit image of a pool.

    `kept` is what the pool has now: a tag that vanishes changes nothing there. `lost`: it had one,
    and what knew of it was deleted. Then what a node refused is what was used, if nothing serves.
    """
    passed: list[str] = []
    doubted: dict[str, None] = {}
    stream = stream_of(toolkit, streams)
    seen = tuple(sorted(stream.tags)) if stream else ()
    for link, image, why in _chain(pool, toolkit, streams, evidence, kept):
        doubt = evidence.against(image, pool) if image and link is not Link.MAP else ""
        if image and not doubt:
            words = "; ".join([why, *passed])
            return Resolution(image, link, words, seen, in_doubt=bool(doubted))
        if doubt and image not in doubted:
            doubted[image] = None
            passed.append(f"{why}, but {doubt}")
        elif why and not image and link in (Link.MAP, Link.STREAM):
            passed.append(why)
    refused = (image for image in doubted if lost and image in evidence.refused)
    if used := kept.image or next(refused, ""):
        why = "; ".join(["the image used before, since nothing else serves", *passed])
        return Resolution(used, Link.KEPT, why, seen, in_doubt=True)
    if stream is not None and not pool.os_version and not doubted:
        passed.append(f"no tag of image stream {stream.name} is known to be for {pool.kernel}")
    remedy = _remedy(pool, stream, streams, doubted)
    return Resolution("", Link.NONE, "; ".join(passed), seen, remedy, bool(doubted))


def asked(
    pool: Pool, toolkit: Toolkit, streams: ImageStreams, evidence: Evidence = NO_EVIDENCE
) -> Iterator[Tag]:
    """The tags whose labels should be known: that of the OS version; if it does not serve, more."""
    stream = stream_of(toolkit, streams)
    if stream is None or not pool.kernel or pool.kernel in toolkit.images:
        return
    exact = stream.tags.get(pool.os_version, "")
    if exact:
        yield Tag(stream.name, pool.os_version, exact)
    if not exact or evidence.against(exact, pool):
        for name in sorted(stream.tags, key=tag_order)[-_READ:]:
            yield Tag(stream.name, name, stream.tags[name])


def stream_of(toolkit: Toolkit, streams: ImageStreams) -> ImageStream | None:
    """The image stream that a Driver names, None if it is not there or not known."""
    return streams.get(toolkit.image_stream) if isinstance(streams, Mapping) else None


def proven(snapshot: Snapshot) -> Proven:
    """Toolkit images that have built a module, by kernel release and architecture.

    Nodes say it, each of the image that a DaemonSet of ours gives it now, and in this boot: what is
    run elsewhere since it is proven is never an image that only a node named.
    """
    given = {(d.driver, d.assignment): d for d in snapshot.daemonsets.values() if d.toolkit}
    images: dict[tuple[str, str], set[str]] = defaultdict(set)
    for word in snapshot.node_drivers.values():
        node = snapshot.nodes.get(word.node)
        if node is None or word.boot_id != node.boot_id or not has_built(node, word):
            continue
        found = given.get((word.driver, node.labels.get(assigned_label(word.driver), "")))
        if found is not None and _is_of(word, found):
            images[node.kernel, node.architecture].add(found.toolkit)
    return {kernel: tuple(sorted(each)) for kernel, each in images.items()}


def _is_of(word: NodeDriverObject, found: DaemonSetObject) -> bool:
    """Whether a node can have said this of what a DaemonSet gives it."""
    said = (word.toolkit, word.revision, word.kernel)
    return said == (found.toolkit, found.revision, found.pool.kernel)


def _chain(
    pool: Pool,
    toolkit: Toolkit,
    streams: ImageStreams,
    evidence: Evidence,
    kept: CurrentImage,
) -> Iterator[tuple[Link, str, str]]:
    """Each link in order: its image or nothing, and why; without words if nobody set it up."""
    mapped = toolkit.images.get(pool.kernel, "")
    word = "names" if mapped else "does not name"
    yield Link.MAP, mapped, f"toolkit.images {word} kernel {pool.kernel}" if toolkit.images else ""
    if isinstance(streams, Unseen):
        yield _of_before(streams, kept)
    else:
        yield Link.STREAM, *_of_os_version(pool, toolkit.image_stream, streams, evidence, kept)
    yield Link.LABELS, *_by_labels(pool, stream_of(toolkit, streams), evidence, kept)
    filled = fill(toolkit.image_template, pool)
    yield Link.TEMPLATE, filled, "toolkit.imageTemplate, filled in"
    link = Link.PROVEN if kept.link == Link.PROVEN.value else Link.KEPT
    yield link, kept.image, "the image used before"
    for built in evidence.proven:
        yield Link.PROVEN, built, f"an image has built for {pool.kernel} before"


def _remedy(
    pool: Pool, stream: ImageStream | None, streams: ImageStreams, doubted: Collection[str]
) -> str:
    if isinstance(streams, Unseen):
        return "it goes on once they are; or name an image in spec.toolkit.images"
    if doubted:
        return "name the image of this kernel in spec.toolkit.images"
    if stream is not None and not pool.os_version:
        return "ask for the OS version of this kernel, or name an image in spec.toolkit.images"
    if stream is not None:
        return "wait for the tag, or name an image in spec.toolkit.images"
    return "name one in spec.toolkit.images, or all of them by spec.toolkit.imageTemplate"


def _of_before(streams: Unseen, kept: CurrentImage) -> tuple[Link, str, str]:
    """While nobody can ask an image stream, what it gave stays, by the same link."""
    link = next((each for each in Link if each.of_a_stream and each.value == kept.link), None)
    why = f"the image streams are not known: {streams.why}"
    return link or Link.STREAM, kept.image if link else "", why


def _of_os_version(
    pool: Pool,
    name: str,
    streams: Mapping[str, ImageStream] | None,
    evidence: Evidence,
    kept: CurrentImage,
) -> tuple[str, str]:
    """What took its place because of its labels stays until they are read again."""
    if streams is None:
        return "", "this cluster has no image streams"
    if name not in streams:
        return "", f"there is no image stream {name}"
    if not pool.os_version:
        return "", ""
    image = streams[name].tags.get(pool.os_version, "")
    unread = image not in evidence.labels
    waits = kept.link == Link.LABELS.value or image in evidence.pending
    if image and unread and waits and kept.image not in ("", image):
        return "", f"the labels of tag {pool.os_version} are not read yet"
    word = "has" if image else "has no"
    return image, f"image stream {name} {word} tag {pool.os_version}"


def _by_labels(
    pool: Pool, stream: ImageStream | None, evidence: Evidence, kept: CurrentImage
) -> tuple[str, str]:
    """The newest tag whose image is for the kernel; the one that is used, while it is there."""
    used = kept.image if kept.link == Link.LABELS.value else ""
    tags = stream.tags.items() if stream else ()
    fitting = (
        (image == used, tag_order(name), name, image)
        for name, image in tags
        if evidence.speaks_for(image, pool) or (image == used and not evidence.against(image, pool))
    )
    _, _, name, image = max(fitting, default=(False, (), "", ""))
    return image, f"image stream {stream.name} has it as tag {name}" if stream and image else ""


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
