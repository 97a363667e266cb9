"""A container on this machine that cannot be entered."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.errors import SystemRefused
from nodeside.system import process
from nodeside.trial.host.container import make_entrance


def test_a_container_that_cannot_be_entered_is_said_with_what_it_takes(tmp_path: Path) -> None:
    layers = (tmp_path / "nowhere",)
    with (
        pytest.raises(SystemRefused) as caught,
        make_entrance(layers, tmp_path / "scratch", {}) as enter,
    ):
        process.run(["true"], wrapper=enter, timeout=60)

    assert str(caught.value) == (
        f"cannot enter a container of {layers[0]}: a namespace or a mount was refused"
    )
    assert "it takes root" in caught.value.hint
