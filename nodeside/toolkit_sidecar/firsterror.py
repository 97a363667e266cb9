"""Finds the cause of a failed build in its output: the first error, and a hint for it.

In the output of several jobs the cause may be anywhere: make goes on to print what the other jobs
report, and ends with lines that only state that something failed. So every line is scanned as it
arrives, and the first one that is an error in its own right is kept.

Other lines are the cause only together with what came of them. A missing tool is one if make or the
step ends with the exit code for that, 127: Makefiles also look for tools that they can do without.
A request to install something is one if what then fails is lacking, too. Where nothing is an error
in its own right, the last words before the failure are the cause.

The hints are in `remedies`; real output for each of them is in `tests/corpus/buildlogs`.
"""

from __future__ import annotations

import re
from collections import deque

from nodeside.toolkit_sidecar.remedies import MISSING, WITHOUT_GIT, find_remedy
from nodeside.values import frozen

# A line without any of these is skipped: a build may print a million lines, and `in` is fast.
_MARKS = (
    *("rror", "ERROR", "FATAL", "***", "not found", "No such file", "Permission denied", "Killed"),
    *("bad interpreter", "exhausted", "undefined ", "in the future", "Clock skew", "cannot find"),
    *("multiple def", "not all data", "note: ", "from ", "nstall", "not a git repository"),
)
_QUOTED = 200  # characters of another line in a hint
_LONGEST = 500  # characters of an error that continues in the next line
_ERROR = re.compile(
    r"(: ([Ff]atal |internal compiler )?error:( |$)|^(ERROR|FATAL): (modpost: |\")|: Error: "
    r"|^\W{0,3}[Ee]rror[:!] |undefined reference to |: multiple definition of "
    r"|\bld(\.\w+)?: cannot find |^CMake Error(:| at )|: [Ss]yntax error\b"
    r"|^virtual memory exhausted: |: line \d+: +\d+ Killed |^fixdep: not all data )"
)
# An error because something is not there: what was reported missing before may be the reason.
_LACKING = re.compile(
    r"No rule to make target|No such file or directory|No targets|no makefile found"
    r"|^ERROR: (modpost: )?\"|cannot find -l|: not found$"
)
_OF_VERSION = re.compile(r"version|revision|describe|\bgit|_git", re.IGNORECASE)

# make's own errors. The first pattern matches causes, the second any failed recipe, the third a
# recipe that failed because a command is missing or cannot be run, the last one that make ignores.
_ERROR_OF_MAKE = re.compile(r"^(make(\[\d+\])?|[^\s:]+:\d+): \*\*\* (?!\[|Waiting for |Deleting )")
_FAILED_RECIPE = re.compile(r"^make(\[\d+\])?: \*\*\* \[")
_EXIT_CODE = re.compile(r"\] Error \d+$")
_WITHOUT_COMMAND = re.compile(r"^make(\[\d+\])?: \*\*\* \[.*\] Error 12[67]$")
_IGNORED = re.compile(r"^make(\[\d+\])?: \[.*\] Error 12[67] \(ignored\)$")

# What says nothing about a failure: lines of make, and kbuild's `  CC [M]  edu.o`.
_PROGRESS = re.compile(r"make(\[\d+\])?: |\s+[A-Z]+( \[M\])? +\S|\s*$")
_LAST_WORDS = 3  # lines; a script often says more after the tool that it lacks
_CRY = re.compile(r"^\W{0,5}(ERROR|FATAL)\b")  # of a script, which explains it in what follows
_CRY_REACH = 10  # lines between it and the end of its step

# `frobctl is missing: please install it`, by a configure or a Makefile that goes on.
_REQUEST = re.compile(
    r"\b(please|must|need to|have to)\b.{0,40}\binstall\b|\binstall (it|them)\b", re.IGNORECASE
)
_NO_MATTER = re.compile(r"\b(warning|note|info|skipping|optional(ly)?|if you)\b", re.IGNORECASE)

