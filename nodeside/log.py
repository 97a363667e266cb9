"""Logging to stderr, one line per event: `key=value` for people, JSON objects for clusters.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]

_LOGGER = logging.getLogger("nodeside")


def setup(
    component: str, *, format: LogFormat = "text", verbose: bool = False, to: TextIO | None = None
) -> None:
    """Send this process's log to `to` (default: stderr). `component` is part of every line."""
    handler = logging.StreamHandler(to or sys.stderr)
    handler.setFormatter(_Json(component) if format == "json" else _Text(component))
    _LOGGER.handlers[:] = [handler]
    _LOGGER.propagate = False
    _LOGGER.setLevel(logging.DEBUG if verbose else logging.INFO)


def log_format() -> LogFormat:
    """Return the format that `setup` chose."""
    return "json" if any(isinstance(h.formatter, _Json) for h in _LOGGER.handlers) else "text"


def fact(message: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Log one event: a short message and its fields."""
    _LOGGER.log(level, message, extra={"fields": fields})


def detail(message: str, **fields: object) -> None:
    """Log an event that only `--verbose` shows."""
    fact(message, level=logging.DEBUG, **fields)


def warning(message: str, **fields: object) -> None:
    """Log an event that somebody should act on, although the work continues."""
    fact(message, level=logging.WARNING, **fields)


def traceback(exc: BaseException) -> None:
    """Log a bug's traceback, which is needed to find the bug, as one log line per line."""
    from traceback import format_exception  # imported late: rarely needed

    for line in "".join(format_exception(exc)).splitlines():
        fact(line, level=logging.ERROR)


@contextmanager
def step(name: str, **fields: object) -> Iterator[None]:
    """Log the start of a stage, and its result and duration in seconds."""
    detail(f"{name}: started", **fields)
    started = time.monotonic()
    try:
        yield
    except BaseException as exc:
        fact(
            f"{name}: failed",
            level=logging.ERROR,
            seconds=round(time.monotonic() - started, 3),
            error=type(exc).__name__,
            **fields,
        )
        raise
    seconds = round(time.monotonic() - started, 3)
    fact(f"{name}: done", level=logging.INFO, seconds=seconds, **fields)


class _Text(logging.Formatter):
    def __init__(self, component: str) -> None:
        super().__init__()
        self.component = component

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        words = [self.component, _one_line(record.getMessage())]
        if record.levelno >= logging.WARNING:
            words.insert(1, f"{record.levelname.lower()}:")
        words += [f"{key}={_quote_value(value)}" for key, value in fields.items()]
        return " ".join(words)


class _Json(logging.Formatter):
    def __init__(self, component: str) -> None:
        super().__init__()
        self.component = component

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "component": self.component,
            "message": record.getMessage(),
        }
        facts = {key: _json_value(value) for key, value in fields.items() if key not in line}
        return json.dumps(line | facts)


def _one_line(text: str) -> str:
    """Escape text to one safe line; output of a compiler or a kernel may hold any character.

    An injected line would be mistaken for a log line of ours, such as the ready marker. Line ends
    become `|`, since people read this.
    """
    return escape_controls(text.replace("\n", " | "), keep="")


def escape_controls(text: str, *, keep: str = "\t") -> str:
    """Escape control characters in foreign text, so that it cannot move a terminal's cursor.

    The characters in `keep` are left alone. Line feeds are escaped too, unless in `keep`.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def _quote_value(value: object) -> str:
    text = str(value).replace("\n", " | ")
    if text and not any(c in text for c in ' "='):
        return _one_line(text)
    return '"' + _one_line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _json_value(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
