"""Finds a pool's toolkit image through a chain of links.

Pure. The order is that of `nodeside.spec.fleet.Toolkit`: the image set for this exact kernel; then
the image stream tag of the OS version, or else a tag whose image labels name the kernel; then the
template; then the image that the pool has now. An image from an image stream stays while image
streams cannot be read.

An image that is for another kernel according to its labels is skipped (`Evidence`). But if nothing
else serves, the image in use stays, since modules that are built already need no toolkit.

Nodes do not vote on images: one that reports that its image is not for its kernel has failed
(`DriverNode.refused_toolkit`), and its status says what to add to toolkit.images.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cluster.model.coreos import parse_coreos_version, rhel_major_of, tag_order
from cluster.model.snapshot import (
    EMPTY,
    ImageStream,
    ImageStreams,
    NotListed,
    Pool,
    Tag,
    ToolkitLabels,
)
from nodeside.protocol.build_job import kernel_variant
from nodeside.spec.fleet import Toolkit

_READ = 50  # newest tags of an image stream whose labels are read
# RHEL kernel releases. The labels vary as /etc/driver-toolkit-release.json does: the rt label may
# be absent, lack `+rt`, or be no release at all, and early labels lack the architecture.
_RELEASE = re.compile(r"^\d+\.\d+\.\d+-\S+$")
_TAIL = re.compile(r"(?:\.(x86_64|aarch64|ppc64le|s390x))?(?:\+[\w-]+)*$")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the labels of images say about their kernels. `pending` images are not read yet.

    OpenShift shows the labels of a Driver Toolkit image with the image stream tag; they are read
    before an image is used. An image set for one kernel in toolkit.images needs no evidence.
    """

    labels: Mapping[str, ToolkitLabels] = field(default_factory=lambda: EMPTY)
    pending: frozenset[str] = frozenset()

    def objection_to(self, image: str, pool: Pool) -> str:
        """Return why an image is not for the kernel of a pool, "" if nothing says so."""
        labels = self._labels_of(image, pool)
        if labels is None or labels_fit_pool(labels, pool) is not False:
            return ""
        return f"its image is for kernel {_kernel_label(labels, kernel_variant(pool.kernel))}"

    def names_kernel_of(self, image: str, pool: Pool) -> bool:
        """Return whether the labels of an image name the kernel of a pool."""
        labels = self._labels_of(image, pool)
        return labels is not None and bool(labels_fit_pool(labels, pool))

    def _labels_of(self, image: str, pool: Pool) -> ToolkitLabels | None:
        labels = self.labels.get(image)
        return labels and labels.for_architecture(pool.architecture)


NO_EVIDENCE: Final = Evidence()


class Link(Enum):
    """The link of the chain that gave the image."""

    MAP = "map"
    STREAM = "image-stream"
    LABELS = "image-labels"
    TEMPLATE = "template"
    KEPT = "kept"
    NONE = "none"

    @property
    def is_from_stream(self) -> bool:
        return self in (Link.STREAM, Link.LABELS)


@dataclass(frozen=True, slots=True)
class CurrentImage:
    """The image that a pool has now, and the link that gave it."""

    image: str = ""
    link: str = ""


NO_CURRENT_IMAGE = CurrentImage()


@dataclass(frozen=True, slots=True)
class Resolution:
    """The toolkit image of a pool, and how it was found.

    `image` is empty exactly if `link` is NONE; then `remedy` says what to do. `why` says which link
    served and why the configured links before it did not. `tags_seen` are the tags of the image
    stream, the oldest first.
    """

    image: str
    link: Link
    why: str
    tags_seen: tuple[str, ...] = ()
    remedy: str = ""


KERNEL_UNKNOWN = Resolution("", Link.NONE, "the kubelet has not reported the kernel yet")


