"""A node in a temporary directory: a fake kernel that takes real module files, a cache, a driver.

The kernel is that of `kernel.py`, but it reads ELF: names, dependencies and build-ids are those
of the files that are loaded, as with a real one. A symbol that its /proc/kallsyms has is found.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.agent import run as agent_run
from nodeside.driver.bringup.attempt import Attempt
from nodeside.driver.bringup.bringup import bring_up
from nodeside.driver.bringup.journal import Journal, Report
from nodeside.driver.bundle.bundle import Bundle, write_bundle
from nodeside.driver.bundle.cache import Cache
from nodeside.driver.bundle.manifest import BundleManifest, describe_module
from nodeside.driver.commands import dry_run, status, unload
from nodeside.driver.commands import load as steps
from nodeside.driver.ladder.task import Config, Task, resolve_task
from nodeside.driver.module.modulefile import read_module
from nodeside.driver.node.exports import read_exports
from nodeside.driver.node.loaded_record import LoadedRecord
from nodeside.driver.node.run_directory import read_loaded
from nodeside.protocol.build_records import Toolchain
from nodeside.protocol.node_status import NodeDriverStatus, Rung, State
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.host import Host, Kernel
from tests import yaml_in_c as yaml
from tests.console import Done, nodeside
from tests.driver.fakes.kernel import (
    RELEASE,
    FakeKernel,
    FakeModule,
    add_device,
    write,
    write_bytes,
)
from tests.driver.fakes.module_writer import ModuleWriter

BOOT_ID = "6c3f5c2e-0f4e-4f6e-9a34-0000000000aa"
_MACHINES = {"x86_64": 62, "aarch64": 183}


def module_bytes(
    name: str,
    build: str = "",
    *,
    release: str = RELEASE,
    depends: Sequence[str] = (),
    imports: Sequence[str] = (),
    exports: Sequence[str] = (),
    parameters: Sequence[str] = (),
    versions: Mapping[str, int] | None = None,
) -> bytes:
    """A module file. `build` tells builds apart: another word gives another build-id."""
    words = "SMP mod_unload " + ("modversions " if versions is not None else "")
    info = [("license", "GPL"), ("name", name), ("vermagic", f"{release} {words}")]
    info += [("depends", ",".join(depends))]
    info += [("parmtype", f"{parameter}:charp") for parameter in parameters]
    writer = ModuleWriter(
        machine=_MACHINES.get(os.uname().machine, 62),
        info=info,
        versions=versions,
        undefined=(*imports, *(versions or ())),
        exports=dict.fromkeys(exports, 0),
        build_id=hashlib.sha1(f"{name} {build}".encode()).digest(),
    )
    return writer.write()


class ElfKernel(FakeKernel):
    """A fake kernel that reads the files it is given."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        write(root / "proc/sys/kernel/random/boot_id", f"{BOOT_ID}\n")
        self.loads: list[str] = []
        self.unloads: list[str] = []

    def finit_module(self, fd: int, parameters: str, timeout: float) -> None:
        self._load(os.pread(fd, 1 << 20, 0), parameters)

    def _load(self, image: bytes, parameters: str) -> None:
        file = read_module(write_bytes(self.host.root / "tmp/module.ko", image))
        exporters = set(read_exports(self.host, file.imports).loaded.values())
        needs = [name for name in file.depends if name in self.modules or not exporters]
        super()._load(" ".join((file.name, *{*needs, *exporters})).encode(), parameters)
        self.modules[file.name].build_id = file.build_id
        self.show()
        self.loads.append(f"{file.name} {parameters}".strip())
        if file.exports:
            with (self.host.proc / "kallsyms").open("a") as kallsyms:
                kallsyms.writelines(f"0 T {name}\t[{file.name}]\n" for name in file.exports)

    def delete_module(self, name: str, timeout: float = 1) -> None:
        super().delete_module(name, timeout)
        self.unloads.append(name)


