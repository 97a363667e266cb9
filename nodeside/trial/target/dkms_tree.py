"""A driver.yaml for a bare dkms tree, made from the values in its dkms.conf and nothing else.

dkms.conf is a third party's bash program, so it is evaluated in the toolkit's root file system, by
an ordinary user without network, with the sidecar's code. It may write beside itself, as with dkms:
some write the version that they compute to a file, and read that. What it writes stays in memory,
within a limit, and is dropped.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeside.protocol.bundle_key import BuildKind
from nodeside.protocol.labels import make_dns_label
from nodeside.spec.bare_source import plain_version, smallest_document
from nodeside.spec.kbuild_list import source_text
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
from nodeside.trial.host.container import ENVIRONMENT, UNPRIVILEGED, make_entrance
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.values import frozen

_TIMEOUT = 60.0  # seconds for a dkms.conf; real ones take a few milliseconds
_DUMP_LIMIT = 1 << 20  # bytes; of every file that a dkms.conf writes
_WRITTEN_LIMIT = 32 << 20  # bytes of all that it writes
_LONGEST = 200  # characters of a placeholder; the search takes time quadratic in the length

# `#VERSION#`, `@PKGVER@`, `%VERSION%`, `{{ version }}`, `${VERSION}`, `<version>`,
# `__VERSION_STRING`, `FULL_VERSION`.
_PLACEHOLDER = re.compile(
    r"#\w+#|@\w+@|%\w+%|\{\{|\$[({\w]|<\w+>|^__\w+$|^_*(?:[A-Z]+_)*VERSION(?:_[A-Z]+)*_*$"
)

Evaluator = Callable[[Path], "EvaluatedConf"]


class EvaluatedConf:
    """The values of a dkms.conf for one kernel."""

    def __init__(self, values: Values, kernel: Kernel, headers: Headers) -> None:
        self.values = values
        self.kernel = kernel
        self.headers = headers

    def modules(self) -> tuple[str, ...]:
        """Return the modules for this kernel; all, if the dkms.conf cannot be built for it.

        In that case, the node reports why. The names are the kernel's: DEST_MODULE_NAME renames a
        file, not the module in it.
        """
        try:
            plan = dkms.make_plan(self.values, self.kernel, self.headers)
        except BuildFailed:
            return self._list_every_module()
        return tuple(product.file.stem for product in plan.products)

    def _list_every_module(self) -> tuple[str, ...]:
        built, installed = self.values["BUILT_MODULE_NAME"], self.values["DEST_MODULE_NAME"]
        indices = sorted({*built, *installed}) or [0]
        default = self.values.first("PACKAGE_NAME")
        names = (built.get(i) or default or installed.get(i, "") for i in indices)
        return tuple(dict.fromkeys(names))


def make_evaluator(kernel: KernelDisk, toolkit: Path) -> Evaluator:
    """Return a function that evaluates the dkms.conf of a tree for this kernel."""

    def evaluate(tree: Path) -> EvaluatedConf:
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
            layer = scratch / "source"
            layer.mkdir()
            _copy_for_everyone(tree, layer / "tree")
            layers = (layer, kernel.tree, toolkit)
            with make_entrance(layers, scratch, {out: "/out"}, upper_bytes=_WRITTEN_LIMIT) as enter:
                limit = ("prlimit", f"--fsize={_DUMP_LIMIT}", "--")
                argv = [*UNPRIVILEGED, *limit, "env", f"--chdir={step.cwd}", *step.argv]
                with suppress(process.ToolTimeout):  # then it has left no values
                    process.run(argv, env=ENVIRONMENT, wrapper=enter, timeout=_TIMEOUT, check=False)
            values = dkms_conf.parse_dump(_read_dump(out / "dump"))
        if values is None:
            raise TargetError(
                f"{tree.name}/dkms.conf ended the shell that read it, or did not end within "
                f"{_TIMEOUT:g} s, so it has no values",
                hint=f"bash -n {tree}/dkms.conf",
            )
        return EvaluatedConf(values, target, read_headers(kernel.tree / directory.relative_to("/")))

    return evaluate


def _copy_for_everyone(tree: Path, copy: Path) -> None:
    """Make a copy that every user can change, whatever the modes of the original are."""
    vendor_tree.copy_tree(tree, copy)
    process.run(["chmod", "-R", "a+rwX", copy], timeout=60)


@frozen
class DkmsTree:
    """What a dkms.conf says. `placeholders` are the values of a template, by variable.

    `needs` are the packages in BUILD_DEPENDS.
    """

    name: str
    version: str
    modules: tuple[str, ...]
    placeholders: Mapping[str, str]
    needs: tuple[str, ...] = ()


class TemplateError(TargetError):
    """A dkms.conf that is no dkms.conf yet: the vendor's release script makes one of it."""

    reason = "TemplateOfDkmsConf"


