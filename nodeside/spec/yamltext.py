"""Convert YAML text to plain values with their lines, and back.

This is the only module of the spec that imports yaml: import it late. Scalars are resolved as
kubectl resolves them, since a Driver goes through both: `y`, `on` and `11e8` are not text, a date
is. Aliases are followed, but a document that grows too large through them is refused.
"""

from __future__ import annotations

import math
import re
from typing import Any, cast

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from nodeside.errors import SpecError
from nodeside.spec.mistakes import Document, FieldPath, Mistake, in_brief

_DEPTH = 32  # nested containers; the schema itself needs 7
_NODES = 20_000  # values, with all aliases followed
_TAG = "tag:yaml.org,2002:"
_TRUE = frozenset({"y", "yes", "true", "on"})


class _Composer(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML up to its nodes, with the scalars of kubectl's YAML (sigs.k8s.io/yaml)."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)


_RESOLVED = (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"[yY]|[nN]|(?:yes|no|true|false|on|off)", "yYnNtTfFoO"),
    ("bool", r"(?:Yes|No|True|False|On|Off|YES|NO|TRUE|FALSE|ON|OFF)", "YNTFO"),
    ("int", r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
)


class _Writer(yaml.SafeDumper):
    """A dumper that quotes every text that some YAML reader might not read as text."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)  # indents a list below its field


def _represent_text(writer: yaml.SafeDumper, value: str) -> ScalarNode:
    """Represent a string. If it has a line break that only YAML knows, quote and escape it."""
    style = '"' if re.search("[\x85\u2028\u2029]", value) else None
    return writer.represent_scalar(_TAG + "str", value, style=style)


_Writer.add_representer(str, _represent_text)


for _name, _regex, _first in _RESOLVED:
    for _kind in (_Composer, _Writer):
        _kind.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_regex})$"), [*_first])
_Composer.add_implicit_resolver(_TAG + "null", re.compile(r"^$"), [""])


def write_yaml(data: object, *, width: int = 100) -> str:
    """Return plain values as YAML, in their order. Longer texts go on in further lines."""
    text = yaml.dump(data, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=width)
    return str(text)


def read_yaml(text: str, where: str) -> Document:
    """Return the only document of a text. Raises SpecError if it is not YAML, or too large."""
    try:
        node = _only_node(text, where)
    except yaml.YAMLError as exc:
        raise _syntax_error(exc, where) from exc
    except RecursionError as exc:
        raise SpecError(f"{where}: nested too deeply") from exc
    values = _Values()
    try:
        data = values.of(node, ())
    except _TooLargeError:
        limits = f"at most {_NODES} values, nested at most {_DEPTH} deep"
        raise SpecError(f"{where}: expected {limits}, with all aliases followed") from None
    return Document(where, data, values.lines, values.written, tuple(values.mistakes))


def _only_node(text: str, where: str) -> Node:
    composer = _Composer(text)
    node = composer.get_node() if composer.check_node() else None
    if node is None or _is_empty(node):
        raise SpecError(
            f"{where}: is empty", hint="`nodeside spec reference` has an example to start from"
        )
    while composer.check_node():
        line = composer.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
        if not _is_empty(composer.get_node()):  # kubectl skips an empty one, too
            raise SpecError(
                f"{where}:{line}: a second document begins here, expected one",
                hint="one file describes one driver",
                places=[f"{where}:{line}"],
            )
    return node


def _is_empty(node: Node | None) -> bool:
    return isinstance(node, ScalarNode) and node.value == "" and node.style is None


def _syntax_error(exc: yaml.YAMLError, where: str) -> SpecError:
    if isinstance(exc, ReaderError):
        return SpecError(
            f"{where}: the character U+{ord(str(exc.character)[:1]):04X} is not allowed in YAML"
            if isinstance(exc.character, str)
            else f"{where}: the character U+{exc.character:04X} is not allowed in YAML"
        )
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
    problem = getattr(exc, "problem", None) or str(exc)
    context = getattr(exc, "context", None)
    words = f"{problem} {context}" if context else problem
    tabs = "indent with spaces, not with tabs" if "\\t" in words else ""
    places = [place] if mark else []
    return SpecError(f"{place}: not YAML: {words}", hint=tabs, places=places)


class _TooLargeError(Exception):
    """A document that becomes huge or endless when its aliases are followed."""


class _Values:
    """A converter from nodes to plain values; collects lines, scalar texts, and mistakes."""

    def __init__(self) -> None:
        self.lines: dict[FieldPath, int] = {}
        self.written: dict[FieldPath, str] = {}
        self.mistakes: list[Mistake] = []
        self._nodes = 0

    def of(self, node: Node, path: FieldPath) -> Any:
        self._nodes += 1
        self.lines.setdefault(path, node.start_mark.line + 1)
        if len(path) > _DEPTH or self._nodes > _NODES:
            raise _TooLargeError
        if isinstance(node, MappingNode):
            return self._mapping_value(node, path)
        if isinstance(node, SequenceNode):
            return [self.of(entry, (*path, n)) for n, entry in enumerate(node.value)]
        return self._scalar_value(cast("ScalarNode", node), path)

    def _add_mistake(self, path: FieldPath, message: str, hint: str = "") -> Any:
        self.mistakes.append(Mistake(path, message, hint))

    def _mapping_value(self, node: MappingNode, path: FieldPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key_text(key_node, path)
            if key is None:
                continue
            place = (*path, key)
            if key in mapping:
                self._add_mistake(
                    place, f"appears twice, again in line {key_node.start_mark.line + 1}"
                )
                continue
            self.lines[place] = key_node.start_mark.line + 1
            mapping[key] = self.of(value_node, place)
        return mapping

    def _key_text(self, node: Node, path: FieldPath) -> str | None:
        """Return a key, which must be text, also for kubectl: it reads `on:` as the key `true`."""
        line = node.start_mark.line + 1
        if not isinstance(node, ScalarNode):
            self._add_mistake(path, f"expected a string as the key in line {line}")
            return None
        if node.tag == f"{_TAG}merge":
            self._add_mistake(path, f"<< in line {line} is not supported; repeat the fields")
            return None
        if node.tag != f"{_TAG}str":
            words = in_brief(node.value).strip('"') or "nothing"
            message = f"expected a string as the key in line {line}, got {words}"
            self._add_mistake(path, message, f'write "{words}"')
            return None
        return str(node.value)

    def _scalar_value(self, node: ScalarNode, path: FieldPath) -> Any:
        text, kind = str(node.value), str(node.tag).removeprefix(_TAG)
        if kind in ("bool", "int", "float"):
            self.written[path] = text if len(text) <= 80 else f"{text[:80]}..."
        try:
            return _SCALARS[kind](text)
        except KeyError:
            return self._add_mistake(path, f"the tag {node.tag} is not supported")
        except ValueError:
            return self._add_mistake(path, f"expected a value, got {in_brief(text)}", "quote it")


def _parse_int(text: str) -> int:
    """Parse a YAML 1.1 integer: 0b, 0x, octal by 0 or 0o, underscores anywhere."""
    digits = text.replace("_", "").lstrip("+-")
    sign = -1 if text.startswith("-") else 1
    octal = re.fullmatch(r"0o?([0-7]+)", digits)
    return sign * (int(octal[1], 8) if octal else int(digits, 0))


def _parse_float(text: str) -> float:
    return math.nan if text.lower() == ".nan" else float(re.sub(r"\.inf$", "inf", text.lower()))


_SCALARS: dict[str, Any] = {
    "str": str,
    "null": lambda _: None,
    "bool": lambda text: text.lower() in _TRUE,
    "int": _parse_int,
    "float": _parse_float,
    "merge": str,
}
