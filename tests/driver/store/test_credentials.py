"""Credentials from files like docker's config.json, in all the shapes they have been written in."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.store.base import FetchError
from nodeside.driver.store.credentials import Credentials, find_credentials

AUTH = base64.b64encode(b"me:ge:heim").decode()


def config(tmp_path: Path, *keys: str, **entry: Any) -> Path:
    auths = {key: entry or {"auth": AUTH} for key in keys}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"auths": auths, "credsStore": "desktop"}))
    return path


@pytest.mark.parametrize(
    ("key", "host"),
    [
        ("registry.example.com", "registry.example.com"),
        ("Registry.Example.com", "registry.example.com"),
        ("registry.example.com:5000", "registry.example.com:5000"),
        ("https://registry.example.com", "registry.example.com"),
        ("https://registry.example.com:443/v2/", "registry.example.com"),
        ("http://localhost:5000/v1/", "localhost:5000"),
        ("registry.example.com/v2/", "registry.example.com"),
        ("registry.example.com/team", "registry.example.com"),
        ("https://index.docker.io/v1/", "docker.io"),
    ],
)
def test_a_host_is_found_however_its_key_is_written(tmp_path: Path, key: str, host: str) -> None:
    found = find_credentials(config(tmp_path, key), host, "team/edu")

    assert found == Credentials("me", "ge:heim")
    assert found.basic == f"Basic {AUTH}"


@pytest.mark.parametrize(
    ("key", "host"),
    [
        ("registry.example.com", "evil.example.com"),
        ("registry.example.com", "registry.example.com.evil.org"),
        ("registry.example.com:5000", "registry.example.com"),
        ("registry.example.com", "registry.example.com:5000"),
        ("registry.example.com/tea", "registry.example.com"),
        ("registry.example.com/other", "registry.example.com"),
    ],
)
def test_credentials_are_for_no_other_host_or_repository(
    tmp_path: Path, key: str, host: str
) -> None:
    assert find_credentials(config(tmp_path, key), host, "team/edu") is None


def test_the_longest_key_that_fits_wins(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    path.write_text(
        json.dumps(
            {
                "auths": {
                    "r.io": {"username": "all", "password": "1"},
                    "r.io/team/edu": {"username": "edu", "password": "3"},
                    "r.io/team": {"username": "team", "password": "2"},
                }
            }
        )
    )

    users = [find_credentials(path, "r.io", repository) for repository in ("team/edu", "x")]

    assert [found and found.user for found in users] == ["edu", "all"]


def test_without_a_file_there_are_no_credentials() -> None:
    assert find_credentials(None, "registry.example.com") is None


def test_a_file_behind_links_is_read_as_a_secret_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    real = config(tmp_path / "..data", "r.io")
    (tmp_path / "config.json").symlink_to(real)

    assert find_credentials(tmp_path / "config.json", "r.io") is not None


def test_a_link_that_leads_to_itself_is_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("config.json")

    with pytest.raises(FetchError, match=r"credentials file: .*config\.json"):
        find_credentials(tmp_path / "config.json", "r.io")


def test_a_password_is_not_in_what_is_printed(tmp_path: Path) -> None:
    found = find_credentials(config(tmp_path, "r.io", auth=AUTH, identitytoken="tok"), "r.io")

    assert repr(found) == "Credentials(user='me')"


def test_a_missing_file_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=f"no credentials file at {tmp_path}/x") as caught:
        find_credentials(tmp_path / "x", "r.io")

    assert "docker config.json" in caught.value.hint


@pytest.mark.parametrize(
    "content",
    [
        "geheim",
        '["geheim"]',
        '{"auths": "geheim"}',
        '{"auths": {"r.io": "geheim"}}',
        '{"auths": {"r.io": {"auth": "geheim!"}}}',
        '{"auths": {"r.io": {"auth": "Z2VoZWlt"}}}',
        '{"auths": {"r.io": {"username": ["geheim"]}}}',
        '{"auths": ' * 5000,
    ],
)
def test_a_file_that_is_wrong_is_refused_and_nothing_of_it_is_shown(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)

    with pytest.raises(FetchError) as caught:
        find_credentials(path, "r.io")

    assert str(path) in str(caught.value)
    assert "geheim" not in f"{caught.value}{caught.value.__cause__}".replace(str(path), "")
