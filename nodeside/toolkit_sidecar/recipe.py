"""From build settings to a build's steps: what to run, and which modules it must produce.

This file covers kbuild and plain commands; `dkms` makes a recipe from a dkms.conf.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from nodeside.protocol.build_records import BuildRequest, FailureKind
from nodeside.protocol.bundle_key import BuildKind
from nodeside.system import process
from nodeside.toolkit_sidecar.compiler import Compiler
from nodeside.toolkit_sidecar.confinement import Step
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.headers import Headers
from nodeside.toolkit_sidecar.uname import path_with_uname
from nodeside.values import frozen


@frozen
class Product:
    """A module that a dkms.conf announces.

    `file` is relative to the build directory. `installed_as` is the name, without `.ko`, under
    which dkms would install it.
    """

    file: Path
    installed_as: str
    strip: bool = True


@frozen
class Recipe:
    """The steps of a build, run `before` and `after` its modules are collected.

    Without `products`, every module that the build produces is taken.
    """

    before: tuple[Step, ...]
    after: tuple[Step, ...] = ()
    products: tuple[Product, ...] = ()
    directory: Path = Path()
    strip: bool = True
    notes: tuple[str, ...] = ()


@frozen
class Workplace:
    """The inputs of one build: its request, its directory, and its tools.

    `flags` are for the compiler; the environment has them too. `compiler_argument` is what make
    must be given to use `compiler`, "" if kbuild uses it by itself.
    """

    request: BuildRequest
    out: Path
    headers: Headers
    jobs: int
    compiler: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    compiler_argument: str = ""

    @property
    def source(self) -> Path:
        """Return the directory with the copy of the source."""
        return self.out / "build"

    @property
    def directory(self) -> Path:
        """Return the directory of the copy to build in. Raises BuildFailed: bad-source."""
        return path_inside(self.source, self.request.settings.directory, "build.directory")


# A time for what a build stamps: the same source makes the same bytes, whenever it is built.
# https://reproducible-builds.org/specs/source-date-epoch/
_EPOCH = "315532800"  # 1980-01-01, which every archive format can hold
_PREFIX_MAP_SINCE = {"gcc": 8, "clang": 10}
_FLAGS = ("KCFLAGS", "KAFLAGS")  # appended by kbuild to its own (Documentation/kbuild/kbuild.rst)


def build_environment(
    request: BuildRequest, out: Path, flags: tuple[str, ...] = (), compiler_argument: str = ""
) -> dict[str, str]:
    """Return the environment for vendor code. Only PATH is taken from the sidecar's own.

    `flags` are for the compiler, after those that driver.yaml gives to it. `compiler_argument`
    (`CC=gcc-12`) is in MAKEFLAGS, so that each make of a script or a dkms.conf has it.
    """
    fixed = {"HOME": str(out), "TMPDIR": str(out / "tmp"), "LC_ALL": "C"}
    env = {**fixed, "SOURCE_DATE_EPOCH": _EPOCH, **request.settings.environment}
    for name in _FLAGS if flags else ():
        env[name] = " ".join((env[name], *flags) if name in env else flags)
    if compiler_argument:
        env["MAKEFLAGS"] = f"{env.get('MAKEFLAGS', '')} {compiler_argument}".strip()
    if request.settings.symbols:  # in the environment, so that a Makefile can add to it
        own = env.get("KBUILD_EXTRA_SYMBOLS", "")
        env["KBUILD_EXTRA_SYMBOLS"] = f"{own} {extra_symbols_path(out)}".strip()
    path = process.make_environment(env)["PATH"]
    return {**env, "PATH": path_with_uname(out / "bin", request.kernel, path)}


def flags_for_same_bytes(request: BuildRequest, out: Path, compiler: Compiler) -> tuple[str, ...]:
    """Return the flags by which a module does not depend on the directory it is built in.

    Its debug information names that directory, and the build-id is a digest of it. `__FILE__` does
    too. GCC has the option since version 8, clang since version 10.
    """
    if compiler.major < _PREFIX_MAP_SINCE.get(compiler.family, 1000):
        return ()
    return (f"-ffile-prefix-map={out}=/usr/src/{request.driver}-{request.version}",)


def extra_symbols_path(out: Path) -> Path:
    """Return the path of the list of other drivers' symbols, in the output directory."""
    return out / "Module.symvers"


