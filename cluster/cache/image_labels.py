"""Reads the labels of toolkit images from OpenShift's ImageStreamTags.

A tag is read once, when a plan asks for it. There are few tags, so they are not watched. Labels
that cannot be read count as unknown and are retried with increasing delays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cluster.kube.client import Api
from cluster.kube.errors import ApiError, Forbidden, NoSuchKind
from cluster.kube.resources import IMAGE_STREAM_IMAGES, IMAGE_STREAM_TAGS, Resource
from cluster.model.coreos import tag_order
from cluster.model.parse import architecture_digests_from, image_labels_from, toolkit_labels_from
from cluster.model.snapshot import Tag, ToolkitLabels
from nodeside import log

READ_SECONDS: Final = 2.0  # seconds for all tags that one plan asks for
# Rounds of planning and reading: one for the tags of OS versions, one for all tags if one of those
# does not fit, one for the rendered templates of stages, and one to plan.
MAX_ROUNDS: Final = 4
Known = Mapping[str, ToolkitLabels]
_LEAST: Final = 0.1  # seconds that a request gets if earlier ones of its tag took all the time
_FIRST_REST, _LONGEST_REST = 30.0, 1800.0  # seconds until a failed read is retried


class TagLabels:
    """The labels of the requested tags, by image."""

    def __init__(self, api: Api, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._known: Known = {}
        self._pending: frozenset[str] = frozenset()
        self._backoffs: dict[Tag, _Backoff] = {}  # backoff of tags that could not be read
        self._common_backoff = _Backoff()  # backoff after a failure that concerns all tags
        self._partial: frozenset[Tag] = frozenset()  # of which an architecture was not read
        self._unread: Sequence[Tag] = ()

    @property
    def known_labels(self) -> Known:
        return self._known

    @property
    def pending(self) -> frozenset[str]:
        """Images whose requested labels are not read yet but may be later."""
        return self._pending

    def learn_labels(self, tags: Collection[Tag], seconds: float = READ_SECONDS) -> bool:
        """Read the labels of `tags` and forget all others. Return whether anything changed.

        If so, a new plan may differ.
        """
        images = {tag.image for tag in tags}
        before = {image: each for image, each in self._known.items() if image in images}
        self._backoffs = {tag: backoff for tag, backoff in self._backoffs.items() if tag in tags}
        self._partial &= frozenset(tags)
        new = self._read_tags(self._due_tags(tags), self._now() + seconds)
        if new or len(before) < len(self._known):
            self._known = before | new
        self._unread = [tag for tag in tags if not self._is_read(tag)]
        if not self._unread:
            self._common_backoff = _Backoff()
        pending, self._pending = self._pending, frozenset(self._images_pending())
        return bool(new) or self._pending != pending

    def read_labels(self, asked: Callable[[Known], Iterable[Tag]]) -> Known:
        """Read labels for a one-shot command; `asked` may return more tags as labels arrive."""
        for _ in range(MAX_ROUNDS):
            if not self.learn_labels(list(asked(self._known))):
                break
        return self._known

    def requeue_after(self) -> float | None:
        """Return the seconds until the next retry may succeed; None if that is unknown."""
        if self._common_backoff.length and not self._common_backoff.transient:
            return None
        untils = [
            max(self._common_backoff.until, self._backoff_of(tag).until) for tag in self._unread
        ]
        return max(0.0, min(untils) - self._now()) if untils else None

    def _backoff_of(self, tag: Tag) -> _Backoff:
        return self._backoffs.get(tag) or _Backoff()

    def _images_pending(self) -> Iterator[str]:
        if self._common_backoff.length and not self._common_backoff.transient:
            return
        for tag in self._unread:
            if tag not in self._backoffs or self._backoffs[tag].transient:
                yield tag.image

    def _is_read(self, tag: Tag) -> bool:
        return tag.image in self._known and tag not in self._partial

    def _due_tags(self, tags: Collection[Tag]) -> list[Tag]:
        """Return the tags to read now, the newest first."""
        now = self._now()
        if now < self._common_backoff.until:
            return []
        unread = (tag for tag in tags if not self._is_read(tag))
        due = (tag for tag in unread if now >= self._backoff_of(tag).until)
        return sorted(due, key=lambda tag: (tag_order(tag.name), tag.stream), reverse=True)

    def _read_tags(self, tags: Sequence[Tag], ends: float) -> dict[str, ToolkitLabels]:
        """Read the labels of tags. A failure of one tag alone does not stop the others."""
        by_image: dict[str, ToolkitLabels] = {}
        failures = 0
        for tag in tags:
            left, labels, missing = ends - self._now(), None, None
            if left <= 0:
                break
            try:
                labels, missing = self._read_labels_of(tag, left)
            except ApiError as error:
                failures, missing = failures + error.concerns_all, error
                if isinstance(error, NoSuchKind | Forbidden) or failures > 1:
                    self._stop_reading(error)
                    break
            if labels is None or missing is not None:
                transient = missing is not None and missing.retryable
                self._backoffs.setdefault(tag, _Backoff()).lengthen(
                    self._now(), transient=transient
                )
            else:
                self._backoffs.pop(tag, None)
            if labels is None:
                continue
            self._partial = self._partial - {tag} if missing is None else self._partial | {tag}
            by_image[tag.image] = self._with_known(tag.image, labels)
            self._common_backoff = _Backoff()
        return {image: each for image, each in by_image.items() if self._known.get(image) != each}

    def _with_known(self, image: str, labels: ToolkitLabels) -> ToolkitLabels:
        """Return labels with those of architectures that only an earlier read has."""
        known = self._known.get(image, labels).by_architecture
        if known.keys() <= labels.by_architecture.keys():
            return labels
        return replace(labels, by_architecture={**known, **labels.by_architecture})

    def _stop_reading(self, error: ApiError) -> None:
        if not self._common_backoff.length:
            log.detail("cannot read the labels of toolkit images", why=error)
        self._common_backoff.lengthen(self._now(), transient=error.retryable)

    def _read_labels_of(
        self, tag: Tag, seconds: float
    ) -> tuple[ToolkitLabels | None, ApiError | None]:
        """Read the labels of one tag; None if it has none yet. One try.

        The labels of an image of several architectures are those of the image of each, which the
        API server shows as an ImageStreamImage. The error is that of an image that could not be
        read. If none could, the labels are None.
        """
        namespace, _, name = tag.stream.partition("/")
        ends = self._now() + seconds

        def read(resource: Resource, name: str) -> Mapping[str, Any]:
            left = max(_LEAST, ends - self._now())
            return self._api.get(resource, name, namespace=namespace, deadline=left, patient=False)

        document = read(IMAGE_STREAM_TAGS, f"{name}:{tag.name}")
        labels = toolkit_labels_from(document, tag.image)
        if labels is None:
            return None, None
        by_architecture: dict[str, ToolkitLabels] = {}
        missing = None
        for architecture, digest in architecture_digests_from(document).items():
            try:
                found = image_labels_from(read(IMAGE_STREAM_IMAGES, f"{name}@{digest}"))
            except ApiError as error:
                if error.concerns_all:
                    raise
                missing = error
            else:
                by_architecture[architecture] = found
        if missing is not None and not by_architecture:
            return None, missing
        whole = replace(labels, by_architecture=by_architecture) if by_architecture else labels
        return whole, missing


@dataclass
class _Backoff:
    """An exponential backoff. `transient`: the cause may be transient."""

    length: float = 0.0
    until: float = 0.0
    transient: bool = False

    def lengthen(self, now: float, *, transient: bool) -> None:
        self.length = min(_LONGEST_REST, self.length * 2 or _FIRST_REST)
        self.until, self.transient = now + self.length, transient
