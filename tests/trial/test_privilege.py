"""How `nodeside try` becomes root."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from nodeside.errors import UsageError
from nodeside.trial import privilege
from nodeside.trial.cache import TrialCache, default_directory
from nodeside.trial.debian.archive import proxy_environment


def test_no_password_is_in_the_words_of_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for name in proxy_environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy.example.com")
    monkeypatch.setenv("NODESIDE_MIRROR", "https://me:secret@mirror.example.com/debian")
    monkeypatch.setenv("NODESIDE_SUITE", "trixie")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(privilege, "_replace_process", said.extend)

    privilege.become_root()

    assert said[:3] == ["/usr/bin/sudo", "--preserve-env=https_proxy,NODESIDE_MIRROR", "env"]
    assert "NODESIDE_SUITE=trixie" in said
    assert "secret" not in " ".join(said)


def test_without_a_proxy_sudo_is_asked_for_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not everybody who may use sudo may also keep variables."""
    said: list[str] = []
    for name in (*proxy_environment(), "NODESIDE_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(privilege, "_replace_process", said.extend)

    privilege.become_root()

    assert said[:2] == ["/usr/bin/sudo", "env"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_temporary_files_of_root_are_not_below_a_directory_of_somebody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    os.chown(tmp_path, 12345, 12345)
    (tmp_path / "ours").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "ours"))
    monkeypatch.delenv("SUDO_UID", raising=False)

    with pytest.raises(UsageError, match=r"temporary files: .* of user 12345, who can put another"):
        privilege.become_root()

    monkeypatch.setenv("SUDO_UID", "12345")
    privilege.become_root()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_root_with_the_home_of_somebody_has_a_cache_of_its_own_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container job of GitHub, whose HOME is the runner's."""
    for name in ("SUDO_UID", "NODESIDE_TRIAL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    privilege.become_root()
    assert default_directory() == tmp_path / ".cache" / "nodeside" / "trial"
    assert not capsys.readouterr().err

    os.chown(tmp_path, 12345, 12345)
    privilege.become_root()
    assert default_directory() == Path("/var/cache/nodeside/trial")
    said = "belongs to user 12345, not to root; using /var/cache/nodeside/trial"
    assert capsys.readouterr().err.count(said) == 1

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    privilege.become_root()
    assert not capsys.readouterr().err
    with pytest.raises(UsageError, match=r"the trial's cache: .* belongs to user 12345"):
        TrialCache().__enter__()
