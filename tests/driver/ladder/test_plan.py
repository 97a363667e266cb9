"""The ladder and the replacement policy: pure decisions, every row of them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.bundle.manifest import BundleManifest, BundleModule
from nodeside.driver.ladder.plan import (
    GiveUp,
    Keep,
    Observed,
    Occupant,
    Replacement,
    RungFinding,
    TryRung,
    Use,
    WantedDriver,
    climb_ladder,
    decide_replacement,
    find_occupant,
)
from nodeside.driver.node.loaded_record import LoadedModule, LoadedRecord
from nodeside.driver.node.modules import LoadedState
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.protocol.node_status import Rung
from nodeside.spec.model import Foreign, Module, Reuse, UnloadPolicy, Upgrade
from nodeside.system.host import Kernel

KERNEL = Kernel("6.1.0-1-amd64", "#1 SMP", "x86_64")


def wanted(
    *,
    parameters: dict[str, str] | None = None,
    prebuilt: bool = True,
    toolkit: bool = True,
    reuse: Reuse = Reuse.CRC,
) -> WantedDriver:
    return WantedDriver(
        driver="edu",
        version="1.0",
        key="a" * 64,
        tag="tag",
        modules=(Module(name="edu", parameters=parameters or {}),),
        prebuilt=prebuilt,
        toolkit=toolkit,
        reuse=reuse,
    )


def manifest(build_id: str = "b1") -> BundleManifest:
    module = BundleModule(
        name="edu",
        file="modules/edu.ko",
        sha256="0" * 64,
        size=1,
        build_id=build_id,
        srcversion="",
        vermagic="",
        depends=(),
        imports={},
        weak_imports={},
        exports={},
        license="GPL",
        import_namespaces=(),
        signer="",
    )
    return BundleManifest(
        driver="edu",
        version="1.0",
        key="a" * 64,
        kernel=KERNEL,
        modules=(module,),
        source_digest="s",
        settings=BuildSettings(BuildKind.KBUILD, ("edu",)),
        toolchain=None,
        certificate="",
        created="",
    )


def bundle() -> Bundle:
    return Bundle(Path("/nowhere"), manifest(), "sha256:0")


def record(build_id: str = "b1", **parameters: str) -> LoadedRecord:
    return LoadedRecord(
        "edu", "1.0", "a" * 64, "boot", Rung.BUILT, (LoadedModule("edu", build_id, parameters),)
    )


def in_kernel(build_id: str = "b1", **parameters: str) -> dict[str, LoadedState]:
    return {"edu": LoadedState("edu", build_id=build_id, parameters=parameters)}


def why_not_loaded(want: WantedDriver, known: Observed) -> str:
    first = climb_ladder(want, known).verdicts[0]
    assert first.rung is Rung.LOADED
    assert not first.served
    return first.why


def test_each_rung_is_looked_at_in_order_and_says_why_it_did_not_serve() -> None:
    known = Observed({})
    for rung in (Rung.CACHED, Rung.FETCHED, Rung.COMPATIBLE, Rung.BUILT):
        assert climb_ladder(wanted(), known).action == TryRung(rung)
        known = known.with_finding(rung, RungFinding(f"nothing in {rung.value}"))
    last = climb_ladder(wanted(), known)
    assert last.action == GiveUp()
    assert [(v.rung, v.why) for v in last.verdicts] == [
        (Rung.LOADED, "edu not loaded"),
        (Rung.CACHED, "nothing in cached"),
        (Rung.FETCHED, "nothing in fetched"),
        (Rung.COMPATIBLE, "nothing in compatible"),
        (Rung.BUILT, "nothing in built"),
    ]


def test_the_first_rung_that_has_a_bundle_serves() -> None:
    found = Observed({}).with_finding(Rung.CACHED, RungFinding("there", bundle()))
    assert climb_ladder(wanted(), found).action == Use(Rung.CACHED, bundle())


def test_closed_rungs_are_passed_over_with_their_reason() -> None:
    want = wanted(prebuilt=False, toolkit=False, reuse=Reuse.EXACT)
    plan = climb_ladder(want, Observed({}).with_finding(Rung.CACHED, RungFinding("empty")))
    assert plan.action == GiveUp()
    assert [v.why for v in plan.verdicts[2:]] == [
        "driver.yaml names no prebuilt sources",
        "driver.yaml says reuse: exact",
        "no toolkit: no shared directory is configured",
    ]


def test_a_loaded_module_with_the_right_build_id_is_left_alone() -> None:
    known = Observed(in_kernel(), record(), (manifest(),))
    assert climb_ladder(wanted(), known).action == Keep(manifest())


def test_a_name_in_the_kernel_proves_nothing_without_a_known_bundle() -> None:
    why = why_not_loaded(wanted(), Observed(in_kernel()))
    assert why.startswith("edu loaded, but there is no bundle of 1.0 for this kernel")


def test_another_build_id_is_not_the_wanted_module() -> None:
    why = why_not_loaded(wanted(), Observed(in_kernel("0123456789abcdef"), record(), (manifest(),)))
    assert why == "edu loaded, but with another build-id (0123456789ab)"


def test_a_module_without_build_id_is_never_taken_for_ours() -> None:
    why = why_not_loaded(wanted(), Observed(in_kernel(""), record(""), (manifest(""),)))
    assert why == "the bundle records no build-id for edu"


def test_a_module_that_is_going_is_not_loaded() -> None:
    going = {"edu": LoadedState("edu", build_id="b1", initstate="going")}
    assert why_not_loaded(wanted(), Observed(going, record(), (manifest(),))) == (
        "edu is going, not live"
    )


def test_a_parameter_change_alone_is_noticed_from_the_record() -> None:
    known = Observed(in_kernel(), record("b1", debug="0"), (manifest(),))
    why = why_not_loaded(wanted(parameters={"debug": "1"}), known)
    assert why == "edu loaded with parameters debug=0, wanted debug=1"


def test_a_bool_given_as_1_reads_back_as_y_and_is_no_contradiction() -> None:
    known = Observed(in_kernel("b1", debug="Y"), record("b1", debug="1"), (manifest(),))
    assert climb_ladder(wanted(parameters={"debug": "1"}), known).action == Keep(manifest())


# --- parameters of the kernel's command line


def booted_with(**values: str) -> WantedDriver:
    """`edu`, for which driver.yaml sets nothing, with these on the kernel's command line."""
    return replace(wanted(), boot={"edu": values})


