"""`status`: what the controller wrote, and a word where that is not of now."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace

import pytest

from cluster.cli.leader_status import LeaderStatus
from cluster.cli.status import Need, NoSuchObject, Overview, need_of, overview, verdict
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.stagedriver import up, with_stages

LEADS = LeaderStatus(True)
NOBODY = LeaderStatus(False, "no controller leads; see kubectl -n nodeside get pods")


def ready() -> Model:
    made = Model()
    made.add(["n1", "n2"])
    made.apply_driver()
    made.settle_ready()
    return made


def shown(made: Model, who: LeaderStatus = LEADS) -> Overview:
    return overview(made.snapshot.drivers, who)


def lines_of(found: Overview) -> list[str]:
    return [" ".join(line.split()) for line in found.table().splitlines()]


COUNTS = "NODES UPDATED READY FAILED"


def test_status_begins_with_a_verdict_and_has_a_line_for_each_driver() -> None:
    found = shown(ready())

    assert lines_of(found) == [
        "driver edu is ready",
        f"DRIVER VERSION {COUNTS} STATUS",
        "edu 1.0.0 2 2 2 0 Ready",
    ]
    assert found.ready


def test_pools_are_shown_if_one_driver_or_they_are_asked_for() -> None:
    drivers = ready().snapshot.drivers
    one = lines_of(overview(drivers, LEADS, "edu"))
    all_of_them = lines_of(overview(drivers, LEADS, detailed=True))

    assert one == all_of_them
    assert one[3:] == [
        "",
        f"OS VERSION KERNEL {COUNTS} TOOLKIT WHY",
        "debian12 6.1.0-50-amd64 2 2 2 0 template",
    ]


def test_with_several_drivers_each_pool_has_the_name_of_its_driver() -> None:
    made = failing()

    assert "OS VERSION" not in shown(made).table()
    details = lines_of(overview(made.snapshot.drivers, LEADS, detailed=True))[5:]

    assert details[0].startswith("DRIVER OS VERSION KERNEL")
    assert [row.split()[0] for row in details[1:]] == ["edu", "net-with-a-long-name"]


def test_a_sentence_about_a_driver_is_not_repeated_about_its_stages() -> None:
    model = up(with_stages(2))
    model.config_map("two", ds_yaml="{{ nothing }}")
    model.settle()

    found = overview(model.snapshot.drivers, LEADS, "edu")

    verdict, _, row, *details = lines_of(found)
    wrong = "ConfigMap two, ds.yaml, line 1: 'nothing' is undefined"
    assert verdict == "driver edu needs you"
    assert row.endswith(f"2 0 StageInvalid -> works on 2 nodes; stage second: {wrong}")
    assert "STAGE NODES READY STATE WHY" in details
    assert details[-2:] == ["first 2 2 Ready", "second 2 2 Invalid"]
    assert found.ready, "the driver works"


def test_a_sentence_about_a_driver_is_not_repeated_about_its_pool() -> None:
    made = Model()
    made.add(["n1"])
    made.apply_driver(toolkit={})
    made.settle()

    lines = lines_of(overview(made.snapshot.drivers, LEADS, "edu"))

    [row] = made.drivers["edu"].status["pools"]
    assert row["message"].startswith("no toolkit image")
    assert " ".join(lines).count("no toolkit image") == 1
    assert lines[-1].endswith(" 1 0 0 0 none ToolkitMissing")


@pytest.mark.parametrize(
    ("conditions", "need"),
    [
        ("Ready=True:Ready", Need.NOTHING),
        ("Ready=True:StagesProgressing Progressing=False", Need.TIME),
        ("Ready=True:StageFailed Degraded=True", Need.YOU),
        ("Ready=False:RollingOut Progressing=True Degraded=False", Need.TIME),
        ("Ready=False:NodesFailed Progressing=True Degraded=True", Need.YOU),
        ("Ready=False:RolloutPaused Progressing=False Degraded=False", Need.YOU),
        ("Ready=Unknown:NodesUnreadable Progressing=Unknown", Need.YOU),
    ],
)
def test_a_driver_needs_what_its_conditions_say(conditions: str, need: Need) -> None:
    made = ready()
    kinds = [word.partition("=")[::2] for word in conditions.split()]
    told = [
        {"type": kind, "status": said.partition(":")[0], "reason": said.partition(":")[2]}
        for kind, said in kinds
    ]
    observed = replace(made.drivers["edu"], status={"observedGeneration": 1, "conditions": told})

    assert need_of(observed) is need


@pytest.mark.parametrize(
    ("needs", "sentence"),
    [
        ("NOTHING NOTHING NOTHING", "all 3 drivers are ready"),
        ("NOTHING YOU YOU", "2 of 3 drivers need you"),
        ("NOTHING YOU TIME", "1 of 3 drivers needs you; 1 is on the way"),
        ("YOU TIME TIME", "1 of 3 drivers needs you; 2 are on the way"),
        ("NOTHING TIME", "1 of 2 drivers is on the way"),
        ("TIME TIME", "2 of 2 drivers are on the way"),
        ("YOU", "driver d0 needs you"),
        ("TIME", "driver d0 is on its way; nothing to do"),
    ],
)
def test_the_verdict_is_one_sentence(needs: str, sentence: str) -> None:
    assert verdict({f"d{i}": Need[word] for i, word in enumerate(needs.split())}) == sentence


def failing() -> Model:
    """Two Drivers, one of which fails on a node for a long reason."""
    made = ready()
    made.apply_driver("net-with-a-long-name", modules=[{"name": "net"}], rollout={"canary": 0})
    made.settle()
    made.report_all(driver="net-with-a-long-name")
    made.settle()
    why = "edu.c:42:9: error: too few arguments to function 'dma_alloc_coherent'"
    made.report("n1", State.FAILED, reason="BuildFailed", message=why)
    made.settle()
    return made


def test_in_80_columns_every_line_fits_and_the_reason_is_below_its_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda _: os.terminal_size((80, 24)))

    lines = shown(failing()).table().splitlines()

    assert max(map(len, lines)) <= 80
    first, head, row, why, *_, last = lines
    assert first == "1 of 2 drivers needs you"
    assert head.endswith("STATUS")
    assert row.endswith("NodesFailed")
    assert why.startswith("    -> ")
    assert last.split()[-1] == "Ready"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colors_follow_the_conditions_and_no_word_of_a_header_or_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = failing()
    made.apply_driver("ready", version="9.0.0")  # a name like a state; nobody has seen it
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Terminal())

    lines = shown(made).table().splitlines()

    assert lines[0] == "\x1b[31m1 of 3 drivers needs you; 1 is on the way\x1b[0m"
    assert "\x1b" not in lines[1]
    painted = {line.split()[0]: re.findall(r"\x1b\[(3\d)m([^\x1b]+)", line) for line in lines[2:]}
    assert painted == {
        "edu": [("31", "1"), ("31", "NodesFailed")],
        "net-with-a-long-name": [("32", "Ready")],
        "ready": [("33", "Unknown")],
    }


def test_status_as_json_is_the_status_of_the_drivers() -> None:
    made = ready()

    document = json.loads(shown(made).json())

    assert document["edu"] == made.drivers["edu"].status
    assert document["edu"]["nodes"]["ready"] == 2


def test_a_failure_is_what_makes_a_driver_not_ready() -> None:
    made = ready()
    made.report("n1", State.FAILED, reason="BuildFailed", message="edu.c:42: error")
    made.settle()

    assert not shown(made).ready
    assert "NodesFailed" in shown(made).table()


def test_without_a_controller_that_comes_first_and_nothing_is_called_ready() -> None:
    made = ready()
    made.add(["n3"])

    found = shown(made, NOBODY)

    first, empty, _, row = found.table().splitlines()
    assert first == NOBODY.words, "no verdict about what nobody looks after"
    assert empty == ""
    assert " ".join(row.split()) == "edu 1.0.0 2 2 2 0 Ready", "what is there, not what would be"
    assert not found.ready


def test_who_may_not_read_the_lease_still_sees_the_drivers() -> None:
    found = shown(
        ready(), LeaderStatus(None, "whether a controller leads is not known: no permission")
    )

    assert found.ready
    verdict, unknown, *_ = found.table().splitlines()
    assert verdict == "driver edu is ready"
    assert unknown.startswith("whether a controller leads is not known")


def test_a_status_of_an_older_document_is_said_to_be_one() -> None:
    made = ready()
    made.apply_driver(version="2.0.0")

    found = shown(made)

    words = " ".join(found.table().split())
    assert "Ready -> the status is about generation 1; the Driver has changed since" in words
    assert not found.ready


def test_a_driver_that_nobody_looked_at_is_not_ready() -> None:
    made = Model()
    made.apply_driver()

    assert not shown(made).ready
    assert "not reported yet" in shown(made).table()


def test_status_of_an_empty_cluster_says_how_to_begin() -> None:
    assert shown(Model()).table().endswith("kubectl apply -f driver.yaml")


def test_a_driver_that_is_not_there_is_said_with_what_is() -> None:
    with pytest.raises(NoSuchObject, match="no Driver 'none' in this cluster") as caught:
        overview(ready().snapshot.drivers, LEADS, "none")

    assert caught.value.hint == "there is: edu"
