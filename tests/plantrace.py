"""A digest of every plan of every test: two commits that plan the same have the same digests.

    PYTHONHASHSEED=0 python -m pytest -p tests.plantrace --plantrace FILE PATHS

Hypothesis tries the same examples in each run, and a random history depends on nothing but its
plans: the first plan that differs shows in the first test that makes it. Compare only runs of the
same tests, one process each (-n0), and try first whether two runs of one commit are equal: a test
that takes the real clock is not.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from cluster.model.actions import Plan
from cluster.plan import planner

_LEFT_OUT = frozenset({"reads_all", "errors"})  # they say how a plan was made, not what it does


class Trace:
    """The digest and the number of the plans of each test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._test = ""
        self._digests: dict[str, Any] = defaultdict(hashlib.sha256)
        self._counts: Counter[str] = Counter()
        self._actions: Counter[str] = Counter()

    def install(self) -> None:
        real = planner.plan

        def plan(*args: Any, **kwargs: Any) -> Plan:
            made = real(*args, **kwargs)
            if self._test:
                self._add(made)
            return made

        planner.plan = plan

    def _add(self, made: Plan) -> None:
        text = json.dumps(plain(made), sort_keys=True)
        self._digests[self._test].update(text.encode("utf-8", "surrogatepass"))
        self._counts[self._test] += 1
        self._actions.update(type(action).__name__ for action in made.actions)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test = item.nodeid
        result = yield
        self._test = ""
        return result

    def pytest_sessionfinish(self) -> None:
        lines = [
            f"{self._digests[test].hexdigest()[:24]} {self._counts[test]:7} {test}"
            for test in sorted(self._digests)
        ]
        total = f"# {self._counts.total()} plans, actions {dict(sorted(self._actions.items()))}"
        self._path.write_text("\n".join([*lines, total, ""]))


def plain(value: Any) -> Any:
    """Return a value as JSON has it: sets sorted, enums by name, values by their fields."""
    match value:
        case Enum():
            return value.name
        case Mapping():
            return {_key(key): plain(each) for key, each in value.items()}
        case set() | frozenset():
            return sorted(map(plain, value), key=lambda each: json.dumps(each, sort_keys=True))
        case list() | tuple():
            return [plain(each) for each in value]
        case _ if is_dataclass(value):
            own = (each.name for each in fields(value) if each.name not in _LEFT_OUT)
            return {
                "=": type(value).__name__,
                **{name: plain(getattr(value, name)) for name in own},
            }
        case float():
            return repr(value)
        case str() | int() | None:
            return value
        case _:
            return str(type(value))


def _key(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(plain(key), sort_keys=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--plantrace", metavar="FILE", help="where the digests of plans are written")


def pytest_configure(config: pytest.Config) -> None:
    if given := config.getoption("--plantrace"):
        path = Path(given)
        if not path.parent.is_dir():  # not at the end of ten minutes
            raise pytest.UsageError(f"--plantrace {path}: there is no directory {path.parent}")
        trace = Trace(path)
        trace.install()
        config.pluginmanager.register(trace, "plantrace")
