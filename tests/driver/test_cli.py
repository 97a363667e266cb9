"""The verbs of `nodeside driver`, as a person types them: what is printed, and what is changed."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest

from nodeside.driver.cli import driver
from nodeside.driver.node.run_directory import hold_lock
from nodeside.errors import ExitCode
from nodeside.protocol.ready_file import read_ready
from tests.console import nodeside
from tests.driver.fakes.kernel import Refusal
from tests.driver.fakes.node import BOOT_ID, FakeNode, module_bytes
from tests.tries import sampled

VERBS = sorted(name for name, command in driver.commands.items() if not command.hidden)
STEPS = sorted(set(VERBS) - {"wait"})  # which knows no driver.yaml, changes and prints nothing
OTHER = "6.0.0-other"


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    made = FakeNode(tmp_path)
    made.write_driver()
    return made


def contents(directory: Path) -> dict[str, str]:
    """Every file below a directory with its digest, and every directory."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file() and not path.is_symlink()
        else "-"
        for path in sorted(directory.rglob("*"))
    }


# --- help ------------------------------------------------------------------------------------


def test_every_verb_of_the_design_is_there() -> None:
    assert (
        sorted(
            [
                "plan",
                "fetch",
                "build",
                "load",
                "validate",
                "unload",
                "status",
                "devices",
                "services",
                "env",
                "doctor",
                "publish",
                "run",
                "wait",
                "order",
                "finish",
            ]
        )
        == VERBS
    )


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_each_verb_stands_alone(verb: str) -> None:
    done = nodeside("driver", verb, "--help")
    assert done.code == 0
    assert done.errors == ""
    assert f"Usage: nodeside driver {verb} [OPTIONS]" in done.output
    sentence = done.output.split("\n\n")[1].strip()
    assert sentence.endswith(".")
    assert ("-f, --driver" in done.output) == (verb in STEPS)
    for line in re.findall(r"^  (-.*)$", done.output, flags=re.MULTILINE):
        assert re.search(r"  +\S", line), f"an option without a word about it: {line}"


@pytest.mark.parametrize("verb", sorted(set(STEPS) - {"env"}))
def test_whatever_prints_a_table_prints_json_too(verb: str) -> None:
    assert "-o, --output [table|json]" in nodeside("driver", verb, "--help").output


@pytest.mark.parametrize(
    "verb", sorted(set(STEPS) - {"plan", "status", "devices", "env", "doctor"})
)
def test_whatever_does_something_has_a_dry_run(verb: str) -> None:
    assert "-n, --dry-run" in nodeside("driver", verb, "--help").output


# --- plan and load ---------------------------------------------------------------------------


def test_plan_says_why_each_rung_serves_or_not_and_what_would_be_done(node: FakeNode) -> None:
    node.put_bundle(node.task())
    done = node.run("plan")
    assert done.code == 0
    assert re.search(r"^loaded +- +straw not loaded$", done.output, flags=re.MULTILINE)
    assert re.search(r"^cached +serves +the cache holds 1\.0-", done.output, flags=re.MULTILINE)
    assert done.output.endswith("would use the bundle (cached)\nwould load straw\nwould validate\n")


def test_plan_lists_the_modules_in_the_order_of_their_unload(node: FakeNode) -> None:
    task = node.task(modules=[{"name": "core"}, {"name": "straw"}])
    files = {"core": module_bytes("core"), "straw": module_bytes("straw", depends=["core"])}
    node.put_bundle(task, files)
    node.bring_up(task)
    node.upgrade()
    newer = {name: module_bytes(name, "2.0") for name in files}
    node.put_bundle(node.task(), newer)

    assert "would unload straw, core (ours)\nwould load core, straw\n" in node.run("plan").output
    node.bring_up(node.task())
    assert node.kernel.unloads == ["straw", "core"]


def test_a_source_without_a_driver_yaml_is_a_driver_too(node: FakeNode) -> None:
    bare = node.image / "source"
    node.kernel.show()

    for named in (bare, bare / "driver.yaml"):
        done = nodeside("driver", "plan", "-f", named, "--host-root", node.root)

        assert (done.code, f"{bare} has no driver.yaml; " in done.errors) == (0, True), done.errors
        assert "driver=straw version=0.1.0 build=kbuild modules=straw" in done.errors


def test_a_driver_yaml_that_is_there_is_never_replaced_by_what_the_source_says(
    node: FakeNode,
) -> None:
    (node.image / "source/driver.yaml").symlink_to("nowhere")

    done = nodeside("driver", "plan", "-f", node.image / "source", "--host-root", node.root)

    assert done.code == ExitCode.SPEC
    assert "cannot read" in done.errors
    named = node.image / "source" / "other.yaml"
    assert nodeside("driver", "plan", "-f", named).code == ExitCode.SPEC


def test_load_when_the_right_thing_is_loaded_touches_nothing(node: FakeNode) -> None:
    node.fill()
    assert node.run("load", "--dry-run").output == (
        "would touch nothing: the right modules are loaded\nwould validate\n"
    )
    done = node.run("load")
    assert done.code == 0
    assert "source   loaded" in done.output
    assert node.kernel.loads == []


def test_load_makes_the_driver_ready_and_unload_ends_that(node: FakeNode) -> None:
    node.put_bundle(node.task())
    done = node.run("load")
    assert done.code == 0, done.errors
    assert "NODESIDE_READY driver=straw version=1.0" in done.errors
    assert node.run("status").code == 0
    assert node.run("status", "--quiet").output == ""

    gone = node.run("unload")

    assert (gone.code, gone.output) == (0, "unloaded  straw\n")
    assert node.loaded == ()
    assert node.record is None
    status = node.run("status")
    assert status.code == ExitCode.NOT_READY
    assert "ready   no" in status.output


