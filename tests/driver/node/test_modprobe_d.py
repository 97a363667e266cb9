"""modprobe.d of the host: files, their order, and lines as modprobe.d(5) has them."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeside.driver.module.softdeps import Softdeps
from nodeside.driver.node import modprobe_d
from nodeside.driver.node.command_line import parse_command_line
from nodeside.driver.node.modprobe_d import parse_modprobe_config, read_modprobe_config
from nodeside.system.host import Host
from tests.driver.fakes.kernel import write
from tests.tries import sampled

CIS = """\
# CIS 1.1.1.1
install cramfs /bin/false
blacklist cramfs
  # an indented comment \\
blacklist never_seen
options snd-hda-intel power_save=1 \\
    model="dark red" single-cmd
softdep mlx5-core pre: mlx_compat post: mlx5-ib
alias net-pf-3 off
remove x /bin/true
options
blacklist
bogus
"""


def test_lines_mean_what_the_manual_says() -> None:
    config = parse_modprobe_config([CIS])

    assert config.options == {
        "snd_hda_intel": {"power_save": "1", "model": "dark red", "single_cmd": None}
    }
    assert config.blacklist == {"cramfs"}
    assert config.install_command("cramfs") == "/bin/false"
    assert config.softdeps("mlx5_core") == Softdeps(("mlx_compat",), ("mlx5_ib",))
    assert config.softdeps("mlx4_core") is None
    assert config.why_unwanted("cramfs") == "the host's modprobe.d has it in blacklist"


def test_of_options_the_last_counts_and_of_other_lines_the_first() -> None:
    first = "options edu a=1 b=1\ninstall edu /bin/one\nsoftdep edu pre: one\n"
    second = "options edu a=2\ninstall edu /bin/two\nsoftdep edu pre: two\n"
    config = parse_modprobe_config([first, second])

    assert config.options == {"edu": {"a": "2", "b": "1"}}
    assert config.install_command("edu") == "/bin/one"
    assert config.softdeps("edu") == Softdeps(("one",), ())


def test_the_command_line_of_the_kernel_is_above_it() -> None:
    config = parse_modprobe_config(["options snd-hda-intel a=1 b=1"])
    line = parse_command_line("snd_hda_intel.a=2").merged_onto(config.options)

    assert line.parameters_of("snd-hda-intel") == {"a": "2", "b": "1"}


def test_lines_that_modprobe_matches_as_patterns() -> None:
    config = parse_modprobe_config(["install usb-* /bin/true\nsoftdep snd_* pre: soundcore"])

    assert config.why_unwanted("usb_storage") == (
        "the host's modprobe.d has `install usb_storage /bin/true`"
    )
    assert config.softdeps("snd_hda") == Softdeps(("soundcore",), ())


@pytest.mark.parametrize("below", ["", "proc/1/root/"], ids=["a host", "a pod"])
def test_files_are_read_by_name_and_of_one_name_only_the_first(tmp_path: Path, below: str) -> None:
    root = tmp_path / below
    write(root / "usr/lib/modprobe.d/edu.conf", "options edu a=usr")
    write(root / "lib/modprobe.d/edu.conf", "options edu a=lib")
    write(root / "run/modprobe.d/edu.conf", "options edu a=run")
    write(root / "run/modprobe.d/a.conf", "options edu a=first b=run")
    write(root / "etc/modprobe.d/edu.conf", "options edu a=etc")
    write(root / "etc/modprobe.d/zz.conf.disabled", "options edu a=disabled")
    write(root / "usr/lib/modprobe.d/masked.conf", "blacklist masked")
    (root / "etc/modprobe.d/masked.conf").symlink_to("/dev/null")
    config = read_modprobe_config(Host(tmp_path))

    assert config.options == {"edu": {"a": "etc", "b": "run"}}
    assert config.blacklist == frozenset()
    assert config.unread == ()


def test_a_link_of_the_host_means_the_hosts_files(tmp_path: Path) -> None:
    """As NixOS has them. Below /proc/1/root, the kernel would start at the container's root."""
    root = tmp_path / "proc/1/root"
    write(root / "etc/static/modprobe.d/nixos.conf", "blacklist nixos")
    (root / "etc/modprobe.d").symlink_to("/etc/static/modprobe.d")
    write(root / "usr/lib/modprobe.d/usr.conf", "blacklist usr")
    (root / "lib").symlink_to("../../usr/lib")

    assert read_modprobe_config(Host(tmp_path)).blacklist == {"nixos", "usr"}


