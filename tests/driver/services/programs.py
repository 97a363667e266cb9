"""Services of the tests: shell scripts that do what a daemon does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeside.driver.services.services import Services
from nodeside.spec.services import Service, ServiceReady
from nodeside.system.clock import Clock

DRIVER = "edu"


def service(
    script: str, name: str = "monitor", *, start: int = 30, stop: int = 10, **ready: str
) -> Service:
    """A service that runs a shell script."""
    return Service(
        name=name,
        command=("sh", "-c", script),
        ready=ServiceReady(**ready) if ready else None,
        start_timeout_seconds=start,
        stop_timeout_seconds=stop,
    )


def daemon(directory: Path, name: str = "monitor") -> Service:
    """One that tells its starts and its end, and says that it is ready."""
    told = directory / "told"
    script = (
        f"trap 'echo {name} ends >>{told}; exit 0' TERM; echo {name} starts >>{told}; echo ready; "
        "while :; do sleep 0.05; done"
    )
    return service(script, name, log="^ready$")


def told(directory: Path) -> list[str]:
    """What daemons have told."""
    return (directory / "told").read_text().splitlines()


@contextmanager
def kept(clock: Clock | None = None) -> Iterator[Services]:
    """Services that are stopped at the end of a test."""
    services = Services(clock or Clock())
    try:
        yield services
    finally:
        services.stop()
