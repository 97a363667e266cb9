"""The ladder as a pure decision: from the desired driver and the observations to the next action.

`climb_ladder` is called again after every look and every build. Each time it returns the next
action and, for every rung from the cheapest to the most expensive, whether the rung served and why
not. It has no side effects, so `--dry-run` and `nodeside driver plan` cost nothing.
`decide_replacement` decides, also purely, what to do about modules that are in the kernel already.
Policy is decided only here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum
from typing import TYPE_CHECKING, assert_never

from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.bundle.manifest import BundleManifest
from nodeside.driver.node.loaded_record import LoadedModule, LoadedRecord
from nodeside.protocol.module_names import kernel_name
from nodeside.protocol.node_status import Rung
from nodeside.spec.model import Foreign, Module, Reuse, UnloadPolicy, Upgrade
from nodeside.values import frozen

if TYPE_CHECKING:
    from nodeside.driver.node.modules import LoadedState


_NO_MODULES = "the driver has no modules"


@frozen
class WantedDriver:
    """The modules that should be in the kernel, and the rungs that may provide them.

    `key` and `tag` identify the bundle for this kernel; `modules` are in load order. `boot` has the
    parameters of each module that only the kernel's command line sets.
    """

    driver: str
    version: str
    key: str
    tag: str
    modules: tuple[Module, ...]
    prebuilt: bool
    toolkit: bool
    reuse: Reuse = Reuse.EXACT
    upgrade: Upgrade = Upgrade.LIVE
    unload: UnloadPolicy = UnloadPolicy.WHEN_IDLE
    foreign: Foreign = Foreign.REPLACE
    boot: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(kernel_name(module.name) for module in self.modules)


@frozen
class RungFinding:
    """The result of a look at one rung: a bundle and its origin, or None and the reason."""

    why: str
    bundle: Bundle | None = None


@frozen
class Observed:
    """The observations so far.

    `in_kernel` holds the loaded modules with the wanted names, and the modules that nodeside loaded
    for an earlier version of the driver. `manifests` holds the manifests whose build-ids prove that
    a loaded module is the right one: the manifest of the wanted key, and the manifest of a
    compatible bundle if one was loaded in this boot. `record_proves` means that the record was
    written under the current trust settings.
    """

    in_kernel: Mapping[str, LoadedState]
    record: LoadedRecord | None = None
    manifests: tuple[BundleManifest, ...] = ()
    findings: Mapping[Rung, RungFinding] = field(default_factory=dict)
    record_proves: bool = True

    def with_finding(self, rung: Rung, finding: RungFinding) -> Observed:
        return replace(self, findings={**self.findings, rung: finding})


@frozen
class Verdict:
    """Whether a rung served, and the reason as text for the table."""

    rung: Rung
    served: bool
    why: str


@frozen
class NoModules:
    """The proof of a driver that has no modules: nothing has to be in the kernel."""

    key: str
    modules: tuple[LoadedModule, ...] = ()


Proof = BundleManifest | LoadedRecord | NoModules
"""A source of the right modules' build-ids, their only reliable identity."""


@frozen
class Keep:
    """The right modules are loaded: change nothing."""

    proof: Proof


@frozen
class TryRung:
    """Try this rung next (for `built`: build)."""

    rung: Rung


@frozen
class Use:
    """Check this bundle and load it."""

    rung: Rung
    bundle: Bundle


@frozen
class GiveUp:
    """No rung is left."""


Action = Keep | TryRung | Use | GiveUp


@frozen
class Decision:
    verdicts: tuple[Verdict, ...]
    action: Action


_BELOW_LOADED = (Rung.CACHED, Rung.FETCHED, Rung.COMPATIBLE, Rung.BUILT)


