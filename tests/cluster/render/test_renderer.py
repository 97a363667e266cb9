"""Rendering in a process of its own: whatever ends it is one template's failure."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from cluster.model.stages import Rendered, Template
from cluster.render import renderer as module
from cluster.render.renderer import Renderer, RenderingDied, render_once

pytestmark = pytest.mark.slow

GOOD = "kind: {{ stage.name }}\n"
ENDLESS = "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(64) }}"


def template(text: str, config_map: str = "one") -> Template:
    return Template(config_map, (("a.yaml", text),), json.dumps({"stage": {"name": "first"}}))


def death(text: str, renderer: Renderer) -> str:
    with pytest.raises(RenderingDied) as caught:
        renderer.render(template(text))
    return str(caught.value)


def test_a_template_gives_documents_or_says_what_is_wrong_with_it() -> None:
    with Renderer() as renderer:
        found = renderer.render(template(GOOD))
        wrong = renderer.render(template("{{ no }}"))

    assert found.documents == (("a.yaml", {"kind": "first"}),)
    assert wrong == Rendered(error="ConfigMap one, a.yaml, line 1: 'no' is undefined")


def test_the_size_of_what_is_rendered_grows_with_it() -> None:
    """All stages together have a limit."""
    with Renderer() as renderer:
        sizes = [
            renderer.render(template(text)).size
            for text in (GOOD, "kind: " + "a" * 100_000, f"kind: [{'1,' * 5_000}]")
        ]

    assert sizes[0] < 10_000
    assert min(sizes[1:]) > 100_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ENDLESS, "rendering it took more than 1 s of processor time"),
        ("{{ 'a'.center(1000000000) }}", "rendering it took more than 128 MiB of memory"),
        ("{{ '%1000000000d'|format(1) }}", "rendering it took more than 128 MiB of memory"),
        ("{{ [1]|batch(1000000000, 0)|list }}", "rendering it took more than 128 MiB of memory"),
    ],
)
def test_what_goes_on_for_ever_or_takes_all_memory_is_ended_and_the_next_one_is_rendered(
    text: str, words: str
) -> None:
    with Renderer(processor_seconds=1) as renderer:
        assert death(text, renderer) == f"ConfigMap one: {words}"
        assert renderer.render(template(GOOD)).documents


def test_a_hundred_brackets_are_too_many_and_thousands_kill_nobody() -> None:
    with Renderer() as renderer:
        errors = [renderer.render(template("a: " + "[" * n)).error for n in (100, 100_000)]

    where = "ConfigMap one, a.yaml: rendered line 1"
    assert errors[0] == f"{where}: nested deeper than 64 levels"
    # Some versions of the parser have a limit of their own, which they reach before we count.
    assert errors[1] in (errors[0], f"{where}: exceeded maximum nesting depth")


def test_a_crash_a_silence_and_an_answer_without_end_are_each_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = {
        "the rendering process ended: killed by SIGSEGV": (
            "import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 11)"
        ),
        "rendering it took more than 0.1 s": "import time; time.sleep(3600)",
        "its documents have more than 768 KiB": "print('x' * (4 << 20))",
    }
    for words, program in programs.items():
        monkeypatch.setattr(module, "_PROGRAM", program)
        with Renderer(seconds=0.1 if "0.1" in words else 60.0) as renderer:
            assert death(GOOD, renderer) == f"ConfigMap one: {words}"


def test_the_process_has_no_secret_and_no_file_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKEN_OF_OURS", "secret")
    program = "import json, os, sys; sys.stdin.readline(); print(json.dumps({'error': str(%s)}))"
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        monkeypatch.setattr(module, "_PROGRAM", program % "sorted(os.listdir('/proc/self/fd'))")
        files = render_once([template(GOOD)])[template(GOOD)].error
        monkeypatch.setattr(module, "_PROGRAM", program % "sorted(os.environ)")
        names = render_once([template(GOOD)])[template(GOOD)].error

    assert files == "['0', '1', '2', '3']", "the last one is the directory itself"
    assert "PATH" in names
    assert "TOKEN_OF_OURS" not in names


def test_no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with Renderer() as renderer:
        renderer.render(template(GOOD))
        assert renderer._child is not None
        pid = renderer._child.pid
        renderer.render(template("{{ no }}"))
        assert renderer._child.pid == pid, "one start for all"

    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)


def test_who_looks_once_has_each_templates_documents_or_its_failure() -> None:
    good, bad = template(GOOD), template("{{ 'a'.center(1000000000) }}", "two")

    found = render_once([bad, good])

    assert found[good].documents
    assert found[bad].error == "ConfigMap two: rendering it took more than 128 MiB of memory"
