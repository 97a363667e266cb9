"""Translates a Jinja template into a Go template for Helm; values chosen later stay expressions.

helm.py passes a template and the names that are `Later`; all other names have their values
already. The template is rendered as usual, with three differences:

    {{ image | tojson }}             {{ $.Values.image | toJson }}
    {{ ("--x=" ~ image) | tojson }}  {{ printf "--x=%s" $.Values.image | toJson }}
    {%- if openshift %} … {%- endif %}          {{- if $.Values.openshift }} … {{- end }}
    {%- for name in pull_secrets %} … {%- endfor %}   {{- range $name := … }} … {{- end }}

`not`, `and`, `or` and `else` are supported too. Any other use of a `Later` raises TemplateBroken,
because a partial translation would install something else than `nodeside-cluster install`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from cluster.install.manifests import TemplateBroken, quoted

# Characters of the private use area: no template has them, and a remaining one is an error.
_VALUE = "\ue000"  # marks both ends of an expression that is not translated yet
_OPEN, _CLOSE = "\ue001", "\ue002"  # placeholders for {{ and }}
_LATER = "_later"  # the function that a translated loop calls for its variables


class Later:
    """A value that is known only when the chart is installed; `expression` is Helm's name for it.

    `each` is the expression for a list element if the loop variable is `$name`.
    """

    def __init__(self, expression: str, each: str = "") -> None:
        self.expression = expression
        self.each = each

    def __str__(self) -> str:
        return f"{_VALUE}{self.expression}{_VALUE}"

    def _not_known(self, *_: object) -> NoReturn:
        raise TemplateBroken(
            f"{self.expression} is not known yet: a template may ask {{% if NAME %}}, "
            "{% for … in NAME %} and NAME | tojson of it"
        )

    __bool__ = __iter__ = __len__ = __getitem__ = __lt__ = __gt__ = _not_known
    __eq__ = __ne__ = _not_known
    __hash__ = object.__hash__


def go_template(text: str, known: Mapping[str, Any], later: Mapping[str, Later]) -> str:
    """Return the Go template that gives the same text as the Jinja template for all values."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701
    environment.filters["tojson"] = _to_json
    try:
        tree = _Translator(later).visit(environment.parse(text))
        code = environment.compile(tree.set_environment(environment))
        made = jinja2.Template.from_code(environment, code, {_LATER: Later})
        return _finished(made.render({**known, **later}))
    except jinja2.TemplateError as exc:
        raise TemplateBroken(f"a template cannot be put into Helm's words: {exc}") from exc


def wrapped(text: str, condition: str) -> str:
    """Return the whole Go template under a condition."""
    return f"{{{{- if {condition} }}}}\n{text.rstrip()}\n{{{{- end }}}}\n"


def _finished(text: str) -> str:
    if _VALUE in text:
        raise TemplateBroken(f"a value without `| tojson`: {text.split(_VALUE)[1]}")
    if "{{" in text or "}}" in text:
        raise TemplateBroken("a template has two braces in its text, which Helm would read")
    return text.replace(_OPEN, "{{").replace(_CLOSE, "}}").strip() + "\n"


def _to_json(value: Any) -> str:
    if isinstance(value, str | Later) and _VALUE in str(value):
        return f"{_OPEN} {_expression(str(value))} | toJson {_CLOSE}"
    return quoted(value)


def _expression(text: str) -> str:
    """Return a text with values in it as one expression."""
    plain, values = text.split(_VALUE)[::2], text.split(_VALUE)[1::2]
    if not any(plain):
        return values[0]
    form = "%s".join(part.replace("%", "%%") for part in plain)
    return " ".join(["printf", json.dumps(form), *values])


class _Translator(NodeTransformer):
    """A visitor that turns conditions and loops over a `Later` into text."""

    def __init__(self, later: Mapping[str, Later]) -> None:
        self._later = later

    def visit_If(self, node: nodes.If) -> Any:  # noqa: N802
        if not any(self._is_later(each.test) for each in (node, *node.elif_)):
            return self.generic_visit(node)
        if node.elif_:
            raise TemplateBroken(f"line {node.lineno}: elif has no translation")
        self.generic_visit(node)
        otherwise = [_action("else"), *node.else_] if node.else_ else []
        return [
            _action(f"if {self._condition(node.test)}"),
            *node.body,
            *otherwise,
            _action("end"),
        ]

    def visit_For(self, node: nodes.For) -> Any:  # noqa: N802
        self.generic_visit(node)
        if not self._is_later(node.iter):
            return node
        if not isinstance(node.iter, nodes.Name) or node.else_ or node.test:
            raise TemplateBroken(f"line {node.lineno}: this loop has no translation")
        target = node.target.items if isinstance(node.target, nodes.Tuple) else [node.target]
        names = [name.name for name in target if isinstance(name, nodes.Name)]
        listed = self._later[node.iter.name]
        begin = f"range {', '.join(f'${name}' for name in names)} := {listed.expression}"
        bound = [_bound(name, listed.each or f"${name}") for name in names]
        return [_action(begin), *bound, *node.body, _action("end")]

    def _is_later(self, node: nodes.Node) -> bool:
        inner = [node, *node.find_all(nodes.Name)]
        return any(isinstance(name, nodes.Name) and name.name in self._later for name in inner)

    def _condition(self, node: nodes.Node) -> str:
        match node:
            case nodes.Name() if node.name in self._later:
                return self._later[node.name].expression
            case nodes.Not():
                return f"(not {self._condition(node.node)})"
            case nodes.And() | nodes.Or():
                word = type(node).__name__.lower()
                return f"({word} {self._condition(node.left)} {self._condition(node.right)})"
        raise TemplateBroken(f"line {node.lineno}: this question has no translation")


def _action(words: str) -> nodes.Node:
    """Return an action on its own line; `-` removes the line break before it, as in Jinja."""
    data = nodes.TemplateData(f"\n{_OPEN}- {words} {_CLOSE}")
    return nodes.Output([data]).set_lineno(1)


def _bound(name: str, expression: str) -> nodes.Node:
    """Return an assignment that binds `name` to the current element of a Helm loop."""
    made = nodes.Call(nodes.Name(_LATER, "load"), [nodes.Const(expression)], [], None, None)
    return nodes.Assign(nodes.Name(name, "store"), made).set_lineno(1)
