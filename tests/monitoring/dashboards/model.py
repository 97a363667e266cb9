"""A dashboard as values: rows of panels, and what each asks Prometheus.

Grafana and OpenShift's console must both be able to draw it:

- A stat is one number, so its query returns one series: the console shows the first one only.
- A table has columns for labels and one for the value of each query. All its queries return the
  same labels: the console joins two rows where all labels are equal.
- The panels of a row fill whole lines, as the SDK places them.
- Units are those that the console knows (`short`, `s`, `bytes`).
- A variable has no name that another one begins with: the console replaces `$no` in `$node`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

COLUMNS = 12  # of a dashboard
NODE_UID = "nodeside-node"  # of the one that nodes in tables link to


class Kind(Enum):
    STAT = "a number"
    GRAPH = "lines over time"
    TABLE = "a table of what is there now"


class Colors(Enum):
    """The colors of a number below 1, and of one from there on."""

    NEUTRAL = ("blue", "blue")
    WARNING = ("green", "orange")
    ALARM = ("green", "red")
    WANTED = ("red", "green")


@dataclass(frozen=True)
class Query:
    """A question in PromQL. `title` is that of its line or column; a line's has {{label}}s.

    `or_zero`: no series means none, which is a number, too.
    """

    expression: str
    title: str = ""
    or_zero: bool = False
    yes_no: Colors | None = None  # the value is 1 or 0, and says so in words of these colors

    @property
    def text(self) -> str:
        return f"{self.expression} or vector(0)" if self.or_zero else self.expression


@dataclass(frozen=True)
class Panel:
    """`width` is in columns. `labels` of a table are headings by label.

    `quiet`: there is nothing in it while all is well.
    """

    title: str
    kind: Kind
    queries: tuple[Query, ...]
    width: int
    words: str = ""
    unit: str = "short"
    colors: Colors = Colors.NEUTRAL
    stacked: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """Values of a label of what a selector selects: one is chosen, or with `all` several or all."""

    name: str
    selector: str
    all: bool

    @property
    def query(self) -> str:
        """The console wants the comma and the space."""
        return f"label_values({self.selector}, {self.name})"


@dataclass(frozen=True)
class Dashboard:
    """`uid` is in links to it: it never changes."""

    uid: str
    title: str
    words: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


ANY = ".+"  # what stands for all values; the console has no other


def ref(index: int) -> str:
    """The name of a query of a panel: A, B …"""
    return chr(ord("A") + index)