@dataclass
class FakeNode:
    """A node, and one driver on it whose driver.yaml is `spec`; all of it in `directory`."""

    directory: Path
    name: str = "straw"
    spec: dict[str, Any] = field(default_factory=dict)
    told: list[NodeDriverStatus] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root = self.directory / "node"
        self.image = self.directory / "image"
        self.kernel = ElfKernel(self.root)
        self.host = Host(self.root)
        self.cache = Cache(self.host.cache)
        self.shared: SharedDir | None = None
        self.policy: Path | None = None
        write(self.image / "source/Makefile", "obj-m := straw.o\n")
        self.spec = {
            "version": "1.0",
            "source": {"path": "source"},
            "modules": [{"name": self.name}],
            "validate": {"timeoutSeconds": 1},
            **self.spec,
        }

    @property
    def driver_file(self) -> Path:
        return self.image / "driver.yaml"

    def write_driver(self, **changes: Any) -> None:
        """Change fields of the spec, and write driver.yaml."""
        self.spec |= changes
        document = {
            "apiVersion": "nodeside.io/v1alpha1",
            "kind": "Driver",
            "metadata": {"name": self.name},
            "spec": self.spec,
        }
        write(self.driver_file, yaml.safe_dump(document))

    def config(self) -> Config:
        config = Config(self.driver_file, self.host, self.cache, self.shared, node="n1")
        return replace(config, policy_file=self.policy)

    def task(self, kernel: Kernel | None = None, **changes: Any) -> Task:
        self.write_driver(**changes)
        return resolve_task(self.config(), kernel)

    def source(self, text: str) -> None:
        """Another source, so that the key is another one."""
        write(self.image / "source/Makefile", text)

    def put_bundle(
        self,
        task: Task,
        modules: Mapping[str, bytes] | None = None,
        *,
        cache: Cache | None = None,
        certificate: str | None = None,
        toolchain: Toolchain | None = None,
        built_here: bool = False,
    ) -> Bundle:
        """A bundle for a task in the node's cache, or in another directory of bundles."""
        files = modules or {
            name: module_bytes(name, task.key, release=task.kernel.release)
            for name in task.wanted.names
        }
        into = cache or self.cache
        with into.staging_directory() as staging:
            paths = {
                name: write_bytes(staging / f"{name}.ko", data) for name, data in files.items()
            }
            manifest = BundleManifest(
                driver=task.name,
                version=task.version,
                key=task.key,
                kernel=task.kernel,
                modules=tuple(
                    describe_module(read_module(path), f"modules/{name}.ko")
                    for name, path in paths.items()
                ),
                source_digest=task.source_digest,
                settings=task.settings,
                toolchain=toolchain,
                certificate=task.certificate if certificate is None else certificate,
                created="2026-11-21T11:00:00+00:00",
            )
            bundle = write_bundle(staging / "bundle", manifest, paths)
            return into.adopt_bundle(bundle.directory, built_here=built_here)

    def forget_cache(self) -> None:
        shutil.rmtree(self.cache.root)

    def bring_up(self, task: Task, *, closed: Iterable[Rung] = ()) -> Report:
        """Bring the driver up; a failure raises. What was told is in `told`."""
        return bring_up(self.attempt(task), closed=tuple(closed))

    def attempt(self, task: Task) -> Attempt:
        return Attempt(task, self.journal(task), self.kernel.loader)

    def command(self, verb: str, *more: str | Path) -> list[str | Path]:
        """The words after `nodeside` for a verb on this node."""
        words: list[str | Path] = ["driver", verb, "--driver", self.driver_file]
        return [*words, "--host-root", self.root, "--node", "n1", *more]

    def run(self, verb: str, *more: str | Path) -> Done:
        """A verb as a person types it, but modules go into the fake kernel."""
        with pytest.MonkeyPatch().context() as patch:
            for user in (agent_run, dry_run, unload, status, steps):
                patch.setattr(user, "Loader", lambda _: self.kernel.loader)
            return nodeside(*self.command(verb, *more))

    def journal(self, task: Task) -> Journal:
        return Journal(task, self.told.append)

    def upgrade(self, **changes: Any) -> None:
        """Version 2.0, with another source."""
        self.source("obj-m := straw.o  # 2.0\n")
        self.write_driver(version="2.0", **changes)

    def fill(self) -> None:
        """Make the driver's first version the loaded one."""
        task = self.task()
        self.put_bundle(task)
        self.bring_up(task)
        self.kernel.loads.clear()
        self.told.clear()

    def insmod(self, name: str, build: str = "by hand", parameters: str = "") -> None:
        """What somebody else loaded."""
        build_id = hashlib.sha1(f"{name} {build}".encode()).hexdigest()
        self.kernel.add(name, FakeModule(build_id=build_id, parameters=parameters))

    def new_device_at_load(self, number: str) -> None:
        """A device that the next load makes."""
        load = self.kernel.finit_module

        def finit_module(fd: int, parameters: str, timeout: float) -> None:
            load(fd, parameters, timeout)
            add_device(self.host, number, self.name, f"virtual/misc/{self.name}")

        self.kernel.finit_module = finit_module  # type: ignore[method-assign]

    @property
    def loaded(self) -> tuple[str, ...]:
        return tuple(self.kernel.modules)

    @property
    def record(self) -> LoadedRecord | None:
        return read_loaded(self.host, self.name, BOOT_ID)

    @property
    def states(self) -> list[State]:
        return [status.state for status in self.told]


def whys(report: Report) -> dict[str, str]:
    """Why each rung did or did not serve."""
    return {verdict.rung.value: verdict.why for verdict in report.rungs}
