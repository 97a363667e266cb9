"""A walk out of a document: the commands that a reader pastes, and what is printed beside them.

In a code block a line after `$ ` is a command, which goes on until its quotes are closed; what
follows is what it printed. `…` stands for what is cut. What differs from one time to the next
(ages, hashes, the ends of pods' names) and how wide a column is are not compared.
"""

from __future__ import annotations

import queue
import re
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeside.system import process
from tests.patience import patience

_COMMAND = patience(120.0)  # seconds
_MARK = "--- done "
_CUT = "…"
# A look changes nothing: it may be repeated until it shows what is to be seen.
_LOOKS = ("kubectl get ", "kubectl -n nodeside get ", "nodeside-cluster explain ")
_DIFFERS = (
    (re.compile(r"\b[0-9a-f]{12}(-[a-z0-9]{5})?\b"), "<hash>"),
    (re.compile(r"\b\d+[smh](\d+s)?\b"), "<age>"),
)


@dataclass(frozen=True)
class Step:
    """A command, and what the document says that it prints."""

    command: str
    shown: str

    @property
    def is_look(self) -> bool:
        return self.command.startswith(_LOOKS)

    def fits(self, printed: str) -> bool:
        wanted = (re.escape(piece.strip()) for piece in _plain(self.shown).split(_CUT))
        return re.fullmatch(r"\s*.*\s*".join(wanted), _plain(printed), re.DOTALL) is not None

    def __str__(self) -> str:
        return self.command.splitlines()[0]


def _plain(text: str) -> str:
    for pattern, word in _DIFFERS:
        text = pattern.sub(word, text)
    return " ".join(text.split())


def steps(document: str, heading: str) -> list[Step]:
    """What a section of a document has one do, in order."""
    section = document.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [step for block in blocks for step in _steps(block.splitlines())]


def _steps(lines: Sequence[str]) -> Iterator[Step]:
    command, shown = "", list[str]()
    for line in lines:
        if line.startswith("$ ") and _is_whole(command):
            if command:
                yield Step(command, "\n".join(shown))
            command, shown = line.removeprefix("$ "), []
        elif _is_whole(command):
            shown.append(line)
        else:
            command += f"\n{line}"
    yield Step(command, "\n".join(shown))


def _is_whole(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True


class Shell:
    """Use as a context manager: a bash that remembers what was pasted into it before."""

    def __init__(self, directory: Path, env: Mapping[str, str]) -> None:
        self._directory = directory
        self._env = env
        self._lines: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Shell:
        self._child = process.start(
            ["bash", "--noprofile", "--norc"],
            stdin=-1,
            stdout=-1,
            stderr=process.INTO_STDOUT,
            cwd=self._directory,
            env=self._env,
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        process.kill_group(self._child.pid)
        self._child.wait(_COMMAND)

    def paste(self, command: str) -> str:
        """What it prints."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{command}\necho '{_MARK}'\n".encode())
        self._child.stdin.flush()
        printed = iter(lambda: self._lines.get(timeout=_COMMAND), f"{_MARK}\n")
        return "".join(printed)

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line.decode())
