"""The ladder, as a pure decision: from what is wanted and what is known to the next action.

`climb` is called again after every look and every build; each time it says, for every rung from the
cheapest to the dearest, whether it served and why not, and what to do next. It touches nothing,
so `--dry-run` and `nodeside driver plan` are free. `replacement` decides, also purely, what to do
about modules that are in the kernel already. Policy lives here only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol, assert_never

from nodeside.contract import LoadedRecord, Rung
from nodeside.driver.bundle.bundle import Bundle, BundleManifest
from nodeside.modulenames import kernel_name
from nodeside.spec.model import Foreign, Module, Reuse, UnloadPolicy, Upgrade

if TYPE_CHECKING:
    from nodeside.driver.node.modules import LoadedState


@dataclass(frozen=True)
class WantedDriver:
    """What should be in the kernel, and which rungs are open to get it.

    `key` and `tag` are those of the bundle for this kernel; `modules` are in load order.
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

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(kernel_name(module.name) for module in self.modules)


@dataclass(frozen=True)
class Finding:
    """What a look at one rung found: a bundle, or nothing and why."""

    why: str
    bundle: Bundle | None = None


@dataclass(frozen=True)
class Observed:
    """What has been observed so far.

    `in_kernel` are the loaded modules of the wanted names, and those of an earlier version of the
    driver that nodeside loaded. `manifests` are those whose build-ids prove a loaded module to be
    the right one: the manifest of the wanted key, and that of a compatible bundle if one was loaded
    in this boot. `record_proves`: the record was written under the trust of today.
    """

    in_kernel: Mapping[str, LoadedState]
    record: LoadedRecord | None = None
    manifests: tuple[BundleManifest, ...] = ()
    findings: Mapping[Rung, Finding] = field(default_factory=dict)
    record_proves: bool = True

    def with_finding(self, rung: Rung, finding: Finding) -> Observed:
        return replace(self, findings={**self.findings, rung: finding})


@dataclass(frozen=True)
class Verdict:
    """Whether a rung served, and why or why not, in words for the table."""

    rung: Rung
    served: bool
    why: str


class ProvenModule(Protocol):
    """A module by the only thing that identifies it."""

    @property
    def name(self) -> str: ...

    @property
    def build_id(self) -> str: ...


class Proof(Protocol):
    """What tells the build-ids of the right modules: the manifest of a bundle, or loaded.json."""

    @property
    def key(self) -> str: ...

    @property
    def modules(self) -> Sequence[ProvenModule]: ...


@dataclass(frozen=True)
class Keep:
    """The right modules are loaded: touch nothing."""

    proof: Proof


@dataclass(frozen=True)
class Look:
    """Look at this rung next (for `built`: build)."""

    rung: Rung


@dataclass(frozen=True)
class Use:
    """This bundle is the one: check it, and load it."""

    rung: Rung
    bundle: Bundle


@dataclass(frozen=True)
class GiveUp:
    """No rung is left."""


Action = Keep | Look | Use | GiveUp


@dataclass(frozen=True)
class Decision:
    verdicts: tuple[Verdict, ...]
    action: Action


_BELOW_LOADED = (Rung.CACHED, Rung.FETCHED, Rung.COMPATIBLE, Rung.BUILT)


def climb(wanted: WantedDriver, known: Observed) -> Decision:
    """The verdict on each rung so far, and the next action.

    A bundle that was found may turn out to be what is loaded already, because its manifest was not
    known before: then too nothing is touched.
    """
    proven, why = loaded_rung(wanted, known)
    verdicts = [Verdict(Rung.LOADED, proven is not None, why)]
    if proven is not None:
        return Decision(tuple(verdicts), Keep(proven))
    for rung in _BELOW_LOADED:
        closed = closed_rung(wanted, rung)
        if closed:
            verdicts.append(Verdict(rung, False, closed))
            continue
        finding = known.findings.get(rung)
        if finding is None:
            return Decision(tuple(verdicts), Look(rung))
        verdicts.append(Verdict(rung, finding.bundle is not None, finding.why))
        if finding.bundle is not None:
            manifest = finding.bundle.manifest
            proven, _ = loaded_rung(wanted, replace(known, manifests=(manifest,)))
            action: Action = Keep(manifest) if proven else Use(rung, finding.bundle)
            return Decision(tuple(verdicts), action)
    return Decision(tuple(verdicts), GiveUp())


def closed_rung(wanted: WantedDriver, rung: Rung) -> str:
    """Why this rung is not open at all; empty if it is."""
    match rung:
        case Rung.LOADED | Rung.CACHED:
            return ""
        case Rung.FETCHED:
            return "" if wanted.prebuilt else "driver.yaml names no prebuilt sources"
        case Rung.COMPATIBLE:
            return "" if wanted.reuse is Reuse.CRC else "driver.yaml says reuse: exact"
        case Rung.BUILT:
            return "" if wanted.toolkit else "no toolkit here: no shared directory was given"
    assert_never(rung)


