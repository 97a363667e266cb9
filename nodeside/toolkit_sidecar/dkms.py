"""Turns an unmodified dkms tree into a recipe: what its dkms.conf means for this kernel.

`make_plan` is pure: values in, a plan out. It follows the manual, dkms(8); where that is silent, it
does what dkms 3.2 does (functions `read_conf` and `do_build`).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.labels import make_dns_label
from nodeside.system.host import Kernel
from nodeside.toolkit_sidecar.confinement import Step
from nodeside.toolkit_sidecar.dkms_conf import Values
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.headers import Headers
from nodeside.toolkit_sidecar.recipe import (
    Product,
    Recipe,
    Workplace,
    llvm_arguments,
    patch_steps,
    path_inside,
)
from nodeside.values import frozen

_PATH_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+~:-]{0,99}$")
_MODULE_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}$")
_NEEDED = 16  # packages of a BUILD_DEPENDS
_NOTHING_IS_INSTALLED = (
    *("AUTOINSTALL", "NO_WEAK_MODULES", "POST_ADD", "PRE_INSTALL", "POST_INSTALL", "POST_REMOVE"),
    *("REMAKE_INITRD", "MODULES_CONF", "MODULES_CONF_OBSOLETES", "MODULES_CONF_ALIAS_TYPE"),
    *("MODULES_CONF_OBSOLETE_ONLY", "SIGN_FILE", "MOK_SIGNING_KEY", "MOK_CERTIFICATE"),
)


@frozen
class DkmsPlan:
    """A dkms.conf interpreted for one kernel. `make` is shell text, "" for dkms's default.

    `needs` are the packages that must be there first.
    """

    name: str
    version: str
    make: str
    patches: tuple[str, ...]
    pre_build: str
    post_build: str
    products: tuple[Product, ...]
    notes: tuple[str, ...]
    needs: tuple[str, ...] = ()


def make_plan(values: Values, kernel: Kernel, headers: Headers) -> DkmsPlan:
    """Return a dkms.conf's plan for this kernel. Raises BuildFailed: bad-source or excluded."""
    name, version = values.first("PACKAGE_NAME"), values.first("PACKAGE_VERSION")
    for variable, value in (("PACKAGE_NAME", name), ("PACKAGE_VERSION", version)):
        if not _PATH_NAME.match(value):
            raise _bad_source_error(f"{variable} must be a plain name, got {value!r}")
    reason = exclusion_in_words(values, 0, kernel, headers)
    if reason:
        raise BuildFailed(
            FailureKind.EXCLUDED,
            f"{name} {version} is not made for this kernel: {reason}",
            hint="its dkms.conf says so; use a version of the driver that supports "
            f"{kernel.release}",
        )
    if included := _included_since(values, kernel):
        raise BuildFailed(
            FailureKind.EXCLUDED,
            f"{name} {version} is not made for this kernel: OBSOLETE_BY is {included}: "
            f"{kernel.release} includes the driver",
            hint="use the kernel's own module, or a version of the driver that is made for "
            f"{kernel.release}",
        )
    products, left_out = _announced_products(values, name, kernel, headers)
    return DkmsPlan(
        name=name,
        version=version,
        make=_make_command(values),
        patches=_patch_names(values),
        pre_build=values.first("PRE_BUILD"),
        post_build=values.first("POST_BUILD"),
        products=products,
        notes=(*left_out, *_notes_on_ignored(values)),
        needs=needed_packages(values),
    )


def exclusion_in_words(values: Values, index: int, kernel: Kernel, headers: Headers) -> str:
    """Return the BUILD_EXCLUSIVE rule that excludes the kernel, in words; "" if none does.

    The rule at index 0 applies to all modules, a rule at another index to that module only.
    """
    for variable, subject in (
        ("BUILD_EXCLUSIVE_KERNEL", kernel.release),
        ("BUILD_EXCLUSIVE_ARCH", kernel.architecture),
    ):
        pattern = values[variable].get(index, "")
        if pattern and not values.matches(variable, index):
            return f"{variable} {pattern!r} does not match {subject}"
    lowest = values["BUILD_EXCLUSIVE_KERNEL_MIN"].get(index, "")
    if lowest and pad_version(kernel.release) < pad_version(lowest):
        return f"BUILD_EXCLUSIVE_KERNEL_MIN is {lowest}, the kernel is {kernel.release}"
    highest = values["BUILD_EXCLUSIVE_KERNEL_MAX"].get(index, "")
    if highest and pad_version(kernel.release) > pad_version(highest):
        return f"BUILD_EXCLUSIVE_KERNEL_MAX is {highest}, the kernel is {kernel.release}"
    return _config_exclusion(values["BUILD_EXCLUSIVE_CONFIG"].get(index, ""), headers)


