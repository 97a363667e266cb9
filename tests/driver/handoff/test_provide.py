"""What the init container leaves in the shared directory; it runs where nothing else does."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import psutil
import pytest

from nodeside.driver.handoff import relocatable_python, zipapp
from nodeside.driver.handoff.provide import pack_toolkit, provide_toolkit, sidecar_command
from nodeside.errors import SystemRefused
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system import process
from nodeside.system.host import Host
from tests.patience import patience
from tests.toolkit_sidecar.faketoolkit import until

pytestmark = pytest.mark.usefixtures("compiled_once")

LONG = patience(120.0)  # seconds: a deadline that only a broken test meets
SYSTEM_PYTHON = Path("/usr/bin/python3")
SIZE_LIMIT = 25 << 20  # bytes of the packed Python
IDLE_LIMIT_KIB = 13 << 10  # PSS of a sidecar that waits

_CHILD = """
import hashlib, json, os, sys
sys.path.insert(0, "/toolkit.pyz")
from nodeside.system import process
import ctypes, nodeside.toolkit_sidecar.builder
env = process.run(["/bin/busybox", "env"], timeout=9).output
hidden = sorted(name for name in os.listdir("/") if not name.startswith("."))
pid = ctypes.CDLL(None).getpid()
print(json.dumps([hidden, hashlib.sha256(b"x").hexdigest(), env, sys.path, pid]))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed Python, made from the system's where there is one."""
    to = tmp_path_factory.mktemp("packed") / "python"
    relocatable_python.pack_python(to, SYSTEM_PYTHON if SYSTEM_PYTHON.exists() else None)
    return to


@pytest.fixture
def host(tmp_path: Path) -> Host:
    path = tmp_path / "host/proc/sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_text("boot-1\n")
    return Host(tmp_path / "host")