def test_a_root_that_cannot_be_entered_is_told_once(tmp_path: Path) -> None:
    """As /proc/1/root without SYS_PTRACE; here a circle of links, which no root may pass either."""
    for directory in ("etc", "run", "usr", "lib"):
        (tmp_path / directory).symlink_to(directory)
    config = read_modprobe_config(Host(tmp_path))

    assert len(config.unread) == 1
    assert config.unread[0].startswith("modprobe.d of the host was not read: ")


def test_what_cannot_be_read_is_told_and_stops_nothing(tmp_path: Path) -> None:
    directory = write(tmp_path / "etc/modprobe.d/good.conf", "blacklist good").parent
    os.mkfifo(directory / "fifo.conf")
    write(directory / "large.conf", "#" * ((1 << 20) + 1))
    (directory / "loop.conf").symlink_to("loop.conf")
    (directory / "dangling.conf").symlink_to("/nowhere")
    (directory / "binary.conf").write_bytes(b"blacklist \xff\0\n")
    config = read_modprobe_config(Host(tmp_path))

    assert "good" in config.blacklist
    assert [words.split()[0] for words in config.unread] == [
        "dangling.conf",
        "fifo.conf",
        "large.conf",
        "loop.conf",
    ]


MIB = 1 << 20


@contextmanager
def at_most_held(limit: int) -> Iterator[None]:
    """Never more than so many bytes are held at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def test_a_host_with_large_files_fills_no_memory_and_is_told(tmp_path: Path) -> None:
    for number in range(64):
        path = write(tmp_path / f"etc/modprobe.d/{number:02d}.conf", f"blacklist m{number}\n")
        os.truncate(path, MIB // 4)
    with at_most_held(8 * MIB):
        config = read_modprobe_config(Host(tmp_path))

    assert config.blacklist == {"m0", "m1", "m2", "m3"}
    assert config.unread[0] == (
        "60 of 64 files of the host's modprobe.d were not read, from /etc/modprobe.d/04.conf on: "
        "of all together 1048576 bytes are read"
    )
    assert len(config.unread) == 1


@pytest.mark.parametrize(
    "line", sampled(["blacklist m{}", "options m{} a", "alias m{} b\\", "{}", "é{}"], 5)
)
def test_a_host_with_many_short_lines_fills_no_memory(tmp_path: Path, line: str) -> None:
    lines = (line.format(number) for number in range(1 << 17))
    write(tmp_path / "etc/modprobe.d/many.conf", "\n".join(lines)[: MIB // 2])
    with at_most_held(16 * MIB):
        config = read_modprobe_config(Host(tmp_path))

    kept = len(config.blacklist) + len(config.options)
    assert kept in (0, modprobe_d._LINES_LIMIT)
    told = ("the host's modprobe.d was read only up to `" + line.format(8192)[:13],)
    assert tuple(words[: len(told[0])] for words in config.unread) == (told if kept else ())


def test_a_host_with_many_files_fills_no_memory_and_no_note(tmp_path: Path) -> None:
    directory = tmp_path / "etc/modprobe.d"
    for number in range(600):
        (directory / f"{'x' * 200}{number:04d}.conf").mkdir(parents=True)
    with at_most_held(2 * MIB):
        config = read_modprobe_config(Host(tmp_path))

    assert len(config.unread) == 9
    assert config.unread[0] == (
        f"{directory} has more than 512 files: none was read from {'x' * 200}0512.conf on"
    )
    assert config.unread[-1] == "505 more files of the host's modprobe.d were not read"
