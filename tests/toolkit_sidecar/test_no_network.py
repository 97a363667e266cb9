"""A build reaches no network: the filter in a real kernel, and what it says for every machine."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeside.system import process
from nodeside.toolkit_sidecar import no_network
from nodeside.toolkit_sidecar.buildlog import BuildLog
from nodeside.toolkit_sidecar.confinement import BuildWatch, Step, run_confined
from nodeside.toolkit_sidecar.no_network import ABIS, Abi, make_filter
from tests.toolkit_sidecar.faketoolkit import LONG

# What reaches another process of the pod, or the metadata service of a cloud; and what does not.
_REACH = """
import ctypes, socket, sys
port, name = int(sys.argv[1]), b"\\0" + sys.argv[2].encode()
libc = ctypes.CDLL(None, use_errno=True)

def tcp():
    socket.create_connection(("127.0.0.1", port), 10).sendall(b"x")

def abstract_name():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", name)

def datagrams_of_a_pair():
    ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.sendto(b"x", name)

def netlink():
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()

def io_uring():
    room = ctypes.create_string_buffer(256)
    if libc.syscall(425, 1, room) < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")

def pair_as_pipe():
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC):
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"

for reach in (tcp, abstract_name, datagrams_of_a_pair, netlink, io_uring, pair_as_pipe):
    try:
        reach()
        print(reach.__name__, "done", flush=True)
    except OSError as error:
        print(reach.__name__, error.errno, flush=True)
"""
_CLOSED = ("tcp", "abstract_name", "datagrams_of_a_pair", "netlink", "io_uring")


@pytest.fixture
def reach() -> Iterator[tuple[str, ...]]:
    """A program that reaches two listeners, as those of a driver container in the same pod."""
    name = f"nodeside-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix,
    ):
        unix.bind(f"\0{name}")
        yield sys.executable, "-I", "-c", _REACH, str(tcp.getsockname()[1]), name


def test_a_step_of_a_build_opens_no_socket(tmp_path: Path, reach: tuple[str, ...]) -> None:
    lines: list[str] = []
    watch = BuildWatch(seconds=LONG, request=tmp_path, disk=tmp_path)
    with BuildLog(tmp_path / "log", lines.extend) as log:
        code = run_confined(Step("make", reach, tmp_path), mark="none", log=log, watch=watch)
    said = dict(line.split() for line in lines)

    assert code == 0, lines
    assert said.pop("pair_as_pipe") == "done"
    assert said == dict.fromkeys(_CLOSED, str(errno.EPERM))


def test_the_same_program_reaches_all_of_it_outside_of_a_build(reach: tuple[str, ...]) -> None:
    said = dict(line.split() for line in process.run(reach, timeout=LONG).output.splitlines())

    if said["io_uring"] in (str(errno.ENOSYS), str(errno.EPERM)):  # the machine's own choice
        del said["io_uring"]
    assert set(said.values()) == {"done"}


def test_a_build_on_a_kernel_without_filters_is_said_to_reach_the_network(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(no_network, "ABIS", {})
    no_network.close_network()()

    assert "can reach the network" in caplog.text


_EVERY = [(machine, abi) for machine, abis in ABIS.items() for abi in abis]


@pytest.mark.parametrize(("machine", "abi"), _EVERY)
def test_the_filter_of_each_machine_refuses_the_calls_of_each_of_its_abis(
    machine: str, abi: Abi
) -> None:
    program = make_filter(ABIS[machine])

    def allows(number: int, *arguments: int, audit: int = abi.audit) -> bool:
        return _run(program, number, audit, arguments)

    stream, datagram, seqpacket, close_on_exec = 1, 2, 5, 0x80000
    assert not any(allows(number, socket.AF_UNIX, stream) for number in abi.refused_calls)
    assert allows(abi.socketpair, socket.AF_UNIX, stream | close_on_exec)
    assert allows(abi.socketpair, socket.AF_UNIX, seqpacket)
    assert not allows(abi.socketpair, socket.AF_UNIX, datagram | close_on_exec)
    assert not allows(abi.socketpair, socket.AF_INET, stream)
    others = set(range(600)) - {*abi.refused_calls, abi.socketpair}
    assert all(allows(number) for number in others)
    assert not any(allows(number, audit=0x12345678) for number in range(600))


def test_the_calls_of_x32_are_refused() -> None:
    program = make_filter(ABIS["x86_64"])
    audit = ABIS["x86_64"][0].audit

    assert _run(program, 1, audit, ())
    assert not _run(program, 0x40000000 | 1, audit, ())


@pytest.mark.parametrize(
    ("header", "abi"),
    [
        ("asm/unistd_64.h", ABIS["x86_64"][0]),
        ("asm/unistd_32.h", ABIS["x86_64"][1]),
        ("asm-generic/unistd.h", ABIS["aarch64"][0]),
        ("asm-generic/unistd.h", ABIS["riscv64"][0]),
    ],
)
def test_the_numbers_are_those_of_the_kernels_headers(header: str, abi: Abi) -> None:
    places = [*Path("/usr/include").glob(header), *Path("/usr/include").glob(f"*-gnu/{header}")]
    assert places, f"the kernel's headers are missing ({header}): apt-get install linux-libc-dev"
    text = places[0].read_text()
    numbers = dict(re.findall(r"^#define __NR_(\w+) (\d+)$", text, re.MULTILINE))

    wanted = {"socket": abi.socket, "socketpair": abi.socketpair, "bind": abi.bind}
    wanted |= {"connect": abi.connect, "io_uring_setup": 425}
    wanted |= {"socketcall": abi.socketcall} if abi.socketcall >= 0 else {}
    assert {name: int(numbers[name]) for name in wanted} == wanted


def _run(program: list[bytes], number: int, audit: int, arguments: tuple[int, ...]) -> bool:
    """Run a filter as the kernel does (linux/filter.h); return whether it allows the call."""
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", number & 0x7FFFFFFF, audit, 0, *values)
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack("=HBBI", program[at])
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, value)
            case 0x54:
                accumulator &= value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x06:
                return bool(value == 0x7FFF0000)
            case _:
                raise AssertionError(f"no instruction of these filters: {code:#x}")
