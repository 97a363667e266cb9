"""Whatever happens, in whatever order: a rollout keeps its promises (`histories.py`)."""

from __future__ import annotations

from tests.cluster.plan.histories import History, Liars, OnReboot, often
from tests.cluster.plan.unreliable_histories import Unreliable

_SOME = often(150)

TestLive = History.TestCase
TestLive.settings = _SOME
TestOnReboot = OnReboot.TestCase
TestOnReboot.settings = _SOME
TestLiars = Liars.TestCase
TestLiars.settings = _SOME
TestUnreliable = Unreliable.TestCase
TestUnreliable.settings = _SOME
