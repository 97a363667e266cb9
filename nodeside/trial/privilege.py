"""Root privileges for root file systems and mounts: other users continue with sudo."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from nodeside.system.owned_directory import require_trusted
from nodeside.trial.cache import default_directory, home_refusal_message
from nodeside.trial.debian.archive import proxy_environment
from nodeside.trial.errors import TrialError
from nodeside.trial.progress import Progress

_VARIABLES = ("NODESIDE_SUITE", "TERM", "LANG", "PATH")


def become_root() -> None:
    """Return if we are root; otherwise start the same command again with sudo, once.

    Raises UsageError if other users can exchange the directory of root's temporary files.
    """
    if os.geteuid() == 0:
        hint = "name a directory of root, or one such as /tmp: TMPDIR"
        require_trusted(Path(tempfile.gettempdir()), "the directory of temporary files", hint)
        named = os.environ.get("NODESIDE_TRIAL_CACHE") or os.environ.get("XDG_CACHE_HOME")
        if not named and (why := home_refusal_message()):
            Progress().print_step(f"{why}; using {default_directory()}")
        return
    sudo = shutil.which("sudo")
    if sudo is None:
        raise TrialError("root file systems can only be made by root", hint="run it again as root")
    Progress().print_step("only root can make root file systems: continuing with sudo")
    _replace_process(
        [sudo, *_preserve_option(), "env", *_other_variables(), sys.executable, *sys.argv]
    )


def _preserve_option() -> list[str]:
    """Return sudo's option for the variables whose values may hold a password.

    Everybody can read the words of a command.
    """
    names = [*proxy_environment(), *(name for name in ("NODESIDE_MIRROR",) if name in os.environ)]
    return [f"--preserve-env={','.join(names)}"] if names else []


def _other_variables() -> list[str]:
    """Return the other variables that the command needs. The cache stays the user's."""
    env = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    env["NODESIDE_TRIAL_CACHE"] = str(default_directory())
    env["PYTHONDONTWRITEBYTECODE"] = "1"  # no root-owned files in the user's checkout
    return [f"{name}={value}" for name, value in env.items()]


def _replace_process(argv: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(argv[0], argv)  # noqa: S606  # this process becomes sudo; nothing of ours is left
