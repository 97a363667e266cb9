"""What a person lacks whom the API server refuses: which role, and how it is given.

The hint of a refusal is about the controller's rules, which `nodeside-cluster install` brings. Who
types a command has rules of his own, which an administrator hands out. Called by the commands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from cluster.options import EXPLAIN, PREFLIGHT

F = TypeVar("F", bound=Callable[..., Any])

LOOKING: Final = f"`status` takes the ClusterRole view, `explain` and `resolve` also {EXPLAIN}"
TRYING: Final = f"`preflight` takes the ClusterRole and the Role {PREFLIGHT}"
INSTALLING: Final = "`install` and `uninstall` take cluster-admin"


def in_own_right(needs: str) -> Callable[[F], F]:
    """A command that says what role it takes, where the API server refuses."""

    def made(function: F) -> F:
        @functools.wraps(function)
        def command(*arguments: Any, **options: Any) -> Any:
            from cluster.apierror import Forbidden

            try:
                return function(*arguments, **options)
            except Forbidden as error:
                error.hint = f"{error.look}; {needs}"
                raise

        return cast(F, command)

    return made