def size_of(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*") if not path.is_dir())


def start(root: Path, python: Path, *arguments: str) -> process.Completed:
    """Run the packed Python by hand."""
    argv = ["loader", "--library-path", "libs", "bin/python3"]
    argv = [str(python / word) if "--" not in word else word for word in argv]
    return process.run([*argv, "-I", "-S", "-B", *arguments], timeout=LONG, cwd=root)


@pytest.mark.slow
def test_the_program_runs_on_the_packed_python(tmp_path: Path, python: Path) -> None:
    (tmp_path / "toolkit.pyz").write_bytes(zipapp.build_zipapp())
    said = start(tmp_path, python, str(tmp_path / "toolkit.pyz"), "run", "--help")
    assert "--shared" in said.output


@pytest.mark.slow
def test_a_traceback_of_the_program_shows_its_source(tmp_path: Path, python: Path) -> None:
    (tmp_path / "toolkit.pyz").write_bytes(zipapp.build_zipapp())
    code = (
        "import sys; sys.path.insert(0, 'toolkit.pyz'); "
        "import nodeside.system.host as h; h.Kernel(1)"
    )
    with pytest.raises(process.ToolError, match="missing 2 required positional arguments"):
        start(tmp_path, python, "-c", code)


@pytest.mark.slow
def test_the_packed_python_is_small_and_has_no_sources(python: Path) -> None:
    assert size_of(python) < SIZE_LIMIT
    assert not list(python.rglob("*.py"))
    assert not list(python.rglob("libcrypto*"))


@pytest.mark.slow
def test_every_part_of_the_standard_library_that_was_packed_can_be_imported(python: Path) -> None:
    library = next(python.glob("lib*/python3.*"))
    names = {path.name.partition(".")[0] for path in library.iterdir()} - {"lib-dynload"}
    absent = {
        "msilib",
        "winreg",
        "ntpath",
        "nturl2path",
        "crypt",
        "nis",
        "ossaudiodev",
        "antigravity",
    }
    foreign = {
        "_osx_support",
        "_bootsubprocess",
        "_sysconfigdata",
        "idlelib",
        "__hello__",
        "pty",
        "tty",
    }
    wanted = sorted(names - absent - foreign - {"sysconfig", "site", "sitecustomize"})
    code = (
        "import importlib, sys\nbad = []\n"
        f"for name in {wanted!r}:\n"
        "    try: importlib.import_module(name)\n"
        "    except ImportError as error: bad.append((name, str(error)))\n"
        "print(bad)"
    )
    said = start(python, python, "-c", code).output
    needed = ("argparse", "ctypes", "dataclasses", "hashlib", "json", "logging", "subprocess")
    broken = {name for name, _ in eval(said)}
    assert not broken & set(needed)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_it_runs_in_a_root_that_holds_nothing_but_busybox(tmp_path: Path, python: Path) -> None:
    busybox = shutil.which("busybox")
    assert busybox, "busybox-static is needed: apt-get install busybox-static"
    root = tmp_path / "root"
    for name in ("bin", "dev", "python"):
        (root / name).mkdir(parents=True)
    (root / "dev/null").touch()  # the one file that every container has
    shutil.copy(busybox, root / "bin/busybox")
    shutil.copytree(python, root / "python", symlinks=True, dirs_exist_ok=True)
    (root / "toolkit.pyz").write_bytes(zipapp.build_zipapp())
    argv = ["chroot", str(root), "/python/loader", "--library-path", "/python/libs"]
    argv += ["/python/bin/python3", "-I", "-S", "-B", "-c", _CHILD]
    hostile = {"PYTHONPATH": "/evil", "PYTHONHOME": "/evil", "LD_LIBRARY_PATH": "/evil"}
    there, digest, env, path, pid = json.loads(process.run(argv, timeout=LONG, env=hostile).output)
    assert there == ["bin", "dev", "python", "toolkit.pyz"]
    assert digest == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert not [line for line in env.splitlines() if line.startswith(("LD_", "PYTHON"))]
    assert all(place.startswith(("/toolkit.pyz", "/python/")) for place in path)
    assert pid > 0


def test_an_interpreter_that_is_no_elf_program_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(SystemRefused, match="is not a 64-bit ELF program with a loader"):
        relocatable_python.elf_loader(script)


def test_the_loaders_listing_is_read() -> None:
    text = (
        "\tlinux-vdso.so.1 (0x00007ffd2b5f2000)\n"
        "\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f3c5a400000)\n"
        "\t/lib64/ld-linux-x86-64.so.2 (0x00007f3c5ab0c000)\n"
        "\tstatically linked\n"
    )
    assert [str(path) for path in relocatable_python.parse_listing(text)] == [
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/lib64/ld-linux-x86-64.so.2",
    ]


@pytest.mark.slow
def test_the_shared_directory_is_ready_for_a_sidecar(
    tmp_path: Path, python: Path, host: Host
) -> None:
    shared = SharedDir(tmp_path / "shared")
    provide_toolkit(shared, python, host=host)
    assert shared.requests.is_dir()
    assert shared.out.stat().st_mode & 0o7777 == 0o1777
    said = process.run(
        [*sidecar_command(shared.root)[:-2], "--shared", shared.root, "--once"],
        timeout=LONG,
        check=False,
    )
    assert said.exit_code == 0, said
    assert (shared.results / "sidecar.json").exists()


@pytest.mark.slow
def test_an_idle_sidecar_is_small(tmp_path: Path, python: Path, host: Host) -> None:
    shared = SharedDir(tmp_path / "shared")
    provide_toolkit(shared, python, host=host)
    child = process.start(sidecar_command(shared.root))
    try:
        until((shared.results / "sidecar.json").exists)
        sidecar = psutil.Process(child.pid)
        until(lambda: not sidecar.children(), "the first worker to end")
        assert sidecar.memory_full_info().pss >> 10 <= IDLE_LIMIT_KIB
    finally:
        child.kill()
        child.wait()


def test_a_program_that_was_packed_beside_python_is_what_is_provided(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, shared = tmp_path / "packed", SharedDir(tmp_path / "shared")
    packed.mkdir()
    monkeypatch.setattr(
        "nodeside.driver.handoff.provide.pack_python", lambda to, **_: write_stamp(to)
    )
    pack_toolkit(packed)
    monkeypatch.setattr(zipapp, "compile_pyc", None)

    provide_toolkit(shared, packed / "python", host=host)

    assert shared.program.read_bytes() == (packed / "toolkit.pyz").read_bytes()
    assert (shared.python / "STAMP").read_text() == "one\nboot boot-1\n"


def write_stamp(python: Path) -> None:
    python.mkdir()
    (python / "STAMP").write_text("one\n")


@pytest.mark.slow
def test_what_is_there_is_left_alone_in_the_same_boot(
    tmp_path: Path, python: Path, host: Host
) -> None:
    shared = SharedDir(tmp_path / "shared")
    provide_toolkit(shared, python, host=host)
    before = {path: path.lstat().st_ino for path in shared.root.rglob("*")}
    provide_toolkit(shared, python, host=host)
    assert {path: path.lstat().st_ino for path in shared.root.rglob("*")} == before


@pytest.mark.slow
def test_a_python_of_an_earlier_boot_is_not_believed(
    tmp_path: Path, python: Path, host: Host
) -> None:
    shared = SharedDir(tmp_path / "shared")
    provide_toolkit(shared, python, host=host)
    (shared.python / "libs/libc.so.6").write_bytes(b"torn by a power cut")
    (host.root / "proc/sys/kernel/random/boot_id").write_text("boot-2\n")
    provide_toolkit(shared, python, host=host)
    assert (shared.python / "libs/libc.so.6").stat().st_size > 1 << 20
    assert sorted(path.name for path in shared.root.iterdir()) == [
        *("out", "python", "requests", "results", "source", "symbols", "toolkit.pyz")
    ]


@pytest.mark.slow
def test_what_a_copy_that_was_killed_left_is_no_obstacle(
    tmp_path: Path, python: Path, host: Host
) -> None:
    """The init container has the same pid in every life."""
    shared = SharedDir(tmp_path / "shared")
    for name in ("python", "old-python"):
        (shared.root / f".tmp-{os.getpid()}-{name}" / "libs").mkdir(parents=True)
    (shared.python / "libs").mkdir(parents=True)
    provide_toolkit(shared, python, host=host)
    assert (shared.python / "STAMP").is_file()
    assert not list(shared.root.glob(".tmp-*"))


def test_the_argv_is_the_same_on_every_architecture() -> None:
    assert sidecar_command(Path("/shared")) == (
        "/shared/python/loader",
        *("--library-path", "/shared/python/libs", "/shared/python/bin/python3"),
        *("-I", "-S", "-B", "/shared/toolkit.pyz", "run", "--shared", "/shared"),
    )
