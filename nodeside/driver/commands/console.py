"""Print the output of the toolkit sidecar's build on the console, as it happens."""

from __future__ import annotations

import click

from nodeside import log
from nodeside.driver.handoff.listener import Listener, Patience

SIDECAR_TIMEOUT = 60.0  # seconds for a sidecar to appear; a person waits less than a pod


def make_listener(sidecar_timeout: float) -> Listener:
    """Return a listener that shows build output: prefixed lines in a text log, facts in JSON."""
    return Listener(
        patience=Patience(appear=sidecar_timeout),
        on_build_line=_plain_line if log.log_format() == "text" else _json_line,
    )


def _plain_line(line: str) -> None:
    click.echo(f"build | {line}", err=True)


def _json_line(line: str) -> None:
    log.fact(line, stream="build")
