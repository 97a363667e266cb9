"""Documents and bytes, damaged on purpose: a little, cleverly, or beyond measure."""

from __future__ import annotations

import json
import random
from typing import Any

_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "\0", "..",
    "/etc/passwd", "../../x", "\ud800", "\x1b[2J", "a" * 70_000, [], {}, [[]] * 50, {"": {}},
)  # fmt: skip
_TOKENS = (b"\0", b"\xff" * 8, b"{", b"]", b"\n\n", b"9" * 300, b"../", b"\x7fELF", b"\x1f\x8b")


def damaged_bytes(data: bytes, fate: random.Random) -> bytes:
    """Cut, flipped, overwritten, doubled or filled with tokens, in one to four places."""
    made = bytearray(data)
    for _ in range(fate.randint(1, 4)):
        at = fate.randrange(len(made) + 1)
        kind = fate.randrange(6)
        if kind == 0 and made:
            made[at % len(made)] ^= 1 << fate.randrange(8)
        elif kind == 1:
            del made[at:]
        elif kind == 2:
            made[at:at] = fate.choice(_TOKENS)
        elif kind == 3:
            made[at : at + 8] = fate.randbytes(8)
        elif kind == 4:
            made[at:at] = made[at : at + fate.randrange(4096)]
        else:
            del made[at : at + fate.randrange(64)]
    return bytes(made)


def damaged_document(document: Any, fate: random.Random) -> Any:
    """A JSON document with one to three values that nobody expects, fields lost or added."""
    made = json.loads(json.dumps(document))
    for _ in range(fate.randint(1, 3)):
        made = _changed(made, fate)
    return made


def _changed(node: Any, fate: random.Random) -> Any:
    """Walk down at random, and change something where the walk ends."""
    if not isinstance(node, dict | list) or not node or fate.random() < 0.15:
        return fate.choice(_ODD)
    key = fate.choice(list(node)) if isinstance(node, dict) else fate.randrange(len(node))
    what = fate.random()
    if what < 0.7:
        node[key] = _changed(node[key], fate)
    elif what < 0.8:
        del node[key]
    elif isinstance(node, dict):
        node[fate.choice(("x", "", "schema", str(key) + " "))] = fate.choice(_ODD)
    else:
        node.append(fate.choice(_ODD))
    return node
