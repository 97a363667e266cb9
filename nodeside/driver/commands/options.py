"""The options that the verbs of `nodeside driver` share, and their meaning.

Each option has an environment variable, which a pod sets. The same commands therefore work on a
node, in a debug shell of the container, and on a laptop.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nodeside import log
from nodeside.errors import NoHeaders
from nodeside.system.host import Host, Kernel

if TYPE_CHECKING:
    from nodeside.driver.ladder.task import Config
    from nodeside.spec.model import Driver

Verb = Callable[..., Any]

_PATH = click.Path(path_type=Path)

_CONFIG_OPTIONS = (
    click.option(
        "--driver",
        "-f",
        "driver_file",
        envvar="NODESIDE_DRIVER",
        default="driver.yaml",
        show_default=True,
        type=_PATH,
        help="The driver.yaml, or the directory it is in; or a dkms or kbuild source without one.",
    ),
    click.option(
        "--host-root",
        envvar="NODESIDE_HOST",
        default="/",
        show_default=True,
        type=_PATH,
        help="Where the host's /sys, /proc, /lib/modules and /run/nodeside are; /host in a pod.",
    ),
    click.option(
        "--shared",
        envvar="NODESIDE_SHARED",
        type=_PATH,
        help="The directory shared with a toolkit sidecar.",
    ),
    click.option(
        "--cache",
        envvar="NODESIDE_CACHE",
        type=_PATH,
        help="The cache of bundles.  [default: <host root>/var/lib/nodeside/cache]",
    ),
    click.option("--node", envvar="NODE_NAME", default="", help="Name of the Kubernetes node."),
    click.option("--revision", envvar="NODESIDE_REVISION", default="", hidden=True),
    click.option("--toolkit", envvar="NODESIDE_TOOLKIT", default="", hidden=True),
    click.option("--policy", "policy_file", envvar="NODESIDE_POLICY", type=_PATH, hidden=True),
    click.option(
        "--ca-file",
        envvar="NODESIDE_CA_FILE",
        type=_PATH,
        help="PEM file of the CAs to trust for prebuilt sources.",
    ),
    click.option(
        "--credentials-file",
        envvar="NODESIDE_CREDENTIALS",
        type=_PATH,
        help="A docker config.json with registry credentials. Of several, separated by :, the "
        "first that exists is used.",
    ),
    click.option(
        "--symbols-of",
        multiple=True,
        metavar="BUNDLE",
        envvar="NODESIDE_SYMBOLS_OF",
        help="A bundle of a driver in spec.after, for the symbols that it exports: a directory, or "
        "oci:REPOSITORY:TAG.  [default: the modules that are loaded]",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        envvar="NODESIDE_LOG_FORMAT",
        default="text",
        show_default=True,
        help="Format of the log on stderr.",
    ),
    click.option("--verbose", "-v", is_flag=True, help="Log details too."),
)

_KERNEL_OPTIONS = (
    click.option("--kernel", help="Kernel release to work for.  [default: the running one]"),
    click.option(
        "--kernel-version",
        help="The kernel's `uname -v`.  [default: read from the kernel's headers or from the node]",
    ),
    click.option(
        "--kernel-arch",
        metavar="ARCH",
        type=click.Choice(["x86_64", "aarch64", "ppc64le", "s390x"]),
        help="The kernel's `uname -m`: x86_64, aarch64, ...  [default: this machine's]",
    ),
)

dry_run_option = click.option(
    "--dry-run", "-n", is_flag=True, help="Show what would be done; do nothing."
)


def with_config_options(verb: Verb) -> Verb:
    """Give a verb the common options, as one argument: a `Config`."""

    @functools.wraps(verb)
    def with_config(
        *,
        driver_file: Path,
        host_root: Path,
        shared: Path | None,
        cache: Path | None,
        node: str,
        revision: str,
        toolkit: str,
        policy_file: Path | None,
        ca_file: Path | None,
        credentials_file: Path | None,
        symbols_of: tuple[str, ...],
        log_format: log.LogFormat,
        verbose: bool,
        **rest: Any,
    ) -> Any:
        from nodeside.driver.bundle.cache import Cache
        from nodeside.driver.ladder.task import Config
        from nodeside.protocol.shared_directory import SharedDir

        log.setup("driver", format=log_format, verbose=verbose)
        host = Host(host_root)
        credentials = first_existing_path(credentials_file)
        bundles = None
        if symbols_of:
            from nodeside.driver.commands.symbols import manifests_at

            bundles = manifests_at(symbols_of, ca_file=ca_file, credentials_file=credentials)
        file = driver_file / "driver.yaml" if driver_file.is_dir() else driver_file
        config = Config(
            driver_file=file,
            host=host,
            cache=Cache(cache or host.cache),
            shared=SharedDir(shared) if shared else None,
            node=node or os.uname().nodename,
            revision=revision,
            toolkit=toolkit,
            policy_file=policy_file,
            ca_file=ca_file,
            credentials_file=credentials,
            after=bundles,
            bare=_bare_driver(file) if file.name == "driver.yaml" and not revision else None,
        )
        return verb(config=config, **rest)

    for option in reversed(_CONFIG_OPTIONS):
        with_config = option(with_config)
    return with_config


def _bare_driver(driver_file: Path) -> Driver | None:
    """Return the driver that a source without a driver.yaml describes by its files.

    None if there is a driver.yaml, or no source. It is looked for once. A driver.yaml that is
    missing for a moment, while a long command runs, must not turn its driver into another one.
    """
    if os.path.lexists(driver_file):
        return None
    from nodeside.spec.bare_source import bare_driver

    directory = driver_file.parent
    driver = bare_driver(directory)
    if driver is not None:
        kind = driver.spec.build.kind
        log.fact(
            f"{directory} has no driver.yaml; this is what its files say",
            driver=driver.name,
            version=driver.spec.version,
            build=kind.value if kind else "",
            modules=", ".join(module.name for module in driver.spec.modules),
        )
    return driver


def first_existing_path(path: Path | None) -> Path | None:
    """Return a single path unchanged; of several, the first that exists, or None."""
    if path is None or os.pathsep not in str(path):
        return path
    paths = (Path(word) for word in str(path).split(os.pathsep))
    return next((path for path in paths if path.exists()), None)


def with_kernel_options(verb: Verb) -> Verb:
    """Give a verb `--kernel` and the options about it, as one argument: a `Kernel` or None."""

    @functools.wraps(verb)
    def with_kernel(
        *,
        config: Config,
        kernel: str | None,
        kernel_version: str | None,
        kernel_arch: str | None,
        **rest: Any,
    ) -> Any:
        for name, value in (("version", kernel_version), ("arch", kernel_arch)):
            if value and not kernel:
                raise click.UsageError(f"--kernel-{name} requires --kernel")
        chosen = (
            _kernel_of_release(config.host, kernel, kernel_version, kernel_arch) if kernel else None
        )
        return verb(config=config, kernel=chosen, **rest)

    for option in reversed(_KERNEL_OPTIONS):
        with_kernel = option(with_kernel)
    return with_kernel


def _kernel_of_release(
    host: Host, release: str, version: str | None, architecture: str | None
) -> Kernel:
    """Return a kernel by its release. Without `version`, its version is read from its headers."""
    running = host.kernel
    architecture = architecture or running.architecture
    named = Kernel(release, version or running.version, architecture)
    if named == running:
        return running
    if version is None:
        version = _version_in_headers(host, release)
    return Kernel(release, version, architecture)


def _version_in_headers(host: Host, release: str) -> str:
    for headers in (
        host.resolve_link(host.lib_modules(release) / "build"),
        host.root / "usr/src/kernels" / release,
        host.root / f"usr/src/linux-headers-{release}",
    ):
        for name in ("utsversion.h", "compile.h"):
            with suppress(OSError):
                text = (headers / "include/generated" / name).read_text(errors="replace")
                if match := re.search(r'#define UTS_VERSION "(.*)"', text):
                    return match[1]
    raise NoHeaders(
        f"the `uname -v` of kernel {release} is not known: it has no headers below {host.root}",
        hint="install its headers, or pass --kernel-version '#1 SMP ...'; it is part of a "
        "bundle's key",
    )
