"""The checks before a compile: whether this toolkit can build a module for this kernel here.

Each check returns one fact or raises BuildFailed with a hint. The builder stops at the first
failure; `check --kernel K` shows all of them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nodeside.errors import NodesideError
from nodeside.protocol.build_records import FailureKind, Toolchain
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.system import process
from nodeside.system.host import Kernel
from nodeside.toolkit_sidecar.compiler import Compiler, check_compiler, read_kernel_compiler
from nodeside.toolkit_sidecar.confinement import disk_full_error, free_bytes
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.headers import Headers, find_headers
from nodeside.values import frozen

LEAST_SPACE = 64 << 20  # bytes free before a build begins, in addition to what the source needs
_GROWTH = 3  # objects with debug information are several times as large as their source
_TIMEOUT = 20.0  # seconds for a small tool
_NOEXEC_PROBE = b"#!/bin/sh\nexit 0\n"


@dataclass
class Bench:
    """The place and the target of a build, and the findings of the checks so far."""

    root: Path
    kernel: Kernel
    settings: BuildSettings
    out: Path
    source_bytes: int = 0
    headers: Headers | None = None
    compiler: Compiler | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def known_headers(self) -> Headers:
        if self.headers is None:
            raise BuildFailed(FailureKind.NO_HEADERS, "not checked: there are no headers")
        return self.headers


@frozen
class ToolCheck:
    """The outcome of one check, for a person."""

    check: str
    ok: bool
    said: str
    hint: str = ""
    kind: FailureKind | None = None


def require_toolchain(bench: Bench, jobs: int) -> Toolchain:
    """Run all checks and return the toolchain of the build. Raises the first failure."""
    for _, check in CHECKS:
        check(bench)
    headers, compiler = bench.known_headers, bench.compiler
    assert compiler is not None
    return Toolchain(
        compiler=compiler.text,
        headers=str(headers.directory),
        symvers_sha256=_file_digest(headers.directory / "Module.symvers"),
        kernel_compiler=read_kernel_compiler(headers).text,
        jobs=jobs,
    )


def inspect_toolchain(bench: Bench) -> tuple[ToolCheck, ...]:
    """Run all checks and return every outcome. A failed check does not hide dependent ones."""
    findings: list[ToolCheck] = []
    for name, check in CHECKS:
        try:
            findings.append(ToolCheck(name, True, check(bench)))
        except BuildFailed as failed:
            findings.append(ToolCheck(name, False, str(failed), failed.hint, failed.kind))
        except NodesideError as error:
            findings.append(ToolCheck(name, False, str(error), error.hint))
    return tuple(findings)


def _check_headers(bench: Bench) -> str:
    bench.headers = find_headers(bench.root, bench.kernel)
    if not bench.headers.version:
        bench.notes.append("the headers do not contain the kernel's version string (uname -v)")
    return f"{bench.headers.directory}: {bench.headers.release} {bench.headers.version}".rstrip()


def _check_symbol_versions(bench: Bench) -> str:
    """Check that modules will have the CRCs that the kernel asks for. modpost only warns."""
    headers = bench.known_headers
    if headers.config.get("CONFIG_MODVERSIONS") != "y":
        return "the kernel has none"
    path = headers.directory / "Module.symvers"
    if not path.is_file() or not path.stat().st_size:
        raise BuildFailed(
            FailureKind.NO_TOOLS,
            f"the headers at {headers.directory} have no Module.symvers, and {headers.release} "
            "loads no module without the versions of symbols that are in it (CONFIG_MODVERSIONS)",
            hint="install the distribution's packaged headers, not a bare source tree",
        )
    return str(path)


def _check_make(_: Bench) -> str:
    return _require_tool("make", "every build needs it")


def _require_tool(name: str, why: str) -> str:
    """Return the path of a tool. It is not started as a test, because that costs milliseconds."""
    path = shutil.which(name, path=process.make_environment()["PATH"])
    if path is None:
        raise BuildFailed(
            FailureKind.NO_TOOLS,
            f"toolkit has no {name}, and {why}",
            hint=f"install {name} in the toolkit image",
        )
    return path


def _check_compiler(bench: Bench) -> str:
    headers = bench.known_headers
    bench.compiler, note = check_compiler(headers, bench.settings, bench.root)
    if note:
        bench.notes.append(note)
    return f"{bench.compiler.text} (kernel: {read_kernel_compiler(headers).text or 'unknown'})"


def _check_kbuild_tools(bench: Bench) -> str:
    """Run the programs that come with the headers: they were compiled for the distribution."""
    headers = bench.known_headers
    tools = ["scripts/basic/fixdep", "scripts/mod/modpost"]
    if headers.config.get("CONFIG_OBJTOOL") == "y" or "CONFIG_STACK_VALIDATION" in headers.config:
        tools.append("tools/objtool/objtool")
    for tool in tools:
        _run_kbuild_tool(headers.directory / tool, bench.out)
    return ", ".join(Path(tool).name for tool in tools) + " run here"


def _run_kbuild_tool(path: Path, cwd: Path) -> None:
    """Check that the program starts. It runs without arguments, so any exit code is fine."""
    try:
        done = process.run([path], timeout=_TIMEOUT, cwd=cwd, check=False)
    except process.ToolMissing as exc:
        raise BuildFailed(
            FailureKind.NO_TOOLS,
            f"a tool of the kernel headers cannot run here: {exc}",
            hint=_start_failure_hint(path, exc.__cause__),
        ) from exc
    if done.exit_code == 127 or "error while loading shared libraries" in done.errors:
        raise BuildFailed(
            FailureKind.NO_TOOLS,
            f"a tool of the kernel headers cannot run here: {path}: {done.errors.strip()}",
            hint="the headers are from another or a newer distribution than the toolkit image",
        )


def _start_failure_hint(path: Path, cause: BaseException | None) -> str:
    if isinstance(cause, OSError) and cause.errno == errno.ENOEXEC:
        return f"{path} is for another architecture; use a toolkit image of the node's architecture"
    if path.exists():
        return f"ls -l {path}; ldd {path}"
    return "install the whole headers package (Debian: linux-kbuild-*, Fedora: kernel-devel)"


def _check_exec(bench: Bench) -> str:
    """Check that programs may run here: kbuild and configure scripts run what they just built.

    The directory may be a vendor's, with a link in the place of the probe: `doctor` checks the
    working directory.
    """
    probe = bench.out / ".tmp-noexec-probe"
    try:
        probe.unlink(missing_ok=True)
        with open(probe, "xb") as file:
            file.write(_NOEXEC_PROBE)
            os.fchmod(file.fileno(), 0o700)
        process.run([probe], timeout=_TIMEOUT, cwd=bench.out)
    except process.ToolMissing as exc:
        raise BuildFailed(
            FailureKind.NO_EXEC,
            f"programs may not be run in {bench.out}: {exc}",
            hint="mount the shared directory without noexec, for example as an emptyDir",
        ) from exc
    except OSError as exc:
        raise _write_error(bench.out, exc) from exc
    finally:
        with suppress(OSError):
            probe.unlink()
    return f"programs run in {bench.out}"


def _check_disk(bench: Bench) -> str:
    free, needed = free_bytes(bench.out), LEAST_SPACE + _GROWTH * bench.source_bytes
    if free < needed:
        raise BuildFailed(
            FailureKind.DISK_FULL,
            f"{free >> 20} MiB free in {bench.out}, a build of this source needs "
            f"{needed >> 20} MiB",
            hint=f"free some space or raise the volume's size limit: df -h {bench.out}",
        )
    return f"{free >> 20} MiB free in {bench.out}"


def _check_bash(bench: Bench) -> str:
    if bench.settings.kind is not BuildKind.DKMS:
        return "not needed"
    return _require_tool("bash", "a dkms.conf is a bash program")


CHECKS: tuple[tuple[str, Callable[[Bench], str]], ...] = (
    ("headers", _check_headers),
    ("symbol versions", _check_symbol_versions),
    ("make", _check_make),
    ("compiler", _check_compiler),
    ("disk space", _check_disk),
    ("exec", _check_exec),
    ("kbuild tools", _check_kbuild_tools),
    ("bash", _check_bash),
)


def _write_error(path: Path, exc: OSError) -> BuildFailed:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full_error(path, free_bytes(path))
    return BuildFailed(
        FailureKind.NO_EXEC,
        f"cannot write to {path}: {exc.strerror}",
        hint=f"the sidecar runs as uid {os.geteuid()}; ls -ld {path}",
    )


def _file_digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
