"""Fixtures of the sidecar's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.toolkit_sidecar.faketoolkit import FakeToolkit
from tests.toolkit_sidecar.warm import no_orphans


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with no_orphans():
        yield


@pytest.fixture
def toolkit(tmp_path: Path) -> FakeToolkit:
    return FakeToolkit(tmp_path)
