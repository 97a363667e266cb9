"""A container in a crash loop: what its exit code means, and how often it was started again."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.model.names import STAGE_LABEL
from cluster.model.parse_pods import pod_from
from cluster.model.waiting import Crash, waiting_message
from nodeside.errors import ExitCode

BACK_OFF = "back-off 5m0s restarting failed container=driver pod=edu-0_nodeside(1)"


def crashing(
    code: object, reason: str = "Error", restarts: int = 7, stage: str = "", message: str = ""
) -> str:
    """What is said of a pod as the kubelet reports one whose container `driver` crashes."""
    container: dict[str, Any] = {
        "name": "driver",
        "ready": False,
        "restartCount": restarts,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": BACK_OFF}},
        "lastState": {
            "terminated": {
                "exitCode": code,
                "reason": reason,
                "message": message,
                "startedAt": "2026-11-28T12:00:00Z",
                "finishedAt": "2026-11-28T12:00:01Z",
                "containerID": "containerd://0123",
            }
        },
    }
    labels = {STAGE_LABEL: stage} if stage else {}
    pod = {"metadata": {"labels": labels}, "status": {"containerStatuses": [container]}}
    return waiting_message(pod_from(pod).waiting)


def test_a_crash_loop_has_the_exit_code_in_words_and_the_number_of_restarts() -> None:
    said = crashing(22)
    meaning = "the toolkit cannot build for this kernel (compiler, kbuild tools, noexec)"
    assert said == f"driver: Crashed: exit code 22 ({meaning}), restarted 7 times"
    assert crashing(22, restarts=1).endswith("), restarted once")


@pytest.mark.parametrize("code", [each for each in ExitCode if each])
def test_every_exit_code_of_ours_is_said_in_the_words_of_the_table(code: ExitCode) -> None:
    assert f"exit code {code.value} ({code.meaning})" in crashing(int(code))


@pytest.mark.parametrize(
    ("code", "reason", "meaning"),
    [
        (137, "OOMKilled", "killed by SIGKILL: out of memory, it may use no more"),
        (137, "Error", "killed by SIGKILL: mostly for its memory, or since"),
        (139, "Error", "killed by SIGSEGV: it used memory that is not its own"),
        (143, "Error", "ended by SIGTERM: it was told to end"),
        (135, "Error", "killed by SIGBUS"),
        (127, "Error", "its program, or one that it calls, is not in the image"),
        (0, "Completed", "it ended without an error, but is to keep running"),
        (199, "Error", "an exit code of the program itself: its log says more"),
        (-1, "Error", "an exit code of the program itself: its log says more"),
    ],
)
def test_an_exit_code_that_is_not_ours_is_said_in_words_too(
    code: int, reason: str, meaning: str
) -> None:
    assert f"exit code {code} ({meaning}" in crashing(code, reason)


def test_what_could_not_be_started_says_why() -> None:
    said = crashing(128, "StartError", message='exec: "nodeside":\nnot found')
    assert '(it could not be started: exec: "nodeside": not found), restarted 7' in said


def test_the_exit_codes_of_a_stage_are_those_of_its_own_programs() -> None:
    assert "compile" not in crashing(10, stage="plugin")
    assert "exit code 1 (an error: its log says more)" in crashing(1, stage="plugin")
    assert "the module does not compile" in crashing(10, stage="devices")  # nodeside's own


def test_a_crash_without_a_code_is_said_as_the_kubelet_does() -> None:
    assert crashing(None) == f"driver: CrashLoopBackOff: {BACK_OFF}"
    assert crashing("22") == f"driver: CrashLoopBackOff: {BACK_OFF}"


def test_a_container_that_pulls_has_not_crashed() -> None:
    """Its last end is still in its status after an image was changed."""
    waiting = {"reason": "ImagePullBackOff", "message": "manifest unknown"}
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    container = {"name": "driver", "state": {"waiting": waiting}, "lastState": ended}
    found = pod_from({"status": {"containerStatuses": [container]}}).waiting
    assert waiting_message(found) == "driver: ImagePullBackOff: manifest unknown"
    assert found["driver"].crash is None


def test_the_number_of_a_crash_is_a_part_of_it() -> None:
    assert Crash(1, restarts=1) != Crash(1, restarts=2)
