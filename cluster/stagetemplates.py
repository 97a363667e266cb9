"""Templates of a stage's ConfigMap as documents: jinja2 in its sandbox, then YAML.

Pure, and remembered by text and values, since every plan asks again. A template is somebody
else's program: a name that it does not know is an error, and it may not go on for ever or give
more than a person would write. Called by stagemanifests.py.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from nodeside.errors import ExitCode, NodesideError

Document = dict[str, Any]

_SIZE = 512 << 10  # bytes that all files of a stage may give; a ConfigMap holds 1 MiB
_STEPS = 10_000  # numbers that `range` gives in one rendering
_VALUES = 20_000  # in one document
_DEPTH = 64  # nested containers
_FILES = (".yaml", ".yml", ".json", ".j2")


class StageInvalid(NodesideError):
    """What a stage's ConfigMap holds cannot be applied."""

    exit_code = ExitCode.SPEC
    reason = "StageInvalid"


def documents(
    config_map: str, files: Mapping[str, str], values: Mapping[str, Any]
) -> tuple[tuple[str, Document], ...]:
    """Each document with the file that it is from. They are shared: copy before you change one.

    Raises StageInvalid, which names ConfigMap, file and line.
    """
    found = _documents(config_map, tuple(sorted(files.items())), json.dumps(values, sort_keys=True))
    if isinstance(found, str):
        raise StageInvalid(found)
    return found


@lru_cache(maxsize=256)
def _documents(
    config_map: str, files: tuple[tuple[str, str], ...], values: str
) -> tuple[tuple[str, Document], ...] | str:
    """The same with the error as a value, so that it is remembered too."""
    try:
        return tuple(
            (name, document)
            for name, text in files
            if name.endswith(_FILES)
            for document in _file(f"ConfigMap {config_map}, {name}", text, json.loads(values))
        )
    except StageInvalid as error:
        return str(error)


def _file(where: str, text: str, values: Mapping[str, Any]) -> Iterator[Document]:
    import yaml

    rendered = _render(where, text, values)
    try:
        for document in yaml.load_all(rendered, Loader=yaml.CSafeLoader):
            if document is None:
                continue
            if not isinstance(document, dict):
                raise StageInvalid(f"{where}: expected a mapping, got {_brief(document)}")
            yield _plain(where, document)
    except yaml.YAMLError as exc:
        raise StageInvalid(f"{where}: {_yaml_words(exc)}") from exc


def _plain(where: str, document: Document) -> Document:
    """As JSON would have it: no dates, no fields without a value, no aliases of aliases."""
    if _count(document) > _VALUES:
        raise StageInvalid(f"{where}: more than {_VALUES} values in one document")
    try:
        json.dumps(document)
    except (TypeError, ValueError, RecursionError) as exc:
        raise StageInvalid(f"{where}: {exc}; write dates and the like in quotes") from exc
    cleaned = _without_nulls(document)
    assert isinstance(cleaned, dict)
    return cleaned


def _count(value: Any, depth: int = 0) -> int:
    """How many values there are, aliases followed; stops a little beyond the limit."""
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or depth > _DEPTH:
        return 1
    total = 1
    for each in inner:
        total += _count(each, depth + 1)
        if total > _VALUES:
            break
    return total


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _render(where: str, text: str, values: Mapping[str, Any]) -> str:
    import jinja2

    pieces, size = [], 0
    try:
        for piece in _environment().from_string(text).generate(values):
            pieces.append(piece)
            size += len(piece)
            if size > _SIZE:
                raise StageInvalid(f"{where}: gives more than {_SIZE >> 10} KiB")
    except jinja2.TemplateSyntaxError as exc:
        raise StageInvalid(f"{where}, line {exc.lineno}: {exc.message}") from exc
    except StageInvalid:
        raise
    except Exception as exc:  # whatever a template's own expressions raise
        words = str(exc) or type(exc).__name__
        raise StageInvalid(f"{where}, line {_line(exc)}: {words}") from exc
    return "".join(pieces)


def _environment() -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        """No `**`, and `*` for numbers only: either makes gigabytes in one step."""

        intercepted_binops = frozenset(("*", "**"))

        def call_binop(self, _context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**" or not all(isinstance(n, int | float) for n in (left, right)):
                raise ValueError(f"the operator {operator} is for numbers, and only *")
            return left * right

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["tojson"] = json.dumps  # jinja's own escapes for HTML
    environment.globals["range"] = _counted_range()
    return environment


def _counted_range() -> Any:
    left = [_STEPS]

    def counted(*bounds: int) -> range:
        found = range(*bounds)
        left[0] -= len(found)
        if left[0] < 0:
            raise ValueError(f"range() gives more than {_STEPS} numbers")
        return found

    return counted


def _line(exc: BaseException) -> int | str:
    """Where in the template: jinja2 gives its frames the lines of the template."""
    frames = traceback.extract_tb(exc.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return (lines[-1] or "?") if lines else "?"


def _yaml_words(exc: Exception) -> str:
    """In one line; the line number is that of the rendered text."""
    mark = getattr(exc, "problem_mark", None)
    problem = getattr(exc, "problem", None) or str(exc)
    return f"rendered line {mark.line + 1}: {problem}" if mark else " ".join(str(problem).split())


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"