def climb_ladder(wanted: WantedDriver, observed: Observed) -> Decision:
    """Return the verdict on each rung so far, and the next action.

    A bundle may turn out to be the one that is loaded already, because its manifest was not known
    before. Nothing is changed in that case either.
    """
    proven, why = prove_loaded(wanted, observed)
    verdicts = [Verdict(Rung.LOADED, proven is not None, why)]
    if proven is not None:
        return Decision(tuple(verdicts), Keep(proven))
    for rung in _BELOW_LOADED:
        reason = why_closed(wanted, rung)
        if reason:
            verdicts.append(Verdict(rung, False, reason))
            continue
        finding = observed.findings.get(rung)
        if finding is None:
            return Decision(tuple(verdicts), TryRung(rung))
        verdicts.append(Verdict(rung, finding.bundle is not None, finding.why))
        if finding.bundle is not None:
            manifest = finding.bundle.manifest
            proven, _ = prove_loaded(wanted, replace(observed, manifests=(manifest,)))
            action: Action = Keep(manifest) if proven else Use(rung, finding.bundle)
            return Decision(tuple(verdicts), action)
    return Decision(tuple(verdicts), GiveUp())


def why_closed(wanted: WantedDriver, rung: Rung) -> str:
    """Return why this rung cannot be used at all; "" if it can."""
    if rung is not Rung.LOADED and not wanted.names:
        return _NO_MODULES
    match rung:
        case Rung.LOADED | Rung.CACHED:
            return ""
        case Rung.FETCHED:
            return "" if wanted.prebuilt else "driver.yaml names no prebuilt sources"
        case Rung.COMPATIBLE:
            return "" if wanted.reuse is Reuse.CRC else "driver.yaml says reuse: exact"
        case Rung.BUILT:
            return "" if wanted.toolkit else "no toolkit: no shared directory is configured"
    assert_never(rung)


def prove_loaded(wanted: WantedDriver, observed: Observed) -> tuple[Proof | None, str]:
    """Return the proof that the loaded modules are the wanted ones, or None; and the reason.

    If the cache was lost, loaded.json serves as proof too: it has the key and the build-ids of the
    modules that we loaded in this boot.
    """
    present = [name for name in wanted.names if name in observed.in_kernel]
    absent = [name for name in wanted.names if name not in observed.in_kernel]
    if absent:
        return None, f"{', '.join(absent)} not loaded"
    superseded = [name for name in observed.in_kernel if name not in wanted.names]
    if superseded:
        return None, f"{', '.join(superseded)} of an earlier version is still loaded"
    proofs: list[Proof] = list(observed.manifests) if wanted.names else [NoModules(wanted.key)]
    ours = observed.record if observed.record and observed.record.key == wanted.key else None
    if ours is not None and observed.record_proves:
        proofs.append(ours)
    if not proofs and ours is not None:
        return None, f"{', '.join(present)} loaded under a different spec.prebuilt.trust"
    if not proofs:
        return None, (
            f"{', '.join(present)} loaded, but there is no bundle of {wanted.version} for this "
            "kernel to compare with"
        )
    mismatches = []
    for proof in proofs:
        mismatch = _first_mismatch(wanted, observed, proof)
        if not mismatch:
            return proof, "build-ids and parameters match" if wanted.names else _NO_MODULES
        mismatches.append(mismatch)
    return None, mismatches[0]


def _first_mismatch(wanted: WantedDriver, observed: Observed, proof: Proof) -> str:
    """Return the first mismatch of build-id, initstate or parameters; "" if there is none."""
    expected = {module.name: module.build_id for module in proof.modules}
    for module in wanted.modules:
        name = kernel_name(module.name)
        state = observed.in_kernel[name]
        if not expected.get(name):
            return f"the bundle records no build-id for {name}"
        if state.build_id != expected[name]:
            return f"{name} loaded, but with another build-id ({state.build_id[:12] or 'none'})"
        if state.initstate != "live":
            return f"{name} is {state.initstate}, not live"
        why = _parameter_mismatch(module, wanted.boot.get(name, {}), state, observed.record)
        if why:
            return why
    return ""


