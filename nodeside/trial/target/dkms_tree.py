"""A driver.yaml for a bare dkms tree, made from the values in its dkms.conf and nothing else.

dkms.conf is a third party's bash program, so it is evaluated in the toolkit's root file system, by
an ordinary user without network, with the sidecar's code.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeside.protocol.bundle_key import BuildKind
from nodeside.spec.bare_source import label, plain_version, smallest_document
from nodeside.system import process
from nodeside.system.files import open_untrusted
from nodeside.system.host import Kernel
from nodeside.system.scratch import scratch_directory
from nodeside.toolkit_sidecar import dkms, dkms_conf
from nodeside.toolkit_sidecar.dkms_conf import Values
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.headers import Headers, read_headers
from nodeside.trial import vendor_tree
from nodeside.trial.errors import TargetError
from nodeside.trial.host.container import ENVIRONMENT, UNPRIVILEGED, entrance
from nodeside.trial.machine.kernel_disk import KernelDisk

_TIMEOUT = 60.0  # seconds for a dkms.conf; real ones take a few milliseconds
_DUMP_LIMIT = 1 << 20  # bytes; of every file that a dkms.conf writes

Evaluator = Callable[[Path], "Evaluated"]


class Evaluated:
    """The values of a dkms.conf for one kernel."""

    def __init__(self, values: Values, kernel: Kernel, headers: Headers) -> None:
        self.values = values
        self.kernel = kernel
        self.headers = headers

    def modules(self) -> tuple[str, ...]:
        """Return the modules for this kernel, or all if it is excluded; the node then reports why.

        The names are the kernel's: DEST_MODULE_NAME renames a file, not the module in it.
        """
        try:
            plan = dkms.make_plan(self.values, self.kernel, self.headers)
        except BuildFailed:
            return self._every_module()
        return tuple(product.file.stem for product in plan.products)

    def _every_module(self) -> tuple[str, ...]:
        built, installed = self.values["BUILT_MODULE_NAME"], self.values["DEST_MODULE_NAME"]
        indices = sorted({*built, *installed}) or [0]
        default = self.values.first("PACKAGE_NAME")
        names = (built.get(i) or default or installed.get(i, "") for i in indices)
        return tuple(dict.fromkeys(names))


def make_evaluator(kernel: KernelDisk, toolkit: Path) -> Evaluator:
    """Return a function that evaluates the dkms.conf of a tree for this kernel."""

    def evaluate(tree: Path) -> Evaluated:
        directory = Path("/usr/src") / f"linux-headers-{kernel.release}"
        headers = Headers(directory, kernel.release, "")
        target = Kernel(kernel.release, "", kernel.architecture.machine)
        variables = dkms_conf.shell_variables(
            headers, kernel.release, target.architecture, tree=Path("/var/lib/dkms"), jobs=1
        )
        step = dkms_conf.evaluation_step(Path("/tree/dkms.conf"), Path("/out/dump"), variables, {})
        with scratch_directory("dkms") as scratch:
            out = scratch / "out"
            out.mkdir()
            (out / "dump").touch()
            (out / "dump").chmod(0o666)  # the only file that the ordinary user can write here
            copy = scratch / "tree"
            _copy_for_everyone(tree, copy)
            binds = {copy: "/tree", out: "/out"}
            with entrance((kernel.tree, toolkit), scratch, binds) as enter:
                argv = [*UNPRIVILEGED, "prlimit", f"--fsize={_DUMP_LIMIT}", "--", *step.argv]
                with suppress(process.ToolTimeout):  # then it has left no values
                    process.run(argv, env=ENVIRONMENT, wrapper=enter, timeout=_TIMEOUT, check=False)
            values = dkms_conf.parse_dump(_read_dump(out / "dump"))
        if values is None:
            raise TargetError(
                f"{tree.name}/dkms.conf ended the shell that read it, or did not end within "
                f"{_TIMEOUT:g} s, so it has no values",
                hint=f"bash -n {tree}/dkms.conf",
            )
        return Evaluated(values, target, read_headers(kernel.tree / directory.relative_to("/")))

    return evaluate


def _copy_for_everyone(tree: Path, copy: Path) -> None:
    """Make a copy that the ordinary user can only read, whatever the modes of the original are."""
    vendor_tree.copy(tree, copy)
    process.run(["chmod", "-R", "a+rX,go-w", copy], timeout=60)


def describe(tree: Path, evaluate: Evaluator) -> dict[str, Any]:
    """Return the driver.yaml of a dkms tree, as values. Raises TargetError."""
    evaluated = evaluate(tree)
    name = evaluated.values.first("PACKAGE_NAME")
    version = evaluated.values.first("PACKAGE_VERSION")
    if not name or not version:
        raise TargetError(
            f"{tree.name}/dkms.conf must set PACKAGE_NAME and PACKAGE_VERSION",
            hint="dkms(8) requires both",
        )
    build = {"kind": BuildKind.DKMS.value}
    modules = evaluated.modules()
    return smallest_document(label(name), plain_version(version), "src", build, modules)


def _read_dump(path: Path) -> bytes:
    """Read the dump of an untrusted program: a regular file of limited size; b"" if missing."""
    try:
        with open_untrusted(path, limit=_DUMP_LIMIT) as file:
            return file.read(_DUMP_LIMIT)
    except FileNotFoundError:
        return b""
