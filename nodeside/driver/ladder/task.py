"""One driver on one node for one kernel, with all its inputs resolved.

A `Task` is made from a driver.yaml and a host. The bundle's key is computed without a toolkit, so
that the driver container, a build Job and an engineer all get the same key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nodeside.driver.bundle.cache import Cache
from nodeside.driver.bundle.manifest import BundleManifest, StoredManifest
from nodeside.driver.bundle.trust import distrust_reason
from nodeside.driver.handoff.source import build_settings, source_digest
from nodeside.driver.handoff.source_tree import NotSource
from nodeside.driver.kernel.boot_parameters import added_parameters
from nodeside.driver.ladder.exported_symbols import (
    NO_SYMBOLS,
    ExportedSymbols,
    symbols_of_bundles,
    symbols_of_loaded,
)
from nodeside.driver.ladder.plan import WantedDriver
from nodeside.driver.ladder.variants import build_for
from nodeside.driver.node.command_line import EMPTY_COMMAND_LINE, CommandLine, read_command_line
from nodeside.protocol.bundle_key import BuildKind, BuildSettings, bundle_key, store_tag
from nodeside.protocol.module_names import kernel_name
from nodeside.protocol.shared_directory import SharedDir
from nodeside.spec import load, node_load
from nodeside.spec.model import Driver, PrebuiltSource, Signing, Trust
from nodeside.spec.policy import with_policy_of_file
from nodeside.system.host import Host, Kernel
from nodeside.values import frozen

# The bundle directory of a driver image that was made for one kernel. It is outside of the source
# tree, because it would change the tree's digest.
OWN_BUNDLES = PrebuiltSource(directory="/prebuilt")


@frozen
class Config:
    """The environment of a command; every field has a flag and an environment variable.

    `driver_file` is the driver.yaml. `shared` is the directory shared with a toolkit sidecar (None:
    there is no toolkit). `node` is the name of the Kubernetes node. `revision` is the controller's
    name for this driver.yaml ("": a person wrote it). `toolkit` is the image of its sidecar.
    `policy_file` is the controller's separate file, see `nodeside/spec/policy.py`. `after` are the
    bundles of the drivers that this one comes after (None: what is loaded here). `signature_hash`
    is the signature hash of a kernel that is not on this machine ("": look at the host). `bare` is
    the driver of a source that has no driver.yaml.
    """

    driver_file: Path
    host: Host
    cache: Cache
    shared: SharedDir | None = None
    node: str = ""
    revision: str = ""
    toolkit: str = ""
    policy_file: Path | None = None
    ca_file: Path | None = None
    credentials_file: Path | None = None
    after: tuple[BundleManifest, ...] | None = None
    signature_hash: str = ""
    bare: Driver | None = None

    def beside_driver(self, relative: str) -> Path:
        """Resolve a path of driver.yaml: absolute, or relative to its directory."""
        return (self.driver_file.parent / relative).absolute()


@frozen
class Task:
    """One driver to manage, with everything resolved.

    `source` is an absolute path. `variant` names the variant of the build that the kernel gets; ""
    for none. `symbols` are those of the drivers that this one comes after. `command_line` is that
    of the running kernel, and empty if the task is about another one.
    """

    config: Config
    driver: Driver
    kernel: Kernel
    boot_id: str
    source: Path
    source_digest: str
    settings: BuildSettings
    certificate: str
    key: str
    tag: str
    variant: str = ""
    symbols: ExportedSymbols = NO_SYMBOLS
    command_line: CommandLine = EMPTY_COMMAND_LINE

    @property
    def name(self) -> str:
        return self.driver.name

    @property
    def version(self) -> str:
        return self.driver.spec.version

    @property
    def host(self) -> Host:
        return self.config.host

    @property
    def cache(self) -> Cache:
        return self.config.cache

    @property
    def signing(self) -> Signing | None:
        return self.driver.spec.signing

    @property
    def not_source(self) -> NotSource:
        return not_source(self.driver, self.config)

    def path(self, relative: str) -> Path:
        """Resolve a path of driver.yaml: absolute, or relative to its directory."""
        return self.config.beside_driver(relative)

    @property
    def sources(self) -> tuple[PrebuiltSource, ...]:
        """Return the prebuilt sources, with absolute paths for local directories.

        A driver image for one kernel contains its own bundle, so that source comes first.
        """
        prebuilt = self.driver.spec.prebuilt
        own = (OWN_BUNDLES,) if prebuilt.image else ()
        return tuple(
            replace(source, directory=str(self.path(source.directory)))
            if source.directory
            else source
            for source in (*own, *prebuilt.sources)
        )

    @property
    def trust(self) -> Trust:
        trust = self.driver.spec.prebuilt.trust
        if not trust.certificate:
            return trust
        return replace(trust, certificate=str(self.path(trust.certificate)))

    def distrust_reason(self, described: StoredManifest) -> str:
        """Return why a bundle in the cache may not be used, as a clause; "" if it may."""
        return distrust_reason(self.trust, self.cache, self.name, described)

    @property
    def parameters(self) -> Mapping[str, Mapping[str, str]]:
        """Return the parameters that each module gets, by the kernel's name for it."""
        modules, line = self.driver.spec.modules, self.command_line
        return {kernel_name(m.name): {**added_parameters(m, line), **m.parameters} for m in modules}

    @property
    def wanted(self) -> WantedDriver:
        spec = self.driver.spec
        return WantedDriver(
            driver=self.name,
            version=self.version,
            key=self.key,
            tag=self.tag,
            modules=spec.modules,
            boot={
                kernel_name(m.name): added_parameters(m, self.command_line) for m in spec.modules
            },
            prebuilt=bool(self.sources),
            toolkit=self.config.shared is not None,
            reuse=spec.reuse,
            upgrade=spec.upgrade,
            unload=spec.unload.policy,
            foreign=spec.unload.foreign,
        )


