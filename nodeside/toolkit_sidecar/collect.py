"""Collects the modules that a build left behind, without trusting its output.

The build's processes are dead, but its links, devices and endless files are still there. Nothing is
opened through a link. Every file is copied first; the copy, which the sidecar owns, is stripped and
hashed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from nodeside.protocol.build_records import BuiltModule, FailureKind
from nodeside.protocol.module_names import kernel_name
from nodeside.system import process
from nodeside.system.files import UntrustedFile, disk_errors, open_untrusted
from nodeside.toolkit_sidecar.descendants import make_enclosure
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.recipe import Product, Recipe
from nodeside.values import frozen

MODULE_LIMIT = 1 << 30  # bytes of one module with its debug information
MODULES_LIMIT = 2000  # modules of one driver; the largest real one has about 80
_STRIP_TIMEOUT = 120.0  # seconds
_PIECE = 1 << 20
_SIGNATURE = b"~Module signature appended~\n"
_NAME = re.compile(rb"\0name=(\w{1,63})\0")


@frozen
class Collected:
    """The collected modules, and notes for the user."""

    modules: tuple[BuiltModule, ...]
    notes: tuple[str, ...]


def collect_modules(
    recipe: Recipe,
    roots: Sequence[Path],
    out: Path,
    required: Sequence[str],
    check: Callable[[], None],
) -> Collected:
    """Copy the modules found below `roots` to `out/modules`. Raises BuildFailed: no-module.

    `required` names the modules that must be among them; if empty, any module will do. `check` is
    called often and may end the build: a thousand sparse files become a thousand full ones.
    """
    directory = out / "modules"
    directory.mkdir()
    files, notes = _choose_products(recipe, roots, required)
    modules = tuple(_take_module(product, directory, notes, check) for product in files)
    _require_modules(required, modules, [product.file for product in files])
    names = {kernel_name(name) for name in required}
    extra = [module.name for module in modules if names and module.name not in names]
    if extra:
        notes.append(f"also built, but not in driver.yaml's modules: {', '.join(extra)}")
    return Collected(modules, tuple(notes))


def remove_prebuilt(root: Path) -> tuple[str, ...]:
    """Delete modules that came with the source and return their paths relative to `root`.

    A stale module must not pass for a built one.
    """
    paths = tuple(str(path.relative_to(root)) for path in find_modules([root]))
    for path in paths:
        (root / path).unlink()
    return paths


def find_modules(roots: Iterable[Path]) -> Iterator[Path]:
    """Yield every regular `.ko` below `roots` in a stable order, without following links."""
    count = 0
    for entry in _walk_files(roots):
        if entry.name.endswith(".ko") and _is_regular(entry):
            count += 1
            if count > MODULES_LIMIT:
                raise BuildFailed(
                    FailureKind.NO_MODULE,
                    f"the build produced more than {MODULES_LIMIT} modules",
                    hint="build only a subdirectory: build.directory in driver.yaml",
                )
            yield Path(entry.path)


def _walk_files(roots: Iterable[Path]) -> Iterator[os.DirEntry[str]]:
    """Yield all non-directories below `roots`. Not `os.walk`, which recurses at every level."""
    waiting = [os.fspath(root) for root in roots][::-1]
    while waiting:
        entries: list[os.DirEntry[str]] = []
        with suppress(OSError), os.scandir(waiting.pop()) as unsorted:  # e.g. path too long
            entries = sorted(unsorted, key=lambda entry: entry.name)
        yield from (entry for entry in entries if not entry.is_dir(follow_symlinks=False))
        waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)][::-1]


def _is_regular(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)
    return False


def _choose_products(
    recipe: Recipe, roots: Sequence[Path], required: Sequence[str]
) -> tuple[list[Product], list[str]]:
    """Return the files to take, announced by dkms.conf or required by driver.yaml, and notes."""
    notes: list[str] = []
    produced = list(find_modules(roots))
    if not recipe.products:
        return _newest_of_each(produced, recipe.strip, notes), notes
    chosen: list[Product] = []
    for product in recipe.products:
        path = recipe.directory / product.file
        if _is_inside(path, recipe.directory):
            _add_product(chosen, Product(path, product.installed_as, product.strip))
        else:
            notes.append(f"dkms.conf announces {product.file}, which the build did not produce")
    taken = {name for product in chosen for name in (product.file.stem, product.installed_as)}
    others = [path for path in produced if path.stem not in taken]
    names = {kernel_name(name) for name in required}
    unannounced = [path for path in others if kernel_name(path.stem) in names]
    chosen += _newest_of_each(unannounced, True, notes)
    if not chosen:
        _require_modules([product.installed_as for product in recipe.products], (), produced)
    return chosen, notes


def _add_product(chosen: list[Product], product: Product) -> None:
    """Add a product unless it is present. Raises BuildFailed if another file has its name."""
    for other in chosen:
        if other.installed_as == product.installed_as and other.file != product.file:
            raise BuildFailed(
                FailureKind.BAD_SOURCE,
                f"dkms.conf gives two modules the name {product.installed_as}: "
                f"{other.file.name} and {product.file.name}",
                hint="each DEST_MODULE_NAME (or BUILT_MODULE_NAME) must be unique",
            )
    if product not in chosen:
        chosen.append(product)


def _newest_of_each(paths: Sequence[Path], strip: bool, notes: list[str]) -> list[Product]:
    """Return the newest file of each name. Some trees copy their modules to a second place."""
    best: dict[str, Path] = {}
    for path in paths:
        other = best.get(path.stem)
        if other is None or path.stat().st_mtime_ns > other.stat().st_mtime_ns:
            best[path.stem] = path
        if other is not None:
            notes.append(f"the build produced {path.name} more than once; using {best[path.stem]}")
    return [Product(path, name, strip) for name, path in sorted(best.items())]


def _is_inside(path: Path, base: Path) -> bool:
    """Return whether `path` is a regular file, with no link on the way that leads out of `base`."""
    real = Path(os.path.realpath(path.parent))
    inside = real.is_relative_to(os.path.realpath(base))
    return inside and path.is_file() and not path.is_symlink()


def _take_module(
    product: Product, directory: Path, notes: list[str], check: Callable[[], None]
) -> BuiltModule:
    """Copy, strip and hash one module."""
    target = directory / f"{product.installed_as}.ko"
    signed = _copy_module(product.file, target, check)
    if signed:
        notes.append(f"the build signed {target.name}: not stripped")
    elif product.strip:
        _strip_debug(target, notes)
    digest, size, names = _digest_module(target)
    built_as = product.file.stem
    guess = kernel_name(built_as)
    return BuiltModule(
        name=names.pop() if len(names) == 1 else guess,
        file=f"modules/{target.name}",
        sha256=digest,
        size=size,
        built_as=built_as if built_as != product.installed_as else "",
    )


def _copy_module(source: Path, target: Path, check: Callable[[], None]) -> bool:
    """Copy a module out of the build's reach. Return whether a signature is appended to it."""
    try:
        with open_untrusted(source, limit=MODULE_LIMIT) as file, disk_errors(target):
            with open(target, "xb") as copy:
                while piece := file.read(_PIECE):
                    copy.write(piece)
                    check()
            file.seek(-min(len(_SIGNATURE), os.fstat(file.fileno()).st_size), os.SEEK_END)
            return file.read() == _SIGNATURE
    except (FileNotFoundError, UntrustedFile) as exc:
        raise BuildFailed(FailureKind.NO_MODULE, f"refused a module of the build: {exc}") from exc


