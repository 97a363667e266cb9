"""The sections of driver.yaml about programs of the driver image: hooks and services.

See model.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodeside.spec import patterns
from nodeside.spec.schema import item, section


@section
class ServiceReady:
    """What shows that a service is ready: one of these. A path is one in the driver container."""

    socket: str = item(
        "A Unix socket at which it listens, bound by its absolute path.",
        default="",
        pattern=patterns.ABSOLUTE_PATH,
    )
    file: str = item(
        "A file that the service writes or replaces after each of its starts.",
        default="",
        pattern=patterns.ABSOLUTE_PATH,
    )
    log: str = item(
        "A Python regular expression that must match somewhere in a line of its output.",
        default="",
        max_length=256,
    )


@section
class Service:
    """A program of the driver image that runs as long as the driver is loaded: a daemon."""

    name: str = item("Name of the service.", pattern=patterns.SERVICE_NAME)
    command: tuple[str, ...] = item(
        "Program and arguments, started in the driver container. It stays in the foreground: when "
        "it ends, the service has ended.",
        min_items=1,
        max_length=8192,
    )
    forks: bool = item(
        "Whether it goes into the background by itself instead, as systemd's Type=forking: the "
        "command exits with 0, and the service has ended when none of its processes is left.",
        default=False,
    )
    environment: Mapping[str, str] = item(
        "Environment variables, besides PATH, HOME and the like.",
        default_factory=dict,
        key_pattern=patterns.VARIABLE_NAME,
        max_length=8192,
    )
    ready: ServiceReady | None = item(
        "What shows that it is ready.",
        default=None,
        default_words="it has run for a second",
    )
    start_timeout_seconds: int = item(
        "How long it may take to be ready. Then it is stopped, and started again later.",
        default=30,
        minimum=1,
        maximum=3600,
    )
    stop_timeout_seconds: int = item(
        "How long it may take to end after SIGTERM. Then it is killed.",
        default=10,
        minimum=1,
        maximum=300,
    )


@section
class Hook:
    """A command at a moment of a load or an unload."""

    command: tuple[str, ...] = item(
        "Program and arguments, run in the driver container; exit code 0 is success.",
        min_items=1,
        max_length=8192,
    )
    timeout_seconds: int = item("Deadline of the command.", default=60, minimum=1, maximum=3600)


@section
class Hooks:
    """Commands of the driver image, in order. Each runs once for a load or an unload of a boot: a
    restart of the container repeats none that has ended. One that was killed, or whose end could
    not be recorded, runs again, so a hook must bear a repetition."""

    after_load: tuple[Hook, ...] = item(
        "After the modules are loaded, before services start. If one fails, the load has failed: "
        "the modules are unloaded, and the previous ones loaded again.",
        default=(),
        max_items=16,
    )
    before_unload: tuple[Hook, ...] = item(
        "Before services are stopped and modules unloaded, once nothing else holds them. If one "
        "fails, the modules stay.",
        default=(),
        max_items=16,
    )
    after_unload: tuple[Hook, ...] = item(
        "After the modules are unloaded. If one fails, that is said, and nothing else changes.",
        default=(),
        max_items=16,
    )
