"""What the fuzz tests ask of every reader: our errors, that name the file, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nodeside.errors import NodesideError


@contextmanager
def only_our_errors(naming: str) -> Iterator[None]:
    """The block may succeed or refuse; a refusal names what was read."""
    try:
        yield
    except NodesideError as error:
        if naming not in str(error):
            pytest.fail(f"expected {naming} to be named in: {error}")
