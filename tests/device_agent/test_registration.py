"""When a plugin registers, with a plugin that only notes it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeside import log
from nodeside.device_agent.registration import NotRegistered, Registration, file_prefix
from nodeside.system.files import file_identity


class Plugin:
    """Registered means watched, until somebody says otherwise."""

    resource = "example.com/edu"

    def __init__(self, directory: Path, name: str = "edu") -> None:
        self.directory = directory
        self.name = name
        self.started = 0
        self.registered = 0
        self.is_watched = False
        self.refusal = ""

    @property
    def path(self) -> Path:
        return self.directory / f"{self.name}-{self.started}.sock"

    @property
    def endpoint(self) -> str:
        return self.path.name if self.started and self.path.exists() else ""

    def start(self) -> None:
        self.started += 1
        self.path.touch()

    def stop(self) -> None:
        self.path.unlink(missing_ok=True)

    def register(self) -> None:
        if self.refusal:
            raise NotRegistered(self.refusal)
        self.registered += 1
        self.is_watched = True


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


@pytest.fixture
def registration(plugin: Plugin, tmp_path: Path) -> Iterator[Registration]:
    (tmp_path / "kubelet.sock").touch()
    registration = Registration(plugin, tmp_path)
    yield registration
    if plugin.endpoint:
        registration.close()


def replace_kubelet(directory: Path) -> None:
    """As a restart does."""
    before = file_identity(directory / "kubelet.sock")
    while file_identity(directory / "kubelet.sock") in (
        before,
        None,
    ):  # the clock of ctime is coarse
        (directory / "kubelet.sock").unlink()
        (directory / "kubelet.sock").touch()


def test_it_listens_before_it_registers_and_once(
    registration: Registration, plugin: Plugin
) -> None:
    for now in range(100):
        registration.check(float(now))
    assert (plugin.started, plugin.registered) == (1, 1)


def test_it_waits_for_a_kubelet(registration: Registration, plugin: Plugin, tmp_path: Path) -> None:
    (tmp_path / "kubelet.sock").unlink()
    for now in range(3600):
        registration.check(float(now))
    assert plugin.registered == 0
    (tmp_path / "kubelet.sock").touch()
    registration.check(3600.0)
    assert plugin.registered == 1


def test_a_kubelet_that_is_another_is_told_at_once(
    registration: Registration, plugin: Plugin, tmp_path: Path
) -> None:
    registration.check(0.0)
    replace_kubelet(tmp_path)
    registration.check(1.0)
    assert (plugin.started, plugin.registered) == (2, 2), "on a new socket"


def test_a_socket_that_vanished_is_made_anew(registration: Registration, plugin: Plugin) -> None:
    registration.check(0.0)
    plugin.path.unlink()
    registration.check(1.0)
    assert (plugin.started, plugin.registered) == (2, 2)


def test_a_plugin_that_nobody_watches_registers_again(
    registration: Registration, plugin: Plugin
) -> None:
    registration.check(0.0)
    plugin.is_watched = False
    registration.check(5.0)
    assert plugin.registered == 1, "the kubelet may not have come yet"
    registration.check(10.0)
    assert plugin.registered == 2


def test_a_refusal_is_tried_again_ever_more_slowly_and_said_once(
    registration: Registration, plugin: Plugin
) -> None:
    said = io.StringIO()
    log.setup("agent", to=said)
    plugin.refusal = 'the ResourceName "edu" is invalid'
    tries = []
    for now in range(100):
        before = registration._failures
        registration.check(float(now))
        if registration._failures != before:
            tries.append(now)
    assert tries == [0, 1, 3, 7, 15, 31, 61, 91]
    [line] = said.getvalue().splitlines()
    assert 'the kubelet does not take the plugin: the ResourceName "edu" is invalid' in line
    plugin.refusal = ""
    registration.check(121.0)
    assert plugin.registered == 1


def test_a_kubelet_that_comes_back_does_not_wait_for_the_next_try(
    registration: Registration, plugin: Plugin, tmp_path: Path
) -> None:
    plugin.refusal = "connection refused"
    for now in range(50):
        registration.check(float(now))
    plugin.refusal = ""
    replace_kubelet(tmp_path)
    registration.check(50.0)
    assert plugin.registered == 1


def test_a_directory_that_cannot_be_written_is_said_and_tried_again(
    registration: Registration, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(plugin, "start", fail)
        registration.check(0.0)
    registration.check(1.0)
    assert plugin.registered == 1


def test_another_agent_waits_for_the_end_of_the_first(
    registration: Registration, plugin: Plugin, tmp_path: Path
) -> None:
    registration.check(0.0)
    another = Plugin(tmp_path, "another")
    waiting = Registration(another, tmp_path)
    waiting.check(1.0)
    assert another.started == 0
    registration.close()
    waiting.check(2.0)
    assert another.registered == 1
    waiting.close()


def test_a_lock_that_was_removed_is_taken_anew(
    registration: Registration, plugin: Plugin, tmp_path: Path
) -> None:
    """An older kubelet removes all files of its directory when it starts."""
    registration.check(0.0)
    (tmp_path / f"{file_prefix(plugin.resource)}.lock").unlink()
    another = Plugin(tmp_path, "another")
    waiting = Registration(another, tmp_path)
    waiting.check(1.0)
    registration.check(1.0)
    registration.check(2.0)
    assert (another.registered, plugin.registered) == (1, 1)
    assert plugin.endpoint == "", "the first has stopped"
    waiting.close()
    registration.check(3.0)
    assert plugin.registered == 2


def test_a_lock_that_is_a_link_is_not_followed(plugin: Plugin, tmp_path: Path) -> None:
    (tmp_path / f"{file_prefix(plugin.resource)}.lock").symlink_to(tmp_path / "elsewhere")
    Registration(plugin, tmp_path).check(0.0)
    assert not os.path.lexists(tmp_path / "elsewhere")
    assert plugin.started == 0