def _parameter_mismatch(
    module: Module, boot: Mapping[str, str], state: LoadedState, record: LoadedRecord | None
) -> str:
    """Return the first parameter mismatch; "" if there is none.

    loaded.json has the parameters that we loaded the module with; sysfs can only contradict them.
    The kernel's command line stays the same until a reboot. So its parameters need no proof, and a
    module that was once given them is not reloaded, whatever value it shows for them.
    """
    desired = {**boot, **_by_kernel_name(module.parameters)}
    recorded = _recorded_parameters(kernel_name(module.name), state, record)
    given = None if recorded is None else {**boot, **recorded}
    if given is not None and given != desired:
        loaded_with, wanted_are = _parameters_in_words(given), _parameters_in_words(desired)
        return f"{state.name} loaded with parameters {loaded_with}, wanted {wanted_are}"
    for key, value in desired.items():
        actual = state.parameters.get(key)
        if key in boot and (actual is None or key in (recorded or {})):
            continue
        if actual is None and recorded is None:
            return f"{state.name} was not loaded by nodeside, and {key} cannot be read back"
        if actual is not None and not _same_value(value, actual):
            return f"{state.name} has {key}={actual}, wanted {value}"
    return ""


def _recorded_parameters(
    name: str, state: LoadedState, record: LoadedRecord | None
) -> dict[str, str] | None:
    for module in record.modules if record else ():
        if module.name == name and module.build_id == state.build_id:
            return _by_kernel_name(module.parameters)
    return None


def _by_kernel_name(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters by the names that sysfs and the command line have: `-` is `_`."""
    return {kernel_name(name): value for name, value in parameters.items()}


def _same_value(desired: str, actual: str) -> bool:
    """Return whether the value in sysfs is compatible with the desired value.

    A bool set as 1 reads `Y`, 0x10 reads 16, and a string may be truncated or decorated by its own
    getter. Only a clear difference between two booleans or two numbers is a contradiction.
    """
    if desired == actual:
        return True
    if desired.lower() in _BOOLEANS and actual in ("Y", "N"):
        return _BOOLEANS[desired.lower()] == actual
    try:
        return int(desired, 0) == int(actual, 0)
    except ValueError:
        return True


_BOOLEANS = {
    **dict.fromkeys(("1", "y", "yes", "on", "true"), "Y"),
    **dict.fromkeys(("0", "n", "no", "off", "false"), "N"),
}


def _parameters_in_words(parameters: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(parameters.items())) or "none"


# --- modules that are in the way ---------------------------------------------------------------


class Replacement(Enum):
    """The action for loaded modules that have the wanted names but are not the wanted ones."""

    LOAD = "load"  # nothing is in the way
    REPLACE = "replace"  # unload, then load
    AFTER_REBOOT = "after-reboot"  # leave it; the next boot loads the wanted one
    REFUSE = "refuse"  # foreign, and we may not unload it


class Occupant(Enum):
    """The owner of the modules that are in the way."""

    NOBODY = "nobody"
    OURS = "ours"
    FOREIGN = "foreign"


def find_occupant(observed: Observed) -> Occupant:
    """Return the owner of the modules in the way. One foreign module makes all of them foreign."""
    present = tuple(observed.in_kernel.values())
    if not present:
        return Occupant.NOBODY
    proven = {m.build_id for m in (observed.record.modules if observed.record else ())}
    proven |= {m.build_id for manifest in observed.manifests for m in manifest.modules}
    ours = all(state.build_id and state.build_id in proven for state in present)
    return Occupant.OURS if ours else Occupant.FOREIGN


def decide_replacement(
    who: Occupant, upgrade: Upgrade, unload: UnloadPolicy, foreign: Foreign
) -> tuple[Replacement, str]:
    """Return the decision for a combination, and its reason as text."""
    match who:
        case Occupant.NOBODY:
            return Replacement.LOAD, ""
        case Occupant.FOREIGN if foreign is Foreign.KEEP:
            return Replacement.REFUSE, (
                "a module of that name is loaded, which nodeside did not load, and "
                "driver.yaml says unload.foreign: keep"
            )
        case Occupant.OURS | Occupant.FOREIGN:
            if upgrade is Upgrade.ON_REBOOT:
                return Replacement.AFTER_REBOOT, "driver.yaml says upgrade: onReboot"
            if unload is UnloadPolicy.NEVER:
                return Replacement.AFTER_REBOOT, "driver.yaml says unload.policy: never"
            return Replacement.REPLACE, ""
    assert_never(who)
