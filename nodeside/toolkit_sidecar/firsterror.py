"""Finds the first error in a build's output, and a hint for it.

In the output of several jobs the cause may be anywhere: make goes on to print what the other jobs
report, and ends with lines that only state that something failed. So every line is scanned as it
arrives, and the first one that is an error in its own right is kept. A missing tool is an error
only if make or the step ends with the exit code for that, 127: Makefiles also look for tools that
they can do without.

The hints are in `remedies`; real output for each of them is in `tests/corpus/buildlogs`.
"""

from __future__ import annotations

import re

from nodeside.toolkit_sidecar.remedies import MISSING, find_remedy
from nodeside.values import frozen

# A line without any of these is skipped: a build may print a million lines, and `in` is fast.
_LOOKED_AT = (
    *("rror", "ERROR", "***", "not found", "No such file", "Permission denied", "Killed"),
    *("bad interpreter", "exhausted", "undefined ", "in the future", "Clock skew", "cannot find"),
    *("multiple def", "not all data", "in expansion of macro"),
)
_QUOTED = 200  # characters of another line in a hint
_ERROR = re.compile(
    r"(: ([Ff]atal |internal compiler )?error: |^ERROR: (modpost: |\")|: Error: |^\W{0,3}[Ee]rror: "
    r"|undefined reference to |: multiple definition of |\bld(\.\w+)?: cannot find "
    r"|^virtual memory exhausted: |: line \d+: +\d+ Killed |^fixdep: not all data )"
)
# make's own errors. The first pattern matches causes, the second any failed step, the third a step
# that failed because a command is missing or cannot be run.
_OF_MAKE = re.compile(r"^(make(\[\d+\])?|[^\s:]+:\d+): \*\*\* (?!\[|Waiting for |Deleting )")
_STEP_OF_MAKE = re.compile(r"^make(\[\d+\])?: \*\*\* \[")
_NOT_THERE = re.compile(r"^make(\[\d+\])?: \*\*\* \[.*\] Error 12[67]$")
# gcc reports an error in a kernel macro at the kernel's header, and then names who used the macro.
_HEADERS = r"(\./|/usr/src/|/lib/modules/)\S*include/"
_IN_A_HEADER_OF_THE_KERNEL = re.compile(rf"^{_HEADERS}")
_USED_AT = re.compile(rf"^(?P<place>(?!{_HEADERS})[^\s:]+:\d+):\d+: note: in expansion of macro")
_CLOCK = re.compile(r"has modification time .* in the future|Clock skew detected")


@frozen
class _Line:
    number: int
    text: str


class FirstError:
    """A scanner for the first error of a build. It must see every line of the output.

    `error`, `line` and `hint` are about the lines seen so far.
    """

    def __init__(self) -> None:
        self._count = 0
        self._error: _Line | None = None
        self._is_of_the_first = False  # whether gcc's notes now belong to the first error
        self._used_at = ""
        self._of_make = ""
        self._missing: _Line | None = None  # the latest one
        self._first_missing: _Line | None = None
        self._needed: _Line | None = None  # the first missing tool that ended something
        self._clock = ""

    def see(self, text: str) -> None:
        """Scan one line of the output."""
        self._count += 1
        if not any(word in text for word in _LOOKED_AT):
            return
        line = _Line(self._count, text.strip())
        if _STEP_OF_MAKE.search(text):
            self._of_make = self._of_make or line.text
            if _NOT_THERE.search(text):
                self.missing_was_needed()
        elif MISSING.search(text):
            self._missing = line
            self._first_missing = self._first_missing or line
        elif _ERROR.search(text) or _OF_MAKE.search(text):
            self._is_of_the_first = self._error is None
            self._error = self._error or line
        elif self._is_of_the_first and (used := _USED_AT.search(text)):
            self._used_at = self._used_at or used["place"]
        elif _CLOCK.search(text):
            self._clock = self._clock or line.text

    def missing_was_needed(self) -> None:
        """Record that something ended with the exit code of a missing command."""
        self._needed = self._needed or self._missing

    @property
    def error(self) -> str:
        """Return the first error that is neither a missing tool nor a closing line of make."""
        if self._error is None:
            return ""
        is_in_header = _IN_A_HEADER_OF_THE_KERNEL.match(self._error.text)
        needs_place = is_in_header and self._used_at
        return f"{self._used_at}: {self._error.text}" if needs_place else self._error.text

    @property
    def line(self) -> str:
        """Return the first error, else a missing tool, else make's closing line, else "".

        The line begins with the place in the driver's source, if gcc names one.
        """
        errors = [line for line in (self._error, self._needed) if line is not None]
        if errors:
            first = min(errors, key=lambda line: line.number)
            return self.error if first is self._error else first.text
        return self._first_missing.text if self._first_missing else self._of_make

    @property
    def hint(self) -> str:
        """Return what to do about the error, and what may be related; "" if nothing is known."""
        hints = [find_remedy(self.line)]
        missing, error = self._first_missing, self._error
        if missing and error and missing.number < error.number and self.error == self.line:
            hints.append(f"an earlier line reports a missing tool: {missing.text[:_QUOTED]}")
        if self._clock:
            hints.append(
                f"this machine's clock is behind the times of the source files: "
                f"{self._clock[:_QUOTED]}"
            )
        return "; ".join(hint for hint in hints if hint)
