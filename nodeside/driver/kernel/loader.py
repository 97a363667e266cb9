"""Loads and unloads modules of the running kernel, one at a time and never by force.

Only `Loader` calls the module system calls. If the kernel refuses, it raises an exception that
explains the errno and has the kernel's own log lines. Order, policy and roll-back are elsewhere:
`sequence.py`, `unload.py`, `conflicts.py`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path

from nodeside import log
from nodeside.driver.kernel.errors import (
    InUse,
    LoadFailed,
    RebootRequired,
    UnloadFailed,
    errno_name,
)
from nodeside.driver.kernel.refusals import (
    LOADING_DISABLED,
    Circumstances,
    KernelExplanation,
    explain_refusal,
)
from nodeside.driver.module.compression import decompress
from nodeside.driver.module.modulefile import parse_module
from nodeside.driver.module.parameters import unpassable_reason, write_argument
from nodeside.driver.node.capabilities import Capability, effective_capabilities
from nodeside.driver.node.command_line import read_command_line
from nodeside.driver.node.facts import lockdown_mode
from nodeside.driver.node.holders import Holding, who_holds
from nodeside.driver.node.intree import InTree, NotInTree, read_tree, real_path
from nodeside.driver.node.kernel_log import Excerpt, KernelLog, Mark
from nodeside.driver.node.modprobe_d import ModprobeConfig, read_modprobe_config
from nodeside.driver.node.modules import KernelModules, LoadedState
from nodeside.driver.node.syscalls import DiedInKernel, KernelSyscalls, Syscalls
from nodeside.errors import DeadlinePassed, NodesideError, SystemRefused
from nodeside.protocol.module_names import kernel_name
from nodeside.system import sysfs
from nodeside.system.child import NoProcess
from nodeside.system.clock import Clock
from nodeside.system.host import Host
from nodeside.system.scratch import scratch_directory
from nodeside.values import frozen

_PAUSE = 0.05  # seconds between attempts
# After so many attempts, an EBUSY is init()'s, if there is no module of that name.
_INIT_REFUSALS = 2


@frozen
class Deadlines:
    """Limits in seconds. `init` and `exit` bound the module's own functions.

    `busy` bounds the retries of a load, `idle` those of an unload: udev may briefly hold a new
    device open.
    """

    init: float = 300.0
    exit: float = 120.0
    busy: float = 10.0
    idle: float = 2.0


@frozen
class Loader:
    """A loader and unloader. The kernel of `host` must be the running one."""

    host: Host
    syscalls: Syscalls = field(default_factory=KernelSyscalls)
    clock: Clock = field(default_factory=Clock)
    deadlines: Deadlines = field(default_factory=Deadlines)

    @property
    def modules(self) -> KernelModules:
        return KernelModules(self.host)

    @property
    def kernel_log(self) -> KernelLog:
        return KernelLog(self.host, self.syscalls)

    # --- load -----------------------------------------------------------------------------

    def insert_module(
        self, path: Path, parameters: Mapping[str, str] | None = None, *, name: str = ""
    ) -> None:
        """Load an uncompressed module file. Raises LoadFailed, SystemRefused.

        `name` is the name in the kernel, if it differs from the file name.
        """
        module = kernel_name(name or path.name.removesuffix(".ko"))
        line = parameter_line(module, parameters or {})
        with _open_module(path) as fd:
            self._insert_module(fd, module, line)
        log.fact("module loaded", module=module, parameters=line)

    def load_in_tree(self, name: str) -> tuple[str, ...]:
        """Load an in-tree module and its dependencies, hard and soft ones, unless it is loaded.

        A loaded module is left as it is, since it may be another driver's. A soft dependency that
        cannot be loaded is no failure. Returns the names of the newly loaded modules, in load
        order. Raises NotInTree, LoadFailed.
        """
        loaded = self.modules.rows()
        if kernel_name(name) in loaded:
            return ()
        tree = read_tree(self.host.lib_modules(self.host.kernel.release))
        config = read_modprobe_config(self.host)
        needed = tree.load_order(name)
        return tuple(
            item
            for item in tree.soft_order((name,), config)
            if item not in loaded and self._add_in_tree(tree, config, item, soft=item not in needed)
        )

    def load_soft(self, names: Sequence[str]) -> tuple[str, ...]:
        """Load in-tree modules that a module asks for by MODULE_SOFTDEP, as far as they are there.

        Returns the names of the newly loaded modules.
        """
        if not names:
            return ()
        loaded = self.modules.rows()
        try:
            tree = read_tree(self.host.lib_modules(self.host.kernel.release))
        except NotInTree as problem:
            log.warning("soft dependencies are not loaded", modules=names, why=problem)
            return ()
        config = read_modprobe_config(self.host)
        wanted = [n for n in names if n in tree.paths and not config.why_unwanted(n)]
        return tuple(
            item
            for item in tree.soft_order(wanted, config)
            if item not in loaded and self._add_in_tree(tree, config, item, soft=True)
        )

    def _add_in_tree(self, tree: InTree, config: ModprobeConfig, name: str, *, soft: bool) -> bool:
        """Load one module of the tree. Returns whether it is there."""
        if command := config.install_command(name):
            log.fact("an install command of modprobe.d is not run", module=name, command=command)
        try:
            self._insert_in_tree(tree, name, config)
        except NodesideError as problem:
            if not soft:
                raise
            log.warning("a soft dependency was not loaded", module=name, why=problem)
            return False
        return True

    def _insert_in_tree(self, tree: InTree, name: str, config: ModprobeConfig) -> None:
        path = real_path(self.host, tree.directory / tree.paths[name])
        with scratch_directory("load") as scratch:
            plain = path
            if path.suffix != ".ko":
                plain = decompress(path, scratch / f"{name}.ko")
            try:
                self.insert_module(
                    plain, self._read_in_tree_parameters(name, plain, config), name=name
                )
            except LoadFailed as exc:
                if exc.reason != "Exists" or self.modules.state(name) is None:
                    raise

    def _read_in_tree_parameters(
        self, name: str, path: Path, config: ModprobeConfig
    ) -> Mapping[str, str]:
        """Return what modprobe.d and, above it, the command line have for an in-tree module."""
        line = read_command_line(self.host).merged_onto(config.options)
        if name in line.parameters:
            line = line.for_modules([parse_module(path)])
        for words, why in line.left_out_of(name).values():
            log.warning(
                "a parameter of modprobe.d or the kernel's command line is left out",
                module=name,
                parameter=words,
                why=why,
            )
        return line.parameters_of(name)

    def _insert_module(self, fd: int, module: str, line: str) -> None:
        """Call finit_module once no module of that name is coming or going."""
        until = self.clock.now() + self.deadlines.busy
        tries = 0
        while True:
            self._await_settled(module, until)
            mark = self.kernel_log.mark_end()
            tries += 1
            try:
                self._call_insert(fd, module, line)
                return
            except OSError as exc:
                if not self._is_worth_retrying(module, exc, tries):
                    raise self._load_error(module, exc, mark) from exc
            except (DeadlinePassed, DiedInKernel) as exc:
                raise _init_error(module, exc, self.kernel_log.read_since(mark)) from exc
            self.clock.sleep(_PAUSE)

    def _await_settled(self, module: str, until: float) -> None:
        """Wait while a module of that name is coming or going. The kernel would wait for ever."""
        while (state := self.modules.rows().get(module)) and state.initstate != "live":
            if self.clock.now() >= until:
                explanation = KernelExplanation(
                    "Busy",
                    f"a module of that name has been {state.initstate} for "
                    f"{self.deadlines.busy:g} s",
                    f"see its state: grep -w {module} /proc/modules; if that does not change, "
                    "reboot the node",
                )
                raise LoadFailed(module, explanation, retryable=True)
            self.clock.sleep(_PAUSE)

    def _call_insert(self, fd: int, module: str, line: str) -> None:
        try:
            self.syscalls.finit_module(fd, line, self.deadlines.init)
        except OSError as exc:
            # SELinux checks the label of the file in finit_module; init_module has no file.
            if exc.errno != errno.EACCES:
                raise
            log.detail("finit_module denied, trying init_module", module=module)
            self.syscalls.init_module(_read_content(fd), line, self.deadlines.init)

    def _is_worth_retrying(self, module: str, exc: OSError, tries: int) -> bool:
        """Return whether to try again.

        The kernel returns EBUSY while a module of that name is coming or going, and passes on an
        EBUSY of init().
        """
        if exc.errno not in (errno.EBUSY, errno.EAGAIN):
            return False
        state = self.modules.rows().get(module)
        return tries < _INIT_REFUSALS if state is None else state.initstate != "live"

    def _load_error(self, module: str, exc: OSError, mark: Mark) -> LoadFailed:
        error = exc.errno or 0
        excerpt = self.kernel_log.read_since(mark)
        return LoadFailed(
            module,
            explain_refusal(
                module, error, excerpt.lines, self._read_circumstances(module, excerpt)
            ),
            errno_name=errno_name(error),
            excerpt=excerpt,
            retryable=error == errno.ENOMEM,
        )

    def _read_circumstances(self, module: str, excerpt: Excerpt) -> Circumstances:
        lockdown = sysfs.read(self.host.sys / "kernel" / "security" / "lockdown") or ""
        return Circumstances(
            may_load=Capability.SYS_MODULE in effective_capabilities(self.host),
            modules_disabled=self._modules_disabled(),
            lockdown=lockdown_mode(lockdown) or "none",
            loaded=module in self.modules.rows(),
            blacklisted=module in read_command_line(self.host).blacklist,
            log_readable=bool(excerpt.lines) or not excerpt.note,
        )

    def _modules_disabled(self) -> bool:
        return sysfs.read(self.host.proc / "sys" / "kernel" / "modules_disabled") == "1"

    # --- unload ---------------------------------------------------------------------------

    def remove_module(self, name: str, *, devices: frozenset[str] = frozenset()) -> bool:
        """Unload a module. Returns False if it was not loaded.

        `devices` are the device numbers that belong to the module: see `who_holds`. Raises InUse,
        RebootRequired, UnloadFailed.
        """
        module = kernel_name(name)
        state = self.modules.state(module)
        if state is None:
            return False
        if state.permanent:
            raise stuck_error(module, state)
        self._delete_module(module, devices)
        self._verify_gone(module)
        log.fact("module unloaded", module=module)
        return True

    def _delete_module(self, module: str, devices: frozenset[str]) -> None:
        """Call delete_module. Retries briefly while something holds the module."""
        until = self.clock.now() + self.deadlines.idle
        while True:
            try:
                self.syscalls.delete_module(module, self.deadlines.exit)
                return
            except (DeadlinePassed, DiedInKernel) as exc:
                raise RebootRequired(
                    f"cannot unload {module}: its exit function never returned: {exc}",
                    hint="reboot the node: nothing else removes the module",
                ) from exc
            except NoProcess as exc:
                raise UnloadFailed(
                    f"cannot unload {module}: {exc}", hint=exc.hint, retryable=True
                ) from exc
            except OSError as exc:
                if exc.errno == errno.ENOENT:
                    return
                if exc.errno not in (errno.EBUSY, errno.EAGAIN) or self.clock.now() >= until:
                    raise self._unload_error(module, exc, devices) from exc
            self.clock.sleep(_PAUSE)

    def _unload_error(
        self, module: str, exc: OSError, devices: frozenset[str]
    ) -> InUse | RebootRequired | UnloadFailed:
        """Return the error for a refusal. EAGAIN: the module is held; EBUSY: it is stuck."""
        if exc.errno == errno.EAGAIN:
            return in_use_error(who_holds(module, self.host, devices))
        if exc.errno == errno.EBUSY:
            return stuck_error(module, self.modules.state(module))
        if exc.errno == errno.EPERM and self._modules_disabled():
            return RebootRequired(
                f"cannot unload {module}: kernel.modules_disabled is 1 until the next boot",
                hint=LOADING_DISABLED,
            )
        return UnloadFailed(
            f"cannot unload {module}: {errno_name(exc.errno or 0)}",
            hint="run as root, or give the container CAP_SYS_MODULE"
            if exc.errno == errno.EPERM
            else "",
        )

    def _verify_gone(self, module: str) -> None:
        until = self.clock.now() + self.deadlines.idle
        while (state := self.modules.state(module)) is not None:
            if self.clock.now() >= until:
                raise stuck_error(module, state, unloaded=True)
            self.clock.sleep(_PAUSE)


def in_use_error(holding: Holding) -> InUse:
    """Return the exception that names the holders of a module."""
    return InUse(
        f"cannot unload {holding.name}: {holding.in_words()}",
        hint="stop what holds it, then try again",
    )


def stuck_error(
    module: str, state: LoadedState | None, *, unloaded: bool = False
) -> RebootRequired:
    """Return the exception for a module that stays, however long one waits.

    `unloaded`: the kernel has answered that it is unloaded.
    """
    if state is not None and state.permanent:
        why = "it is permanent, that is, it has no exit function"
    elif state is not None and state.initstate == "going":
        why = "it is stuck while unloading"
    elif state is not None and state.initstate == "coming":
        why = "its init function has not returned"
    elif unloaded:
        why = "it is still in the kernel although the unload succeeded"
    else:  # EBUSY says so, and the state has changed since
        why = "it was being loaded or unloaded a moment ago"
    return RebootRequired(
        f"cannot unload {module}: {why}", hint="reboot the node: nothing else removes the module"
    )


def parameter_line(module: str, parameters: Mapping[str, str]) -> str:
    """Format parameters for the kernel's parse_args() (kernel/params.c).

    Raises LoadFailed for a value that cannot be passed to the kernel.
    """
    assignments = []
    for name, value in parameters.items():
        if problem := unpassable_reason(name, value):
            raise LoadFailed(
                module,
                KernelExplanation(
                    "InvalidParameter",
                    f"the parameter {name}={value!r} cannot be passed to the kernel: {problem}",
                ),
            )
        assignments.append(write_argument(name, value))
    return " ".join(assignments)


@contextmanager
def _open_module(path: Path) -> Iterator[int]:
    """Open the module file. Raises SystemRefused if it is a link or not a regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        what = "a symbolic link" if exc.errno == errno.ELOOP else exc.strerror
        raise SystemRefused(f"cannot open the module {path}: {what}") from exc
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SystemRefused(f"cannot load {path}: expected a regular file")
        yield fd
    finally:
        os.close(fd)


def _read_content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _init_error(module: str, exc: DeadlinePassed | DiedInKernel, excerpt: Excerpt) -> LoadFailed:
    crashed = isinstance(exc, DiedInKernel)
    explanation = KernelExplanation(
        "InitCrashed" if crashed else "InitHangs",
        f"its init function {'crashed' if crashed else 'does not return'}: {exc}",
        "the module cannot be removed again: reboot the node",
    )
    return LoadFailed(module, explanation, excerpt=excerpt)
