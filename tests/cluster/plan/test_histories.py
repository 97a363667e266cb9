"""Whatever happens, in whatever order: a rollout keeps its promises (`histories.py`).

A few of the histories; `make chaos` has many."""

from __future__ import annotations

import pytest

from tests.cluster.plan.histories import History, Liars, OnReboot, often
from tests.cluster.plan.unreliable_histories import Unreliable

TestLive = History.TestCase
TestLive.settings = often(60)
TestOnReboot = pytest.mark.slow(OnReboot.TestCase)
TestOnReboot.settings = often(60)
TestLiars = Liars.TestCase
TestLiars.settings = often(60)
TestUnreliable = pytest.mark.slow(Unreliable.TestCase)
TestUnreliable.settings = often(60)
