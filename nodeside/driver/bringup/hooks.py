"""The hooks of a driver: commands of its image, at a load or an unload."""

from __future__ import annotations

from collections.abc import Sequence

from nodeside import log
from nodeside.driver.services.output import Output
from nodeside.errors import ExitCode, NodesideError
from nodeside.spec.services import Hook
from nodeside.system import process

_LINES = 5  # of the output, in an error


class HookFailed(NodesideError):
    """A hook that failed or took too long; its output is in the log."""

    exit_code = ExitCode.PROGRAM_FAILED
    reason = "HookFailed"


def run_hooks(moment: str, hooks: Sequence[Hook]) -> None:
    """Run the hooks of a moment, such as afterLoad, in order. Raises HookFailed at the first."""
    for number, hook in enumerate(hooks):
        name = f"hooks.{moment}[{number}]"
        with log.step(name):
            _run_hook(name, hook)


def _run_hook(name: str, hook: Hook) -> None:
    output = Output(hook=name)
    try:
        done = process.run(
            hook.command, timeout=hook.timeout_seconds, check=False, on_line=output.line
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
