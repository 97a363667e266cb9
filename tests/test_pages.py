"""The pages that we make, as a real browser shows them: Debian's Chromium."""

from __future__ import annotations

import re
import shutil
import struct
import zlib
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import pytest

from cluster.cli.fleet_report import make_page as fleet_page
from nodeside.system import process
from nodeside.trial.report_files import as_page as trial_page
from tests.cluster.fakes.reported import fleet, row, seen
from tests.trial.runs import broken, ready

pytestmark = pytest.mark.slow

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
ERROR = "src/edu.c:120:9: error: implicit declaration of function 'a_function_of_later_kernels'"
NODE = "a-node-with-a-long-name-in-a-cluster-of-many.compute.example.com"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-quic"),
)
NARROW, HEIGHT = 400, 900

# A page of ours has no script. It is framed by one that has: how wide is it, and how many of its
# tables have to be scrolled?
FRAME = """\
<iframe src="{page}" style="width: {width}px; height: {height}px; border: 0"></iframe>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const tables = [...page.querySelectorAll(".wide")];
  const wide = tables.filter(each => each.scrollWidth > each.clientWidth);
  document.title = [page.documentElement.scrollWidth, wide.length, page.body.innerText].join("|");
}};
</script>
"""


def chromium(directory: Path, *words: str) -> str:
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("chromium is not there: scripts/setup browser", pytrace=False)
    profile = f"--user-data-dir={directory / 'profile'}"
    return process.run([program, *FLAGS, profile, *words], timeout=300).output


@pytest.fixture(params=["fleet", "trial"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    failed = row(NODE, "failed", reason="Compile", message=ERROR)
    pages = {
        "fleet": lambda: fleet_page(seen(fleet()), [row("n0"), failed], "https://a:6443", NOW),
        "trial": lambda: trial_page("edu", [ready(), broken()]),
    }
    path = tmp_path / "page.html"
    path.write_text(pages[request.param]())
    return path


def test_nothing_is_wider_than_a_narrow_screen_and_every_word_is_shown(page: Path) -> None:
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(page=page.name, width=NARROW, height=HEIGHT))

    shown = chromium(page.parent, "--allow-file-access-from-files", "--dump-dom", frame.as_uri())

    found = re.search(r"<title>(\d+)\|(\d+)\|(.*?)</title>", shown, re.DOTALL)
    assert found is not None, shown
    assert int(found[1]) <= NARROW
    assert int(found[2]) == 0
    words = unescape(found[3])
    assert (ERROR in words) or ("a.c:1: no" in words)


def test_it_is_dark_where_the_reader_wants_it_dark(page: Path) -> None:
    corners = {}
    for number, name in enumerate(("dark", "light")):
        picture = page.with_name(f"{name}.png")
        scheme = f"--blink-settings=preferredColorScheme={number}"
        chromium(page.parent, scheme, f"--screenshot={picture}", page.as_uri())
        corners[name] = first_pixel(picture)

    assert max(corners["dark"]) < 64
    assert min(corners["light"]) > 192


def first_pixel(picture: Path) -> bytes:
    """Red, green and blue of a PNG's upper left corner."""
    data, at, packed = picture.read_bytes(), 8, b""
    while at < len(data):
        [length] = struct.unpack_from(">I", data, at)
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += 12 + length
    return zlib.decompress(packed)[1:4]  # whatever the filter: it has no neighbours
