"""A page of tables and bars that needs nothing else: no network, no script, one file.

It follows the reader's light or dark theme, and can be read without any style. On a narrow screen
each row of a table becomes a block. What a build, a node or an object says is always text on it,
never a tag or a link.
Stdlib only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from string import Template

from nodeside.log import escape_controls
from nodeside.values import frozen

_GOOD, _BAD, _NUMBER, _LONG = "good", "bad", "n", "e"

_PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
:root { color-scheme: light dark; --good: #1a7f37; --bad: #c62828; --line: #8886; }
@media (prefers-color-scheme: dark) { :root { --good: #56d364; --bad: #ff7b72; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 75rem;
       padding: 0 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin-top: 2rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid var(--line);
         vertical-align: top; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.e { min-width: 16rem; overflow-wrap: anywhere; white-space: normal; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
pre { overflow: auto; max-height: 30rem; border: 1px solid var(--line); padding: .6rem;
      font-size: 12px; }
.bars { max-width: 44rem; } .bars p { margin: .4rem 0 .1rem; overflow-wrap: anywhere; }
.bar { display: flex; height: 1.2rem; } .bar, .key { print-color-adjust: exact; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
@media (max-width: 40rem) {
  thead { display: none; } table, tbody, tr, td { display: block; }
  tr { border-bottom: 1px solid var(--line); padding: .4rem 0; } td:empty { display: none; }
  td, td.n { display: flex; border: 0; padding: .1rem 0; text-align: left; white-space: normal;
             overflow-wrap: anywhere; }
  td.e { min-width: 0; }
  td[data-head]::before { content: attr(data-head); flex: 0 0 7rem; color: GrayText;
                          font-weight: 400; }
}
</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")


@frozen
class Cell:
    """A cell of a table. `kind` is a CSS class above; its color says no more than the text."""

    text: str
    kind: str = ""


def good_cell(text: str) -> Cell:
    return Cell(text, _GOOD)


def bad_cell(text: str) -> Cell:
    return Cell(text, _BAD)


def number_cell(text: str) -> Cell:
    return Cell(text, _NUMBER)


def long_cell(text: str) -> Cell:
    return Cell(text, _LONG)


@frozen
class Bar:
    """A row of a picture: a label, and the parts of its bar as (name, length)."""

    label: str
    parts: tuple[tuple[str, float], ...]


def render_page(title: str, parts: Iterable[str]) -> str:
    """Return the page. `parts` are HTML, made by the functions below."""
    return _PAGE.substitute(title=html_text(title), body="\n".join(parts))


def html_heading(text: str) -> str:
    return f"<h2>{html_text(text)}</h2>"


def html_paragraph(text: str) -> str:
    return f"<p>{html_text(text)}</p>"


def html_table(header: Sequence[str | Cell], rows: Iterable[Sequence[str | Cell]]) -> str:
    """Return a table that scrolls by itself if it is wider than the page."""
    titles = [_as_cell(cell) for cell in header]
    head = "".join(_html_cell("th", cell) for cell in titles)
    lines = (
        "".join(
            _html_cell("td", _as_cell(cell), title) for cell, title in zip(row, titles, strict=True)
        )
        for row in rows
    )
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def fold_text(summary: str, text: str) -> str:
    """Return a long text that a click opens."""
    return f"<details><summary>{html_text(summary)}</summary><pre>{html_text(text)}</pre></details>"


def render_bars(what: str, rows: Sequence[Bar], colors: dict[str, str]) -> str:
    """Return a picture of bars, all to one scale, with its legend. `colors` are by part."""
    longest = max((sum(length for _, length in row.parts) for row in rows), default=0.0) or 1.0
    drawn = []
    for row in rows:
        parts = "".join(
            f'<span style="width:{100 * length / longest:.2f}%;background:{colors[name]}" '
            f'title="{html_text(name)}"></span>'
            for name, length in row.parts
        )
        drawn.append(f'<p>{html_text(row.label)}</p><div class="bar">{parts}</div>')
    legend = " ".join(
        f'<span class="key" style="background:{color}"></span>{html_text(name)}'
        for name, color in colors.items()
    )
    return (
        f'<div class="bars" role="figure" aria-label="{html_text(what)}">{"".join(drawn)}</div>\n'
        f"<p>{legend}</p>"
    )


def _as_cell(cell: str | Cell) -> Cell:
    return Cell(cell) if isinstance(cell, str) else cell


def _html_cell(tag: str, cell: Cell, title: Cell | None = None) -> str:
    """Return a cell; one of a row has the title of its column, for narrow screens."""
    kind = f' class="{cell.kind}"' if cell.kind else ""
    head = f' data-head="{html_text(title.text)}"' if title is not None and title.text else ""
    return f"<{tag}{kind}{head}>{html_text(cell.text)}</{tag}>"


def html_text(text: str) -> str:
    """Return a text as HTML, without tags and without control characters."""
    return escape(escape_controls(text, keep="\t\n"))
