"""Where Debian packages come from, as far as it can be told without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.trial.architecture import AMD64, ARM64
from nodeside.trial.cache import TrialCache
from nodeside.trial.debian import archive
from nodeside.trial.debian.archive import Archive
from nodeside.trial.errors import ArchiveError
from nodeside.trial.progress import Progress

TARGETS = """\
Repo-URI: http://mirror.example.com/debian/
Release: trixie
Component: main
Origin: Debian

Repo-URI: http://mirror.example.com/tools/
Release: stable
Component: main
Origin: Somebody Else

Repo-URI: http://mirror.example.com/security/
Release: trixie-security
Component: main
Origin: Debian
"""


@pytest.fixture
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "KEYRING", Path("/no/such/keyring"))


@pytest.mark.usefixtures("no_keyring")
def test_only_sources_whose_origin_is_debian_are_used() -> None:
    assert archive.debian_lines(TARGETS) == [
        "deb http://mirror.example.com/debian/ trixie main",
        "deb http://mirror.example.com/security/ trixie-security main",
    ]


@pytest.mark.usefixtures("no_keyring")
def test_a_mirror_of_the_users_choice_replaces_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODESIDE_MIRROR", "http://mirror.example.com/debian")
    monkeypatch.setenv("NODESIDE_SUITE", "trixie")
    made = Archive(TrialCache(tmp_path), Progress(quiet=True))

    assert made.sources.suite == "trixie"
    assert made.sources.lines == (
        "deb http://mirror.example.com/debian trixie main",
        "deb http://mirror.example.com/debian trixie-updates main",
    )


def test_packages_are_signed_by_debians_keyring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keyring").touch()
    monkeypatch.setattr(archive, "KEYRING", tmp_path / "keyring")

    assert archive.debian_lines(TARGETS)[0].startswith(f"deb [signed-by={tmp_path}/keyring] http")


def test_proxies_of_the_caller_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example.com:3128")
    monkeypatch.setenv("NO_PROXY", "localhost")

    environment = archive.proxy_environment()

    assert environment["http_proxy"] == "http://proxy.example.com:3128"
    assert environment["NO_PROXY"] == "localhost"


def test_an_archive_that_cannot_be_reached_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODESIDE_MIRROR", "file:///no/such/mirror")
    monkeypatch.setenv("NODESIDE_SUITE", "trixie")
    with TrialCache(tmp_path) as cache:
        made = Archive(cache, Progress(quiet=True))

        with pytest.raises(ArchiveError, match="cannot fetch the package lists") as caught:
            made.names()

    assert "NODESIDE_MIRROR" in caught.value.hint


def test_contrib_and_non_free_are_looked_for_beside_main() -> None:
    lines = ["deb http://mirror.example.com/debian trixie main", "deb http://x.example.com y z"]
    assert archive.other_components(lines) == (
        "deb http://mirror.example.com/debian trixie contrib",
        "deb http://mirror.example.com/debian trixie non-free",
    )


def test_only_we_can_read_the_settings_which_may_hold_a_password(tmp_path: Path) -> None:
    row = 'Acquire::http::Proxy "http://me:secret@proxy.example.com";'
    sources = archive.Sources("trixie", ("deb http://me:secret@example.com/debian trixie main",))

    archive._write_settings(tmp_path, AMD64, sources, [row])

    assert row in (tmp_path / "apt.conf").read_text()
    for name in ("apt.conf", "sources.list"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("no_keyring")
def test_each_architecture_has_package_lists_of_its_own_and_the_same_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODESIDE_MIRROR", "http://mirror.example.com/debian")
    monkeypatch.setenv("NODESIDE_SUITE", "trixie")
    cache, progress = TrialCache(tmp_path), Progress(quiet=True)
    ours, theirs = Archive(cache, progress), Archive(cache, progress, ARM64)

    assert ours.sources == theirs.sources
    assert ours.digest != theirs.digest
    assert theirs.not_free().architecture is ARM64
    archive._write_settings(tmp_path, ARM64, theirs.sources, [])
    assert 'APT::Architecture "arm64";' in (tmp_path / "apt.conf").read_text()