def read_dkms_tree(tree: Path, evaluate: Evaluator, conf: Path) -> DkmsTree:
    """Return what the dkms.conf of a tree says.

    `conf` is its path as the user gave it, for messages. Raises TargetError if it has no values.
    """
    try:
        evaluated = evaluate(tree)
    except TargetError as error:
        error.args = (str(error).replace(f"{tree.name}/dkms.conf", str(conf), 1),)
        error.hint = f"bash -n {shlex.quote(str(conf))}"
        raise
    values = {name: evaluated.values.first(name) for name in ("PACKAGE_VERSION", "PACKAGE_NAME")}
    modules = evaluated.modules()
    named = {**values, "BUILT_MODULE_NAME": next(filter(is_placeholder, modules), "-")}
    placeholders = {name: value for name, value in named.items() if is_placeholder(value)}
    name, version = values["PACKAGE_NAME"], values["PACKAGE_VERSION"]
    known = tuple(each for each in modules if not is_placeholder(each))
    needs = dkms.needed_packages(evaluated.values)
    return DkmsTree(make_dns_label(name), plain_version(version), known, placeholders, needs)


def template_in_words(conf: Path, found: DkmsTree) -> str:
    """Return by which placeholder a dkms.conf is a template, in words; "" if it is none."""
    for name, value in found.placeholders.items():
        text = source_text(conf)
        written = re.search(rf"^[ \t]*{name}(?:\[0\])?=([^\n#]{{0,80}})", text, re.MULTILINE)
        shown = value or (written[1].strip() if written else "")
        what = f"{name} is {shown}" if shown.strip("\"'") else f"{name} has no value"
        return f"a template that the vendor's release script fills in: its {what}"
    return ""


def is_placeholder(value: str) -> bool:
    """Return whether a value stands for one that a release script puts in its place."""
    return not value or (len(value) <= _LONGEST and bool(_PLACEHOLDER.search(value)))


def describe_dkms_tree(tree: Path, evaluate: Evaluator, conf: Path | None = None) -> dict[str, Any]:
    """Return the driver.yaml of a dkms tree, as values. Raises TargetError.

    `conf` is the path of its dkms.conf as the user gave it, for messages.
    """
    shown = conf or Path(tree.name) / "dkms.conf"
    found = read_dkms_tree(tree, evaluate, shown)
    if words := template_in_words(tree / "dkms.conf", found):
        directory = shlex.quote(str(shown.parent))
        raise TemplateError(
            f"{shown} must set PACKAGE_NAME and PACKAGE_VERSION, and is {words}",
            hint=f"nodeside init {directory} --version VERSION, or take a release of the source",
        )
    build = {"kind": BuildKind.DKMS.value}
    return smallest_document(found.name, found.version, "src", build, found.modules)


def _read_dump(path: Path) -> bytes:
    """Read the dump of an untrusted program: a regular file of limited size; b"" if missing."""
    try:
        with open_untrusted(path, limit=_DUMP_LIMIT) as file:
            return file.read(_DUMP_LIMIT)
    except FileNotFoundError:
        return b""
