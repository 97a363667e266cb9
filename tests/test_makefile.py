"""What the Makefile promises: a test touches each target, at its smallest.

A target is known here with the test that runs it, so that a new one has to have one. Those that no
other file runs, this one does: as the Makefile has the words, without setup and without sudo.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from nodeside.trial.cache import TrialCache
from tests import TOP
from tests.recipes import TARGETS, follow, recipe

_HERE = "tests/test_makefile.py"
_WORDS = f"{_HERE}::test_its_words_are_those_of_a_program_that_explains_itself"
_COLLECTED = f"{_HERE}::test_its_words_collect_tests"

# By target, the tests that run it: first here, then what it does.
RUN_BY: Mapping[str, tuple[str, ...]] = {
    "help": (f"{_HERE}::test_help_names_every_target",),
    "try": (_WORDS, "tests/vm/test_try.py::test_an_interrupted_trial_leaves_nothing_behind"),
    "test": (_COLLECTED,),
    "unit": (_COLLECTED,),
    "images": (
        f"{_HERE}::test_images_without_an_engine_says_which_would_do",
        "tests/images/test_built_images.py::test_another_build_makes_the_same_image",
    ),
    "control-plane": (
        "tests/cluster/e2e/test_walk.py::test_the_walk_of_the_document_is_what_a_reader_sees",
    ),
    "lab": (_WORDS, "tests/lab/test_story.py"),
    "lab-down": ("tests/lab/test_commands.py::test_lab_down_without_a_lab_has_nothing_to_do",),
    "lab-story": (_COLLECTED, "tests/lab/test_story.py"),
    "chaos": (
        f"{_HERE}::test_chaos_takes_one_round_of_one_experiment",
        "tests/chaos/test_chaos.py::test_a_short_run_against_a_node_finds_nothing",
    ),
    "bench": (_WORDS, "tests/bench/test_smallest_parts.py"),
    "lint": (
        f"{_HERE}::test_lint_finds_no_fault",
        "tests/test_architecture.py::test_the_layers_are_kept",
    ),
    "clean": (f"{_HERE}::test_clean_removes_both_caches_and_nothing_else",),
}


def test_every_target_has_a_test_that_runs_it() -> None:
    assert list(RUN_BY) == [target for target in RUN_BY if target in TARGETS]
    assert {target for target in TARGETS if target not in RUN_BY} == set()


@pytest.mark.parametrize("name", sorted({name for names in RUN_BY.values() for name in names}))
def test_a_test_that_runs_a_target_is_there(name: str) -> None:
    path, _, function = name.partition("::")

    assert f"def {function or 'test_'}" in (TOP / path).read_text()


def test_help_names_every_target() -> None:
    said = [line for command in recipe("help") for line in follow(command).output.splitlines()]

    assert [re.findall(r"^make ([a-z-]+)  ", line) for line in said] == [
        [target] for target in TARGETS if target != "help"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "words", "said"),
    [
        ("try", ("ARGS=--help",), "Usage: nodeside try "),
        ("lab", ("ARGS=--help",), "Usage: python -m tests.lab up "),
        ("bench", ("ARGS=--help", "BENCH=quick"), "Usage: python -m bench "),
    ],
)
def test_its_words_are_those_of_a_program_that_explains_itself(
    target: str, words: tuple[str, ...], said: str
) -> None:
    [line] = recipe(target, *words)
    done = follow(line)

    assert (done.exit_code, done.errors) == (0, "")
    assert done.output.startswith(said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "words", "env"),
    [
        ("test", ("ARGS=tests/text/test_table.py",), {}),
        ("unit", ("ARGS=tests/text/test_table.py",), {}),
        ("lab-story", (), {}),
        ("lab-story", (), {"NODESIDE_LAB_KUBECONFIG": "none"}),
    ],
)
def test_its_words_collect_tests(
    target: str, words: tuple[str, ...], env: Mapping[str, str]
) -> None:
    """STORY, ON_ONE_NODE, IN_FULL and PACKAGES are those of `lab-story`."""
    lines = recipe(target, *words, env=env)
    assert (len(lines) > 1) is (target == "lab-story" and env == {})
    for line in lines:
        done = follow(f"{line} --collect-only --quiet", env=env)

        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.errors}"
        assert re.search(r"^(\d+/)?[1-9]\d* tests collected", done.output, re.MULTILINE), line


@pytest.mark.slow
def test_images_without_an_engine_says_which_would_do() -> None:
    [line] = recipe("images")
    done = follow(line, env={"ENGINE": "no-such-engine"})

    assert done.exit_code == 2
    assert done.errors.startswith("error: none of no-such-engine is installed")


@pytest.mark.slow
def test_chaos_takes_one_round_of_one_experiment() -> None:
    [line] = recipe("chaos", "ARGS=--rounds 1 --seed 11 'hostile bundle'")
    done = follow(line)

    assert done.exit_code == 0, f"{done.output}\n{done.errors}"
    assert "hostile bundle" in done.output


@pytest.mark.slow
def test_lint_finds_no_fault(tmp_path: Path) -> None:
    """Of one module, where it takes a minute for all: what CI does. The layers have a test."""
    check, formats, types, layers = recipe("lint")
    assert Path(layers).name == "lint-imports"
    for line in (check, formats, f"{types} --cache-dir {tmp_path} nodeside/values.py"):
        done = follow(line)

        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.errors}"


@pytest.mark.slow
def test_clean_removes_both_caches_and_nothing_else(tmp_path: Path) -> None:
    trial, programs, other = (
        tmp_path / "nodeside" / name for name in ("trial", "controlplane", "tests")
    )
    with TrialCache(trial) as cache:
        cache.make("roots", "one", lambda _: None)
    for directory in (programs / "one", other):
        directory.mkdir(parents=True)
    env = {"NODESIDE_TRIAL_CACHE": str(trial), "NODESIDE_CONTROLPLANE_CACHE": str(programs)}
    for line in recipe("clean"):
        done = follow(line, env=env)

        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.errors}"

    assert [path for path in (trial / "roots", programs) if path.exists()] == []
    assert other.is_dir()
