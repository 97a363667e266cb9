"""What the controller wrote, by the API server's own audit log: each request that reached it.

The log is written before the answer is sent, so it is whole, whoever was killed meanwhile.
https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONTROLLER = "system:serviceaccount:nodeside:nodeside-controller"
_WRITES = ("create", "update", "patch", "delete", "deletecollection")
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "Metadata", "users": [_CONTROLLER], "verbs": list(_WRITES)},
        {"level": "None"},
    ],
}
_ASIDE = ("leases", "events")  # who leads, and what people are told: neither changes anything


@dataclass(frozen=True)
class Write:
    """One request. `code` is the HTTP status of its answer."""

    verb: str
    plural: str
    name: str
    code: int

    @property
    def kind(self) -> str:
        return f"{self.verb} {self.plural}"


@dataclass(frozen=True)
class Audit:
    """The log in the directory of a control plane."""

    directory: Path

    @property
    def log(self) -> Path:
        return self.directory / "audit.log"

    def flags(self) -> tuple[str, ...]:
        """For the API server; writes the policy."""
        policy = self.directory / "audit-policy.json"
        policy.write_text(json.dumps(_POLICY))
        return f"--audit-policy-file={policy}", f"--audit-log-path={self.log}"

    def mark(self) -> int:
        """Here is now: for `writes(since)`."""
        return self.log.stat().st_size if self.log.exists() else 0

    def writes(self, since: int = 0) -> list[Write]:
        """What was written since then, but for leases and events."""
        found = (_write(line) for line in self._lines(since))
        return [write for write in found if write.plural.partition("/")[0] not in _ASIDE]

    def _lines(self, since: int) -> Iterator[str]:
        """Whole lines only. One that was being written at the mark is of before."""
        if self.log.exists():
            with self.log.open("rb") as file:
                file.seek(max(0, since - 1))
                text = file.read()
            begun = text.partition(b"\n")[2] if since else text
            whole, _, _ = begun.rpartition(b"\n")
            yield from whole.decode().splitlines()


def _write(line: str) -> Write:
    event: dict[str, Any] = json.loads(line)
    of = event.get("objectRef") or {}
    plural = "/".join(part for part in (of.get("resource"), of.get("subresource")) if part)
    code = int((event.get("responseStatus") or {}).get("code", 0))
    return Write(event["verb"], plural, of.get("name", ""), code)


def counted(writes: list[Write]) -> str:
    """`patch nodes: 20, patch drivers/status: 5`, for a person."""
    kinds = Counter(write.kind for write in writes)
    return ", ".join(f"{kind}: {count}" for kind, count in kinds.most_common())
