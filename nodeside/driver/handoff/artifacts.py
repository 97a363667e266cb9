"""Copies the modules that a build delivered out of a directory that vendor code can write.

Files are opened component by component without following links, copied with a size cap into a
private directory, and hashed while they are copied. Only the copy is ever used.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO

from nodeside.driver.bundle.manifest import MODULES_LIMIT
from nodeside.protocol.build_records import BuildResult, BuiltModule
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.files import UntrustedFile, disk_errors

_BYTES_LIMIT = 1 << 30  # bytes; the largest module in the wild, nvidia.ko, is ~60 MiB stripped
_CHUNK = 1 << 20
_READ_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def copy_modules(shared: SharedDir, result: BuildResult, to: Path) -> dict[str, Path]:
    """Copy the modules of a result into the private directory `to`. Returns paths by module name.

    Raises UntrustedFile if a file does not match the result.
    """
    if len(result.modules) > MODULES_LIMIT:
        raise UntrustedFile(
            f"the sidecar reports {len(result.modules)} modules; "
            f"a bundle has at most {MODULES_LIMIT}",
            hint="build only a subdirectory: build.directory in driver.yaml",
        )
    copies: dict[str, Path] = {}
    left = _BYTES_LIMIT
    for module in result.modules:
        if not re.fullmatch(r"[A-Za-z0-9_]{1,55}", module.name) or module.name in copies:
            raise UntrustedFile(
                f"the sidecar reports a bad or repeated module name {module.name!r}"
            )
        target = to / f"{module.name}.ko"
        with disk_errors(target):
            left -= _copy_module(shared.out_dir(result.request), module, target, left)
        copies[module.name] = target
    return copies


def _copy_module(out: Path, module: BuiltModule, target: Path, limit: int) -> int:
    """Copy one module, hashing the copy. Returns its size in bytes.

    The size is capped while reading, since the file may grow. A rejected copy is removed together
    with the directory it was copied to.
    """
    digest, size = hashlib.sha256(), 0
    with ExitStack() as stack:
        source = _open_module(stack, out, module.file, limit)
        copy = stack.enter_context(open(target, "xb"))
        while chunk := source.read(_CHUNK):
            size += len(chunk)
            if size > limit:
                raise _too_large_error(module.file)
            digest.update(chunk)
            copy.write(chunk)
    if digest.hexdigest() != module.sha256:
        raise UntrustedFile(f"{module.file}: changed after the sidecar reported it")
    return size


def _too_large_error(name: str) -> UntrustedFile:
    return UntrustedFile(f"{name}: expected a regular file, at most 1 GiB for all modules together")


def _open_module(stack: ExitStack, out: Path, name: str, limit: int) -> IO[bytes]:
    """Open a regular file below `out`. No component of its path may be a link."""
    parts = PurePosixPath(name).parts
    if not parts or any(part in ("..", "/") for part in parts):
        raise UntrustedFile(f"the sidecar reports the file {name!r}: expected a path below {out}")
    directory = _open_directory(stack, None, out)
    for part in parts[:-1]:
        directory = _open_directory(stack, directory, Path(part))
    try:
        fd = os.open(parts[-1], _READ_ONLY, dir_fd=directory)
    except OSError as exc:
        raise UntrustedFile(f"{name}: refused to open: {exc.strerror}") from exc
    stack.callback(os.close, fd)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        raise _too_large_error(name)
    return stack.enter_context(os.fdopen(fd, "rb", closefd=False))


def _open_directory(stack: ExitStack, parent: int | None, path: Path) -> int:
    try:
        fd = os.open(
            path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent
        )
    except OSError as exc:
        raise UntrustedFile(f"{path}: refused to open: {exc.strerror}") from exc
    stack.callback(os.close, fd)
    return fd
