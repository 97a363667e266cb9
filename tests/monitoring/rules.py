"""The alert rules of examples/monitoring, and the programs that judge them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import TOP
from tests import yaml_in_c as yaml

DIRECTORY = TOP / "examples" / "monitoring"
RULE = yaml.safe_load((DIRECTORY / "prometheusrule.yaml").read_text())
SCRAPE = yaml.safe_load((DIRECTORY / "scrape.yaml").read_text())
ALERTS: Mapping[str, Any] = {
    rule["alert"]: rule for group in RULE["spec"]["groups"] for rule in group["rules"]
}


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`: scripts/setup unpacks them beside Python."""
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    found = shutil.which(name, path=places)
    if found is None:
        pytest.fail(f"{name} is not there: scripts/setup test", pytrace=False)
    return found


def write_rules(directory: Path, *, at_once: bool = False) -> Path:
    """What Prometheus reads is what a PrometheusRule has as its `spec`.

    `at_once`: no alert waits before it fires.
    """
    text, path = yaml.safe_dump(RULE["spec"], sort_keys=False), directory / "rules.yaml"
    path.write_text(re.sub(r"for: \w+", "for: 0s", text) if at_once else text)
    return path