def resolve_task(config: Config, kernel: Kernel | None = None) -> Task:
    """Read driver.yaml and the source tree, and compute the key for `kernel`.

    Without `kernel`, the running kernel is used. Raises SpecError, SigningError, SystemRefused,
    UntrustedFile.
    """
    driver = read_driver(config)
    source = config.beside_driver(driver.spec.source.path)
    digest, settings, variant = "", BuildSettings(BuildKind.KBUILD, ()), ""
    target = kernel or config.host.kernel
    symbols = _exported_symbols(driver, config, target)
    if driver.spec.modules:
        digest = source_digest(source, not_source(driver, config))
        build, variant = build_for(driver.spec.build, target.release)
        settings = build_settings(replace(driver.spec, build=build), source)
        settings = replace(settings, symbols=symbols.digest)
    certificate = _certificate_digest(driver.spec.signing, config)
    key = bundle_key(digest, settings, target, certificate)
    return Task(
        config=config,
        driver=driver,
        kernel=target,
        boot_id=config.host.boot_id,
        source=source,
        source_digest=digest,
        settings=settings,
        variant=variant,
        certificate=certificate,
        key=key,
        tag=store_tag(driver.spec.version, target, key),
        symbols=symbols,
        command_line=read_command_line(config.host)
        if target == config.host.kernel
        else EMPTY_COMMAND_LINE,
    )


def _exported_symbols(driver: Driver, config: Config, kernel: Kernel) -> ExportedSymbols:
    """Return the symbols that the drivers in `after` export; none if they are not known here."""
    after = driver.spec.after
    if config.after is not None:
        return symbols_of_bundles(driver, config.after, kernel)
    if not after or kernel != config.host.kernel:
        return NO_SYMBOLS
    return symbols_of_loaded(config.host, after, config.host.boot_id)


def resolve_loaded(config: Config) -> Task:
    """Return a task that suffices to unload a driver: no source, no certificate, and so no key.

    Source and certificate may be gone by the time a driver is removed. Raises SpecError.
    """
    driver, host = read_driver(config), config.host
    return Task(
        config=config,
        driver=driver,
        kernel=host.kernel,
        boot_id=host.boot_id,
        source=config.beside_driver(driver.spec.source.path),
        source_digest="",
        settings=BuildSettings(BuildKind.KBUILD, ()),
        certificate="",
        key="",
        tag="",
    )


def not_source(driver: Driver, config: Config) -> NotSource:
    """Return the paths in the source directory that are not source.

    They are the exclusions of driver.yaml, the directories we write to, and the files for the
    driver's side only.
    """
    cache = config.cache.root
    shared = config.shared.root if config.shared else None
    signing = driver.spec.signing
    key = config.beside_driver(signing.key) if signing else None
    ours = [path for path in (key, config.credentials_file, config.policy_file) if path is not None]
    exclude = driver.spec.source.exclude
    return NotSource(exclude, (cache, cache / driver.name), shared, tuple(ours))


def read_driver(config: Config) -> Driver:
    """Read driver.yaml and its policy file. Raises SpecError.

    A driver.yaml with a revision comes from the controller and may be newer than this node. A
    driver.yaml that a person wrote is parsed strictly.
    """
    if config.bare is not None:
        return config.bare
    driver = node_load(config.driver_file) if config.revision else load(config.driver_file)
    return with_policy_of_file(driver, config.policy_file) if config.policy_file else driver


def _certificate_digest(signing: Signing | None, config: Config) -> str:
    if signing is None:
        return ""
    from nodeside.driver.module.signing import read_certificate  # late: most drivers do not sign

    return read_certificate(config.beside_driver(signing.certificate)).digest
