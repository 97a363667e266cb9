"""What `explain` has one type: a row for all that it can show, and commands that are commands."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import cluster
import nodeside
from cluster.cli.advice import Subject, advise
from cluster.cli.remedies import (
    BY_CONDITION,
    BY_HEALTH,
    BY_MATCH,
    BY_PHASE,
    BY_REPORT,
    BY_UNLOAD,
    BY_WAITING,
    HELD_BY_PODS,
    NO_LEADER,
    SILENT,
    STAGE_NOT_READY,
    Remedy,
    Step,
    by_condition,
    by_report,
    by_waiting,
)
from cluster.driver.hardware import Match
from cluster.driver.nodes import CANNOT_PULL
from cluster.driver.status.conditions import COMPLAINTS
from cluster.driver.status.progress import PROGRESS
from cluster.kube.conditions import find_condition
from cluster.model.states import Health, Phase
from cluster.model.waiting import CRASH_LOOP
from cluster.options.stages.status import STAGE_REASONS
from cluster.options.unload.nodes import UnloadPhase
from cluster.reconcile.reverted_edits import REASON as CONTESTED
from nodeside.errors import DeadlinePassed, NodesideError, SystemRefused
from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.node_status import NOT_RESTORED, UNLOADED, WAITS_FOR_DRIVER
from tests.documents import anchors, parse

TOP = Path(__file__).parents[3]
CLUSTER, NODESIDE = Path(cluster.__file__).parent, Path(nodeside.__file__).parent
TABLES = (BY_CONDITION, BY_HEALTH, BY_MATCH, BY_PHASE, BY_REPORT, BY_UNLOAD, BY_WAITING)
ALL = Subject(
    namespace="nodeside",
    driver="edu",
    node="worker-0",
    pod="edu-ad6e281f6cb2-fhtlw",
    container="driver",
    toolkit="toolkit",
    daemonset="edu-ad6e281f6cb2",
    job="edu-build-341c67cd3e9c",
    unload="edu-unload-0123456789ab",
    image="quay.example.com/toolkit:5.14.0-427.el9.x86_64",
    kernel="5.14.0-427.el9.aarch64",
    os_version="418.94.202501221327-0",
    architecture="aarch64",
    has_way_back=True,
)
# Types and states of conditions; a reason of Available, which `explain` leaves to the others.
_NO_REASONS = {"Progressing", "Degraded", "StagesReady", "True", "False", "NodesLacking"}
# What the controller runs, whose errors are reasons of conditions.
_CONTROLLER = (
    *("cluster.kube", "cluster.reconcile", "cluster.plan", "cluster.options"),
    *("cluster.model", "cluster.render"),
)
# Programs that put no report on a node: the machines of `try`, the device agent.
_ELSEWHERE = ("nodeside.trial", "nodeside.device_agent")


def every_remedy() -> list[Remedy]:
    others = [NO_LEADER, SILENT, HELD_BY_PODS, STAGE_NOT_READY, by_condition("?")]
    return [*(row for table in TABLES for row in table.values()), *others, by_waiting("?")]


def errors_of(*packages: str, without: tuple[str, ...] = ()) -> Iterator[str]:
    """The reasons of all errors that these packages define."""
    for package in packages:
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    yield from {
        error.reason
        for error in _subclasses(NodesideError)
        if error.__module__.startswith(packages) and not error.__module__.startswith(without or "-")
    }


def _subclasses(kind: type[NodesideError]) -> Iterator[type[NodesideError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def written_reasons(files: Iterable[Path]) -> set[str]:
    """Each `reason="…"` of a call."""
    calls = (each for path in files for each in ast.walk(ast.parse(path.read_text())))
    words = (
        keyword.value.value
        for call in calls
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "reason" and isinstance(keyword.value, ast.Constant)
    )
    return {str(word) for word in words}


def camel_words(path: Path) -> set[str]:
    """Each string that is one CamelCase word."""
    nodes = ast.walk(ast.parse(path.read_text()))
    words = (each.value for each in nodes if isinstance(each, ast.Constant))
    return {word for word in words if isinstance(word, str) and re.fullmatch(_CAMEL, word)}


_CAMEL = r"([A-Z][a-z]+)+"


# --- nothing is without a row ---------------------------------------------------------------------


def test_every_health_phase_unload_and_match_has_a_row() -> None:
    assert set(BY_HEALTH) == set(Health)
    assert set(BY_PHASE) == set(Phase)
    assert set(BY_UNLOAD) == set(UnloadPhase)
    assert set(BY_MATCH) == set(Match)


def test_every_reason_of_a_condition_has_a_row_and_nothing_else_has() -> None:
    shown = {*COMPLAINTS, *(reason for reason, *_ in PROGRESS), *STAGE_REASONS.values(), CONTESTED}
    for file in ("conditions", "messages", "problems", "progress"):
        shown |= camel_words(CLUSTER / f"driver/status/{file}.py")
    shown |= camel_words(CLUSTER / "model/problems.py")
    shown |= {find_condition({}, "Ready")["reason"]}  # before the first status
    shown |= set(errors_of(*_CONTROLLER, without=("cluster.kube.credentials",)))
    # Of the renderer's process; of a node that waits.
    shown |= {SystemRefused.reason, DeadlinePassed.reason, WAITS_FOR_DRIVER}
    shown -= _NO_REASONS
    assert len(shown) > 45
    assert set(BY_CONDITION) - shown == set()
    assert shown - set(BY_CONDITION) == set()


def test_a_kind_that_cannot_be_read_has_a_remedy_whatever_it_is() -> None:
    assert by_condition("PodsUnreadable") == by_condition("ImageStreamsUnreadable")
    assert Step.CHECK in by_condition("PodsUnreadable").steps


def test_everything_that_a_node_can_report_has_a_row_and_nothing_else_has() -> None:
    driver = [*(NODESIDE / "driver").rglob("*.py"), *(NODESIDE / "toolkit_sidecar").rglob("*.py")]
    shown = (
        {kind.reason for kind in FailureKind} | {UNLOADED, NOT_RESTORED} | written_reasons(driver)
    )
    shown |= set(errors_of("nodeside", without=_ELSEWHERE))
    assert len(shown) > 60
    assert set(BY_REPORT) - shown == set()
    assert shown - set(BY_REPORT) == set()


def test_what_a_newer_node_or_kubelet_says_has_a_remedy_too() -> None:
    for remedy in (by_report("Strange"), by_waiting("Strange"), by_condition("Strange")):
        assert remedy.steps
    assert {CRASH_LOOP, *CANNOT_PULL} <= set(BY_WAITING)


def test_no_step_is_for_nothing() -> None:
    used = {step for remedy in every_remedy() for step in remedy.steps}
    assert used == set(Step)


# --- the commands ---------------------------------------------------------------------------------


def command_of(step: Step, subject: Subject = ALL) -> str:
    [advice] = advise([Remedy((step,))], subject)
    return advice.command


# What may follow `kubectl`: an object and its namespace, or the whole cluster.
_NAME, _IN = r"[a-z0-9][a-z0-9.-]*", r"-n [a-z0-9-]+"
_KUBECTL = (
    rf"logs {_IN} {_NAME}( -c {_NAME}( --previous)?)?",
    rf"logs {_IN} (job/{_NAME} -c answer|deployment/{_NAME})",
    rf"describe (pod|daemonset|secret) {_IN} {_NAME}",
    rf"describe pods {_IN} -l job-name={_NAME}",
    rf"describe (node|driver) {_NAME}",
    rf"get {_IN} pods,leases",
    rf"get pods {_IN} -o wide -l nodeside.io/driver={_NAME},nodeside.io/stage",
    rf"get pods -A -o wide --field-selector spec.nodeName={_NAME}",
    r"get nodes (-o wide|--show-labels)",
    rf"get node {_NAME} --show-labels",
    r"get poddisruptionbudgets -A",
    rf"exec {_IN} {_NAME} -c driver -- nodeside driver (status|doctor|validate)",
    rf"delete job {_IN} {_NAME}",
    rf"edit driver {_NAME}",
    rf"annotate driver {_NAME} nodeside.io/leave-modules=true",
    rf"drain {_NAME} --ignore-daemonsets",
)


@pytest.mark.parametrize("namespace", ["nodeside", "drivers-a"])
@pytest.mark.parametrize("step", Step)
def test_every_step_is_a_command(step: Step, namespace: str) -> None:
    program, *words = shlex.split(command_of(step, replace(ALL, namespace=namespace)))
    if program == "nodeside-cluster":
        parse(program, words)
        assert ("--namespace" in words) == (namespace != "nodeside")
        return
    assert program == "kubectl"
    assert any(re.fullmatch(shape, " ".join(words)) for shape in _KUBECTL), words
    if "-n" in words:
        assert words[words.index("-n") + 1] == namespace
    if "--" in words:
        parse("nodeside", words[words.index("--") + 2 :])


def test_a_step_whose_field_is_not_known_is_left_out() -> None:
    assert advise([Remedy((Step.LOG, Step.RESTART))], Subject("nodeside", "edu")) == ()
    [kept] = advise([Remedy((Step.LOG, Step.RETRY))], Subject("nodeside", "edu"))
    assert kept.command == "nodeside-cluster retry edu"


def test_the_usual_architecture_and_an_unknown_kernel_need_no_option() -> None:
    usual = replace(ALL, architecture="", kernel="")
    assert command_of(Step.RESOLVE, usual) == (
        "nodeside-cluster resolve 418.94.202501221327-0 --driver edu"
    )
    assert "--architecture=aarch64" in command_of(Step.RESOLVE)


def test_without_a_version_to_go_back_to_no_way_back_is_offered() -> None:
    assert advise([Remedy((Step.UNDO,))], replace(ALL, has_way_back=False)) == ()


@pytest.mark.parametrize("name", ["--previous", "-n", "a\nb", "\x1b[2J", " x"])
def test_a_name_from_a_kubelet_is_no_option_and_moves_no_cursor(name: str) -> None:
    assert advise([Remedy((Step.LOG,))], replace(ALL, container=name)) == ()


def test_a_name_from_a_kubelet_is_one_word_of_a_shell() -> None:
    said = command_of(Step.LOG, replace(ALL, container="x; reboot"))
    assert shlex.split(said)[-1] == "x; reboot"


def test_each_step_and_page_is_named_once_in_the_order_look_repeat_go_back() -> None:
    one = Remedy((Step.UNDO, Step.RESTART, Step.LOG), "docs/cluster.md")
    two = Remedy((Step.POD, Step.RESTART), "docs/cluster.md")
    said = advise([one, two], ALL)
    looks = [Step.LOG.why, Step.POD.why]
    assert [each.why for each in said] == [*looks, Step.RESTART.why, Step.UNDO.why, "read"]


# --- the pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", sorted({each.page for each in every_remedy() if each.page}))
def test_every_page_is_one_and_has_the_section(page: str) -> None:
    path, _, anchor = page.partition("#")
    assert (TOP / path).exists()
    assert not anchor or anchor in anchors(TOP / path)