def test_load_with_an_empty_cache_says_how_to_fill_it(node: FakeNode) -> None:
    done = node.run("load")
    assert done.code == ExitCode.FETCH
    assert f"nodeside driver build -f {node.driver_file}" in done.output
    assert re.search(r"^built +- +no toolkit: ", done.output, re.MULTILINE)
    dry = node.run("load", "--dry-run")
    assert dry.code == ExitCode.FETCH
    assert f"nothing to use: no bundle {node.task().tag}" in dry.error


def test_a_refusal_by_hand_leaves_a_ready_driver_ready(node: FakeNode) -> None:
    node.put_bundle(node.task())
    node.run("load")
    node.write_driver(modules=[{"name": "straw", "parameters": {"speed": "1"}}])
    node.put_bundle(node.task())

    done = node.run("load")

    assert done.code == ExitCode.REFUSED
    assert "speed" in done.output
    assert read_ready(node.host, "straw", BOOT_ID) is not None


def test_what_the_kernel_refused_is_said_in_words(node: FakeNode) -> None:
    node.put_bundle(node.task())
    node.kernel.refuse_load["straw"] = [Refusal(19, ("straw: no such hardware",))]
    done = node.run("load")
    assert done.code == ExitCode.LOAD_FAILED
    assert "ENODEV" in done.output
    assert "straw: no such hardware" in done.output
    assert "Traceback" not in done.errors


def test_who_is_at_work_is_named(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.put_bundle(node.task())
    monkeypatch.setattr("nodeside.driver.commands.load._LOCK_TIMEOUT", 0.0)
    with hold_lock(node.host, "straw", timeout=0):
        done = node.run("load")
    assert done.code == ExitCode.LOCKED
    assert (
        f"another process is working on driver straw on this node: pid {os.getpid()}" in done.error
    )
    assert "hint: wait for it, or see who it is: fuser -v" in done.error


# --- unload ----------------------------------------------------------------------------------


def test_unload_of_a_module_in_use_touches_nothing_and_the_driver_stays_ready(
    node: FakeNode,
) -> None:
    node.put_bundle(node.task())
    node.run("load")
    node.kernel.modules["straw"].refcnt = 1
    node.kernel.show()
    assert node.run("unload", "--dry-run").output == "would fail: straw is held\n"

    done = node.run("unload")

    assert done.code == ExitCode.IN_USE
    assert "cannot unload straw" in done.error
    assert node.loaded == ("straw",)
    assert read_ready(node.host, "straw", BOOT_ID) is not None
    assert node.record is not None


def test_unload_with_nothing_loaded_is_no_failure(node: FakeNode) -> None:
    done = node.run("unload")
    assert (done.code, done.output) == (
        0,
        "unloaded  nothing: none of its modules was loaded by nodeside\n",
    )


# --- validate and status ---------------------------------------------------------------------


def test_validate_does_not_take_a_foreign_module_for_the_right_one(node: FakeNode) -> None:
    node.insmod("straw")
    done = node.run("validate")
    assert done.code == ExitCode.VALIDATION_FAILED
    assert "nothing proves that the right modules are loaded" in done.output
    assert "state    failed" in done.output


def test_validate_with_nothing_loaded_does_not_wait(node: FakeNode) -> None:
    node.write_driver(validate={"timeoutSeconds": 600})
    done = node.run("validate")
    assert done.code == ExitCode.VALIDATION_FAILED
    assert "straw not loaded" in done.output
    assert node.kernel.seconds == 0


def test_validate_runs_the_checks_of_driver_yaml(node: FakeNode) -> None:
    node.fill()
    node.write_driver(
        validate={"timeoutSeconds": 1, "commands": [{"command": ["false"]}]},
    )
    assert node.run("validate", "--dry-run").output == (
        "would check that the module straw is live\nwould run false\n"
    )
    done = node.run("validate")
    assert done.code == ExitCode.VALIDATION_FAILED
    assert re.search(
        r"^false +FAILED +exit code 1; expected exit code 0", done.output, re.MULTILINE
    )


def test_status_names_what_is_loaded_and_what_the_cache_has(node: FakeNode) -> None:
    node.put_bundle(node.task())
    node.run("load")
    done = node.run("status")
    build_id = node.kernel.modules["straw"].build_id
    assert re.search(rf"^straw +live +0 +{build_id[:12]}", done.output, re.MULTILINE)
    node.forget_cache()
    lost = node.run("status")
    assert "(not in the cache)" in lost.output
    assert lost.code == 0, "the record of this boot proves it"


def test_status_of_an_older_version_is_not_ready(node: FakeNode) -> None:
    node.put_bundle(node.task())
    node.run("load")
    node.upgrade()
    assert node.run("status").code == ExitCode.NOT_READY


# --- a dry run changes nothing ---------------------------------------------------------------


@pytest.mark.parametrize(
    "verb",
    sampled(
        [
            "plan",
            "fetch",
            "build",
            "load",
            "validate",
            "unload",
            "publish",
            "run",
            "status",
            "doctor",
        ],
        4,
    ),
)
@pytest.mark.parametrize("damaged", [False, True])
def test_looking_changes_no_file(
    node: FakeNode, tmp_path: Path, verb: str, *, damaged: bool
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    node.write_driver(prebuilt={"sources": [{"directory": str(store)}]})
    node.fill()
    if damaged:
        file = next(node.cache.root.rglob("straw.ko"))
        file.write_bytes(b"damaged")
    before = contents(tmp_path)
    looks = () if verb in ("plan", "status", "doctor") else ("--dry-run",)
    node.run(verb, *looks)
    assert contents(tmp_path) == before
    assert node.kernel.loads == node.kernel.unloads == []