# gcc reports an error in the kernel's header, and names the driver's own line before or after it.
_HEADERS = r"(\./|/usr/src/|(/usr)?/lib/modules/)\S*include/"
_IN_A_HEADER_OF_THE_KERNEL = re.compile(rf"^{_HEADERS}")
_OWN_PLACE = rf"(?P<place>(?!{_HEADERS})[^\s:]+:\d+)"
_BEFORE = re.compile(rf"(\bincluded from|^from|\binlined from .* at) {_OWN_PLACE}(:\d+)?[,:]$")
_AFTER = re.compile(
    rf"^{_OWN_PLACE}:(\d+:)? note: (in expansion of macro|this is the location of the previous"
    r"|previous (definition|declaration))"
)
_BEFORE_REACH = 3  # lines between such a place and the error
_CLOCK = re.compile(r"has modification time .* in the future|Clock skew detected")


@frozen
class _Line:
    number: int
    text: str


_NO_LINE = _Line(0, "")


class ErrorScanner:
    """A scanner for the first error of a build. It must see every line of the output.

    `error`, `line` and `hint` are about the lines scanned so far.
    """

    def __init__(self) -> None:
        self._count = 0
        self._error: _Line | None = None
        self._continues = False  # whether the next line belongs to the first error
        self._is_of_the_first = False  # whether gcc's notes now belong to the first error
        self._place_before = _NO_LINE  # the driver's own line that gcc named last
        self._own_place = ""  # that of the first error
        self._recipe = ""  # make's line about the first recipe that failed
        self._words: deque[_Line] = deque(maxlen=_CRY_REACH)  # of the step that runs
        self._last_words: tuple[_Line, ...] = ()  # those before the first failure
        self._missing: _Line | None = None  # the latest one
        self._first_missing: _Line | None = None
        self._needed: _Line | None = None  # the first missing tool that ended something
        self._ignored: _Line | None = None  # the first one that ended a recipe that make ignored
        self._request: _Line | None = None
        self._no_repository = ""
        self._clock = ""

    def scan_line(self, text: str) -> None:
        """Scan one line of the output."""
        self._count += 1
        line = _Line(self._count, text.strip())
        if not _PROGRESS.match(text):
            if self._continues and self._error:
                self._keep_error(_Line(self._error.number, f"{self._error.text} {line.text}"))
            self._words.append(line)
        if any(mark in text for mark in _MARKS):
            self._classify_line(line)

    def end_step(self, code: int) -> None:
        """Record that a step of the build ended."""
        if code in (126, 127):
            self._needed = self._needed or self._missing
        if code and not self._last_words:
            self._last_words = tuple(self._words)
        self._words.clear()

    @property
    def error(self) -> str:
        """Return the first error that is neither a missing tool nor a closing line of make."""
        if self._error is None:
            return ""
        is_in_header = _IN_A_HEADER_OF_THE_KERNEL.match(self._error.text)
        needs_place = is_in_header and self._own_place
        return f"{self._own_place}: {self._error.text}" if needs_place else self._error.text

    @property
    def line(self) -> str:
        """Return the cause in one line; "" if nothing has failed.

        It begins with the place in the driver's source, if gcc names one.
        """
        found = self._first_certain_error()
        lacks = found is None or (found is self._error and _LACKING.search(found.text))
        if lacks and self._request and (found is None or self._request.number < found.number):
            return self._request.text
        if found is not None:
            return self.error if found is self._error else found.text
        if self._recipe and not _EXIT_CODE.search(self._recipe):
            return self._recipe  # a signal says more than any words before it
        last = self._last_word()
        if not last.text or MISSING.search(last.text):
            return last.text or self._recipe
        return f"{last.text} ({self._recipe})" if self._recipe else last.text

    @property
    def hint(self) -> str:
        """Return what to do about the cause, and what may be related; "" if nothing is known."""
        return self.hint_with("")

    def hint_with(self, remedy: str) -> str:
        """Return the hint. A `remedy` from a caller who knows the source replaces ours."""
        line, found = self.line, self._first_certain_error()
        hints = [remedy or find_remedy(line)]
        if found is not None and line not in (self.error, found.text):
            hints.append(f"what failed then: {self.error or found.text}"[:_QUOTED])
        missing = self._ignored or (self._first_missing if hints[0] else None)
        lacks = bool(_LACKING.search(line))
        if missing and found and missing.number < found.number and (lacks or self._ignored):
            hints.append(f"an earlier line reports a missing tool: {missing.text[:_QUOTED]}")
        request = self._request
        if request and found and request.number < found.number and request.text != line:
            hints.append(f"an earlier line asks for something: {request.text[:_QUOTED]}")
        if self._no_repository and (lacks or _OF_VERSION.search(line)):
            hints.append(f"{self._no_repository[:_QUOTED]}: {WITHOUT_GIT}")
        if self._clock:
            hints.append(
                f"this machine's clock is behind the times of the source files: "
                f"{self._clock[:_QUOTED]}"
            )
        return "; ".join(dict.fromkeys(hint for hint in hints if hint))

    def _classify_line(self, line: _Line) -> None:
        text = line.text
        if self._note_failed_recipe(text):
            return
        if MISSING.search(text):
            self._missing = line
            self._first_missing = self._first_missing or line
        elif _ERROR.search(text) or _ERROR_OF_MAKE.search(text):
            self._is_of_the_first = self._error is None
            if self._error is None:
                self._keep_error(line)
                is_near = line.number - self._place_before.number <= _BEFORE_REACH
                self._own_place = self._place_before.text if is_near else ""
        elif not self._keep_own_place(line):
            self._note_circumstance(line)

    def _note_failed_recipe(self, text: str) -> bool:
        """Take one of make's lines about a recipe that failed; return False if it is another."""
        if _IGNORED.search(text):
            self._ignored = self._ignored or self._missing
            return True
        if not _FAILED_RECIPE.search(text):
            return False
        if not self._recipe:
            self._recipe, self._last_words = text, tuple(self._words)
        if _WITHOUT_COMMAND.search(text):
            self._needed = self._needed or self._missing
        return True

    def _keep_own_place(self, line: _Line) -> bool:
        """Take the driver's own line that gcc names before or after an error in a header."""
        if found := _BEFORE.search(line.text):
            self._place_before = _Line(line.number, found["place"])
        elif self._is_of_the_first and (found := _AFTER.search(line.text)):
            self._own_place, self._is_of_the_first = found["place"], False
        return found is not None

    def _note_circumstance(self, line: _Line) -> None:
        """Keep what is no error, and may explain one."""
        text = line.text
        if _CLOCK.search(text):
            self._clock = self._clock or text
        elif "not a git repository" in text:
            self._no_repository = self._no_repository or text
        elif self._request is None and _REQUEST.search(text) and not _NO_MATTER.search(text):
            self._request = line

    def _keep_error(self, line: _Line) -> None:
        """Keep the first error. It goes on in the next line if it ends with a colon."""
        self._error = _Line(line.number, line.text[:_LONGEST])
        self._continues = line.text.endswith(":") and len(line.text) < _LONGEST

    def _first_certain_error(self) -> _Line | None:
        """Return the first line that is an error whatever else was printed."""
        errors = [line for line in (self._error, self._needed) if line is not None]
        return min(errors, key=lambda line: line.number) if errors else None

    def _last_word(self) -> _Line:
        """Return the last line before the first failure, or what speaks louder just before it.

        That is a tool that was missing, or a line that cries ERROR, with what explains it.
        """
        words = self._last_words
        missing = [line for line in words[-_LAST_WORDS:] if MISSING.search(line.text)]
        if missing:
            return missing[0]
        for index, line in enumerate(words):
            if _CRY.search(line.text):
                message = " ".join(each.text for each in words[index : index + _LAST_WORDS])
                return _Line(line.number, message[:_LONGEST])
        return (words or (_NO_LINE,))[-1]
