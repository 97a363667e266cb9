"""What is rendered when, and what is kept: once for each change, and no more than fits."""

from __future__ import annotations

import threading
from typing import Any

from cluster.cache.renderings import Renderings
from cluster.model.stages import Rendered, Template
from cluster.render.renderer import RenderingDied
from tests.cluster.fakes.clock import Clock
from tests.patience import patience

LONG = patience(30.0)  # seconds: a deadline that only a broken test meets
ONE, TWO = (Template(name, (), "{}") for name in ("one", "two"))


class FakeRenderer:
    """Says of each ConfigMap what it is told to; counts."""

    def __init__(self, **said: Any) -> None:
        self.said = said
        self.asked: list[str] = []

    def __call__(self) -> FakeRenderer:
        return self

    def __enter__(self) -> FakeRenderer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def render(self, template: Template) -> Rendered:
        self.asked.append(template.config_map)
        said = self.said.get(template.config_map, Rendered(size=1))
        if isinstance(said, Exception):
            raise said
        assert isinstance(said, Rendered)
        return said


def made(renderer: Any, **more: Any) -> Renderings:
    return Renderings(more.pop("wake", lambda: None), renderer=renderer, **more)


def quiet(renderer: Any, *templates: Template, **more: Any) -> Renderings:
    """Wanted, without the thread: the test renders by itself."""
    renderings = made(renderer, **more)
    renderings.stop()
    renderings.keep_templates(templates, seconds=0)
    return renderings


def all_due(renderings: Renderings, renderer: Any) -> None:
    renderings._stopping = False
    while (template := renderings._next_template()) is not None:
        renderings.render_template(renderer, template)
    renderings._stopping = True


def test_what_is_new_is_waited_for_and_what_is_known_is_not_rendered_again() -> None:
    renderer, woken = FakeRenderer(), threading.Event()
    renderings = made(renderer, wake=woken.set)

    assert renderings.keep_templates([ONE, TWO], seconds=LONG)
    assert renderings.get_rendered().keys() == {ONE, TWO}
    assert not renderings.keep_templates([TWO, ONE], seconds=LONG)
    renderings.stop()

    assert sorted(renderer.asked) == ["one", "two"]
    assert woken.wait(LONG), "one that comes later than the plan waits wakes it"


def test_what_no_plan_asks_for_is_forgotten() -> None:
    renderer = FakeRenderer()
    renderings = quiet(renderer, ONE)
    all_due(renderings, renderer)

    assert not renderings.keep_templates([], seconds=LONG)

    assert renderings.get_rendered() == {}


def test_a_failure_is_tried_again_ever_later_and_a_mistake_is_not() -> None:
    clock = Clock()
    renderer = FakeRenderer(one=RenderingDied("no memory"), two=Rendered(error="no YAML"))
    renderings = quiet(renderer, ONE, TWO, now=clock)
    for clock.time in (0, 9, 10, 29, 30, 69, 70):
        all_due(renderings, renderer)

    assert renderer.asked == ["one", "two", "one", "one", "one"]
    assert renderings.get_rendered()[ONE].error == "no memory"
    renderer.said.clear()
    clock.time = 1000
    all_due(renderings, renderer)
    assert renderings.get_rendered()[ONE].error == ""


def test_those_that_failed_come_last() -> None:
    clock = Clock()
    renderer = FakeRenderer(one=RenderingDied("no memory"))
    renderings = quiet(renderer, ONE, now=clock)
    all_due(renderings, renderer)

    clock.time = 1000
    renderings.keep_templates([ONE, TWO], seconds=0)
    all_due(renderings, renderer)

    assert renderer.asked == ["one", "two", "one"]


def test_all_stages_together_have_a_limit_and_who_came_first_keeps_its_documents() -> None:
    clock = Clock()
    renderer = FakeRenderer(one=Rendered(size=3000), two=Rendered(size=3000))
    renderings = quiet(renderer, ONE, TWO, now=clock, total=4096)
    all_due(renderings, renderer)

    known = renderings.get_rendered()
    assert known[ONE].error == ""
    assert known[TWO].error == "the rendered stages of all drivers have more than 4 KiB together"
    renderings.keep_templates([TWO], seconds=0)
    clock.time = 10
    all_due(renderings, renderer)
    assert renderings.get_rendered()[TWO].error == "", "there is room now"


def test_a_bug_of_ours_is_said_and_ends_nothing() -> None:
    renderer = FakeRenderer(one=KeyError("x"))
    renderings = quiet(renderer, ONE, TWO)
    all_due(renderings, renderer)

    assert "a bug in nodeside" in renderings.get_rendered()[ONE].error
    assert renderings.get_rendered()[TWO].error == ""