def make_recipe(place: Workplace) -> Recipe:
    """Return the recipe of a kbuild tree or a plain command."""
    if place.request.settings.kind is BuildKind.COMMAND:
        return _command_recipe(place)
    return _kbuild_recipe(place)


def path_inside(base: Path, relative: str, what: str) -> Path:
    """Return `base/relative`. Raises BuildFailed unless it exists and is really below `base`."""
    path = base / relative
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(base)):
        raise BuildFailed(FailureKind.BAD_SOURCE, f"{what} {relative!r} leads out of the source")
    if not real.exists():
        raise BuildFailed(
            FailureKind.BAD_SOURCE,
            f"{what} {relative!r} is not in the source",
            hint="paths are relative to the root of the source that driver.yaml names",
        )
    return path


def patch_steps(place: Workplace, patches: tuple[str, ...], base: Path) -> tuple[Step, ...]:
    """Return a `patch -p1` for each file, in order. `base` is patched and holds the files."""
    steps: list[Step] = []
    for name in patches:
        file = path_inside(base, name, "patch")
        argv = ("patch", "-p1", "--batch", "--forward", "-i", str(file))
        steps.append(Step("patch", argv, base, place.env))
    return tuple(steps)


def llvm_arguments(headers: Headers, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the argument that makes kbuild use clang if clang compiled the kernel."""
    chosen = any(word.startswith(("LLVM=", "CC=")) for word in words)
    if headers.config.get("CONFIG_CC_IS_CLANG") == "y" and not chosen:
        return ("LLVM=1",)
    return ()


def _kbuild_recipe(place: Workplace) -> Recipe:
    if not any((place.directory / name).is_file() for name in ("Makefile", "Kbuild")):
        raise BuildFailed(
            FailureKind.BAD_SOURCE,
            f"no Makefile and no Kbuild in the source's directory "
            f"{place.request.settings.directory!r}",
            hint="set build.directory in driver.yaml to the directory that has obj-m lines",
        )
    arguments = tuple(
        _with_flags(word, place.flags) for word in place.request.settings.make_arguments
    )
    argv = (
        "make",
        "-C",
        str(place.headers.directory),
        f"M={place.directory}",
        f"-j{place.jobs}",
        *llvm_arguments(place.headers, arguments),
        *((place.compiler_argument,) if place.compiler_argument else ()),
        *arguments,
        "modules",
    )
    return Recipe((Step("make", argv, place.directory, place.env),), strip=wants_strip(place))


def _with_flags(argument: str, flags: tuple[str, ...]) -> str:
    """Append flags to an argument of make that would hide those of the environment."""
    name, equals, value = argument.partition("=")
    return f"{name}={' '.join((value, *flags))}" if equals and name in _FLAGS else argument


def _command_recipe(place: Workplace) -> Recipe:
    settings = place.request.settings
    if not settings.command:
        raise BuildFailed(
            FailureKind.BAD_SOURCE,
            "build.kind is command, but build.command is empty",
            hint='name an argv: build.command: ["./build.sh"]',
        )
    # Prefixed names: kbuild sets KERNELRELEASE, and Makefiles take it for a sign of kbuild.
    env = {
        **place.env,
        "NODESIDE_KERNELRELEASE": place.request.kernel.release,
        "NODESIDE_KERNEL_DIR": str(place.headers.directory),
        "NODESIDE_JOBS": str(place.jobs),
        "NODESIDE_OUTPUT": str(place.out / "output"),
    }
    name = Path(settings.command[0]).name
    return Recipe((Step(name, settings.command, place.directory, env),), strip=wants_strip(place))


def wants_strip(place: Workplace) -> bool:
    """Return whether to remove debug information: as dkms, yes, unless STRIP=no is set."""
    return not place.request.settings.environment.get("STRIP", "").lower().startswith("n")
