"""Renders the templates of a stage's ConfigMap to documents: sandboxed jinja2, then YAML.

A template is an untrusted program. An undefined name is an error, and so is more output than a
person would write; both are reported here. An endless loop, memory exhaustion or an interpreter
crash is handled from outside: this code runs in a separate process, see renderer.py.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from nodeside.errors import ExitCode, NodesideError

Document = dict[str, Any]

_SIZE = 512 << 10  # characters of output of all files of a stage; a ConfigMap holds 1 MiB
SIZE_AS_JSON = 768 << 10  # bytes of all documents of a stage, aliases expanded
_STEPS = 10_000  # numbers from `range` in one file
_VALUES = 20_000  # values in one document
_DEPTH = 64  # levels of nested containers
_TOO_DEEP = f"nested deeper than {_DEPTH} levels"
_QUOTE = "write dates and the like in quotes"
_FILES = (".yaml", ".yml", ".json", ".j2")


class StageInvalid(NodesideError):
    """The content of a stage's ConfigMap cannot be applied.

    `where` names the ConfigMap, the file and the line of a template. It has none of their text, so
    it can be shown when Secrets are read; the problem may quote one. `rendered_line` is a line of
    what the template gave, 0 if unknown.
    """

    exit_code = ExitCode.SPEC
    reason = "StageInvalid"

    def __init__(self, problem: str, *, where: str = "", rendered_line: int = 0) -> None:
        line = f"rendered line {rendered_line}" if rendered_line else ""
        super().__init__(": ".join(filter(None, (where, line, problem))))
        self.place = ", ".join(filter(None, (where, line)))


class _Deep(Exception):
    """Containers nested deeper than any real document."""


def render_to_documents(
    config_map: str, files: Mapping[str, str], values: Mapping[str, Any]
) -> tuple[tuple[str, Document], ...]:
    """Return each document with its file name.

    Raises StageInvalid, which names the ConfigMap, the file and the line. If Secrets are among the
    values, it does not say what is wrong, since that might quote one.
    """
    try:
        return _render_documents(config_map, files, values)
    except StageInvalid as error:
        if not values.get("reads", {}).get("secrets"):
            raise
        hidden = "the mistake is not shown, since the stage reads a Secret"
        raise StageInvalid(hidden, where=error.place or f"ConfigMap {config_map}") from None


def _render_documents(
    config_map: str, files: Mapping[str, str], values: Mapping[str, Any]
) -> tuple[tuple[str, Document], ...]:
    pairs: list[tuple[str, Document]] = []
    left = _SIZE
    for name, text in sorted(files.items()):
        if name.endswith(_FILES):
            where = f"ConfigMap {config_map}, {name}"
            rendered = _render_text(where, text, values, left)
            left -= len(rendered)
            pairs += [(name, document) for document in _parse_documents(where, rendered)]
    _check_size(f"ConfigMap {config_map}", pairs)
    return tuple(pairs)


def _check_size(where: str, pairs: list[tuple[str, Document]]) -> None:
    """Limit the size with aliases expanded: an alias may repeat a long text a thousand times."""
    size = 0
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode([each for _, each in pairs]):
        size += len(piece.encode(errors="replace"))
        if size > SIZE_AS_JSON:
            raise StageInvalid(
                f"its documents have more than {SIZE_AS_JSON >> 10} KiB", where=where
            )


def _parse_documents(where: str, rendered: str) -> Iterator[Document]:
    import yaml

    try:
        _check_depth(where, yaml.parse(rendered, Loader=yaml.CSafeLoader))
        for document in yaml.load_all(rendered, Loader=yaml.CSafeLoader):
            if document is None:
                continue
            if not isinstance(document, dict):
                raise StageInvalid(
                    f"expected a mapping, got {_shorten_value(document)}", where=where
                )
            yield _plain_document(where, document)
    except (StageInvalid, MemoryError):
        raise
    except Exception as exc:  # constructors raise whatever the type of a scalar does
        raise _yaml_error(where, exc) from exc


def _check_depth(where: str, events: Iterator[Any]) -> None:
    """Check the nesting before documents are constructed, since construction is recursive."""
    from yaml.events import CollectionEndEvent, CollectionStartEvent

    depth = 0
    for event in events:
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > _DEPTH:
            line = event.start_mark.line + 1
            raise StageInvalid(_TOO_DEEP, where=where, rendered_line=line)


def _plain_document(where: str, document: Document) -> Document:
    """Return the document restricted to JSON: no dates, no null fields, no alias explosions."""
    if _count_values(document) > _VALUES:
        raise StageInvalid(f"more than {_VALUES} values in one document", where=where)
    try:
        json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise StageInvalid(f"{exc}; {_QUOTE}", where=where) from exc
    cleaned = _without_nulls(document)
    assert isinstance(cleaned, dict)
    return cleaned


def _count_values(value: Any, depth: int = 0) -> int:
    """Count the values with aliases expanded; stops slightly above the limit."""
    if not isinstance(value, dict | list):
        return 1
    if depth >= _DEPTH:
        raise _Deep(_TOO_DEEP)
    total = 1
    for each in value.values() if isinstance(value, dict) else value:
        total += _count_values(each, depth + 1)
        if total > _VALUES:
            break
    return total


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _render_text(where: str, text: str, values: Mapping[str, Any], limit: int) -> str:
    import jinja2

    pieces, size = [], 0
    try:
        for piece in _make_environment().from_string(text).generate(values):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise StageInvalid(
                    f"the rendered files of the stage have more than {_SIZE >> 10} KiB", where=where
                )
    except jinja2.TemplateSyntaxError as exc:
        raise StageInvalid(str(exc.message), where=f"{where}, line {exc.lineno}") from exc
    except (StageInvalid, MemoryError):
        raise
    except Exception as exc:  # whatever a template's own expressions raise
        message = str(exc) or type(exc).__name__
        raise StageInvalid(message, where=f"{where}, line {_error_line(exc)}") from exc
    return "".join(pieces)


def _make_environment() -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        """A sandbox without `**` and with a numeric `*` only: each makes gigabytes in one step."""

        intercepted_binops = frozenset(("*", "**"))

        def call_binop(self, _context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**":
                raise ValueError("the operator ** is not allowed")
            if not all(isinstance(n, int | float) for n in (left, right)):
                raise ValueError("the operator * takes numbers only")
            return left * right

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["tojson"] = json.dumps  # jinja's own filter escapes for HTML
    environment.globals["range"] = _counted_range()
    return environment


def _counted_range() -> Any:
    left = [_STEPS]

    def count_range(*bounds: int) -> range:
        numbers = range(*bounds)
        left[0] -= len(numbers)
        if left[0] < 0:
            raise ValueError(f"range() gives more than {_STEPS} numbers")
        return numbers

    return count_range


def _error_line(exc: BaseException) -> int | str:
    """Return the line in the template: jinja2's frames carry the template's line numbers."""
    frames = traceback.extract_tb(exc.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return (lines[-1] or "?") if lines else "?"


def _yaml_error(where: str, exc: Exception) -> StageInvalid:
    """Return the error for what YAML does not accept, in one line."""
    mark = getattr(exc, "problem_mark", None)
    problem = " ".join(str(getattr(exc, "problem", None) or exc).split())
    if mark:
        return StageInvalid(problem, where=where, rendered_line=mark.line + 1)
    problem = problem if isinstance(exc, _Deep) else f"{problem}; {_QUOTE}"
    return StageInvalid(problem, where=where)


def _shorten_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"
