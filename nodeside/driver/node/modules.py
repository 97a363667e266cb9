"""Which modules are in the kernel, and in what state: /proc/modules and /sys/module together.

Read by whoever decides or proves something; changes nothing. A module that is coming or going
shows in one of the two places only, so what contradicts itself is read again. Formats:
print_unload_info() and m_show() in kernel/module/procfs.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nodeside.driver.module.modulefile import parse_notes
from nodeside.driver.node import sysfs
from nodeside.errors import SystemRefused
from nodeside.host import Host
from nodeside.modulenames import kernel_name, name_of_file

_ATTEMPTS = 5  # a module that comes and goes all the time is reported as last seen

_INITSTATE = {"Live": "live", "Loading": "coming", "Unloading": "going"}


@dataclass(frozen=True)
class LoadedState:
    """A module in the kernel.

    `initstate` is live, coming or going. `holders` are modules that use it. `build_id` and
    `srcversion` are "" if it has none. `parameters` are those that can be read back, if they were
    asked for: their getters are the module's code. `permanent`: it has no exit function, or this
    kernel cannot unload at all.
    """

    name: str
    refcnt: int = 0
    initstate: str = "live"
    holders: tuple[str, ...] = ()
    build_id: str = ""
    srcversion: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    taint: str = ""
    permanent: bool = False


@dataclass(frozen=True)
class KernelModules:
    """The modules of a host's kernel."""

    host: Host

    def with_parameters(self, name: str) -> LoadedState | None:
        """One module, or None, with its parameters. Raises SystemRefused if one does not answer."""
        state = self.state(name)
        if state is None:
            return None
        return replace(state, parameters=_parameters(self._directory(state.name) / "parameters"))

    def state(self, name: str) -> LoadedState | None:
        """One module, or None if it is not in the kernel (a built-in one is not)."""
        wanted = kernel_name(name)
        for _ in range(_ATTEMPTS):
            row = self.rows().get(wanted)
            if row is None:
                return None
            complete = self._complete(row)
            if self._agrees(row):
                break
        return complete

    def rows(self) -> Mapping[str, LoadedState]:
        """What /proc/modules alone says: one file to read instead of hundreds."""
        path = self.host.proc / "modules"
        try:
            return parse_modules(path.read_text())
        except OSError as exc:
            if (self.host.proc / "sys").is_dir():
                raise SystemRefused(
                    f"this kernel has no loadable modules: there is no {path}",
                    hint="a throwaway machine has a kernel that does: nodeside try --help",
                ) from exc
            raise SystemRefused(
                f"cannot read {path}: {exc.strerror}",
                hint="in a pod, mount the host's /proc at /host/proc",
            ) from exc

    def is_built_in(self, name: str) -> bool:
        """Whether the kernel has this driver inside: it can be neither loaded nor removed.

        A built-in driver with a parameter has a directory in /sys/module too, but no initstate.
        """
        wanted = kernel_name(name)
        path = self._directory(wanted)
        if path.is_dir() and not (path / "initstate").exists():
            return wanted not in self.rows()
        listed = self.host.lib_modules(self.host.kernel.release) / "modules.builtin"
        return wanted in _stems(sysfs.read(listed) or "")

    def _directory(self, name: str) -> Path:
        return self.host.sys_module / name

    def _agrees(self, row: LoadedState) -> bool:
        """Whether sysfs has what /proc/modules said; no use asking of one that comes or goes."""
        if row.initstate != "live" or not self.host.sys_module.is_dir():
            return True
        return (self._directory(row.name) / "initstate").exists()

    def _complete(self, row: LoadedState) -> LoadedState:
        path = self._directory(row.name)
        return LoadedState(
            name=row.name,
            refcnt=row.refcnt,
            initstate=sysfs.read(path / "initstate") or row.initstate,
            holders=tuple(sorted({*row.holders, *sysfs.names(path / "holders")})),
            build_id=_build_id(path / "notes" / ".note.gnu.build-id"),
            srcversion=sysfs.read(path / "srcversion") or "",
            taint=row.taint or sysfs.read(path / "taint") or "",
            permanent=row.permanent,
        )


def parse_modules(text: str) -> dict[str, LoadedState]:
    """The rows of /proc/modules: `name size refcnt holders,[permanent], state address (taint)`."""
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


def _parameters(directory: Path) -> dict[str, str]:
    """Those that can be read: one of mode 0 has no file, one of mode 0200 only takes writes."""
    names = sysfs.names(directory)
    values = zip(names, sysfs.ask(*(directory / name for name in names)), strict=True)
    return {name: value for name, value in values if value is not None}


def _stems(listing: str) -> frozenset[str]:
    """Module names in a file such as modules.builtin, one path a line."""
    return frozenset(name_of_file(line) for line in listing.splitlines() if line)
