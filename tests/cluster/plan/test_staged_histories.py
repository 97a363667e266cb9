"""A few of the histories in which stages end on nodes; `make chaos` has many."""

from __future__ import annotations

import pytest

from tests.cluster.plan.histories import often
from tests.cluster.plan.staged_histories import Staged, StagedWithJobs

TestStaged = Staged.TestCase
TestStaged.settings = often(12)
TestStagedWithJobs = pytest.mark.slow(StagedWithJobs.TestCase)
TestStagedWithJobs.settings = often(12)
