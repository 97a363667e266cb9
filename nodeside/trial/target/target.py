"""The target of a trial: a driver.yaml, a source without one, or the name of a dkms package.

Each of them becomes one directory that plays /driver-image: driver.yaml and the source, as in a
vendor's image. The original is never changed.
"""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nodeside.errors import SpecError
from nodeside.spec import dump, load
from nodeside.spec.document import SIZE_LIMIT
from nodeside.spec.mistakes import in_brief
from nodeside.spec.model import Driver
from nodeside.spec.yamltext import write_yaml
from nodeside.system.files import disk_errors, open_untrusted
from nodeside.trial import vendor_tree
from nodeside.trial.debian.archive import Archive, unpack_package
from nodeside.trial.errors import ArchiveError, TargetError
from nodeside.trial.target import dkms_tree
from nodeside.trial.target.dkms_tree import Evaluator
from nodeside.trial.target.draft import Builder, draft_of
from nodeside.trial.target.plan import Wishes
from nodeside.trial.target.side_file import NO_ADDITIONS, SIDE_FILE, TrialAdditions, read_side_file
from nodeside.values import frozen

_DKMS = "-dkms"
_MAY_BE = (
    "name a directory with a driver.yaml or the source of a module, a driver.yaml, or a Debian "
    "package NAME-dkms"
)
LEFT_OUT = (".git", "__pycache__", SIDE_FILE)


@frozen
class TrialTarget:
    """A driver to try. `image` is the directory that becomes /driver-image."""

    driver: Driver
    image: Path
    extras: TrialAdditions = NO_ADDITIONS


def prepare_target(
    name: str,
    image: Path,
    archive: Archive,
    evaluate: Evaluator,
    build: Builder,
    *,
    options: Sequence[str] = (),
) -> TrialTarget:
    """Make `image` from the target that the user named. Raises TargetError, SpecError.

    `build` is used only for a source that does not say what its modules are; `options` are those
    of an `init` that builds it as this trial does.
    """
    path = Path(name)
    if path_exists(path):
        wishes = Wishes(options=tuple(options))
        return _from_path(path.absolute(), image, archive, evaluate, build, wishes=wishes)
    return _from_dkms(package_tree(name, image.parent, archive), image, evaluate)


def path_exists(path: Path) -> bool:
    """Return whether there is such a file or directory; a name that is too long is none."""
    try:
        return path.exists()
    except OSError:
        return False


def package_tree(name: str, directory: Path, archive: Archive) -> Path:
    """Unpack a Debian package into `directory`; return its dkms tree. Raises TargetError."""
    if "/" in name or name.startswith(".") or name.endswith((".yaml", ".yml")):
        raise TargetError(f"{name}: no such file or directory", hint=_MAY_BE)
    archive = _archive_with(name, archive)
    _require_dkms_package(name, archive)
    return _unpack_package_tree(name, directory, archive)


def _archive_with(name: str, archive: Archive) -> Archive:
    """Return the archive, or its contrib and non-free if only those have the package."""
    if name in archive.names() or not name.endswith(_DKMS):
        return archive
    with suppress(ArchiveError):  # a mirror may lack them
        other = archive.not_free()
        if name in other.names():
            return other
    return archive


def _from_path(
    path: Path,
    image: Path,
    archive: Archive,
    evaluate: Evaluator,
    build: Builder,
    *,
    wishes: Wishes,
) -> TrialTarget:
    if path.is_file():
        return _from_document(path, image)
    if (path / "driver.yaml").is_file():
        return _from_document(path / "driver.yaml", image)
    if (path / "dkms.conf").is_file():
        extras = read_side_file(path / SIDE_FILE)
        try:
            return _from_dkms(path, image, evaluate, extras)
        except dkms_tree.TemplateError as error:  # then it is built as any source without one
            archive.progress.print_step(f"{error}, so it is not used")
    image.mkdir()
    vendor_tree.copy_tree(path, image / "src", leave_out=LEFT_OUT)
    draft = draft_of(image / "src", path, evaluate, build, wishes)
    vendor_tree.replace_file(image / "driver.yaml", write_yaml(draft.document("src")).encode())
    return TrialTarget(load(image / "driver.yaml"), image, read_side_file(path / SIDE_FILE))


def _from_document(document: Path, image: Path) -> TrialTarget:
    """Copy the directory of a driver.yaml. What is checked at the end is the copy, which is used.

    The build on the host reads it as root, with its signing key.
    """
    directory = document.parent
    with disk_errors(document):
        real = vendor_tree.require_inside(document)
    _with_paths_inside(load(document), document)  # says what is wrong before anything is copied
    vendor_tree.copy_tree(directory, image, leave_out=LEFT_OUT)
    copy = image / "driver.yaml"
    with open_untrusted(real, limit=SIZE_LIMIT) as file:
        vendor_tree.replace_file(copy, file.read())
    driver = load(copy)
    inside = _with_paths_inside(driver, document)
    if inside != driver:
        vendor_tree.replace_file(copy, dump(inside).encode())
    _with_paths_inside(inside, copy)
    return TrialTarget(inside, image, read_side_file(directory / SIDE_FILE))


