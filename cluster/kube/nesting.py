"""Decodes JSON however deeply it nests.

The API server accepts about 10,000 levels in `managedFields`, from anyone who may patch an object:
a node patches its own Node. The json module raises RecursionError at about 1,000, and no recursion
limit suits every stack. So where json gives up, all below `_LEVELS` is replaced by null, without
recursion.
Nothing that we read nests that deep. Pure.
"""

from __future__ import annotations

import json
import re
from typing import Any

_LEVELS = 100
_DECODER = json.JSONDecoder()
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


def decode_json(data: bytes) -> Any:
    """Decode a document. Raises ValueError if it is not JSON."""
    try:
        return json.loads(data)
    except RecursionError:
        text = data.decode()
        shallow, end = _without_deep(text, 0)
        return json.loads(shallow + text[end:])


def decode_json_at(text: str, at: int) -> tuple[Any, int]:
    """Decode the value at `at`; return it and the position after it. Raises ValueError."""
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        shallow, end = _without_deep(text, at)
        return json.loads(shallow), end


def _without_deep(text: str, at: int) -> tuple[str, int]:
    """Return the array or object at `at` without what is too deep, and the position after it."""
    pieces, level = [], 0
    for token in _TOKEN.finditer(text, at):
        if token[0] in ("[", "{"):
            level += 1
            if level == _LEVELS + 1:
                pieces += [text[at : token.start()], "null"]
        elif token[0] in ("]", "}"):
            if level == _LEVELS + 1:
                at = token.end()
            level -= 1
            if not level:
                return "".join([*pieces, text[at : token.end()]]), token.end()
    raise ValueError("it is cut off")