def resolve_toolkit_image(
    pool: Pool,
    toolkit: Toolkit,
    streams: ImageStreams,
    evidence: Evidence = NO_EVIDENCE,
    current: CurrentImage = NO_CURRENT_IMAGE,
) -> Resolution:
    """Return the toolkit image of a pool.

    `current` is the image that the pool has now: a tag that vanishes does not change it.
    """
    skipped: list[str] = []
    doubted: set[str] = set()
    stream = stream_of(toolkit, streams)
    tags = tuple(sorted(stream.tags, key=tag_order)) if stream else ()
    for link, image, why in _try_links(pool, toolkit, streams, evidence, current):
        doubt = evidence.objection_to(image, pool) if image and link is not Link.MAP else ""
        if image and not doubt:
            words = "; ".join([why, *skipped])
            return Resolution(image, link, words, tags)
        if doubt and image not in doubted:
            doubted.add(image)
            skipped.append(f"{why}, but {doubt}")
        elif why and not image and link in (Link.MAP, Link.STREAM):
            skipped.append(why)
    if current.image:
        why = "; ".join(["the image used before, since nothing else serves", *skipped])
        return Resolution(current.image, Link.KEPT, why, tags)
    if stream is not None and not pool.os_version and not doubted:
        skipped.append(f"no tag of image stream {stream.name} is known to be for {pool.kernel}")
    remedy = _remedy_message(pool, stream, streams, doubted)
    return Resolution("", Link.NONE, "; ".join(skipped), tags, remedy)


def tags_to_read(
    pool: Pool, toolkit: Toolkit, streams: ImageStreams, evidence: Evidence = NO_EVIDENCE
) -> Iterator[Tag]:
    """Yield the tags whose labels are needed.

    These are the tag of the OS version and, if it is missing or does not fit, the newest tags.
    """
    stream = stream_of(toolkit, streams)
    if stream is None or not pool.kernel or pool.kernel in toolkit.images:
        return
    exact = stream.tags.get(pool.os_version, "")
    if exact:
        yield Tag(stream.name, pool.os_version, exact)
    if not exact or evidence.objection_to(exact, pool):
        for name in _newest_tags(stream, rhel_major_of(pool.kernel)):
            yield Tag(stream.name, name, stream.tags[name])


def _newest_tags(stream: ImageStream, rhel: int | None) -> list[str]:
    """Return the newest tags; those of another RHEL have other kernels and are left out."""
    others = {
        tag
        for tag in stream.tags
        if rhel is not None and (version := parse_coreos_version(tag)) and version.major != rhel
    }
    return sorted(stream.tags.keys() - others, key=tag_order)[-_READ:]


def stream_of(toolkit: Toolkit, streams: ImageStreams) -> ImageStream | None:
    """Return the image stream that a Driver names, None if it is absent or unknown."""
    return streams.get(toolkit.image_stream) if isinstance(streams, Mapping) else None


def _try_links(
    pool: Pool,
    toolkit: Toolkit,
    streams: ImageStreams,
    evidence: Evidence,
    current: CurrentImage,
) -> Iterator[tuple[Link, str, str]]:
    """Yield each link in order, its image or "", and why; "" for a link that is not configured."""
    mapped = toolkit.images.get(pool.kernel, "")
    verb = "names" if mapped else "does not name"
    yield Link.MAP, mapped, f"toolkit.images {verb} kernel {pool.kernel}" if toolkit.images else ""
    if isinstance(streams, NotListed):
        yield _keep_stream_image(streams, current)
    else:
        yield (
            Link.STREAM,
            *_image_of_os_version(pool, toolkit.image_stream, streams, evidence, current),
        )
    yield Link.LABELS, *_image_by_labels(pool, stream_of(toolkit, streams), evidence, current)
    filled = fill_template(toolkit.image_template, pool)
    yield Link.TEMPLATE, filled, "toolkit.imageTemplate, filled in"
    yield Link.KEPT, current.image, "the image used before"


