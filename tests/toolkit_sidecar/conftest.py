"""Fixtures of the sidecar's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolkit_sidecar.faketoolkit import FakeToolkit


@pytest.fixture
def toolkit(tmp_path: Path) -> FakeToolkit:
    return FakeToolkit(tmp_path)