def _included_since(values: Values, kernel: Kernel) -> str:
    """Return the version with which the driver came into the kernel, "" if this one is older.

    As in dkms, OBSOLETE_BY stands for a BUILD_EXCLUSIVE_KERNEL_MAX that is not set.
    """
    version = values.first("OBSOLETE_BY")
    if values["BUILD_EXCLUSIVE_KERNEL_MAX"].get(0, ""):
        return ""
    return version if version and pad_version(kernel.release) > pad_version(version) else ""


def pad_version(version: str) -> str:
    """Pad a version's numbers to three digits, so that comparing text compares versions."""
    return re.sub(r"\d+", lambda number: number.group().zfill(3), version)


def dkms_recipe(plan: DkmsPlan, place: Workplace, directory: Path) -> Recipe:
    """Return the steps of a plan in `directory`, the copy of the tree at dkms's own path."""
    env = {**place.env}
    if place.compiler:
        for variable in ("CC", "KERNEL_CC"):  # dkms exports the kernel's compiler
            env.setdefault(variable, place.compiler)
    before = patch_steps(place, tuple(f"patches/{name}" for name in plan.patches), directory)
    pre_build, post_build = (
        _replace_source_path(plan, text, directory) for text in (plan.pre_build, plan.post_build)
    )
    pre, pre_note = _script_step("PRE_BUILD", pre_build, directory, env)
    post, post_note = _script_step("POST_BUILD", post_build, directory, env)
    make = Step("make", ("bash", "-c", make_command(plan, place, directory)), directory, env)
    return Recipe(
        before=(*before, *pre, make),
        after=post,
        products=plan.products,
        directory=directory,
        notes=(*plan.notes, *pre_note, *post_note),
    )


def make_command(plan: DkmsPlan, place: Workplace, directory: Path) -> str:
    """Return the vendor's MAKE line, or the default one, with the arguments that dkms adds."""
    settings, headers = place.request.settings, place.headers
    command = _replace_source_path(plan, plan.make, directory)
    command = command or f"make -C {headers.directory} M={directory}"
    extra = (
        *llvm_arguments(headers, (command, *settings.make_arguments)),
        *settings.make_arguments,
    )
    if extra:
        command = f"{command} {shlex.join(extra)}"
    if command.startswith("make"):
        added = f"make -j{place.jobs} KERNELRELEASE={shlex.quote(place.request.kernel.release)}"
        command = added + command.removeprefix("make")
    return command


def _replace_source_path(plan: DkmsPlan, command: str, directory: Path) -> str:
    """Replace dkms's path of the source in a command: here the source is in `directory` only."""
    path = re.escape(f"/usr/src/{plan.name}-{plan.version}")
    return re.sub(rf"(?<![\w.]){path}(?![\w.+~:-])", lambda _: str(directory), command)


def _make_command(values: Values) -> str:
    """Return the last MAKE whose MAKE_MATCH fits. MAKE[0] without a pattern fits every kernel."""
    makes = values["MAKE"]
    chosen = "" if values["MAKE_MATCH"].get(0) else makes.get(0, "")
    for index, command in makes.items():
        if command and values["MAKE_MATCH"].get(index) and values.matches("MAKE_MATCH", index):
            chosen = command
    return chosen


def _patch_names(values: Values) -> tuple[str, ...]:
    return tuple(
        name
        for index, name in values["PATCH"].items()
        if name and (not values["PATCH_MATCH"].get(index) or values.matches("PATCH_MATCH", index))
    )


