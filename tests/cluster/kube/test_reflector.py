"""What is known of a kind, through everything that can happen to a list and a watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.kube.errors import Gone
from cluster.kube.listing import Page
from cluster.kube.reflector import Reflector, Selection
from cluster.kube.resources import IMAGE_STREAMS, NODES
from tests.cluster.fakes.scripted import Said, ScriptedServer, event, gone, page
from tests.patience import patience

LONG = patience(30.0)  # seconds: a deadline that only a broken test meets


@dataclass(frozen=True)
class Item:
    name: str
    colour: str = ""


def item_from(document: Mapping[str, Any]) -> Item:
    return Item(str(document["metadata"]["name"]), str(document.get("colour", "")))


class Watched:
    """A reflector over a scripted server; wakes are counted."""

    def __init__(
        self,
        server: ScriptedServer,
        directory: Path,
        *,
        optional: bool = False,
        crowd: Callable[[Item], str] | None = None,
    ) -> None:
        self.wakes = 0
        self.server = server
        resource = IMAGE_STREAMS if optional else NODES
        self.reflector: Reflector[Item] = Reflector(
            server.api(directory, deadline=1.0),
            Selection(resource, item_from, optional=optional, crowd=crowd),
            self._wake,
            jitter=lambda: -1.0,  # no pause at all
        )

    def _wake(self) -> None:
        self.wakes += 1

    def __enter__(self) -> Watched:
        self.reflector.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.reflector.stop()
        self.reflector.join(LONG)

    @property
    def names(self) -> list[str]:
        return sorted(self.reflector.objects() or {})

    def until(self, holds: Callable[[], bool]) -> None:
        assert _until(holds), (self.reflector.objects(), self.reflector.health())


def _until(holds: Callable[[], bool]) -> bool:
    pause = threading.Event()
    return any(holds() or pause.wait(0.01) for _ in range(int(LONG / 0.01)))


@pytest.fixture
def hold() -> threading.Event:
    """A watch that says nothing more until the test ends."""
    return threading.Event()


def silent(hold: threading.Event) -> Said:
    """A watch that says nothing; cut, since an answer of no bytes would be whole at once."""
    return Said(body="", hold=hold, cut=True)


def test_a_watch_goes_on_where_the_list_ended_and_changes_are_kept(
    tmp_path: Path, hold: threading.Event
) -> None:
    changes = event("ADDED", "c", "8") + event("DELETED", "a", "9")
    with (
        ScriptedServer(Said(body=page("a", "b")), Said(body=changes), silent(hold)) as server,
        Watched(server, tmp_path) as watched,
    ):
        watched.until(lambda: watched.names == ["b", "c"])
        watched.until(lambda: len(server.asked) == 3)
        hold.set()

    assert "resourceVersion=7&" in server.asked[1].path
    assert "resourceVersion=9&" in server.asked[2].path


def test_a_bookmark_moves_on_where_the_watch_is_resumed_and_wakes_nobody(
    tmp_path: Path, hold: threading.Event
) -> None:
    mark = event("BOOKMARK", "", "500")
    with (
        ScriptedServer(Said(body=page("a")), Said(body=mark), silent(hold)) as server,
        Watched(server, tmp_path) as watched,
    ):
        watched.until(lambda: len(server.asked) == 3)
        assert watched.wakes == 1
        assert watched.reflector.wait_seen("500", LONG)
        hold.set()

    assert "resourceVersion=500&" in server.asked[2].path


def test_a_change_of_what_we_do_not_keep_wakes_nobody(
    tmp_path: Path, hold: threading.Event
) -> None:
    heartbeat = event("MODIFIED", "a", "8", heartbeat="now")
    with (
        ScriptedServer(Said(body=page("a")), Said(body=heartbeat), silent(hold)) as server,
        Watched(server, tmp_path) as watched,
    ):
        watched.until(lambda: watched.reflector.wait_seen("8", 0))
        assert watched.wakes == 1
        hold.set()


def test_after_410_what_was_known_stays_until_the_new_list_is_whole(
    tmp_path: Path, hold: threading.Event
) -> None:
    first = threading.Event()
    script = [
        Said(body=page("a", "b")),
        Said(body=gone()),
        Said(body=page("b", version="90", more="tok")),
        Said(body=page("c", version="90"), hold=first),
        silent(hold),
    ]
    with ScriptedServer(*script) as server, Watched(server, tmp_path) as watched:
        watched.until(lambda: len(server.asked) == 4)
        assert watched.names == ["a", "b"]
        first.set()
        watched.until(lambda: watched.names == ["b", "c"])
        hold.set()


def test_lists_from_which_no_watch_can_start_are_further_and_further_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    class Expiring:
        def list(self, *_: Any, **__: Any) -> Page[Item]:
            return Page([], "5")

        def watch(self, *_: Any, **__: Any) -> None:
            raise Gone("too old resource version", status=410, retryable=True)

    api: Any = Expiring()
    reflector = Reflector(api, Selection(NODES, item_from), lambda: None, jitter=lambda: 1.0)

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            reflector.stop()

    monkeypatch.setattr(reflector._poked, "wait", pause)
    reflector.start()
    reflector.join(LONG)

    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert reflector.health().trouble == "too old resource version"


def test_a_list_that_expires_between_two_pages_is_begun_again(
    tmp_path: Path, hold: threading.Event
) -> None:
    script = [
        Said(body=page("a", more="tok")),
        Said(410, '{"message": "the continue parameter is too old"}'),
        Said(body=page("a", "b")),
        silent(hold),
    ]
    with ScriptedServer(*script) as server, Watched(server, tmp_path) as watched:
        watched.until(lambda: watched.names == ["a", "b"])
        hold.set()


def test_while_the_server_fails_what_was_known_stays_and_the_trouble_is_said(
    tmp_path: Path, hold: threading.Event
) -> None:
    refused = [Said(403, '{"message": "no rule"}')] * 200
    with (
        ScriptedServer(Said(body=page("a")), *refused) as server,
        Watched(server, tmp_path) as watched,
    ):
        watched.until(lambda: bool(watched.reflector.health().trouble))
        health = watched.reflector.health()

    assert watched.names == ["a"]
    assert health.synced
    assert health.trouble == "no permission to watch nodes: no rule"


def test_a_kind_that_the_server_does_not_know_is_none_if_it_is_optional(tmp_path: Path) -> None:
    with (
        ScriptedServer(Said(404, "404 page not found")) as server,
        Watched(server, tmp_path, optional=True) as watched,
    ):
        assert watched.reflector.wait_synced(LONG)
        assert watched.reflector.objects() is None
        assert watched.wakes == 1


def test_a_kind_that_the_server_learns_later_is_known_then_and_wakes(
    tmp_path: Path, hold: threading.Event
) -> None:
    script = [Said(404, "404 page not found"), Said(body=page("stream")), silent(hold)]
    with (
        ScriptedServer(*script) as server,
        Watched(server, tmp_path, optional=True) as watched,
    ):
        watched.until(lambda: watched.names == ["stream"])
        assert watched.wakes == 2, "that there is no such kind, and that there is"
        hold.set()


def test_an_object_that_cannot_be_read_hurts_only_itself(
    tmp_path: Path, hold: threading.Event
) -> None:
    body = '{"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {}}, {"metadata": {"name": "b"}}]}'  # noqa: E501
    with (
        ScriptedServer(Said(body=body), silent(hold)) as server,
        Watched(server, tmp_path) as watched,
    ):
        watched.until(lambda: watched.names == ["b"])
        hold.set()


def test_of_what_one_node_writes_no_more_is_kept_than_there_is_use_for(
    tmp_path: Path, hold: threading.Event
) -> None:
    listed = [f"n1-{i:04}" for i in range(300)]
    changes = event("ADDED", "n1-more", "8") + event("ADDED", "n2-first", "9")
    freed = event("DELETED", "n1-0000", "10") + event("ADDED", "n1-next", "11")
    with (
        ScriptedServer(
            Said(body=page(*listed)), Said(body=changes), Said(body=freed), silent(hold)
        ) as server,
        Watched(server, tmp_path, crowd=lambda item: item.name[:2]) as watched,
    ):
        watched.until(lambda: len(server.asked) == 4)
        hold.set()

        assert watched.names == [*listed[1:256], "n1-next", "n2-first"]


def test_an_object_that_we_deleted_is_known_to_be_gone(
    tmp_path: Path, hold: threading.Event
) -> None:
    with (
        ScriptedServer(
            Said(body=page("a")), Said(body=event("DELETED", "a", "8")), silent(hold)
        ) as server,
        Watched(server, tmp_path) as watched,
    ):
        assert watched.reflector.wait_gone("a", "", LONG)
        hold.set()


def test_a_watch_that_is_open_again_counts_as_heard_though_nothing_happens(
    tmp_path: Path, hold: threading.Event
) -> None:
    with (
        ScriptedServer(
            Said(body=page("a")), Said(503), silent(hold), Said(body=page("a"))
        ) as server,
        Watched(server, tmp_path) as watched,
    ):
        watched.until(lambda: len(server.asked) == 4)
        assert watched.reflector.wait_current(LONG)
        assert watched.reflector.health().trouble == ""
        hold.set()


def test_a_watch_that_fails_at_once_backs_off_and_the_state_comes_from_lists(
    tmp_path: Path, hold: threading.Event
) -> None:
    broken = Said(body="oops\n")
    script = [Said(body=page("a")), broken, broken, Said(body=page("a", "b", version="9")), broken]
    with (
        ScriptedServer(*script, Said(body=page("c")), silent(hold)) as server,
        Watched(server, tmp_path) as watched,
    ):
        watched.until(lambda: len(server.asked) == 7)
        assert watched.reflector._failures == 3, "nothing has come of a watch yet"
        assert watched.names == ["c"]
        hold.set()

    assert ["watch=true" in asked.path for asked in server.asked[:7]] == [
        False, True, True, False, True, False, True,
    ]  # fmt: skip


def test_an_event_ends_the_backing_off(tmp_path: Path, hold: threading.Event) -> None:
    script = [Said(body=page("a")), Said(body="oops\n"), Said(body=event("ADDED", "b", "8"))]
    with ScriptedServer(*script, silent(hold)) as server, Watched(server, tmp_path) as watched:
        watched.until(lambda: watched.names == ["a", "b"])
        watched.until(lambda: watched.reflector._failures == 0)
        hold.set()


def test_after_an_outage_a_poke_is_enough_to_be_up_to_date_again(
    tmp_path: Path, hold: threading.Event
) -> None:
    changes = Said(body=event("ADDED", "b", "8"))
    script = [Said(body=page("a")), Said(503), changes, Said(body=page("a")), silent(hold)]
    with ScriptedServer(*script) as server, Watched(server, tmp_path) as watched:
        watched.reflector._jitter = lambda: 1000.0  # who is not poked waits for hours
        watched.until(lambda: "failed to watch nodes" in watched.reflector.health().trouble)
        assert not watched.reflector.wait_current(0)
        watched.reflector.retry_now()
        assert watched.reflector.wait_current(LONG)
        watched.until(lambda: watched.names == ["a", "b"])
        hold.set()


def test_behind_a_connection_that_died_without_a_word_all_is_listed_anew(
    tmp_path: Path, hold: threading.Event
) -> None:
    script = [Said(body=page("a")), silent(hold), Said(body=page("b", version="9")), silent(hold)]
    with ScriptedServer(*script) as server, Watched(server, tmp_path) as watched:
        watched.until(lambda: len(server.asked) == 2)
        watched.reflector.renew_list(0.0)  # which it is newer than
        assert watched.reflector.wait_current(0)
        assert watched.names == ["a"]

        watched.reflector.renew_list(time.monotonic())
        assert watched.reflector.health().synced, "what is known stays"
        assert watched.reflector.wait_current(LONG)
        assert watched.names == ["b"]
        hold.set()


def test_an_api_server_that_comes_back_with_older_data_is_listed_again(
    tmp_path: Path, hold: threading.Event
) -> None:
    """As after a restore of etcd. It would accept a watch from the old version, and say nothing."""
    restored = [Said(body=page(version="5")), Said(body=page("b", version="5"))]
    script = [Said(body=page("a")), Said(503), silent(hold), *restored, silent(hold)]
    with ScriptedServer(*script) as server, Watched(server, tmp_path) as watched:
        watched.until(lambda: watched.names == ["b"])
        watched.until(lambda: len(server.asked) == 6)
        assert not watched.reflector.wait_seen("6", 0), "a write of now is waited for"
        assert not watched.reflector.health().cut_off
        hold.set()

    assert server.asked[3].path.endswith("limit=1")
    assert "resourceVersion=5&" in server.asked[5].path


def test_a_watch_that_could_not_be_opened_goes_on_where_it_ended_if_nothing_was_undone(
    tmp_path: Path, hold: threading.Event
) -> None:
    changes = Said(body=event("ADDED", "b", "8"))
    script = [Said(body=page("a")), Said(503), changes, Said(body=page("a")), silent(hold)]
    with ScriptedServer(*script) as server, Watched(server, tmp_path) as watched:
        watched.until(lambda: watched.names == ["a", "b"])
        watched.until(lambda: len(server.asked) == 5)
        assert not watched.reflector.health().cut_off
        hold.set()

    assert "resourceVersion=8&" in server.asked[4].path
