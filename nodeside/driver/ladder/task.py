"""One driver on one node for one kernel, with everything that can be known beforehand resolved.

A `Task` is made from a driver.yaml and a host; it computes the bundle's key without a toolkit, so
that the driver container, a build Job and an engineer all come to the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from nodeside.contract import BuildKind, BuildSettings, bundle_key, store_tag
from nodeside.driver.bundle.bundle import Described
from nodeside.driver.bundle.cache import Cache
from nodeside.driver.bundle.trust import distrust
from nodeside.driver.handoff.source import build_settings, source_digest
from nodeside.driver.handoff.source_tree import NotSource
from nodeside.driver.ladder.plan import WantedDriver
from nodeside.host import Host, Kernel
from nodeside.shared import SharedDir
from nodeside.spec import load, node_load
from nodeside.spec.model import Driver, PrebuiltSource, Signing, Trust
from nodeside.spec.policy import node_policy

# Where a driver image that was made for one kernel has its bundle: beside no source tree, whose
# digest it would change.
OWN_BUNDLES = PrebuiltSource(directory="/prebuilt")


@dataclass(frozen=True)
class Config:
    """Where a command works; every field has a flag and an environment variable.

    `driver_file` is the driver.yaml, `shared` the directory shared with a toolkit sidecar (None:
    there is no toolkit), `node` the name of the Kubernetes node, `revision` what the controller
    calls this driver.yaml ("": a person wrote it), `toolkit` the image that its sidecar is of,
    `policy_file` what it says beside it of upgrade
    and unload, `signature_hash` what a kernel that is not here signs with ("": look at the host).
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
    signature_hash: str = ""

    def beside_driver(self, relative: str) -> Path:
        """A path of driver.yaml: absolute, or relative to its directory."""
        return (self.driver_file.parent / relative).absolute()


@dataclass(frozen=True)
class Task:
    """What is to be done, resolved. `source` is an absolute path."""

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
        """A path of driver.yaml: absolute, or relative to its directory."""
        return self.config.beside_driver(relative)

    @property
    def sources(self) -> tuple[PrebuiltSource, ...]:
        """Where prebuilt bundles may be, local directories made absolute.

        A driver image for one kernel brings its own, so that is the first place to look.
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

    def distrust(self, described: Described) -> str:
        """Why a bundle in the cache may not be used; "" if it may."""
        return distrust(self.trust, self.cache, self.name, described)

    @property
    def wanted(self) -> WantedDriver:
        spec = self.driver.spec
        return WantedDriver(
            driver=self.name,
            version=self.version,
            key=self.key,
            tag=self.tag,
            modules=spec.modules,
            prebuilt=bool(self.sources),
            toolkit=self.config.shared is not None,
            reuse=spec.reuse,
            upgrade=spec.upgrade,
            unload=spec.unload.policy,
            foreign=spec.unload.foreign,
        )


def resolve(config: Config, kernel: Kernel | None = None) -> Task:
    """Read driver.yaml and the source tree, and compute the key for `kernel` (the running one).

    Raises SpecError, SigningError, SystemRefused.
    """
    driver = read_driver(config)
    source = config.beside_driver(driver.spec.source.path)
    digest = source_digest(source, not_source(driver, config))
    settings = build_settings(driver.spec, source)
    running = kernel or config.host.kernel
    certificate = _certificate(driver.spec.signing, config)
    key = bundle_key(digest, settings, running, certificate)
    return Task(
        config=config,
        driver=driver,
        kernel=running,
        boot_id=config.host.boot_id,
        source=source,
        source_digest=digest,
        settings=settings,
        certificate=certificate,
        key=key,
        tag=store_tag(driver.spec.version, running, key),
    )


def resolve_loaded(config: Config) -> Task:
    """What it takes to unload a driver: no source, no certificate, and so no key.

    Neither may be there any more when a driver goes. Raises SpecError.
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
    """What of the source's directory is none: what driver.yaml excludes, where we write, and what
    is for the driver's side only."""
    cache = config.cache.root
    shared = config.shared.root if config.shared else None
    signing = driver.spec.signing
    key = config.beside_driver(signing.key) if signing else None
    ours = [path for path in (key, config.credentials_file, config.policy_file) if path is not None]
    exclude = driver.spec.source.exclude
    return NotSource(exclude, (cache, cache / driver.name), shared, tuple(ours))


def read_driver(config: Config) -> Driver:
    """driver.yaml. Raises SpecError.

    One with a revision is what the controller handed over: it may be newer than this node. What a
    person wrote is read strictly.
    """
    driver = node_load(config.driver_file) if config.revision else load(config.driver_file)
    return node_policy(driver, config.policy_file) if config.policy_file else driver


def _certificate(signing: Signing | None, config: Config) -> str:
    if signing is None:
        return ""
    from nodeside.driver.module.signing import certificate_digest  # late: most drivers do not sign

    return certificate_digest(config.beside_driver(signing.certificate))
