"""The hooks of a driver: commands of its image, at a load or an unload.

`loaded.json` names a hook from before it begins until its end is recorded. If the process is killed
in between, nobody knows how far the hook came: the next process runs the hooks of that moment
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nodeside import log
from nodeside.driver.node.loaded_record import LoadedRecord
from nodeside.driver.node.run_directory import write_loaded
from nodeside.driver.services.output import Output
from nodeside.errors import ExitCode, NodesideError
from nodeside.spec.services import Hook
from nodeside.system import process
from nodeside.system.host import Host

_LINES = 5  # of the output, in an error


class HookFailed(NodesideError):
    """A hook that failed or took too long; its output is in the log."""

    exit_code = ExitCode.PROGRAM_FAILED
    reason = "HookFailed"


def run_hooks(
    host: Host,
    record: LoadedRecord | None,
    moment: str,
    hooks: Sequence[Hook],
    *,
    only_recorded: bool,
) -> None:
    """Run the hooks of a moment, such as afterLoad, in order. Raises HookFailed at the first.

    The caller records that all have ended. With `only_recorded`, a hook that cannot be recorded
    does not begin: raises NoSpace, SystemRefused. Without, that is logged.
    """
    for number, hook in enumerate(hooks):
        name = f"hooks.{moment}[{number}]"
        if record is not None and only_recorded:
            write_loaded(host, replace(record, hook=name))
        else:
            record_hook(host, record, name)
        try:
            with log.step(name):
                _run_hook(name, hook)
        except HookFailed:
            record_hook(host, record, "")
            raise


def record_hook(host: Host, record: LoadedRecord | None, name: str) -> None:
    """Record the hook that begins or comes next, "" for none. A failure is only logged."""
    if record is None:
        return
    try:
        write_loaded(host, replace(record, hook=name))
    except NodesideError as error:
        log.warning(
            "no record of the hooks: if this process is killed now, the next one cannot say so",
            why=error,
        )


def repetition_message(record: LoadedRecord, moment: str) -> str:
    """Return the note on the hooks of a moment that run again."""
    return (
        f"an earlier process of this driver ended before {record.hook} had, which may have run: "
        f"the hooks of {moment} run again, from the first"
    )


def _run_hook(name: str, hook: Hook) -> None:
    output = Output(hook=name)
    try:
        done = process.run(
            hook.command, timeout=hook.timeout_seconds, check=False, on_line=output.take_line
        )
    except NodesideError as error:
        raise HookFailed(f"{name}: {error}", hint=error.hint) from error
    if done.exit_code != 0:
        words = f"{process.exit_code_in_words(done.exit_code)}: {' '.join(hook.command)}"
        last = process.last_lines_of(done.output.strip(), _LINES)
        raise HookFailed(
            f"{name}: {words}\n{last}" if last else f"{name}: {words}",
            hint="its whole output is in the log of the driver container",
        )
