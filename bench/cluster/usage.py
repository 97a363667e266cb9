"""What a process has used, and which requests were made, from metrics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families

Calls = Mapping[str, int]  # by verb and resource: "patch nodes"

_REVIEWS = ("tokenreviews", "subjectaccessreviews")  # our own scrapes cause these


@dataclass(frozen=True)
class Usage:
    """Since the process began. `peak` is its largest resident set so far, in MiB."""

    cpu: float
    peak: float
    calls: Counter[str] = field(default_factory=Counter)

    def since(self, before: Usage) -> Usage:
        """Processor time and calls since `before`; the peak stays that of the whole life."""
        return Usage(self.cpu - before.cpu, self.peak, self.calls - before.calls)

    @property
    def requests(self) -> int:
        """All calls but the opening of watches, which stay open, and the renewing of the lease."""
        return sum(n for what, n in self.calls.items() if not _is_background(what))

    def by_verb(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for what, number in self.calls.items():
            found[what.partition(" ")[0]] += number
        return found


def _is_background(what: str) -> bool:
    return what.startswith("watch ") or what.endswith(" leases")


def of_process(pid: int, calls: Calls) -> Usage:
    times = psutil.Process(pid).cpu_times()
    status = Path(f"/proc/{pid}/status").read_text()  # psutil knows no peak
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    peak = int(found[1]) / 1024 if found else 0.0
    return Usage(times.user + times.system, peak, Counter(calls))


def calls_of(exposition: str) -> Counter[str]:
    """Requests to the API server, from what a controller tells Prometheus."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name != "nodeside_api_requests_total":
                continue
            verb, resource = sample.labels["verb"], sample.labels["resource"]
            if resource not in _REVIEWS:
                found[f"{verb} {resource}"] += int(sample.value)
    return found


def served_of(exposition: str) -> Counter[str]:
    """Requests by verb, whoever made them, from what the API server tells Prometheus.

    Its health checks and scrapes are of no resource, and left out. A watch counts when it ends.
    """
    name = "apiserver_request_total{"
    lines = (line for line in exposition.splitlines() if line.startswith(name))
    found: Counter[str] = Counter()
    for line in lines:
        labels, _, value = line.removeprefix(name).rpartition("} ")
        said = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if said["resource"]:
            found[said["verb"]] += int(float(value))
    return found
