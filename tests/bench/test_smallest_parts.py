"""Every part of the bench that needs root works: at its smallest size, once.

What was measured is not judged: only that it was.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.smallest import measure, measured


@pytest.mark.toolkit
def test_builds_and_what_surrounds_them_are_measured(tmp_path: Path) -> None:
    found = measure("builds", "handoff", "footprint", "failure", page=tmp_path / "page.md")

    measured(found["Builds"], "hello (1)", "hello")
    measured(
        found["Hand-off"],
        "request visible → the sidecar says that it begins",
        "request visible → the sidecar's answer visible (it refuses at once)",
        "result visible → the driver has said what is in it",
    )
    measured(
        found["Start and memory"],
        "`nodeside --help`",
        "`nodeside driver run --once`, loaded",
        "PSS of the sidecar, idle",
    )
    measured(found["A failure is reported"], "make ended → reported")
    assert len(found["Goals"]) == 9, "with the header"


@pytest.mark.toolkit
def test_the_images_and_the_device_agent_in_its_own_are_measured(tmp_path: Path) -> None:
    found = measure("images", "devices", page=tmp_path / "page.md")

    measured(found["Images"], "nodeside-driver", "nodeside-cluster")
    agent = found["Device agent"]
    measured(agent, "start → first list", "PSS of all processes, idle", "processor, idle")
    assert agent["device changes → the kubelet has the list"][1] == "never"


@pytest.mark.vm
def test_what_takes_a_machine_is_measured(tmp_path: Path) -> None:
    found = measure("starts", "trials", page=tmp_path / "page.md")

    measured(
        found["Start → ready on a real kernel"],
        "`insmod edu.ko` alone",
        "`nodeside driver run --once`, module loaded",
        "`nodeside driver run --once`, bundle in the cache",
    )
    measured(found["Trials"], "`nodeside try`, nothing has changed", "`--watch`: saved → ready")
