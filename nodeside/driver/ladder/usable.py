"""Checks that a bundle or a build's output has every wanted module, signed as required.

Modules that the kernel itself would refuse are detected later, by `checks.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nodeside import log
from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.ladder.plan import RungFinding
from nodeside.driver.ladder.task import Task


def usable_finding(task: Task, bundle: Bundle, why: str) -> RungFinding:
    """Return the bundle if every wanted module is in it, signed as required; else the reason."""
    name = bundle.directory.name
    if absent := missing_modules(task, (module.name for module in bundle.manifest.modules)):
        return RungFinding(f"the bundle {name} has no module {absent}")
    if task.signing is not None:
        from nodeside.driver.module.elf import NotAModule
        from nodeside.driver.module.signing import SigningError

        try:
            files = (bundle.directory / module.file for module in bundle.manifest.modules)
            verify_signatures(task, files)
        except (SigningError, NotAModule) as problem:
            log.warning("a bundle is not used", bundle=name, why=problem, hint=problem.hint)
            return RungFinding(f"not signed as spec.signing requires: {problem}")
    return RungFinding(why, bundle)


def missing_modules(task: Task, present: Iterable[str]) -> str:
    """Return the wanted modules that are not in `present`, comma-separated; "" if none."""
    names = set(present)
    return ", ".join(name for name in task.wanted.names if name not in names)


def verify_signatures(task: Task, files: Iterable[Path]) -> None:
    """Raise SigningError if a module is not signed by the configured key."""
    from nodeside.driver.module import signing

    assert task.signing is not None  # callers check it
    certificate = task.path(task.signing.certificate)
    for file in files:
        signing.verify_module(file, certificate)
