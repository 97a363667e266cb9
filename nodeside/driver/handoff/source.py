"""The driver's source tree: its digest, and its read-only copy in the shared directory.

The digest is part of the bundle's key, so it must not depend on times, owners or the order of a
directory. It depends only on the names, contents, links and executable bits of the source files
(see `source_tree`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from nodeside import log
from nodeside.driver.handoff.source_tree import NotSource, source_files, unreadable_error
from nodeside.errors import NodesideError, SpecError, SystemRefused
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.protocol.module_names import kernel_name
from nodeside.protocol.shared_directory import SharedDir
from nodeside.spec.model import DriverSpec
from nodeside.system.digests import sha256_of
from nodeside.system.files import TEMPORARY_PREFIX, disk_errors, sync_directory

EVERYTHING = NotSource()  # excludes only files that are never source


def source_digest(tree: Path, not_source: NotSource = EVERYTHING) -> str:
    """Return the sha256 of a source tree in hex. Raises SpecError if it is not a valid source."""
    if not tree.is_dir():
        raise SpecError(
            f"the source {tree} is not a directory",
            hint="spec.source.path is relative to driver.yaml",
        )
    total = hashlib.sha256()
    for relative, path in source_files(tree, not_source):
        kind, content = _describe_file(tree, path)
        total.update(f"{kind} {relative.as_posix()}\0{content}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def build_settings(spec: DriverSpec, tree: Path) -> BuildSettings:
    """Return the settings of a build with the kind resolved: dkms if there is a dkms.conf."""
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


def provide_source(
    tree: Path, shared: SharedDir, digest: str, not_source: NotSource = EVERYTHING
) -> None:
    """Copy the tree to `source/<digest>`, atomically.

    An existing copy is used only if its digest matches: the shared directory may outlive a power
    loss, which leaves names without contents.
    """
    target = shared.source_path(digest)
    if target.is_dir():
        if _is_whole(target, digest, not_source):
            return
        log.warning("a torn copy of the source is replaced", path=target)
        with disk_errors(target):
            shutil.rmtree(target)
    temporary = shared.sources / f"{TEMPORARY_PREFIX}{os.getpid()}-{digest[:12]}"
    with disk_errors(target):
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            _copy_source(tree, temporary, not_source)
            temporary.rename(target)
            sync_directory(shared.sources)
        except FileExistsError:
            pass  # another process of ours was faster with the same content
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _is_whole(copy: Path, digest: str, not_source: NotSource) -> bool:
    try:
        return source_digest(copy, not_source) == digest
    except NodesideError:
        return False


def _describe_file(tree: Path, path: Path) -> tuple[str, str]:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "link", os.fspath(path.readlink())
    if not stat.S_ISREG(status.st_mode):
        raise SpecError(f"the source has a special file: {path.relative_to(tree)}")
    kind = "executable" if status.st_mode & stat.S_IXUSR else "file"
    try:
        return kind, sha256_of(path)
    except SystemRefused as exc:
        raise unreadable_error(str(exc)) from exc


def _copy_source(tree: Path, to: Path, not_source: NotSource) -> None:
    to.mkdir(mode=0o755)
    for relative, path in source_files(tree, not_source):
        target = to / relative
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(path.readlink())
            continue
        shutil.copyfile(path, target)
        executable = path.stat().st_mode & stat.S_IXUSR
        target.chmod(0o755 if executable else 0o644)


def drop_sources(shared: SharedDir, keep: set[str]) -> None:
    """Remove sources and symbols not listed in `keep`, and incomplete ones."""
    with suppress(FileNotFoundError):
        for path in shared.sources.iterdir():
            if path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)
        for path in shared.symbols.iterdir():
            if path.name not in keep:
                path.unlink()
