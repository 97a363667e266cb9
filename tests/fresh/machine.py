"""A fresh machine: Debian's smallest system with Python, venv, make and CA certificates.

It is a root file system in the trial's cache. What `scripts/setup test` adds to it is kept there
too, for as long as the script, pyproject.toml and the archive stay what they are. Packages come
from where this machine gets them: apt's sources and settings, pip's configuration, proxies.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nodeside.system import process
from nodeside.system.process import Completed
from nodeside.system.scratch import scratch_directory
from nodeside.trial.cache import digest_of
from nodeside.trial.debian.archive import Archive, proxy_environment
from nodeside.trial.host.container import OWN_PROCESSES
from nodeside.trial.machine.guest import syscalls as sc
from nodeside.trial.machine.guest.container import bind_mount, mount_devices
from nodeside.trial.workshop import Workshop
from tests.costs.cold import building
from tests.patience import patience

PACKAGES = ("python3", "python3-venv", "make", "ca-certificates")
TOP = Path(__file__).parents[2]
CHECKOUT = "/checkout"

_NAMESPACES = sc.CLONE_NEWNS | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS
_LEFT = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info"
)
_ENVIRONMENT = {
    "HOME": "/root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
}
_SETUP_SECONDS = patience(3600.0)  # over a slow line


@dataclass(frozen=True)
class FreshMachine:
    """`root` is its file system, and `binds` what is seen in it of this machine."""

    root: Path
    binds: Mapping[Path, str]

    def run(self, *argv: str, timeout: float, check: bool = True) -> Completed:
        """A command in the checkout. It has this machine's network, and processes of its own."""
        pip = pip_settings()
        there = {Path(value): value for value in pip.values() if Path(value).is_absolute()}
        binds = {**{path: at for path, at in there.items() if path.exists()}, **self.binds}
        return process.run(
            [*OWN_PROCESSES, *argv],
            env=_ENVIRONMENT | proxy_environment() | pip,
            wrapper=entering(self.root, binds),
            timeout=timeout,
            check=check,
        )


@contextmanager
def fresh_machine(workshop: Workshop) -> Iterator[FreshMachine]:
    """One that was set up, with a copy of this checkout, which is gone at the end."""
    made = _set_up(workshop)
    with scratch_directory("fresh") as directory:
        _copy_checkout(directory / "checkout")
        (directory / "home").mkdir()
        (directory / "tmp").mkdir(mode=0o1777)
        binds = {
            directory / "checkout": CHECKOUT,
            made / "venv": f"{CHECKOUT}/.venv",
            directory / "home": "/root",
            directory / "tmp": "/tmp",
        }
        yield FreshMachine(made / "root", binds)


def _set_up(workshop: Workshop) -> Path:
    """A directory with the root file system after `scripts/setup test`, and its `.venv`."""
    base = workshop.roots.make("fresh", PACKAGES)
    recipe = [
        (TOP / name).read_text() for name in ("scripts/setup", "pyproject.toml", "constraints.txt")
    ]

    def fill(directory: Path) -> None:
        workshop.progress.print_step("setting up a fresh machine: once, two minutes")
        root = directory / "root"
        process.run(["cp", "-a", base, root], timeout=patience(600))
        _tell_apt(root, workshop.archive)
        _copy_checkout(root / CHECKOUT[1:])
        cache = Path.home() / ".cache" / "pip"
        cache.mkdir(parents=True, exist_ok=True)
        machine = FreshMachine(root, {cache: "/root/.cache/pip"})
        with building(workshop.cache.directory, "a fresh machine: scripts/setup test"):
            machine.run("scripts/setup", "test", timeout=_SETUP_SECONDS)
        (root / CHECKOUT[1:] / ".venv").rename(directory / "venv")

    name = f"{base.parent.name}-{digest_of(''.join(recipe))}"
    return workshop.cache.make("fresh", name, fill, needs_mib=4096)


def _tell_apt(root: Path, archive: Archive) -> None:
    """The sources and settings of this machine, which names hosts as it knows them."""
    (root / "etc/apt/sources.list").write_text("\n".join(archive.sources.lines) + "\n")
    settings = "".join(f"{row}\n" for row in archive.read_apt_settings())
    (root / "etc/apt/apt.conf.d/90this-machine").write_text(settings)
    for name in ("resolv.conf", "hosts"):
        shutil.copyfile(f"/etc/{name}", root / "etc" / name)


def _copy_checkout(target: Path) -> None:
    """As a clone would be: sources, and nothing that was made of them."""
    shutil.copytree(TOP, target, ignore=_LEFT, symlinks=True)


def entering(root: Path, binds: Mapping[Path, str]) -> Callable[[], None]:
    """What a child does between fork and exec to be in the root file system."""
    parent = os.getpid()

    def enter() -> None:
        sc.die_with_parent(parent)
        sc.unshare(_NAMESPACES)
        sc.mount("none", "/", flags=sc.MS_REC | sc.MS_PRIVATE)
        sc.mount(str(root), str(root), flags=sc.MS_BIND | sc.MS_REC)
        sc.mount("proc", f"{root}/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
        bind_mount("/sys", f"{root}/sys", "")
        mount_devices(root)
        for source, target in binds.items():
            _bind(source, root / target.lstrip("/"))
        sc.pivot_root(str(root))
        os.chdir(CHECKOUT)

    return enter


def _bind(source: Path, target: Path) -> None:
    if source.is_dir():
        bind_mount(str(source), str(target), "")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch()
    sc.mount(str(source), str(target), flags=sc.MS_BIND)


def pip_settings() -> dict[str, str]:
    """What pip is told on this machine by files and by the environment, as variables."""
    done = process.run(
        [sys.executable, "-m", "pip", "config", "list"],
        timeout=60,
        env={name: value for name, value in os.environ.items() if name.startswith("PIP_")},
    )
    found = {}
    for row in done.output.splitlines():
        name, _, value = row.partition("=")
        _, _, option = name.partition(".")
        found[f"PIP_{option.upper().replace('-', '_')}"] = str(ast.literal_eval(value))
    return found
