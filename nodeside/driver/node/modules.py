"""The modules in the kernel and their state, read from /proc/modules and /sys/module.

Only reads. A module that is coming or going appears in only one of the two places, so contradictory
reads are repeated. Formats: print_unload_info() and m_show() in kernel/module/procfs.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from nodeside.driver.module.elf import parse_notes
from nodeside.driver.node.intree import built_in_modules
from nodeside.errors import SystemRefused
from nodeside.protocol.module_names import kernel_name
from nodeside.system import sysfs
from nodeside.system.host import Host
from nodeside.values import frozen

_ATTEMPTS = 5  # a module that keeps coming and going is reported as last seen

_INITSTATE = {"Live": "live", "Loading": "coming", "Unloading": "going"}


@frozen
class LoadedState:
    """A module in the kernel.

    `initstate` is live, coming or going. `holders` are the modules that use it. `build_id` is "" if
    it has none. `parameters` are the readable ones; they are only read on request, because their
    getters run the module's code. `permanent` is set if the module has no exit function, or if this
    kernel cannot unload modules at all.
    """

    name: str
    refcnt: int = 0
    initstate: str = "live"
    holders: tuple[str, ...] = ()
    build_id: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    taint: str = ""
    permanent: bool = False

    @property
    def in_tree(self) -> bool:
        """Whether the kernel counts it as a module of its own tree."""
        return "O" not in self.taint


@frozen
class KernelModules:
    """The modules of a host's kernel."""

    host: Host

    def with_parameters(self, name: str) -> LoadedState | None:
        """Return a module with its parameters, or None. Raises SystemRefused if a read hangs."""
        state = self.state(name)
        if state is None:
            return None
        return replace(
            state, parameters=_read_parameters(self._module_directory(state.name) / "parameters")
        )

    def state(self, name: str) -> LoadedState | None:
        """Return a module, or None if it is not in the kernel or is built in."""
        module = kernel_name(name)
        for _ in range(_ATTEMPTS):
            row = self.rows().get(module)
            if row is None:
                return None
            complete = self._complete_from_sysfs(row)
            if self._sysfs_agrees(row):
                break
        return complete

    def rows(self) -> Mapping[str, LoadedState]:
        """Return the modules from /proc/modules alone: one file to read instead of hundreds."""
        path = self.host.proc / "modules"
        try:
            return parse_modules(path.read_text())
        except OSError as exc:
            if (self.host.proc / "sys").is_dir():
                raise SystemRefused(
                    f"this kernel has no loadable modules: there is no {path}",
                    hint="use a throwaway machine, whose kernel has them: nodeside try --help",
                ) from exc
            raise SystemRefused(
                f"cannot read {path}: {exc.strerror}",
                hint="in a pod, mount the host's /proc at /host/proc",
            ) from exc

    def is_built_in(self, name: str) -> bool:
        """Return whether the driver is built in, so that it can be neither loaded nor removed.

        A built-in driver with parameters has a directory in /sys/module too, but no initstate.
        """
        module = kernel_name(name)
        path = self._module_directory(module)
        if path.is_dir() and not (path / "initstate").exists():
            return module not in self.rows()
        return module in built_in_modules(self.host.lib_modules(self.host.kernel.release))

    def _module_directory(self, name: str) -> Path:
        return self.host.sys_module / name

    def _sysfs_agrees(self, row: LoadedState) -> bool:
        """Return whether sysfs confirms the row; modules coming or going are not checked."""
        if row.initstate != "live" or not self.host.sys_module.is_dir():
            return True
        return (self._module_directory(row.name) / "initstate").exists()

    def _complete_from_sysfs(self, row: LoadedState) -> LoadedState:
        path = self._module_directory(row.name)
        return replace(
            row,
            initstate=sysfs.read(path / "initstate") or row.initstate,
            holders=tuple(sorted({*row.holders, *sysfs.list_entries(path / "holders")})),
            build_id=_build_id(path / "notes" / ".note.gnu.build-id"),
            taint=row.taint or sysfs.read(path / "taint") or "",
        )


def parse_modules(text: str) -> dict[str, LoadedState]:
    """Parse /proc/modules: `name size refcnt holders,[permanent], state address (taint)`."""
    states = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 5:
            continue
        name, _, refcnt, users, state = words[:5]
        holders = [word for word in users.split(",") if word not in ("", "-")]
        states[name] = LoadedState(
            name=name,
            refcnt=0 if refcnt == "-" else int(refcnt),
            initstate=_INITSTATE.get(state, state.lower()),
            holders=tuple(word for word in holders if word != "[permanent]"),
            taint=words[-1].strip("()+-") if words[-1].startswith("(") else "",
            permanent="[permanent]" in holders or refcnt == "-",
        )
    return states


def _build_id(path: Path) -> str:
    try:
        return parse_notes(path.read_bytes())
    except OSError:
        return ""


def _read_parameters(directory: Path) -> dict[str, str]:
    """Read the readable parameters: mode 0 has no file, mode 0200 is write-only."""
    names = sysfs.list_entries(directory)
    values = zip(names, sysfs.read_attributes(*(directory / name for name in names)), strict=True)
    return {name: value for name, value in values if value is not None}
