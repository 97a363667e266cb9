"""Processes of a build that do not die, however often they are killed."""

from __future__ import annotations

import pytest

from nodeside.toolkit_sidecar import descendants

NOBODY = frozenset(range(1 << 30, (1 << 30) + 5000))  # larger than any pid


def test_of_many_that_do_not_die_some_are_named_and_all_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[dict[str, object]] = []
    monkeypatch.setattr(descendants, "_PATIENCE", 0.0)
    monkeypatch.setattr("nodeside.log.warning", lambda _, **facts: said.append(facts))
    assert descendants._kill_all(lambda: NOBODY) == 5000
    (facts,) = said
    assert facts["count"] == 5000
    assert str(facts["pids"]).split() == [str(pid) for pid in sorted(NOBODY)[:20]]
