"""Caches rendered templates of stages, which are rendered when a plan asks for them.

They are rendered in a thread of their own, since a template may take seconds and must not delay the
plans of other Drivers. Results that no plan asks for are dropped, and the total size is limited. A
template that ended its rendering process is retried with backoff; one with a mistake only after it
changes.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cluster.model.stages import Rendered, Template
from cluster.render.renderer import Renderer
from nodeside import log
from nodeside.errors import NodesideError
from nodeside.system.clock import backoff

MOMENT: Final = 2.0  # seconds that a plan waits for newly requested templates
_TOTAL = 48 << 20  # approximate limit in bytes for the documents of all stages
_FIRST_REST, _LONGEST_REST = 10.0, 600.0  # seconds until a failed rendering is retried


@dataclass(frozen=True, slots=True)
class _RenderingCase:
    """A requested template. `due` is when to render it, None if it is finished."""

    due: float | None
    failures: int = 0
    rendered: Rendered | None = None


class Renderings:
    """A rendering cache. `keep_templates` sets the templates, `get_rendered` returns the results.

    `wake` is called when a result changes.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        *,
        renderer: Callable[[], Renderer] = Renderer,
        now: Callable[[], float] = time.monotonic,
        total: int = _TOTAL,
    ) -> None:
        self._wake = wake
        self._renderer = renderer
        self._now = now
        self._total = total
        self._changed = threading.Condition()
        self._cases: dict[Template, _RenderingCase] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def keep_templates(self, templates: Collection[Template], seconds: float = MOMENT) -> bool:
        """Keep these templates and no others, and wait up to `seconds` for new ones.

        Return whether more of them are rendered than before.
        """
        with self._changed:
            old = self._cases
            self._cases = {each: old.get(each) or _RenderingCase(self._now()) for each in templates}
            if self._cases.keys() <= old.keys():
                return False
            before = self._count_rendered()
            self._start_renderer()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._count_rendered() == len(templates), seconds)
            return self._count_rendered() > before

    def get_rendered(self) -> Mapping[Template, Rendered]:
        with self._changed:
            return {
                template: case.rendered for template, case in self._cases.items() if case.rendered
            }

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _count_rendered(self) -> int:
        return sum(case.rendered is not None for case in self._cases.values())

    def _start_renderer(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(
                target=self._render_until_stopped, name="renderings", daemon=True
            )
            self._thread.start()

    def _render_until_stopped(self) -> None:
        while self._await_due():
            with self._renderer() as renderer:
                while (template := self._next_template()) is not None:
                    self.render_template(renderer, template)

    def _await_due(self) -> bool:
        """Wait until a template is due. Return False if we have to stop."""
        with self._changed:
            while not self._stopping and self._next_template() is None:
                dues = [case.due for case in self._cases.values() if case.due is not None]
                self._changed.wait(min(dues) - self._now() if dues else None)
            return not self._stopping

    def _next_template(self) -> Template | None:
        """Return the template to render next, or None; failed ones come last."""
        with self._changed:
            now = self._now()
            due = [
                (case.failures, position, template)
                for position, (template, case) in enumerate(self._cases.items())
                if case.due is not None and case.due <= now and not self._stopping
            ]
            return min(due)[2] if due else None

    def render_template(self, renderer: Renderer, template: Template) -> None:
        """Render a template and store the result."""
        try:
            rendered, failed = renderer.render(template), False
        except NodesideError as error:
            rendered, failed = Rendered(error=str(error)), True
        except Exception as exc:  # a bug of ours: report and retry
            traceback.print_exc()
            message = f"a bug in nodeside, please report it: {exc!r}"
            rendered, failed = Rendered(error=message), True
        log.detail("rendered", config_map=template.config_map, trouble=rendered.error)
        with self._changed:
            if (case := self._cases.get(template)) is None:
                return
            if not self._has_room(rendered):
                rendered, failed = Rendered(error=self._full_message), True
            self._cases[template] = self._next_case(case, rendered, failed=failed)
            self._changed.notify_all()
        if rendered.error != (case.rendered.error if case.rendered else None):
            self._wake()

    def _next_case(
        self, case: _RenderingCase, rendered: Rendered, *, failed: bool
    ) -> _RenderingCase:
        if not failed:
            return replace(case, due=None, rendered=rendered)
        rest = backoff(case.failures + 1, _FIRST_REST, _LONGEST_REST)
        return _RenderingCase(self._now() + rest, case.failures + 1, rendered)

    def _has_room(self, rendered: Rendered) -> bool:
        """Return whether a result fits; earlier results keep their room."""
        used = sum(case.rendered.size for case in self._cases.values() if case.rendered)
        return used + rendered.size <= self._total

    @property
    def _full_message(self) -> str:
        return f"the rendered stages of all drivers have more than {self._total >> 10} KiB together"
