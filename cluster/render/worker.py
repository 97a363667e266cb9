"""The process that renders templates of stages: one line of JSON in, one line of JSON out.

It limits its own memory and the processor time of each template, and cannot write files. A
segmentation fault, memory exhaustion or endless loop in a template ends only this process and fails
only that stage. There are no secrets in its environment and it has no connections. It imports
nothing but what rendering needs.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from typing import Any, Final

from cluster.render.templates import StageInvalid, render_to_documents

MEMORY: Final = 128 << 20  # bytes of address space; what rendering imports takes 26 MiB
SECONDS: Final = 5  # seconds of processor time for one template
NO_MEMORY: Final = 3  # the exit code
_MESSAGE = 1000  # characters of an error


def main(seconds: int = SECONDS) -> None:
    """Serve requests until the end of input, with `seconds` of processor time per template."""
    _set_limit(resource.RLIMIT_AS, MEMORY)
    _set_limit(resource.RLIMIT_CORE, 0)
    _set_limit(resource.RLIMIT_FSIZE, 0)
    try:
        for line in sys.stdin.buffer:
            # Beyond this limit the kernel sends SIGXCPU, which ends the process.
            _set_limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds)
            sys.stdout.buffer.write(_answer_request(json.loads(line)) + b"\n")
            sys.stdout.buffer.flush()
    except MemoryError:
        os._exit(NO_MEMORY)


def _set_limit(kind: int, limit: int) -> None:
    """Set the soft limit; no code here raises it again."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _answer_request(request: Any) -> bytes:
    try:
        values = json.loads(request["values"])
        pairs = render_to_documents(request["config_map"], dict(request["files"]), values)
    except StageInvalid as error:
        message = str(error)[:_MESSAGE].encode(errors="replace").decode()
        return json.dumps({"error": message}).encode()
    return json.dumps({"documents": pairs}, ensure_ascii=False).encode()