def _with_paths_inside(driver: Driver, document: Path) -> Driver:
    """Return the driver with the paths that a build reads as real ones relative to driver.yaml.

    Raises SpecError for one that leads out of the directory of driver.yaml.
    """
    directory = document.parent.resolve()

    def inside(field: str, path: str) -> str:
        with disk_errors(directory):
            real = Path(os.path.realpath(directory / path))  # of a circle of links too
        if not real.is_relative_to(directory):
            raise SpecError(
                f"{document}: $.spec.{field}: {in_brief(path)} leads out of {directory}; a trial "
                "reads nothing else of this host",
                hint="copy it beside driver.yaml, and name the copy by a relative path",
            )
        return str(real.relative_to(directory))

    spec, signing, trust = driver.spec, driver.spec.signing, driver.spec.prebuilt.trust
    source = inside("source.path", spec.source.path)
    if not (directory / source).is_dir():
        raise SpecError(
            f"{document}: $.spec.source.path: expected a directory, there is none at "
            f"{directory / source}"
        )
    if signing is not None:
        signing = replace(
            signing,
            key=inside("signing.key", signing.key),
            certificate=inside("signing.certificate", signing.certificate),
        )
    if trust.certificate:
        trust = replace(trust, certificate=inside("prebuilt.trust.certificate", trust.certificate))
    return replace(
        driver,
        spec=replace(
            spec,
            source=replace(spec.source, path=source),
            signing=signing,
            prebuilt=replace(spec.prebuilt, trust=trust),
        ),
    )


def _from_dkms(
    tree: Path, image: Path, evaluate: Evaluator, extras: TrialAdditions = NO_ADDITIONS
) -> TrialTarget:
    document = dkms_tree.describe_dkms_tree(tree, evaluate)
    image.mkdir()
    vendor_tree.copy_tree(tree, image / "src", leave_out=LEFT_OUT)
    vendor_tree.replace_file(image / "driver.yaml", write_yaml(document).encode())
    return TrialTarget(load(image / "driver.yaml"), image, extras)


def _require_dkms_package(name: str, archive: Archive) -> None:
    """Raise TargetError if the name is no package with a dkms tree, before fetching anything."""
    names = archive.names()
    if name in names:
        if (
            name.endswith(_DKMS)
            or "dkms" in archive.depends(name)
            or _dkms_package_of(name, archive)
        ):
            return
        problem = f"the Debian package {name} is not a dkms package"
    else:
        problem = f"{name}: no such file or directory, and no Debian package of that name"
    raise TargetError(problem, hint=_did_you_mean(name, names) + _MAY_BE)


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a hint with similar package names, "" if none. The common `-dkms` does not count."""
    stems = [package.removesuffix(_DKMS) for package in names if package.endswith(_DKMS)]
    near = difflib.get_close_matches(name.removesuffix(_DKMS), stems, n=3)
    return f"did you mean {' or '.join(f'{stem}{_DKMS}' for stem in near)}? " if near else ""


def _unpack_package_tree(name: str, scratch: Path, archive: Archive) -> Path:
    """Return the tree of a Debian package below /usr/src, unmodified."""
    archive.progress.print_step(f"fetching {name}")
    unpacked = scratch / "package"
    downloads = scratch / "downloads"
    for directory in (unpacked, downloads):
        directory.mkdir(mode=0o700)  # nobody else runs what the package brings
    for package in archive.download([name], downloads):
        unpack_package(package, unpacked / "tree")
    found = sorted(conf.parent for conf in unpacked.glob("tree/usr/src/*/dkms.conf"))
    trees = [tree for tree in found if tree.resolve().is_relative_to(unpacked.resolve())]
    if not trees and (needed := _dkms_package_of(name, archive)):
        archive.progress.print_step(f"{name} has no dkms tree of its own; it depends on {needed}")
        shutil.rmtree(unpacked)
        shutil.rmtree(downloads)
        return _unpack_package_tree(needed, scratch, archive)
    if not trees:
        raise TargetError(f"the package {name} has no dkms tree below /usr/src", hint=_MAY_BE)
    if len(trees) > 1:
        others = ", ".join(tree.name for tree in trees[1:])
        archive.progress.print_step(
            f"{name} has several dkms trees; trying {trees[0].name}, not {others}"
        )
    return trees[0]


def _dkms_package_of(name: str, archive: Archive) -> str:
    """Return the dkms package that the package depends on; "" if none or if it is one itself."""
    if name.endswith(_DKMS):
        return ""
    return next((needed for needed in archive.depends(name) if needed.endswith(_DKMS)), "")
