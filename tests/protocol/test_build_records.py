"""What a failed build means to those who asked for it."""

from __future__ import annotations

import pytest

from nodeside.protocol.build_records import FailureKind

# Exit code, whether to retry, and whose fault it is, as an administrator is told.
FAILURES = {
    FailureKind.NO_HEADERS: (21, "for good", "toolkit"),
    FailureKind.WRONG_KERNEL: (22, "for good", "toolkit"),
    FailureKind.WRONG_COMPILER: (22, "for good", ""),
    FailureKind.NO_TOOLS: (22, "for good", ""),
    FailureKind.NO_EXEC: (22, "for good", ""),
    FailureKind.EXCLUDED: (77, "for good", "driver"),
    FailureKind.BAD_SOURCE: (3, "for good", "driver"),
    FailureKind.COMPILE: (10, "for good", "driver"),
    FailureKind.NO_MODULE: (11, "for good", "driver"),
    FailureKind.OUT_OF_MEMORY: (53, "for good", ""),
    FailureKind.DISK_FULL: (51, "may pass", ""),
    FailureKind.TIMEOUT: (50, "may pass", ""),
    FailureKind.PROTOCOL: (52, "for good", ""),
    FailureKind.INTERNAL: (1, "may pass", ""),
}


@pytest.mark.parametrize("kind", FailureKind)
def test_every_failure_of_a_build_has_an_exit_code_and_says_whether_to_retry(
    kind: FailureKind,
) -> None:
    assert FAILURES[kind] == (
        kind.exit_code,
        "may pass" if kind.retryable else "for good",
        "toolkit" * kind.of_the_toolkit + "driver" * kind.of_the_driver,
    )
