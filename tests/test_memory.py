"""What a test has freed does not stay with the process, whose forks would pay for it."""

from __future__ import annotations

import resource
from pathlib import Path

_BLOCK = 8 << 20  # bytes


def held() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_large_block_goes_back_when_it_is_freed() -> None:
    before, small = held(), []
    for _ in range(2):  # malloc learns from the first round
        blocks = []
        for _ in range(8):
            blocks.append(b"x" * _BLOCK)
            small.append(b"x" * 100_000)  # what keeps a block below it from being given back
        assert held() - before > 7 * _BLOCK
        del blocks

    assert held() - before < 2 * _BLOCK
