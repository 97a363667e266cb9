"""A toolkit image of straw: headers with the right words in them, and tools that run scripts.

`make` changes to the `M=` directory (or stays) and runs the source's `vendor.sh`, so that a test
says in one line of shell what vendor code does. The sidecar in front of it is the real one, in a
process of its own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from nodeside.protocol.build_records import BuildRequest, BuildResult
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.files import UntrustedFile
from nodeside.system.host import Kernel
from tests.patience import patience
from tests.toolkit_sidecar.warm import WarmChild, start_sidecar

KERNEL = Kernel(
    "6.1.0-9-cloud-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.27-1 (2023-05-08)", "x86_64"
)
BOOT_ID = "6c3f5c2e-0f4e-4f6e-9a34-000000000001"
DIGEST = "ab" * 32
T = TypeVar("T")
LONG = patience(120.0)  # seconds: a deadline that only a broken test meets

CONFIG = """\
CONFIG_CC_VERSION_TEXT="gcc-12 (Debian 12.2.0-14) 12.2.0"
CONFIG_CC_IS_GCC=y
CONFIG_GCC_VERSION=120200
CONFIG_OBJTOOL=y
CONFIG_I2C=m
"""
_SCRIPT = "#!/bin/bash\n"
_MAKE = (
    _SCRIPT
    + """
directory=.
for word in "$@"; do
    case $word in
        --version) echo "GNU Make 4.3"; exit 0 ;;
        M=*) directory=${word#M=} ;;
    esac
done
ko() { printf 'ELF\\0name=%s\\0' "${2:-$1}" >"$1.ko"; }
cd "$directory" && . ./vendor.sh
"""
)
_GCC = (
    _SCRIPT
    + 'case $1 in -dumpversion) echo 12 ;; *) echo "gcc (Debian 12.2.0-14) 12.2.0" ;; esac\n'
)


class FakeToolkit:
    """A root with `headers()` and tools in it, and a shared directory with one source in it."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.bin = directory / "bin"
        self.shared = SharedDir(directory / "shared")
        self.source = self.shared.source_path(DIGEST)
        self.bin.mkdir()
        self.shared.create()
        self.source.mkdir()
        self.write("proc/sys/kernel/random/boot_id", f"{BOOT_ID}\n")
        self.write("proc/sys/kernel/osrelease", f"{KERNEL.release}\n")
        self.write("proc/sys/kernel/version", f"{KERNEL.version}\n")
        self.write("proc/meminfo", "MemTotal:        4096000 kB\n")
        self.headers()
        self.tool("make", _MAKE)
        self.tool("gcc", _GCC)
        self.tool("strip", _SCRIPT)
        self.vendor("Makefile", "obj-m := straw.o\n")
        self.vendor("vendor.sh", "ko straw\n")

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
        return target

    def headers(self, kernel: Kernel = KERNEL, config: str = CONFIG) -> Path:
        base = f"usr/src/linux-headers-{kernel.release}"
        generated = f"{base}/include/generated"
        self.write(f"{base}/Makefile", "")
        self.write(f"{base}/Module.symvers", "0x1\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n")
        self.write(f"{base}/.config", config)
        self.write(f"{base}/include/config/auto.conf", config)
        self.write(f"{generated}/utsrelease.h", f'#define UTS_RELEASE "{kernel.release}"\n')
        self.write(f"{generated}/utsversion.h", f'#define UTS_VERSION "{kernel.version}"\n')
        for tool in ("scripts/basic/fixdep", "scripts/mod/modpost", "tools/objtool/objtool"):
            self.write(f"{base}/{tool}", _SCRIPT + "exit 1\n", 0o755)
        return self.root / base

    def tool(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def vendor(self, path: str, text: str, mode: int = 0o644) -> None:
        target = self.source / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def request(
        self,
        *,
        attempt: int = 1,
        kind: BuildKind = BuildKind.KBUILD,
        modules: tuple[str, ...] = ("straw",),
        timeout: float = LONG,
        boot_id: str = BOOT_ID,
        **settings: object,
    ) -> BuildRequest:
        """Publish a request; the keywords left are those of BuildSettings."""
        wanted = BuildSettings(kind=kind, modules=modules, **settings)  # type: ignore[arg-type]
        name = f"{DIGEST[:12]}-{attempt}"
        request = BuildRequest(name, "straw", "1.0", KERNEL, boot_id, DIGEST, wanted, timeout)
        self.shared.publish_request(request)
        return request

    def path(self) -> str:
        return f"{self.bin}:{os.environ['PATH']}"

    @contextmanager
    def sidecar(
        self, *options: str, env: Mapping[str, str] | None = None
    ) -> Iterator[SidecarProcess]:
        """The real sidecar as a process; killed at the end if it still lives."""
        output = self.shared.root.parent / "output"
        output.touch()
        words = ["run", "--shared", str(self.shared.root), "--root", str(self.root), *options]
        child = start_sidecar(words, {"PATH": self.path(), **(env or {})}, output)
        try:
            yield SidecarProcess(child, self.shared, output)
        finally:
            child.kill()
            child.wait(LONG)

    def answer(self, request: BuildRequest, *options: str) -> BuildResult:
        """The sidecar's answer to one request."""
        with self.sidecar(*options) as sidecar:
            return sidecar.result(request)


class SidecarProcess:
    """A running sidecar."""

    def __init__(self, child: WarmChild, shared: SharedDir, output: Path) -> None:
        self.child = child
        self.shared = shared
        self._output = output

    @property
    def output(self) -> str:
        """What it has written to stdout and stderr up to now."""
        return self._output.read_text()

    def result(self, request: BuildRequest) -> BuildResult:
        """Wait for the answer to a request."""

        def answered() -> BuildResult | None:
            assert self.child.poll() is None, f"the sidecar ended: {self.output}"
            with suppress(UntrustedFile):  # planted by a build, and replaced when it has ended
                return self.shared.read_result(request.id, request.boot_id)
            return None

        result = until(answered, lambda: f"an answer; {self.output}")
        assert result is not None
        return result

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> int:
        self.child.send_signal(sig)
        return self.child.wait(LONG)


def until(
    condition: Callable[[], T], what: Callable[[], str] | str = "it", within: float = LONG
) -> T:
    """Wait until a condition is true, and return what it said."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        said = condition()
        if said:
            return said
        time.sleep(0.01)
    pytest.fail(f"waited {within:g} s for {what() if callable(what) else what}")


def lives(pid: str) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