def _remedy_message(
    pool: Pool, stream: ImageStream | None, streams: ImageStreams, doubted: Collection[str]
) -> str:
    if isinstance(streams, NotListed):
        return "wait until they are, or name an image in spec.toolkit.images"
    if doubted:
        return "name the image of this kernel in spec.toolkit.images"
    if stream is not None and not pool.os_version:
        return "give the OS version instead of the kernel, or name an image in spec.toolkit.images"
    if stream is not None:
        return "wait for the tag, or name an image in spec.toolkit.images"
    return "name an image in spec.toolkit.images, or set spec.toolkit.imageTemplate"


def _keep_stream_image(streams: NotListed, current: CurrentImage) -> tuple[Link, str, str]:
    """Keep an image that an image stream gave while image streams cannot be read."""
    link = next((each for each in Link if each.is_from_stream and each.value == current.link), None)
    why = f"the image streams are not known: {streams.why}"
    return link or Link.STREAM, current.image if link else "", why


def _image_of_os_version(
    pool: Pool,
    name: str,
    streams: Mapping[str, ImageStream] | None,
    evidence: Evidence,
    current: CurrentImage,
) -> tuple[str, str]:
    """Return the image tagged with the OS version, and why.

    If the pool has an image chosen by labels, that stays until the labels of this tag are read.
    """
    if streams is None:
        return "", "this cluster has no image streams"
    if name not in streams:
        return "", f"there is no image stream {name}"
    if not pool.os_version:
        return "", ""
    image = streams[name].tags.get(pool.os_version, "")
    unread = image not in evidence.labels
    waits = current.link == Link.LABELS.value or image in evidence.pending
    if image and unread and waits and current.image not in ("", image):
        return "", f"the labels of tag {pool.os_version} are not read yet"
    verb = "has" if image else "has no"
    return image, f"image stream {name} {verb} tag {pool.os_version}"


def _image_by_labels(
    pool: Pool, stream: ImageStream | None, evidence: Evidence, current: CurrentImage
) -> tuple[str, str]:
    """Return the image of the newest tag for the kernel, and why.

    The image in use stays as long as a tag names it.
    """
    used = current.image if current.link == Link.LABELS.value else ""
    tags = stream.tags.items() if stream else ()
    fitting = (
        (image == used, tag_order(name), name, image)
        for name, image in tags
        if evidence.names_kernel_of(image, pool)
        or (image == used and not evidence.objection_to(image, pool))
    )
    _, _, name, image = max(fitting, default=(False, (), "", ""))
    why = f"tag {name} of image stream {stream.name} is for {pool.kernel}" if stream else ""
    return image, why if image else ""


def fill_template(template: str, pool: Pool) -> str:
    """Fill in a pull spec for a pool; `_` replaces the `+` of releases, which a tag forbids."""
    values = {
        "{kernel}": pool.kernel.replace("+", "_"),
        "{osVersion}": pool.os_version,
        "{arch}": pool.architecture,
    }
    for placeholder, value in values.items():
        template = template.replace(placeholder, value)
    return template


def labels_fit_pool(labels: ToolkitLabels, pool: Pool) -> bool | None:
    """Return whether the labels name the kernel of a pool; None if they do not tell.

    No label covers debug kernels, whose headers are in a separate package. An image of another
    release lacks them. For an image of the same release the sidecar decides.
    """
    variant = kernel_variant(pool.kernel)
    label = _kernel_label(labels, variant)
    if not (_RELEASE.match(label) and _RELEASE.match(pool.kernel)):
        return None
    tail = _TAIL.search(label)
    if tail and tail[1] not in (None, pool.architecture):
        return None
    if _TAIL.sub("", label, count=1) != _TAIL.sub("", pool.kernel, count=1):
        return False
    return None if "debug" in variant else True


def _kernel_label(labels: ToolkitLabels, variant: str) -> str:
    """Return the label for a kernel variant.

    Kernels with 64 KiB pages come with the plain kernel of the same release.
    https://github.com/openshift/driver-toolkit/blob/main/Dockerfile
    """
    return labels.rt_kernel if "rt" in variant.split("-") else labels.kernel
