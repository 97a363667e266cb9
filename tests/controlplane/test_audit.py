"""Reading an audit log while the API server writes it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.controlplane.audit import Audit


def line(name: str) -> str:
    event = {"verb": "patch", "objectRef": {"resource": "nodes", "name": name}}
    return json.dumps({**event, "responseStatus": {"code": 200}}) + "\n"


def test_what_was_written_since_a_mark_is_read_line_by_line(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    assert (audit.mark(), audit.writes()) == (0, [])

    audit.log.write_text(line("n1"))
    mark = audit.mark()
    audit.log.write_text(line("n1") + line("n2") + line("n3")[:20])

    assert [write.name for write in audit.writes()] == ["n1", "n2"]
    assert [write.name for write in audit.writes(mark)] == ["n2"]


def test_a_line_that_is_being_written_at_the_mark_is_of_before(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    audit.log.write_text(line("n1") + line("n2")[:20])
    mark = audit.mark()

    audit.log.write_text(line("n1") + line("n2") + line("n3"))

    assert [write.name for write in audit.writes(mark)] == ["n3"]
