"""The process that renders templates of stages: a line of JSON in, a line of JSON out.

It limits its own memory and the processor time of each template, and may write no file. Whatever a
template makes of it (a segmentation fault, no memory, no end) is the end of this process and the
failure of that one stage. It has no secret in its environment, and no connection. Started by
renderer.py; imports what rendering takes and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from typing import Any, Final

from cluster.render.templates import StageInvalid, documents

MEMORY: Final = 128 << 20  # bytes of address space; what rendering imports takes 26 MiB
SECONDS: Final = 5  # of processor time, for one template
NO_MEMORY: Final = 3  # the exit code
_WORDS = 1000  # characters of an error


def main(seconds: int = SECONDS) -> None:
    """Answer until there is no more to answer; `seconds` of processor time for each template."""
    _limit(resource.RLIMIT_AS, MEMORY)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    try:
        for line in sys.stdin.buffer:
            # Beyond it the kernel sends SIGXCPU, which ends the process.
            _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds)
            sys.stdout.buffer.write(_answer(json.loads(line)) + b"\n")
            sys.stdout.buffer.flush()
    except MemoryError:
        os._exit(NO_MEMORY)


def _limit(what: int, most: int) -> None:
    """The soft limit; nothing here knows how to raise it again."""
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _answer(asked: Any) -> bytes:
    try:
        made = documents(asked["config_map"], dict(asked["files"]), json.loads(asked["values"]))
    except StageInvalid as error:
        words = str(error)[:_WORDS].encode(errors="replace").decode()
        return json.dumps({"error": words}).encode()
    return json.dumps({"documents": made}, ensure_ascii=False).encode()