def _strip_debug(path: Path, notes: list[str]) -> None:
    """Remove debug information, as dkms does: `strip -g`. The build-id stays."""
    try:
        process.run(
            ["strip", "--strip-debug", path], timeout=_STRIP_TIMEOUT, wrapper=make_enclosure()
        )
    except (process.ToolMissing, process.ToolError, process.ToolTimeout) as exc:
        notes.append(f"{path.name} keeps its debug information: {exc}".partition("\n")[0])


def _digest_module(path: Path) -> tuple[str, int, set[str]]:
    """Return sha256, size, and the name(s) in its `.modinfo` (include/linux/module.h)."""
    digest, size, overlap = hashlib.sha256(), 0, b""
    names: set[str] = set()
    with open_untrusted(path, limit=MODULE_LIMIT) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
            window = overlap + piece
            for match in _NAME.finditer(window):
                if len(names) == 2:  # as good as any more: there is no single name
                    break
                names.add(match[1].decode())
            overlap = window[-80:]
    return digest.hexdigest(), size, names


def _is_near(word: str, name: str) -> bool:
    """Return whether one letter is added, missing or changed, or two are swapped; `_` is ignored.

    difflib is not an option, since the Python that ships to the toolkit lacks it.
    """
    one, other = (kernel_name(each).replace("_", "") for each in (word, name))
    same = len(os.path.commonprefix([one, other]))  # noqa: RUF071 - letters, not parts of a path
    one, other = one[same:], other[same:]
    swapped = one[:2] == other[1::-1] and one[2:] == other[2:]
    return swapped or one[1:] == other[1:] or one[1:] == other or one == other[1:]


def _require_modules(
    required: Sequence[str], modules: Sequence[BuiltModule], files: Sequence[Path]
) -> None:
    """Raise BuildFailed (no-module) unless all required modules exist; it lists the others."""
    names = {module.name for module in modules}
    missing = [name for name in required if kernel_name(name) not in names]
    if not missing and (names or not required) and modules:
        return
    produced = ", ".join(sorted({*names, *(kernel_name(f.stem) for f in files)})) or "none"
    renamed = [m for m in modules if Path(m.file).stem != m.name and m.built_as]
    message = "the build produced no module"
    if missing:
        message += f" named {', '.join(missing)}"
    hint = "spec.modules in driver.yaml must name modules of this source"
    if meant := [name for name in sorted(names) if any(_is_near(word, name) for word in missing)]:
        hint += f"; did you mean {', '.join(meant)}?"
    if renamed:
        hint = "; ".join(
            f"dkms.conf renames the file to {Path(m.file).name}, but the kernel knows the module "
            f"as {m.name}"
            for m in renamed
        )
    raise BuildFailed(FailureKind.NO_MODULE, f"{message}; it produced: {produced}", hint=hint)
