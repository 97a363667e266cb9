"""Loads several modules in order; if one fails, restores the previous ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from nodeside import log
from nodeside.driver.kernel.errors import LoadFailed
from nodeside.driver.kernel.loader import Loader, stuck_error
from nodeside.driver.kernel.unload import ModulesToUnload, unload_modules
from nodeside.driver.module.softdeps import Softdeps
from nodeside.errors import Bug, NodesideError
from nodeside.values import frozen

_TRIES = 2  # how often a module that comes back is removed

OnDisplaced = Callable[[tuple[str, ...]], None]


@frozen
class Insertion:
    """A module to load. `needs` are in-tree modules that must be loaded first.

    `soft` are in-tree modules that it asks for by MODULE_SOFTDEP. Without a path, it is a module of
    the kernel's own tree. `displaces` are the names from which it may remove modules of the tree
    that somebody, such as udev, loads while it is on its way; none if it must not.
    """

    path: Path | None
    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    soft: Softdeps = Softdeps()
    displaces: tuple[str, ...] = ()


@frozen
class RollBack:
    """The result of a roll-back. `problems` has a message for each failure."""

    removed: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def in_words(self) -> str:
        """Return the result as one line for a message."""
        steps = []
        if self.removed:
            steps.append(f"unloaded {', '.join(self.removed)}")
        if self.restored:
            steps.append(f"the previous {', '.join(self.restored)} is loaded again")
        steps += self.problems
        result = "the roll-back failed" if self.problems else "rolled back"
        return f"{result}: {'; '.join(steps)}" if steps else "nothing had to be rolled back"


class SequenceFailed(NodesideError):
    """A refused module in a sequence; exit code, reason and hint are those of its cause."""

    def __init__(self, cause: NodesideError, rolled_back: RollBack) -> None:
        super().__init__(
            f"{cause}\n{rolled_back.in_words()}", hint=cause.hint, retryable=cause.retryable
        )
        self.exit_code = cause.exit_code
        self.reason = cause.reason
        self.cause = cause
        self.rolled_back = rolled_back


def load_sequence(
    insertions: Sequence[Insertion],
    loader: Loader,
    *,
    previous: Sequence[Insertion] = (),
    on_displaced: OnDisplaced = lambda _: None,
) -> tuple[str, ...]:
    """Load modules in this order. Returns their names. Raises SequenceFailed.

    `on_displaced` is called with the modules of the tree that are about to be removed on the way.
    `previous` are the modules they replace, already unloaded, in load order. In-tree modules loaded
    on the way stay loaded. If the init function of a module hangs or has crashed, nothing is rolled
    back: the module keeps its name, and its hold on others.
    """
    inserted: list[str] = []
    for item in insertions:
        try:
            insert_module(item, loader, on_displaced)
        except NodesideError as exc:
            rolled = _stuck_result(item.name, loader) or roll_back(inserted, previous, loader)
            raise SequenceFailed(exc, rolled) from exc
        inserted.append(item.name)
    return tuple(inserted)


def insert_module(
    item: Insertion, loader: Loader, on_displaced: OnDisplaced = lambda _: None
) -> None:
    """Load one module after the in-tree modules that it needs, and those it only asks for."""
    loader.load_soft(item.soft.pre)
    for name in item.needs:
        loader.load_in_tree(name)
    if item.path is None:
        loader.load_in_tree(item.name)
    else:
        _insert_file(item, item.path, loader, on_displaced)
    loader.load_soft(item.soft.post)


def _insert_file(item: Insertion, path: Path, loader: Loader, on_displaced: OnDisplaced) -> None:
    """Load a module file; if one of the tree has its name meanwhile, remove that first."""
    for _ in range(_TRIES):
        try:
            return loader.insert_module(path, item.parameters, name=item.name)
        except LoadFailed as error:
            rows = loader.modules.rows()
            there = rows.get(item.name)
            if error.reason != "Exists" or there is None or not there.in_tree:
                raise
            if item.name not in item.displaces:
                raise
            back = tuple(name for name in item.displaces if name in rows and rows[name].in_tree)
            on_displaced(back)
            removed = unload_modules(ModulesToUnload(back), loader)
            log.fact("removed what was loaded meanwhile", modules=", ".join(removed))
    return loader.insert_module(path, item.parameters, name=item.name)


def roll_back(inserted: Sequence[str], previous: Sequence[Insertion], loader: Loader) -> RollBack:
    """Unload `inserted`, last first, then load `previous`. Errors are returned, not raised.

    If one of `inserted` cannot be unloaded, `previous` is not loaded: its names are taken.
    """
    removed: list[str] = []
    for name in reversed(inserted):
        try:
            if loader.remove_module(name):
                removed.append(name)
        except Exception as exc:
            return _log_result(RollBack(tuple(removed), problems=(problem_in_words(exc),)))
    restored: list[str] = []
    for item in previous:
        try:
            insert_module(item, loader)
        except Exception as exc:
            return _log_result(RollBack(tuple(removed), tuple(restored), (problem_in_words(exc),)))
        restored.append(item.name)
    return _log_result(RollBack(tuple(removed), tuple(restored)))


def _stuck_result(name: str, loader: Loader) -> RollBack | None:
    """Return why nothing can be rolled back if a module is neither live nor gone, else None."""
    state = loader.modules.state(name)
    if state is None or state.initstate == "live":
        return None
    return _log_result(RollBack(problems=(str(stuck_error(name, state)),)))


def problem_in_words(exc: Exception) -> str:
    """Return an error as text. A bug is no reason to lose the error that led to the roll-back."""
    if isinstance(exc, NodesideError):
        return str(exc)
    log.traceback(exc)
    return str(Bug(exc))


def _log_result(result: RollBack) -> RollBack:
    log.fact(result.in_words())
    return result