def _announced_products(
    values: Values, package: str, kernel: Kernel, headers: Headers
) -> tuple[tuple[Product, ...], list[str]]:
    """Return the announced modules, and a note for each one that its own rule excludes."""
    arrays = ("BUILT_MODULE_NAME", "BUILT_MODULE_LOCATION", "DEST_MODULE_NAME")
    indices = sorted({i for name in (*arrays, "DEST_MODULE_LOCATION") for i in values[name]})
    default = package if len(indices) == 1 else ""
    products: list[Product] = []
    left_out: list[str] = []
    for index in indices:
        product = _read_product(values, index, default)
        reason = exclusion_in_words(values, index, kernel, headers)
        if reason:
            left_out.append(f"dkms.conf leaves out {product.installed_as}: {reason}")
        else:
            products.append(product)
    if not indices:
        raise _bad_source_error("it announces no module: BUILT_MODULE_NAME[0] is not set")
    return tuple(products), left_out


def _read_product(values: Values, index: int, default: str) -> Product:
    built = values["BUILT_MODULE_NAME"].get(index, "") or default
    installed_as = values["DEST_MODULE_NAME"].get(index, "") or built
    for variable, name in (("BUILT_MODULE_NAME", built), ("DEST_MODULE_NAME", installed_as)):
        if not _MODULE_NAME.match(name) or name.endswith((".o", ".ko")):
            raise _bad_source_error(
                f"{variable}[{index}] must be a module's name without .ko, got {name!r}"
            )
    location = Path(values["BUILT_MODULE_LOCATION"].get(index, ""))
    if location.is_absolute() or ".." in location.parts:
        raise _bad_source_error(
            f"BUILT_MODULE_LOCATION[{index}] leads out of the source: {str(location)!r}"
        )
    strip = values["STRIP"].get(index, "") or values.first("STRIP")
    return Product(location / f"{built}.ko", installed_as, not strip.lower().startswith("n"))


def _config_exclusion(rules: str, headers: Headers) -> str:
    """Return the failed rule of BUILD_EXCLUSIVE_CONFIG in words, "" if none failed.

    A plain name must be y or m; a name with a ! must not.
    """
    for rule in rules.split() if headers.config else ():
        forbidden = rule.startswith("!")
        if headers.is_enabled(rule.lstrip("!")) == forbidden:
            state = "enabled" if forbidden else "not enabled"
            return f"BUILD_EXCLUSIVE_CONFIG has {rule}, which is {state} in this kernel"
    return ""


def _script_step(
    variable: str, text: str, directory: Path, env: Mapping[str, str]
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return the step of a PRE_BUILD or POST_BUILD script; a note if it cannot be run."""
    if not text:
        return (), ()
    name, *arguments = text.split()
    program = path_inside(directory, name, variable)
    if not os.access(program, os.X_OK):
        return (), (f"dkms.conf: the {variable} script {name} is not executable: not run",)
    return (Step(variable, (str(program), *arguments), directory, env),), ()


def _notes_on_ignored(values: Values) -> list[str]:
    notes: list[str] = []
    ignored = [name for name in _NOTHING_IS_INSTALLED if any(values[name].values())]
    if ignored:
        notes.append(f"dkms.conf: ignored, since nothing is installed: {', '.join(ignored)}")
    if any(values["CLEAN"].values()):
        notes.append("dkms.conf: CLEAN ignored, since every build has a fresh copy")
    return notes


def needed_packages(values: Values) -> tuple[str, ...]:
    """Return the dkms packages that must be installed before this one can be built."""
    names = dict.fromkeys(" ".join(values["BUILD_DEPENDS"].values()).split())
    return tuple(name for name in names if _PATH_NAME.match(name))[:_NEEDED]


def needs_in_words(packages: Sequence[str]) -> str:
    """Return what BUILD_DEPENDS asks for here, where each package is a Driver of its own."""
    drivers = ", ".join(make_dns_label(name) for name in packages)
    return (
        f"dkms.conf has BUILD_DEPENDS on {', '.join(packages)}: if another Driver has its modules, "
        f"add a line to spec in driver.yaml: after: [{drivers}]"
    )


def _bad_source_error(message: str) -> BuildFailed:
    return BuildFailed(
        FailureKind.BAD_SOURCE,
        f"dkms.conf: {message}",
        hint="dkms(8) describes the variables; `bash -x dkms.conf` shows what it computes",
    )
