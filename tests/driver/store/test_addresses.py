"""What we take for the server of a URL is the server that a request for it connects to."""

from __future__ import annotations

import os

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import parse_url

from nodeside.driver.store.addresses import check_proxy, next_address, origin, origin_to_ask
from nodeside.driver.store.base import FetchError
from nodeside.http.failures import safe_url

HOME = "https://registry.example.com/v2/team/edu/blobs/x"

TEMPLATES = (
    "https://{evil}\\@{home}/x",
    "https://{evil}\\\\@{home}/x",
    "https://{home}\\@{evil}/x",
    "https://{evil}\\.{home}/x",
    "https://{evil}/\\@{home}/x",
    "https:\\\\{evil}/x",
    "https:/\\{evil}/x",
    "\\\\{evil}\\x",
    "/\\{evil}/x",
    "https://{home}@{evil}/x",
    "https://{evil}@{home}/x",
    "https://a:b@{home}/x",
    "https://@{home}/x",
    "https://{evil}#@{home}/x",
    "https://{evil}?@{home}/x",
    "https://{evil};@{home}/x",
    "https://{evil}%5c@{home}/x",
    "https://{evil}%2f.{home}/x",
    "https://{evil}%40{home}/x",
    "https://{evil}%00.{home}/x",
    "https://{evil}\t.{home}/x",
    "https://{evil}\n/x",
    "https://{evil} .{home}/x",
    "https://{evil}\x00.{home}/x",
    "https://{evil}\x7f/x",
    "https://{evil}\u2028/x",
    "https://{evil}\u00ad/x",
    "https://{evil}\u3002/x",
    "https://{evil}\uff0f.{home}/x",
    "https://{evil}\u2100.{home}/x",
    "https://{home}:443@{evil}:443/x",
    "https://{home}:0/x",
    "https://{home}:00443/x",
    "https://{home}:+443/x",
    "https://{home}:4_43/x",
    "https://{home}:\u0664\u0664\u0663/x",
    "https://{home}:/x",
    "https://{home}:80:90/x",
    "https://{home}.:443/x",
    "HTTPS://{home}/x",
    "https://REGISTRY.EXAMPLE.COM/x",
    "https://re%67istry.example.com/x",
    "https://r\u00e9gistry.example.com/x",
    "https://stra\u00dfe.example.com/x",
    "https://\uff11\uff12\uff17.0.0.1/x",
    "https://0x7f.1/x",
    "https://[::1]:5000/x",
    "https://[::FFFF:127.0.0.1]/x",
    "https://[fe80::1%25eth0]/x",
    "https://[::1]{evil}/x",
    "https://[{evil}]/x",
    "https://[/x",
    "https:///{evil}/x",
    "https:{evil}/x",
    "https:/{evil}/x",
    "//{evil}/x",
    "///{evil}/x",
    "////{evil}/x",
    "//{home}@{evil}/x",
    "?https://{evil}/",
    "x:y@{evil}",
    " https://{evil}/x",
    "https://{evil}/a b",
    "https://{evil}/a?b=c#d",
)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


URLS = [t.format(evil="evil.com", home="registry.example.com") for t in TEMPLATES]


def connects_to(url: str) -> set[tuple[str, str, int]]:
    """Where requests connects, and what urllib3 reads in the URL that it prepares."""
    prepared = requests.Request("GET", url).prepare()
    parameters, _ = HTTPAdapter().build_connection_pool_key_attributes(prepared, verify=True)
    read = parse_url(prepared.url or "")
    defaults = {"http": 80, "https": 443}
    return {
        (str(scheme), str(host).strip("[]").replace("%25", "%"), port or defaults[str(scheme)])
        for scheme, host, port in (
            (parameters["scheme"], parameters["host"], parameters["port"]),
            (read.scheme, read.host, read.port),
        )
    }


@pytest.mark.parametrize("url", URLS)
def test_our_server_of_a_url_is_the_one_that_is_connected_to(url: str) -> None:
    try:
        ours = origin_to_ask(url)
    except FetchError:
        return
    try:
        theirs = connects_to(url)
    except requests.exceptions.RequestException:  # refused there, before anything is sent
        return

    assert theirs == {(ours.scheme, ours.host.strip("[]"), ours.port)}


@pytest.mark.parametrize("location", URLS)
def test_the_target_of_a_redirect_is_the_one_that_is_connected_to(location: str) -> None:
    try:
        target = next_address(HOME, location)
        ours = origin(target)
    except FetchError:
        return
    try:
        theirs = connects_to(target)
    except requests.exceptions.RequestException:
        return

    assert theirs == {(ours.scheme, ours.host.strip("[]"), ours.port)}


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.com\\@registry.example.com/x",
        "https://registry.example.com/x\\y",
        "https://registry.example.com/x y",
        "https://registry.example.com/x\ty",
        "https://registry.example.com/x\x00",
        "https://me@registry.example.com/x",
        "https://me:geheim@registry.example.com/x",
        "https://@registry.example.com/x",
    ],
)
def test_an_ambiguous_url_is_refused(url: str) -> None:
    with pytest.raises(FetchError, match="without backslashes, whitespace, control") as asked:
        origin_to_ask(url)
    with pytest.raises(FetchError, match="redirects to an invalid URL") as redirected:
        next_address(HOME, url)

    words = str(asked.value) + str(redirected.value)
    assert "geheim" not in words
    assert words.isprintable()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://registry.example.com/x", ("https", "registry.example.com", 443)),
        ("HTTP://Registry.Example.com", ("http", "registry.example.com", 80)),
        ("https://[::1]:5000/x?a=b@c", ("https", "[::1]", 5000)),
    ],
)
def test_a_plain_url_has_an_origin(url: str, expected: tuple[str, str, int]) -> None:
    assert origin(url) == expected


def test_a_url_that_parsers_read_differently_is_not_shown() -> None:
    assert safe_url("https:\\\\me:geheim@host/x") == "a URL that cannot be parsed"


@pytest.mark.parametrize(
    ("proxy", "accepted"),
    [
        ("http://me:geheim@proxy:3128", True),
        ("me:geheim@proxy:3128", True),
        ("http://evil.com\\@proxy:3128", False),
        ("http://proxy\t:3128", False),
    ],
)
def test_a_proxy_may_have_a_password_and_no_backslash(
    proxy: str, *, accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    if accepted:
        check_proxy(HOME)
        return
    with pytest.raises(FetchError, match="the proxy set in the environment"):
        check_proxy(HOME)
