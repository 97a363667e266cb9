"""The driver's source tree: its digest, and its read-only copy in the shared directory.

The digest is part of the bundle's key, so it must not depend on times, owners or the order of a
directory: only on names, contents, links and the executable bit.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from nodeside import log
from nodeside.contract import BuildKind, BuildSettings
from nodeside.digests import sha256_of
from nodeside.errors import NodesideError, SpecError, SystemRefused
from nodeside.modulenames import kernel_name
from nodeside.records import TEMPORARY_PREFIX, disk_errors, sync_directory
from nodeside.shared import SharedDir
from nodeside.spec.model import DriverSpec

# Descriptions of a driver that may lie beside its source; what of them decides the build is in
# the key already.
_NOT_SOURCE = frozenset({"driver.yaml", "trial.yaml", ".git"})


def source_digest(tree: Path) -> str:
    """sha256 of a source tree, hex. Raises SpecError for what a source cannot be."""
    if not tree.is_dir():
        raise SpecError(
            f"the source {tree} is not a directory",
            hint="spec.source.path is relative to driver.yaml",
        )
    total = hashlib.sha256()
    for relative, path in _entries(tree):
        kind, content = _describe(tree, path)
        total.update(f"{kind} {relative.as_posix()}\0{content}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def build_settings(spec: DriverSpec, tree: Path) -> BuildSettings:
    """The settings of a build with the kind resolved: dkms where there is a dkms.conf."""
    build = spec.build
    kind = build.kind
    if kind is None:
        has_conf = (tree / build.directory / "dkms.conf").is_file()
        kind = BuildKind.DKMS if has_conf else BuildKind.KBUILD
    return BuildSettings(
        kind=kind,
        modules=tuple(kernel_name(module.name) for module in spec.modules),
        directory=build.directory,
        make_arguments=build.make_arguments,
        environment=build.environment,
        patches=build.patches,
        command=build.command,
    )


def provide_source(tree: Path, shared: SharedDir, digest: str) -> None:
    """Make the tree appear at `source/<digest>`, whole or not at all.

    A copy that is there is used only if it has the digest: the shared directory may outlive a power
    cut, which leaves names without contents.
    """
    target = shared.source(digest)
    if target.is_dir():
        if _is_whole(target, digest):
            return
        log.warning("a torn copy of the source is replaced", path=target)
        with disk_errors(target):
            shutil.rmtree(target)
    temporary = shared.sources / f"{TEMPORARY_PREFIX}{os.getpid()}-{digest[:12]}"
    with disk_errors(target):
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            _copy(tree, temporary)
            temporary.rename(target)
            sync_directory(shared.sources)
        except FileExistsError:
            pass  # another process of ours was faster with the same content
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _is_whole(copy: Path, digest: str) -> bool:
    try:
        return source_digest(copy) == digest
    except NodesideError:
        return False


def _entries(tree: Path) -> Iterator[tuple[Path, Path]]:
    """Every file and link below `tree` in a stable order; directories only through them."""
    found = []
    for directory, names, files in os.walk(tree, onerror=_cannot_list):
        top = Path(directory) == tree
        if top:
            names[:] = [name for name in names if name not in _NOT_SOURCE]
        links = [name for name in names if (Path(directory) / name).is_symlink()]
        for name in [*files, *links]:
            if top and name in _NOT_SOURCE:
                continue
            path = Path(directory) / name
            found.append((path.relative_to(tree), path))
    yield from sorted(found, key=lambda pair: os.fsencode(pair[0].as_posix()))


def _describe(tree: Path, path: Path) -> tuple[str, str]:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "link", os.fspath(path.readlink())
    if not stat.S_ISREG(status.st_mode):
        raise SpecError(f"the source has a special file: {path.relative_to(tree)}")
    kind = "executable" if status.st_mode & stat.S_IXUSR else "file"
    try:
        return kind, sha256_of(path)
    except SystemRefused as exc:
        raise _unreadable(str(exc)) from exc


def _cannot_list(exc: OSError) -> NoReturn:
    """What cannot be read must not be left out: the digest would be that of another source."""
    raise _unreadable(f"cannot read {exc.filename}: {exc.strerror}") from exc


def _unreadable(problem: str) -> SpecError:
    return SpecError(
        f"the source cannot be read: {problem}",
        hint="spec.source.path in driver.yaml must be a tree that can be read",
    )


def _copy(tree: Path, to: Path) -> None:
    to.mkdir(mode=0o755)
    for relative, path in _entries(tree):
        target = to / relative
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(path.readlink())
            continue
        shutil.copyfile(path, target)
        executable = path.stat().st_mode & stat.S_IXUSR
        target.chmod(0o755 if executable else 0o644)


def drop_sources(shared: SharedDir, keep: set[str]) -> None:
    """Remove source copies that no request needs, and half-made ones."""
    with suppress(FileNotFoundError):
        for path in shared.sources.iterdir():
            if path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)
