"""The target of a trial: a driver.yaml, a bare dkms tree, or the name of a Debian dkms package.

Each of them becomes one directory that plays /driver-image: driver.yaml and the source, as in a
vendor's image. The original is never changed.
"""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nodeside.errors import SpecError
from nodeside.files import disk_errors
from nodeside.spec import load
from nodeside.spec.model import Driver
from nodeside.trial.debian.archive import Archive, unpack
from nodeside.trial.errors import ArchiveError, TargetError
from nodeside.trial.target import dkms_tree
from nodeside.trial.target.dkms_tree import Evaluator

SIDE_FILE = "trial.yaml"
_DKMS = "-dkms"
_MAY_BE = (
    "name a directory with a driver.yaml or a dkms.conf, a driver.yaml, or a Debian package "
    "NAME-dkms"
)
_LEFT_OUT = shutil.ignore_patterns(".git", "__pycache__", SIDE_FILE)


@dataclass(frozen=True)
class Extras:
    """The content of a trial.yaml: QEMU devices, and argvs of consumers for the ready driver."""

    devices: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Target:
    """A driver to try. `image` is the directory that becomes /driver-image."""

    driver: Driver
    image: Path
    extras: Extras = Extras()


def prepare(name: str, image: Path, archive: Archive, evaluate: Evaluator) -> Target:
    """Make `image` from the target that the user named. Raises TargetError, SpecError."""
    path = Path(name)
    if path.exists():
        return _from_path(path.absolute(), image, evaluate)
    if "/" in name or name.startswith(".") or name.endswith((".yaml", ".yml")):
        raise TargetError(f"{name}: no such file or directory", hint=_MAY_BE)
    archive = _archive_with(name, archive)
    _require_dkms_package(name, archive)
    return _from_package(name, image, archive, evaluate)


def _archive_with(name: str, archive: Archive) -> Archive:
    """Return the archive, or its contrib and non-free if only those have the package."""
    if name in archive.names() or not name.endswith(_DKMS):
        return archive
    with suppress(ArchiveError):  # a mirror may lack them
        other = archive.not_free()
        if name in other.names():
            return other
    return archive


def _from_path(path: Path, image: Path, evaluate: Evaluator) -> Target:
    if path.is_file():
        return _from_document(path, image)
    if (path / "driver.yaml").is_file():
        return _from_document(path / "driver.yaml", image)
    if (path / "dkms.conf").is_file():
        return _from_dkms(path, image, evaluate, read_side_file(path / SIDE_FILE))
    raise TargetError(
        f"{path} has neither a driver.yaml nor a dkms.conf",
        hint="write a driver.yaml: docs/packaging-a-driver.md, or copy examples/edu",
    )


def _from_document(document: Path, image: Path) -> Target:
    """Copy the directory of a driver.yaml, and its source if that is elsewhere."""
    driver = load(document)
    directory = document.parent
    source = (directory / driver.spec.source.path).resolve()
    with disk_errors(directory):
        if not source.is_dir():
            raise SpecError(
                f"{document}: $.spec.source.path: expected a directory, there is none at {source}"
            )
        shutil.copytree(directory, image, symlinks=True, ignore=_LEFT_OUT)
        shutil.copyfile(document, image / "driver.yaml")
        if not source.is_relative_to(directory.resolve()):
            _take_source(document, source, image)
        elif Path(driver.spec.source.path).is_absolute():
            _point_at(document, image, str(source.relative_to(directory.resolve())))
    return Target(driver, image, read_side_file(directory / SIDE_FILE))


def _take_source(document: Path, source: Path, image: Path) -> None:
    shutil.copytree(source, image / "source-of-the-driver", symlinks=True, ignore=_LEFT_OUT)
    _point_at(document, image, "source-of-the-driver")


def _point_at(document: Path, image: Path, source: str) -> None:
    """Write driver.yaml with another path of the source, otherwise unchanged."""
    values = yaml.safe_load(document.read_text())
    values["spec"].setdefault("source", {})["path"] = source
    (image / "driver.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


def _from_dkms(tree: Path, image: Path, evaluate: Evaluator, extras: Extras = Extras()) -> Target:
    document = dkms_tree.describe(tree, evaluate)
    image.mkdir()
    with disk_errors(tree):
        shutil.copytree(tree, image / "src", symlinks=True, ignore=_LEFT_OUT)
    (image / "driver.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return Target(load(image / "driver.yaml"), image, extras)


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


def _from_package(name: str, image: Path, archive: Archive, evaluate: Evaluator) -> Target:
    """Take the tree of a Debian package below /usr/src, unmodified."""
    archive.progress.say(f"fetching {name}")
    unpacked = image.parent / "package"
    downloads = image.parent / "downloads"
    for directory in (unpacked, downloads):
        directory.mkdir()
    for package in archive.download([name], downloads):
        unpack(package, unpacked)
    trees = sorted(conf.parent for conf in unpacked.glob("usr/src/*/dkms.conf"))
    if not trees and (needed := _dkms_package_of(name, archive)):
        archive.progress.say(f"{name} has no dkms tree of its own; it depends on {needed}")
        shutil.rmtree(unpacked)
        shutil.rmtree(downloads)
        return _from_package(needed, image, archive, evaluate)
    if not trees:
        raise TargetError(f"the package {name} has no dkms tree below /usr/src", hint=_MAY_BE)
    if len(trees) > 1:
        others = ", ".join(tree.name for tree in trees[1:])
        archive.progress.say(f"{name} has several dkms trees; trying {trees[0].name}, not {others}")
    return _from_dkms(trees[0], image, evaluate)


def _dkms_package_of(name: str, archive: Archive) -> str:
    """Return the dkms package that the package depends on; "" if none or if it is one itself."""
    if name.endswith(_DKMS):
        return ""
    return next((needed for needed in archive.depends(name) if needed.endswith(_DKMS)), "")


def read_side_file(path: Path) -> Extras:
    """Return the devices and commands of a trial.yaml; empty if it does not exist.

    Strict: raises SpecError for anything else in it.
    """
    if not path.is_file():
        return Extras()
    try:
        values = yaml.safe_load(path.read_text()) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise SpecError(f"{path}: not YAML: {exc}") from exc
    mistakes = list(_mistakes(values))
    if mistakes:
        raise SpecError(
            "\n".join(f"{path}: {mistake}" for mistake in mistakes),
            hint="devices is a list of QEMU devices, commands a list of argvs",
        )
    return Extras(
        devices=tuple(values.get("devices", ())),
        commands=tuple(tuple(argv) for argv in values.get("commands", ())),
    )


def _mistakes(values: Any) -> Sequence[str]:
    if not isinstance(values, Mapping):
        return [f"$: expected a mapping, got {values!r}"]
    mistakes = [f"$.{key}: unknown field" for key in values if key not in ("devices", "commands")]
    devices, commands = values.get("devices", []), values.get("commands", [])
    if not _is_words(devices):
        mistakes.append(f"$.devices: expected a list of strings, got {devices!r}")
    if not isinstance(commands, list):
        mistakes.append(f"$.commands: expected a list of argvs, got {commands!r}")
        return mistakes
    for index, argv in enumerate(commands):
        if not _is_words(argv) or not argv:
            mistakes.append(f"$.commands[{index}]: expected a list of strings, got {argv!r}")
    return mistakes


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)