def test_what_the_command_line_gave_a_module_once_is_not_given_again() -> None:
    """Whatever the module made of it: the command line stays the same until a reboot."""
    known = Observed(in_kernel(timeout="500"), record(timeout="777", colour="red"), (manifest(),))

    assert climb_ladder(booted_with(timeout="777", colour="red"), known).action == Keep(manifest())


def test_what_the_command_line_says_is_wanted_of_a_module_loaded_without_it() -> None:
    """By an older nodeside, or by hand; what cannot be read back contradicts nothing."""
    for loaded in (record(), None):
        other = Observed(in_kernel(timeout="1000"), loaded, (manifest(),))
        same = Observed(in_kernel(timeout="777"), loaded, (manifest(),))

        why = why_not_loaded(booted_with(timeout="777"), other)
        assert why == "edu has timeout=1000, wanted 777"
        for line in ({"timeout": "777"}, {"unknown": "1"}):
            assert climb_ladder(booted_with(**line), same).action == Keep(manifest())


def test_what_driver_yaml_no_longer_sets_is_as_the_command_line_says() -> None:
    known = Observed(in_kernel(timeout="5"), record(timeout="5"), (manifest(),))

    assert why_not_loaded(booted_with(timeout="777"), known) == (
        "edu loaded with parameters timeout=5, wanted timeout=777"
    )


def test_a_parameter_may_have_either_dash_wherever_it_is_named() -> None:
    dashed = record(**{"time-out": "5"})
    known = Observed(in_kernel(time_out="5"), dashed, (manifest(),))

    assert climb_ladder(booted_with(time_out="5"), known).action == Keep(manifest())
    for name in ("time-out", "time_out"):
        assert climb_ladder(wanted(parameters={name: "5"}), known).action == Keep(manifest())
    changed = Observed(in_kernel(time_out="7"), dashed, (manifest(),))
    assert why_not_loaded(wanted(parameters={"time-out": "5"}), changed) == (
        "edu has time_out=7, wanted 5"
    )


def test_sysfs_contradicts_the_record_when_somebody_changed_a_parameter() -> None:
    known = Observed(in_kernel("b1", depth="7"), record("b1", depth="0x10"), (manifest(),))
    why = why_not_loaded(wanted(parameters={"depth": "0x10"}), known)
    assert why == "edu has depth=7, wanted 0x10"


def test_without_a_record_an_unreadable_parameter_is_no_proof() -> None:
    why = why_not_loaded(
        wanted(parameters={"secret": "1"}), Observed(in_kernel(), None, (manifest(),))
    )
    assert why == "edu was not loaded by nodeside, and secret cannot be read back"


def test_whose_module_is_in_the_way() -> None:
    ours = Observed(in_kernel(), record(), ())
    foreign = Observed(in_kernel("zz"), record(), ())
    assert find_occupant(Observed({})) is Occupant.NOBODY
    assert find_occupant(ours) is Occupant.OURS
    assert find_occupant(foreign) is Occupant.FOREIGN


EXPECTED = {
    # who, upgrade, unload, foreign -> decision; None stands for any value
    (Occupant.NOBODY, None, None, None): Replacement.LOAD,
    (Occupant.FOREIGN, None, None, Foreign.KEEP): Replacement.REFUSE,
    (Occupant.FOREIGN, Upgrade.ON_REBOOT, None, Foreign.REPLACE): Replacement.AFTER_REBOOT,
    (Occupant.FOREIGN, Upgrade.LIVE, UnloadPolicy.NEVER, Foreign.REPLACE): Replacement.AFTER_REBOOT,
    (Occupant.FOREIGN, Upgrade.LIVE, UnloadPolicy.WHEN_IDLE, Foreign.REPLACE): Replacement.REPLACE,
    (Occupant.OURS, Upgrade.ON_REBOOT, None, None): Replacement.AFTER_REBOOT,
    (Occupant.OURS, Upgrade.LIVE, UnloadPolicy.NEVER, None): Replacement.AFTER_REBOOT,
    (Occupant.OURS, Upgrade.LIVE, UnloadPolicy.WHEN_IDLE, None): Replacement.REPLACE,
}


@pytest.mark.parametrize("row", list(itertools.product(Occupant, Upgrade, UnloadPolicy, Foreign)))
def test_every_combination_has_one_decision(
    row: tuple[Occupant, Upgrade, UnloadPolicy, Foreign],
) -> None:
    rules = [
        decision
        for pattern, decision in EXPECTED.items()
        if all(want is None or want is got for want, got in zip(pattern, row, strict=True))
    ]
    decision, why = decide_replacement(*row)
    assert [decision] == rules
    assert bool(why) == (decision in (Replacement.AFTER_REBOOT, Replacement.REFUSE))
