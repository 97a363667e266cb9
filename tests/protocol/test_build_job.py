"""The records of a build in steps: which kernel is meant, and what fits into a message."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nodeside.errors import NoHeaders
from nodeside.protocol.build_job import (
    MESSAGE_LIMIT,
    BuildOutcome,
    BuildVerdict,
    ToolkitKernel,
    ToolkitKernels,
    choose_kernel,
    kernel_variant,
    read_outcome,
    termination_message,
)
from nodeside.protocol.build_records import FailureKind

PLAIN = ToolkitKernel("5.14.0-427.el9.x86_64", "#1 SMP PREEMPT_DYNAMIC", "sha512")
REALTIME = ToolkitKernel("5.14.0-427.el9.x86_64+rt", "#1 SMP PREEMPT_RT", "sha512")
BOTH = ToolkitKernels("boot", (PLAIN, REALTIME))


@pytest.mark.parametrize(
    ("release", "variant"),
    [
        ("5.14.0-427.el9.x86_64", ""),
        ("5.14.0-427.el9.x86_64+rt", "rt"),
        ("5.14.0-427.el9.aarch64+64k", "64k"),
        ("5.14.0-427.el9.aarch64+64k-debug", "64k-debug"),
        ("4.18.0-305.rt7.72.el8.x86_64", "rt"),
        ("6.1.0-50-rt-amd64", "rt"),
        ("6.1.0-50-cloud-amd64", ""),
        ("6.8.0-40-generic", ""),
        ("5.14.0-start.el9", ""),
    ],
)
def test_the_variant_of_a_kernel_stands_in_its_release(release: str, variant: str) -> None:
    assert kernel_variant(release) == variant


def test_a_kernel_is_chosen_by_release_by_variant_or_because_it_is_the_only_one() -> None:
    assert choose_kernel(BOTH, release=REALTIME.release) == REALTIME
    assert choose_kernel(BOTH, variant="") == PLAIN
    assert choose_kernel(BOTH, variant="rt") == REALTIME
    assert choose_kernel(ToolkitKernels("boot", (PLAIN,))) == PLAIN


def test_a_kernel_that_the_toolkit_does_not_have_is_named_with_those_it_has() -> None:
    with pytest.raises(NoHeaders) as caught:
        choose_kernel(BOTH, release="5.14.0-503.el9.x86_64")
    assert str(caught.value) == (
        "the toolkit image has headers of 5.14.0-427.el9.x86_64, 5.14.0-427.el9.x86_64+rt; "
        "expected 5.14.0-503.el9.x86_64"
    )
    with pytest.raises(NoHeaders, match="no kernel at all; expected exactly one plain kernel"):
        choose_kernel(ToolkitKernels("boot", ()), variant="")
    with pytest.raises(NoHeaders, match=r"el9.x86_64\+rt; expected exactly one kernel"):
        choose_kernel(BOTH)


def test_headers_that_do_not_say_which_build_they_are_of_give_no_key() -> None:
    with pytest.raises(
        NoHeaders, match=r"6\.1\.0 do not contain the kernel's version .*part of a bundle"
    ):
        choose_kernel(ToolkitKernels("boot", (ToolkitKernel("6.1.0"),)))


def test_an_outcome_survives_the_way_through_a_kubelet() -> None:
    outcome = BuildOutcome(
        BuildVerdict.REFUSED, "6.1.0", reason="Compile", first_error="edu.c:1: no", seconds=1.5
    )
    assert read_outcome(termination_message(outcome)) == outcome


def test_a_long_outcome_is_cut_to_what_a_kubelet_keeps_and_is_still_json() -> None:
    outcome = BuildOutcome(BuildVerdict.BROKEN, message="é" * 9000, hint='"' * 9000)
    said = termination_message(outcome)

    assert len(said.encode()) <= MESSAGE_LIMIT
    assert json.loads(said)["message"].endswith("…")
    read = read_outcome(said)
    assert read is not None
    assert read.verdict is BuildVerdict.BROKEN


@pytest.mark.parametrize("name", ["kernel", "tag", "digest", "reason"])
def test_a_name_that_is_in_no_form_is_no_outcome_and_is_never_sent(name: str) -> None:
    forged = json.dumps({"verdict": "built", name: "a" * 4000})
    assert len(forged) <= MESSAGE_LIMIT
    assert read_outcome(forged) is None

    outcome = BuildOutcome(BuildVerdict.BUILT, message="😀" * 9000)
    value: Any = "\0é" * 4000
    outcome = replace(outcome, **{name: value})
    read = read_outcome(termination_message(outcome))
    assert read is not None
    assert (read.verdict, getattr(read, name)) == (BuildVerdict.BUILT, "")


def test_names_survive_however_long_the_texts_are() -> None:
    names: dict[str, Any] = {
        "kernel": PLAIN.release,
        "tag": "t" * 130,
        "digest": f"sha256:{'0' * 64}",
    }
    texts: dict[str, Any] = dict.fromkeys(("message", "hint", "first_error"), "\x01" * 4000)
    outcome = BuildOutcome(BuildVerdict.BUILT, reason="Compile", **names, **texts)
    said = termination_message(outcome)

    assert len(said.encode()) <= MESSAGE_LIMIT
    read = read_outcome(said)
    assert read is not None
    assert names.items() <= vars(read).items()


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"verdict": "built", "message": "é" * 4000}, ensure_ascii=False),
        '{"verdict": "built", "protocol": ' + "1" * 4000 + "}",
        '{"verdict": "built", "protocol": -1}',
        '{"verdict": "built", "seconds": 1e999}',
        '{"verdict": "built", "message": "\\ud800"}',
    ],
)
def test_what_would_not_fit_into_a_message_again_is_no_outcome(text: str) -> None:
    assert read_outcome(text) is None


@pytest.mark.parametrize("text", ["", "oops", "[]", "{}", '{"verdict": "perhaps"}', "[" * 99999])
def test_what_is_no_outcome_is_none(text: str) -> None:
    assert read_outcome(text) is None


def test_only_what_a_node_would_meet_too_is_the_drivers_fault() -> None:
    assert {kind.value for kind in FailureKind if kind.of_the_driver} == {
        "excluded",
        "bad-source",
        "compile",
        "no-module",
    }
