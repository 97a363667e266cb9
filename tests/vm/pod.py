"""A driver pod on a throwaway machine, as the kubelet would run it, for the tests of this tier."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from nodeside.driver.bundle.bundle import MANIFEST, Bundle
from nodeside.driver.handoff.provide import sidecar_command
from nodeside.system.process import Completed
from nodeside.trial.errors import MachineLost
from nodeside.trial.machine.containers import TOOLKIT, ContainerSpec
from nodeside.trial.machine.machine import GuestProcess, Machine
from tests.patience import patience
from tests.vm.warm import WarmDriver, WarmProcess

# Seconds for what takes a minute in an emulated machine, a compile: only what hangs takes longer,
# however busy the host is.
LONG = patience(900.0)
_SIDECAR = {"NODESIDE_SIDECAR_TIMEOUT": "600"}
_SHARED = Path("/shared")
_HOLD = "import signal, sys; kept = open(sys.argv[1]); print('held', flush=True); signal.pause()"

P = TypeVar("P", GuestProcess, WarmProcess)

CACHE = "/var/lib/nodeside/cache"  # on the node
SHARED = "/var/lib/pod/shared"  # on the node

# A toolkit image that has a compiler and no headers of this kernel.
BARE_TOOLKIT = replace(TOOLKIT, layers=("/toolkit",))

_FORGET = """
awk '/\\([A-Z]*O[A-Z]*\\)$/ { print $1 }' /proc/modules | xargs -r rmmod
rm -rf /var/lib/nodeside/* /run/nodeside/*
"""
# What the init container provides stays: to copy Python takes seconds of a processor.
_RESET = f"""{_FORGET}
cd {SHARED} && for each in *; do
  case "$each" in python|toolkit.pyz) ;; *) rm -rf "$each" ;; esac
done
"""


class Lines:
    """What a process says, line by line, as it comes."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._more = threading.Condition()

    def add(self, line: str) -> None:
        with self._more:
            self._lines.append(line)
            self._more.notify_all()

    def matching(self, pattern: str) -> list[str]:
        with self._more:
            return [line for line in self._lines if re.search(pattern, line)]

    def until(self, pattern: str, *, times: int = 1, timeout: float = LONG) -> str:
        """Wait for a line that matches, or for the n-th such line."""
        with self._more:
            there = self._more.wait_for(lambda: len(self.matching(pattern)) >= times, timeout)
            assert there, f"no line {pattern!r} after {timeout:g} s; there were:\n{self}"
            return self.matching(pattern)[times - 1]

    def __str__(self) -> str:
        return "\n".join(self._lines)


@dataclass(frozen=True)
class Running(Generic[P]):
    """A command that goes on running, and what it says on its standard error.

    It has a container of its own (`GuestProcess`), or is forked in the warm one (`WarmProcess`).
    """

    process: P
    says: Lines

    def kill(self, number: int = signal.SIGKILL) -> Completed:
        """Send a signal and wait for the end."""
        self.process.kill(number)
        return self.process.wait(LONG)


class Pod:
    """The driver container and the toolkit container on `machine`.

    Every `driver` command is a new container, as after a restart, or with `warm` a new process in
    that one; the cache, `/run/nodeside` and the shared directory stay. `of` is the driver's
    directory in the image, "" for the image itself.
    """

    def __init__(self, machine: Machine, warm: WarmDriver | None = None) -> None:
        self.machine = machine
        self.warm = warm
        self.sidecar: GuestProcess | None = None
        self._started: list[GuestProcess | WarmProcess] = []

    # --- the driver container

    def driver(
        self,
        *arguments: str,
        of: str = "",
        where: str = "driver",
        env: Mapping[str, str] | None = None,
        timeout: float = LONG,
    ) -> Completed:
        """`nodeside driver ...` to its end; the exit code is the caller's."""
        if self.warm is not None and where == "driver":
            return self.warm.run(["driver", *arguments], _of(of, env), timeout)
        argv = ["nodeside", "driver", *arguments]
        return self.machine.run(argv, where, timeout=timeout, env=_of(of, env), check=False)

    def report(
        self, *arguments: str, of: str = "", where: str = "driver", code: int = 0
    ) -> dict[str, Any]:
        """The JSON document of a verb, which must exit with `code`."""
        done = self.driver(*arguments, "--output", "json", of=of, where=where)
        assert done.exit_code == code, f"{done.output}\n{done.errors}"
        found = json.loads(done.output)
        assert isinstance(found, dict)
        return found

    def run_once(
        self, *arguments: str, of: str = "", where: str = "driver", code: int = 0
    ) -> dict[str, Any]:
        """What the driver container does at its start."""
        return self.report("run", "--once", *arguments, of=of, where=where, code=code)

    def start_driver(
        self,
        *arguments: str,
        of: str = "",
        where: str | ContainerSpec = "driver",
        env: Mapping[str, str] | None = None,
    ) -> Running[GuestProcess]:
        """A driver container that goes on running."""
        says = Lines()
        argv = ["nodeside", "driver", *arguments]
        process = self.machine.start(argv, where, env=_of(of, env), on_error=says.add)
        self._started.append(process)
        return Running(process, says)

    def fork_driver(
        self, *arguments: str, of: str = "", env: Mapping[str, str] | None = None
    ) -> Running[WarmProcess]:
        """A driver command that goes on running, where its container means nothing."""
        assert self.warm is not None
        says = Lines()
        process = self.warm.start(["driver", *arguments], _of(of, env), on_error=says.add)
        self._started.append(process)
        return Running(process, says)

    # --- the toolkit container

    def start_sidecar(self, where: str | ContainerSpec = "toolkit") -> GuestProcess:
        """The init container, then the toolkit container."""
        provided = self.driver("provide")
        assert provided.exit_code == 0, provided.errors
        self.sidecar = self.machine.start(sidecar_command(_SHARED), where)
        self._started.append(self.sidecar)
        return self.sidecar

    def kill_sidecar(self) -> None:
        assert self.sidecar is not None
        self.sidecar.kill(signal.SIGKILL)
        self.sidecar.wait(LONG)
        self.sidecar = None

    # --- the node

    def put_bundle(self, bundle: Bundle, under: str = CACHE) -> str:
        """Put a bundle that was built elsewhere into the node's cache; its directory there."""
        manifest = bundle.manifest
        place = f"{under}/{manifest.driver}/{bundle.directory.name}"
        for file in manifest.files():
            self.machine.write_file(
                f"{place}/{file.file}", (bundle.directory / file.file).read_bytes()
            )
        self.machine.write_file(f"{place}/{MANIFEST}", (bundle.directory / MANIFEST).read_bytes())
        return place

    def node(self, *argv: str, check: bool = True) -> str:
        """The output of a command on the node itself, outside every container."""
        return self.machine.run(argv, "node", timeout=LONG, check=check).output

    def until(self, condition: str, timeout: float = LONG) -> None:
        """Wait until a shell command on the node succeeds."""
        script = f"until {condition}; do sleep 0.1; done >/dev/null 2>&1"
        self.machine.run(["sh", "-c", script], "node", timeout=timeout)

    def exists(self, path: str) -> bool:
        return self.machine.run(["ls", path], "node", timeout=LONG, check=False).exit_code == 0

    def delete(self) -> None:
        """The pod is deleted: what runs in it ends, and its shared directory goes."""
        self.close()
        self.node("sh", "-c", f"rm -rf {SHARED}/*")

    def reset(self) -> None:
        """A node that has never seen a driver, as far as a running kernel can be one."""
        self.node("sh", "-c", _RESET, check=False)

    def forget(self) -> None:
        """A node that has no driver, beside a sidecar that goes on running."""
        self.node("sh", "-c", _FORGET, check=False)

    def end_containers(self) -> None:
        """Whatever comes next is in a new container, which sees what is mounted then."""
        self.close()
        if self.warm is not None:
            self.warm.end()

    def close(self) -> None:
        """End every container that still runs."""
        for process in self._started:
            with suppress(MachineLost):
                process.kill()
                process.wait(LONG)
        self._started.clear()
        self.sidecar = None

    # --- the kernel

    def kernel_log(self) -> str:
        return self.node("dmesg")

    def said(self, text: str) -> int:
        """How often the kernel has said this since the machine was switched on."""
        return self.kernel_log().count(text)

    def lines_of_probe(self) -> int:
        """How often the edu driver has probed a device since the machine was switched on."""
        return self.said("edu: probe")

    def loaded(self, module: str = "edu") -> bool:
        return self.exists(f"/sys/module/{module}/initstate")

    def version(self, module: str = "edu") -> str:
        """The MODULE_VERSION of what is in the kernel."""
        return self.node("cat", f"/sys/module/{module}/version").strip()

    def parameter(self, name: str, module: str = "edu") -> str:
        return self.node("cat", f"/sys/module/{module}/parameters/{name}").strip()

    def ready(self, driver: str = "edu") -> bool:
        """Whether the ready file stands that consumers wait for."""
        return self.exists(f"/run/nodeside/{driver}/ready")


@contextmanager
def held_open(pod: Pod, device: str) -> Iterator[GuestProcess]:
    """A consumer in a container of its own has the device open."""
    says = Lines()
    argv = ["python3", "-c", _HOLD, f"/host{device}"]
    consumer = pod.machine.start(argv, "consumer", on_line=says.add)
    try:
        says.until("held")
        yield consumer
    finally:
        consumer.kill()
        consumer.wait(LONG)


def whys(report: Mapping[str, Any]) -> dict[str, str]:
    """Why each rung did or did not serve."""
    rungs: Sequence[Mapping[str, Any]] = report["rungs"]
    return {rung["rung"]: rung["why"] for rung in rungs}


def _of(driver: str, env: Mapping[str, str] | None) -> dict[str, str]:
    named = {"NODESIDE_DRIVER": f"/driver-image/{driver}/driver.yaml"} if driver else {}
    return _SIDECAR | named | dict(env or {})
