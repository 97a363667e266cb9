"""A few of the histories in which nodes are emptied; `make chaos` has many."""

from __future__ import annotations

from tests.cluster.plan.evicting_histories import Emptied
from tests.cluster.plan.histories import often

TestEmptied = Emptied.TestCase
TestEmptied.settings = often(12)
