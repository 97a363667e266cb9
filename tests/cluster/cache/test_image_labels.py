"""Reading the labels of toolkit images from an image API that has them, or has not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from cluster.cache.image_labels import TagLabels
from cluster.model.snapshot import Tag, ToolkitLabels
from tests.cluster.fakes.scripted import Said, ScriptedServer

STREAM = "openshift/driver-toolkit"
KERNEL = "5.14.0-427.50.1.el9_4.x86_64"
ONE = Tag(STREAM, "9.6.20250916-0", "quay.io/dtk:1")
TWO = Tag(STREAM, "418.94.202501221327-0", "quay.io/dtk:2")  # older: it is read second
NOT_IMPORTED = Said(404, json.dumps({"kind": "Status", "message": "not found", "code": 404}))


def shown(
    image: str, labels: dict[str, str] | None = None, generation: int = 1, wanted: int = 1
) -> Said:
    """An ImageStreamTag, as far as it is read."""
    config = {"Labels": {"kernel-version": KERNEL} if labels is None else labels}
    document: dict[str, Any] = {
        "kind": "ImageStreamTag",
        "generation": generation,
        "tag": {"from": {"kind": "DockerImage", "name": image}, "generation": wanted},
        "image": {"dockerImageMetadata": {"kind": "DockerImage", "Config": config}},
    }
    return Said(body=json.dumps(document))


def refused(code: int) -> Said:
    return Said(code, json.dumps({"kind": "Status", "message": "no", "code": code}))


@dataclass
class Reader:
    """`now` is the clock, which only a test moves."""

    server: ScriptedServer
    labels: TagLabels
    now: float = 0.0

    def learn(self, *answers: Said, tags: tuple[Tag, ...] = (ONE, TWO)) -> int:
        """How many requests it makes, when the server has these answers."""
        before = len(self.server.asked)
        self.server.script[:] = answers
        self.labels.learn_labels(tags)
        assert not self.server.script, "fewer questions than answers"
        return len(self.server.asked) - before


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with ScriptedServer() as server:
        api = server.api(tmp_path)
        found = Reader(server, TagLabels(api, lambda: found.now))
        yield found
        api.close()


def test_each_tag_is_read_once(reader: Reader) -> None:
    both = {"kernel-version": KERNEL, "kernel-rt-version": f"{KERNEL}+rt", "name": "dtk"}

    assert reader.learn(shown(ONE.image), shown(TWO.image, both)) == 2
    assert reader.learn() == 0

    assert unquote(reader.server.asked[0].path) == (
        "/apis/image.openshift.io/v1/namespaces/openshift/imagestreamtags/driver-toolkit:9.6.20250916-0"
    )
    assert reader.labels.known_labels == {
        ONE.image: ToolkitLabels(KERNEL),
        TWO.image: ToolkitLabels(KERNEL, f"{KERNEL}+rt"),
    }


AMD, ARM = "sha256:" + "a" * 64, "sha256:" + "b" * 64
ARM_KERNEL = KERNEL.replace("x86_64", "aarch64")


def several(*manifests: dict[str, Any]) -> Said:
    """An ImageStreamTag of a payload of several architectures: importMode is PreserveOriginal."""
    document = json.loads(shown(ONE.image, {}).body)
    document["tag"]["importPolicy"] = {"importMode": "PreserveOriginal"}
    media = "application/vnd.docker.distribution.manifest.v2+json"
    document["image"] = {
        "metadata": {"name": "sha256:" + "c" * 64},
        "dockerImageMetadata": {"kind": "DockerImage", "Config": None},
        "dockerImageManifestMediaType": media.replace("manifest.v2", "manifest.list.v2"),
        "dockerImageManifests": [{"mediaType": media, "manifestSize": 9, **m} for m in manifests],
    }
    return Said(body=json.dumps(document))


def of_one(kernel: str) -> Said:
    """The ImageStreamImage of one architecture."""
    config = {"Labels": {"kernel-version": kernel}}
    image = {"dockerImageMetadata": {"kind": "DockerImage", "Config": config}}
    return Said(body=json.dumps({"kind": "ImageStreamImage", "image": image}))


def test_of_several_architectures_the_labels_of_each_are_read(reader: Reader) -> None:
    tag = several(
        {"digest": AMD, "architecture": "amd64", "os": "linux"},
        {"digest": "sha256:" + "d" * 64, "architecture": "ppc64le", "os": "linux"},
        {"digest": ARM, "architecture": "arm64", "os": "linux", "variant": "v8"},
    )

    assert reader.learn(tag, of_one(KERNEL), of_one(ARM_KERNEL), tags=(ONE,)) == 3
    assert reader.learn(tags=(ONE,)) == 0

    assert [unquote(each.path).rpartition("/")[2] for each in reader.server.asked[1:]] == [
        f"driver-toolkit@{AMD}",
        f"driver-toolkit@{ARM}",
    ]
    found = reader.labels.known_labels[ONE.image]
    assert found.for_architecture("x86_64") == ToolkitLabels(KERNEL)
    assert found.for_architecture("aarch64") == ToolkitLabels(ARM_KERNEL)
    assert found.for_architecture("s390x").kernel == ""


def test_an_architecture_that_is_not_shown_is_asked_for_again(reader: Reader) -> None:
    tag = several({"digest": ARM, "architecture": "arm64", "os": "linux"})

    assert reader.learn(tag, NOT_IMPORTED, shown(TWO.image)) == 3
    assert set(reader.labels.known_labels) == {TWO.image}
    reader.now += 30.0
    assert reader.learn(tag, of_one(ARM_KERNEL)) == 2

    assert reader.labels.known_labels[ONE.image].for_architecture("aarch64") == ToolkitLabels(
        ARM_KERNEL
    )


def test_one_architecture_that_is_not_shown_keeps_no_other_back(reader: Reader) -> None:
    tag = several(
        {"digest": AMD, "architecture": "amd64", "os": "linux"},
        {"digest": ARM, "architecture": "arm64", "os": "linux"},
    )

    assert reader.learn(tag, NOT_IMPORTED, of_one(ARM_KERNEL), shown(TWO.image)) == 4
    found = reader.labels.known_labels[ONE.image]
    assert found.for_architecture("aarch64") == ToolkitLabels(ARM_KERNEL)
    assert found.for_architecture("x86_64").kernel == ""
    assert reader.labels.requeue_after() == 30.0
    assert reader.learn() == 0

    reader.now += 30.0
    reader.server.script[:] = tag, NOT_IMPORTED, of_one(ARM_KERNEL)
    assert not reader.labels.learn_labels((ONE, TWO)), "that nothing is new is no news"
    reader.now += 60.0
    assert reader.learn(tag, of_one(KERNEL), NOT_IMPORTED) == 3
    reader.now += 120.0
    assert reader.learn(tag, of_one(KERNEL), of_one(ARM_KERNEL)) == 3

    found = reader.labels.known_labels[ONE.image]
    assert (found.for_architecture("x86_64").kernel, found.for_architecture("aarch64").kernel) == (
        KERNEL,
        ARM_KERNEL,
    )
    assert reader.labels.requeue_after() is None


def test_what_is_known_of_an_architecture_stays_if_it_is_not_shown_again(reader: Reader) -> None:
    tag = several(
        {"digest": AMD, "architecture": "amd64", "os": "linux"},
        {"digest": ARM, "architecture": "arm64", "os": "linux"},
    )
    reader.learn(tag, NOT_IMPORTED, of_one(ARM_KERNEL), tags=(ONE,))
    reader.now += 30.0
    reader.learn(tag, of_one(KERNEL), NOT_IMPORTED, tags=(ONE,))

    found = reader.labels.known_labels[ONE.image]
    assert (found.for_architecture("x86_64").kernel, found.for_architecture("aarch64").kernel) == (
        KERNEL,
        ARM_KERNEL,
    )


@pytest.mark.parametrize(
    "answer", [Said(404, "404 page not found"), refused(403)], ids=["no such kind", "no rule"]
)
def test_a_role_without_the_images_of_architectures_reads_the_other_tags(
    reader: Reader, answer: Said
) -> None:
    """A copy of nodeside-explain may be of before, and has no imagestreamimages."""
    tag = several(
        {"digest": AMD, "architecture": "amd64", "os": "linux"},
        {"digest": ARM, "architecture": "arm64", "os": "linux"},
    )

    assert reader.learn(tag, answer, answer, shown(TWO.image)) == 4

    assert reader.labels.known_labels == {TWO.image: ToolkitLabels(KERNEL)}
    assert reader.labels.requeue_after() == 30.0


@pytest.mark.parametrize(
    "odd",
    [
        {"digest": "../../secrets/x", "architecture": "arm64"},
        {"digest": None, "architecture": "amd64"},
        {"digest": AMD, "architecture": "amd64", "os": "windows"},
        {"digest": AMD, "architecture": ["amd64"]},
        {},
    ],
)
def test_a_manifest_that_is_none_of_ours_is_not_read(reader: Reader, odd: dict[str, Any]) -> None:
    assert reader.learn(several(odd), tags=(ONE,)) == 1
    assert reader.labels.known_labels == {ONE.image: ToolkitLabels()}


def test_what_nobody_asks_for_any_more_is_forgotten(reader: Reader) -> None:
    reader.learn(shown(ONE.image), shown(TWO.image))

    assert reader.learn(tags=(TWO,)) == 0

    assert set(reader.labels.known_labels) == {TWO.image}


def test_a_tag_that_moved_has_the_labels_of_before_until_it_is_imported(reader: Reader) -> None:
    """https://github.com/openshift/openshift-apiserver, imagestreamtag/rest.go: the tag is that of
    the spec, the image that of the status."""
    reader.learn(shown(ONE.image), tags=(ONE,))
    moved = Tag(STREAM, ONE.name, "quay.io/dtk:3")

    assert reader.learn(shown(moved.image, generation=1, wanted=2), tags=(moved,)) == 1
    assert reader.labels.known_labels == {}
    reader.now += 30.0
    assert reader.learn(shown(moved.image, generation=2, wanted=2), tags=(moved,)) == 1

    assert reader.labels.known_labels == {moved.image: ToolkitLabels(KERNEL)}


def test_one_that_the_server_cannot_show_keeps_no_other_back(reader: Reader) -> None:
    broken = Said(500, json.dumps({"kind": "Status", "message": "a bug", "code": 500}))

    assert reader.learn(broken, shown(TWO.image)) == 2

    assert set(reader.labels.known_labels) == {TWO.image}
    assert reader.labels.requeue_after() == 30.0
    assert reader.labels.pending == {ONE.image}


def test_one_that_does_not_answer_keeps_no_other_back(reader: Reader) -> None:
    gone = Said(503, "gone")

    assert reader.learn(gone, shown(TWO.image)) == 2

    assert set(reader.labels.known_labels) == {TWO.image}
    assert reader.labels.pending == {ONE.image}
    reader.now += 30.0
    assert reader.learn(shown(ONE.image)) == 1
    assert reader.labels.pending == set()


@pytest.mark.parametrize(
    "document",
    [
        {},
        {
            "image": {
                "dockerImageMetadata": None,
                "dockerImageManifests": [{"architecture": "arm64"}],
            }
        },
        {"image": {"dockerImageMetadata": {"Config": {"Labels": ["kernel-version"]}}}},
    ],
)
def test_an_image_without_labels_says_nothing(reader: Reader, document: dict[str, Any]) -> None:
    reader.learn(Said(body=json.dumps(document)), tags=(ONE,))

    assert reader.labels.known_labels == {ONE.image: ToolkitLabels()}


def test_a_tag_that_is_not_imported_is_asked_for_later_and_later(reader: Reader) -> None:
    reader.learn(NOT_IMPORTED, shown(TWO.image))
    assert reader.labels.known_labels == {TWO.image: ToolkitLabels(KERNEL)}
    waits = []
    for _ in range(8):
        wait = reader.labels.requeue_after() or 0.0
        waits.append(wait)
        reader.now += wait / 2
        assert reader.learn() == 0
        reader.now += wait / 2
        assert reader.learn(NOT_IMPORTED) == 1

    assert waits == [30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1800.0, 1800.0]
    reader.now += 1800.0
    assert reader.learn(shown(ONE.image)) == 1
    assert reader.labels.requeue_after() is None


@pytest.mark.parametrize(
    ("answer", "again"),
    [
        (Said(404, "404 page not found"), None),  # no such kind: image streams come without tags
        (refused(403), None),
        (Said(503, "the server is gone", cut=True), 30.0),
    ],
)
def test_where_nothing_can_be_read_one_question_is_enough(
    reader: Reader, answer: Said, again: float | None
) -> None:
    """Two, if it may pass; of what will not nobody is woken."""
    reader.server.always = lambda _: answer
    reader.labels.learn_labels((ONE, TWO))
    before = len(reader.server.asked)
    assert before == (1 if again is None else 2)
    assert reader.labels.pending == (set() if again is None else {ONE.image, TWO.image})
    assert reader.learn() == 0
    assert reader.labels.requeue_after() == again

    reader.now += 30.0
    reader.labels.learn_labels((ONE, TWO))
    assert len(reader.server.asked) > before
    reader.now += 59.0
    assert reader.learn() == 0
    reader.now += 1.0
    assert reader.learn(shown(ONE.image), shown(TWO.image)) == 2
    assert reader.labels.requeue_after() is None


def test_what_there_was_no_time_for_comes_with_the_next_look(reader: Reader) -> None:
    assert reader.labels.learn_labels((ONE, TWO), seconds=0.0), "that they may come is news"

    assert reader.labels.requeue_after() == 0.0
    assert reader.learn(shown(ONE.image), shown(TWO.image)) == 2
    assert reader.labels.requeue_after() is None


def test_for_what_nobody_asks_any_more_nobody_is_woken(reader: Reader) -> None:
    reader.server.always = lambda _: Said(503, "the server is gone")
    reader.labels.learn_labels((ONE, TWO))
    assert reader.labels.requeue_after() == 30.0

    reader.labels.learn_labels(())

    assert reader.labels.requeue_after() is None


def test_one_that_rests_longer_than_the_others_is_waited_for(reader: Reader) -> None:
    reader.server.always = lambda _: Said(503, "the server is gone")
    for wait in (0.0, 30.0, 60.0):
        reader.now += wait
        reader.labels.learn_labels((ONE, TWO))
    reader.server.always = lambda asked: (
        NOT_IMPORTED if ONE.name in asked.path else shown(TWO.image)
    )
    reader.now += 120.0
    reader.labels.learn_labels((ONE, TWO))

    reader.labels.learn_labels((ONE,))

    assert reader.labels.requeue_after() == 240.0
