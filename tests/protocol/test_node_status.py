"""What other programs match in a log."""

from __future__ import annotations

import pytest

from nodeside.protocol.node_status import READY_PATTERN, NodeDriverStatus, Rung, State, ready_marker
from nodeside.system.host import Kernel

KERNEL = Kernel("6.12.107+deb12-amd64", "#1 SMP PREEMPT_DYNAMIC Debian", "x86_64")


@pytest.mark.parametrize("source", Rung)
def test_the_ready_marker_fits_its_pattern(source: Rung) -> None:
    line = ready_marker(
        NodeDriverStatus(
            *("edu", "node", State.READY, "1.0", KERNEL.release, "boot"),
            source=source,
            modules=("edu", "edu2"),
        )
    )
    assert line == (
        "NODESIDE_READY driver=edu version=1.0 kernel=6.12.107+deb12-amd64 "
        f"source={source.value} modules=edu,edu2"
    )
    found = READY_PATTERN.fullmatch(line)
    assert found is not None
    assert found.groupdict()["modules"] == "edu,edu2"
