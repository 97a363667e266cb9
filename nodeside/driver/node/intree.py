"""In-tree modules: their dependencies according to depmod, and their load order.

modules.dep and modules.builtin are parsed here, independent of the kmod version: an older kmod
cannot read modules that a newer kernel's package compresses. Soft dependencies are followed as
modprobe does, except that one which modprobe.d names in `blacklist` or `install` is left out. What
a module needs is always loaded: `install` commands are never run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from nodeside.driver.module.load_order import dependencies_first
from nodeside.driver.module.softdeps import Softdeps, parse_softdeps
from nodeside.driver.node.modprobe_d import NOTHING_CONFIGURED, ModprobeConfig
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.module_names import kernel_name, name_of_file
from nodeside.system import sysfs
from nodeside.system.host import Host
from nodeside.values import frozen


class NotInTree(NodesideError):
    """The kernel does not ship this module."""

    exit_code = ExitCode.LOAD_FAILED
    reason = "NotInTree"


@frozen
class InTree:
    """The module tree of one kernel release.

    `paths` maps a module's name to its file, relative to `directory`; `needs` to the names of
    its dependencies; `softdeps` to its line in modules.softdep.
    """

    directory: Path
    paths: Mapping[str, str]
    needs: Mapping[str, tuple[str, ...]]
    built_in: frozenset[str]
    softdeps: Mapping[str, str]

    def load_order(self, name: str) -> tuple[str, ...]:
        """Return `name` and all its dependencies, dependencies first. Raises NotInTree."""
        wanted = kernel_name(name)
        return () if wanted in self.built_in else dependencies_first((wanted,), self._needs_of)

    def soft_order(
        self, names: Iterable[str], config: ModprobeConfig = NOTHING_CONFIGURED
    ) -> tuple[str, ...]:
        """Return these modules and all that they need, hard or soft, in the order of modprobe.

        What is not in the tree is left out, and soft dependencies that modprobe.d keeps away.
        """

        def wanted(soft: tuple[str, ...]) -> Iterator[str]:
            return (n for n in soft if self._is_loadable(n) and not config.why_unwanted(n))

        def hard(name: str) -> Iterator[str]:
            return (n for n in self.needs.get(name, ()) if self._is_loadable(n))

        def soft_and_hard(name: str) -> Iterator[str]:
            yield from wanted(self.softdeps_of(name, config).pre)
            yield from hard(name)

        order: dict[str, None] = {}
        new = dependencies_first(
            (n for n in map(kernel_name, names) if self._is_loadable(n)), soft_and_hard
        )
        while new:
            order |= dict.fromkeys(new)
            later = [n for name in new for n in wanted(self.softdeps_of(name, config).post)]
            new = tuple(n for n in dependencies_first(later, soft_and_hard) if n not in order)
        return dependencies_first(order, hard)  # a circle is broken where it is soft

    def softdeps_of(self, name: str, config: ModprobeConfig) -> Softdeps:
        """Return the soft dependencies of a module: modprobe.d is above modules.softdep."""
        given = config.softdeps(name)
        if given is not None:
            return given
        return parse_softdeps([self.softdeps[name]]) if name in self.softdeps else Softdeps()

    def _is_loadable(self, name: str) -> bool:
        return name in self.paths and name not in self.built_in

    def _needs_of(self, name: str) -> Iterator[str]:
        if name not in self.paths:
            raise NotInTree(
                f"this kernel has no module {name}: it is not in {self.directory}/modules.dep",
                hint="some distributions ship it in a package of its own (linux-modules-extra, "
                "kernel-modules-extra), or the kernel's flavour leaves it out",
            )
        return (needed for needed in self.needs[name] if needed not in self.built_in)


def read_tree(directory: Path) -> InTree:
    """Read depmod's data in `directory`, a `/lib/modules/<release>`. Raises NotInTree."""
    listing = sysfs.read(directory / "modules.dep")
    if listing is None:
        raise NotInTree(
            f"cannot read {directory}/modules.dep",
            hint="in a pod, mount the host's /lib/modules at /host/lib/modules; "
            f"on a host, run: depmod {directory.name}",
        )
    paths, needs = parse_dep(listing)
    return InTree(
        directory=directory,
        paths=paths,
        needs=needs,
        built_in=built_in_modules(directory),
        softdeps=parse_softdep(sysfs.read(directory / "modules.softdep") or ""),
    )


def built_in_modules(directory: Path) -> frozenset[str]:
    """Return the modules that are part of the kernel image, as depmod's data says."""
    listing = sysfs.read(directory / "modules.builtin") or ""
    return frozenset(name_of_file(line) for line in listing.split())


def parse_dep(text: str) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return paths and dependencies by name; a line is `path: path path`, modules.dep(5)."""
    paths: dict[str, str] = {}
    needs: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        path, separator, rest = line.partition(":")
        if separator:
            paths[name_of_file(path)] = path
            needs[name_of_file(path)] = tuple(name_of_file(word) for word in reversed(rest.split()))
    return paths, needs


def parse_softdep(text: str) -> dict[str, str]:
    """Parse lines of the form `softdep name pre: a b post: c`, by name."""
    softdeps = {}
    for line in text.splitlines():
        words = line.split(maxsplit=2)
        if len(words) == 3 and words[0] == "softdep":
            softdeps[kernel_name(words[1])] = words[2]
    return softdeps


def real_path(host: Host, path: Path) -> Path:
    """Resolve the links of a host module; weak-updates modules link into another tree."""
    for _ in range(8):
        path = host.resolve_link(path)
    return path