def loaded_rung(wanted: WantedDriver, known: Observed) -> tuple[Proof | None, str]:
    """What proves the loaded modules to be the wanted ones, or None and why.

    Where the cache was lost, loaded.json serves too: it has the key and the build-ids of what we
    loaded in this boot.
    """
    present = [name for name in wanted.names if name in known.in_kernel]
    absent = [name for name in wanted.names if name not in known.in_kernel]
    if absent:
        return None, f"{', '.join(absent)} not loaded"
    superseded = [name for name in known.in_kernel if name not in wanted.names]
    if superseded:
        return None, f"{', '.join(superseded)} of an earlier version is still loaded"
    proofs: list[Proof] = list(known.manifests)
    ours = known.record if known.record and known.record.key == wanted.key else None
    if ours is not None and known.record_proves:
        proofs.append(ours)
    if not proofs and ours is not None:
        return None, f"{', '.join(present)} loaded when spec.prebuilt.trust was another one"
    if not proofs:
        return None, (
            f"{', '.join(present)} loaded, but no bundle of {wanted.version} for this kernel is "
            "known to compare with"
        )
    whys = []
    for proof in proofs:
        why = _contradiction(wanted, known, proof)
        if not why:
            return proof, "build-ids and parameters are those wanted"
        whys.append(why)
    return None, whys[0]


def _contradiction(wanted: WantedDriver, known: Observed, proof: Proof) -> str:
    """The first way in which the kernel is not what the build-ids and the parameters ask."""
    expected = {module.name: module.build_id for module in proof.modules}
    for module in wanted.modules:
        name = kernel_name(module.name)
        state = known.in_kernel[name]
        if not expected.get(name):
            return f"the bundle records no build-id for {name}"
        if state.build_id != expected[name]:
            return f"{name} loaded, but with another build-id ({state.build_id[:12] or 'none'})"
        if state.initstate != "live":
            return f"{name} is {state.initstate}, not live"
        why = _parameter_contradiction(module, state, known.record)
        if why:
            return why
    return ""


def _parameter_contradiction(
    module: Module, state: LoadedState, record: LoadedRecord | None
) -> str:
    """What we asked for stands in loaded.json; sysfs can only contradict it."""
    asked = dict(module.parameters)
    ours = _recorded(kernel_name(module.name), state, record)
    if ours is not None and ours != asked:
        return f"{state.name} loaded with parameters {_words(ours)}, wanted {_words(asked)}"
    for key, value in asked.items():
        seen = state.parameters.get(key)
        if seen is None and ours is None:
            return f"{state.name} was not loaded by nodeside, and {key} cannot be read back"
        if seen is not None and not _same_value(value, seen):
            return f"{state.name} has {key}={seen}, wanted {value}"
    return ""


def _recorded(name: str, state: LoadedState, record: LoadedRecord | None) -> dict[str, str] | None:
    for module in record.modules if record else ():
        if module.name == name and module.build_id == state.build_id:
            return dict(module.parameters)
    return None


def _same_value(asked: str, seen: str) -> bool:
    """Whether sysfs shows what was asked, as far as that can be told.

    A bool given as 1 reads `Y`, 0x10 reads 16, and a string may be cut or decorated by its own
    getter; only a clear difference between two booleans or two numbers is a contradiction.
    """
    if asked == seen:
        return True
    if asked.lower() in _BOOLEANS and seen in ("Y", "N"):
        return _BOOLEANS[asked.lower()] == seen
    try:
        return int(asked, 0) == int(seen, 0)
    except ValueError:
        return True


_BOOLEANS = {
    **dict.fromkeys(("1", "y", "yes", "on", "true"), "Y"),
    **dict.fromkeys(("0", "n", "no", "off", "false"), "N"),
}


def _words(parameters: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(parameters.items())) or "none"


# --- modules that are in the way ---------------------------------------------------------------


class Replacement(Enum):
    """What to do about modules of the wanted names that are loaded but are not the wanted ones."""

    LOAD = "load"  # nothing is in the way
    REPLACE = "replace"  # unload, then load
    AFTER_REBOOT = "after-reboot"  # leave it; the next boot brings the wanted one
    REFUSE = "refuse"  # not ours, and we may not touch it


class Occupant(Enum):
    """Whose module is in the way."""

    NOBODY = "nobody"
    OURS = "ours"
    FOREIGN = "foreign"


def occupant(known: Observed) -> Occupant:
    """Whose modules are in the way. One foreign module makes the whole foreign."""
    present = tuple(known.in_kernel.values())
    if not present:
        return Occupant.NOBODY
    proven = {m.build_id for m in (known.record.modules if known.record else ())}
    proven |= {m.build_id for manifest in known.manifests for m in manifest.modules}
    ours = all(state.build_id and state.build_id in proven for state in present)
    return Occupant.OURS if ours else Occupant.FOREIGN


def replacement(
    who: Occupant, upgrade: Upgrade, unload: UnloadPolicy, foreign: Foreign
) -> tuple[Replacement, str]:
    """The decision for every combination, and its reason in words."""
    match who:
        case Occupant.NOBODY:
            return Replacement.LOAD, ""
        case Occupant.FOREIGN if foreign is Foreign.KEEP:
            return Replacement.REFUSE, (
                "a module of that name is loaded that nodeside did not load, and "
                "driver.yaml says unload.foreign: keep"
            )
        case Occupant.OURS | Occupant.FOREIGN:
            if upgrade is Upgrade.ON_REBOOT:
                return Replacement.AFTER_REBOOT, "driver.yaml says upgrade: onReboot"
            if unload is UnloadPolicy.NEVER:
                return Replacement.AFTER_REBOOT, "driver.yaml says unload.policy: never"
            return Replacement.REPLACE, ""
    assert_never(who)
