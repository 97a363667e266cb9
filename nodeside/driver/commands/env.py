"""`nodeside driver env`: a driver on a node as shell variables, for scripts and bug reports.

The output is built from an allow-list of facts. Nothing of the process's own environment is
printed, so no token or password can leak.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator

from nodeside import __version__
from nodeside.driver.commands.outcome import CommandOutput
from nodeside.driver.ladder.task import Config, resolve_task
from nodeside.system.host import Kernel


def describe_environment(config: Config, kernel: Kernel | None) -> CommandOutput:
    """Return one `NAME='value'` a line, for `eval "$(nodeside driver env)"`. Raises SpecError."""
    facts = dict(_environment_facts(config, kernel))
    return CommandOutput(
        facts, text="\n".join(f"{n}={shlex.quote(value)}" for n, value in facts.items())
    )


def _environment_facts(config: Config, kernel: Kernel | None) -> Iterator[tuple[str, str]]:
    task = resolve_task(config, kernel)
    yield "NODESIDE_VERSION", __version__
    yield "NODESIDE_PYTHON", platform.python_version()
    yield "NODESIDE_DRIVER", str(config.driver_file.absolute())
    yield "NODESIDE_HOST", str(config.host.root)
    yield "NODESIDE_CACHE", str(config.cache.root)
    yield "NODESIDE_SHARED", str(config.shared.root) if config.shared else ""
    yield "DRIVER_NAME", task.name
    yield "DRIVER_VERSION", task.version
    yield "DRIVER_MODULES", " ".join(task.wanted.names)
    yield "SOURCE_DIR", str(task.source)
    yield "SOURCE_DIGEST", task.source_digest
    yield "BUILD_KIND", task.settings.kind.value
    yield "KERNEL_RELEASE", task.kernel.release
    yield "KERNEL_VERSION", task.kernel.version
    yield "KERNEL_ARCH", task.kernel.architecture
    yield "BOOT_ID", task.boot_id
    yield "BUNDLE_KEY", task.key
    yield "BUNDLE_TAG", task.tag
