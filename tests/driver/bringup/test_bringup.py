"""Bringing a driver up, from what is observed to what is loaded, proven and recorded.

Everything is real but the kernel: driver.yaml, source, key, cache, bundles, module files, records.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.bringup.attempt import Attempt
from nodeside.driver.bringup.bringup import NoRungServed, bring_up
from nodeside.driver.bringup.installation import RefusedBeforeLoad
from nodeside.driver.bringup.validate import ValidationFailed
from nodeside.driver.bundle import cache as cache_module
from nodeside.driver.kernel import conflicts
from nodeside.driver.kernel.errors import InUse, RebootRequired
from nodeside.driver.kernel.sequence import SequenceFailed
from nodeside.errors import ExitCode
from nodeside.protocol.node_status import Rung, State
from nodeside.system.host import Kernel
from tests.driver.fakes.kernel import RELEASE, FakeModule, Refusal, write, write_bytes
from tests.driver.fakes.module_writer import ModuleWriter
from tests.driver.fakes.node import FakeNode, module_bytes, whys

OTHER = Kernel("6.0.0-other", "#1 SMP", "x86_64")


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


# --- loading ---------------------------------------------------------------------------------


def test_cold_node_with_a_cached_bundle_loads_it_and_says_why(node: FakeNode) -> None:
    task = node.task(modules=[{"name": "straw", "parameters": {"mode": "fast"}}])
    node.put_bundle(task, {"straw": module_bytes("straw", parameters=["mode"])})

    report = node.bring_up(task)

    assert node.kernel.loads == ["straw mode=fast"]
    assert report.state is State.READY
    assert report.source is Rung.CACHED
    assert whys(report) == {
        "loaded": "straw not loaded",
        "cached": f"the cache holds {task.tag}",
    }
    assert list(report.stages) == ["look in cache", "check", "load", "validate"]
    assert node.states == [State.LOADING, State.READY]
    assert node.record is not None
    assert node.record.source is Rung.CACHED
    assert node.record.modules[0].parameters == {"mode": "fast"}


DEVICES = [{"resource": "example.com/straw", "discover": {"count": 1}}]


def test_a_driver_without_modules_needs_no_source_and_is_ready_when_its_checks_pass(
    node: FakeNode,
) -> None:
    shutil.rmtree(node.image / "source")
    checks = {"timeoutSeconds": 1, "sysfs": [{"path": "bus/pci/state", "value": "ok"}]}
    task = node.task(modules=[], devices=DEVICES, validate=checks)
    with pytest.raises(ValidationFailed):
        node.bring_up(task)
    write(node.host.sys / "bus/pci/state", "ok\n")

    report = node.bring_up(task)

    assert (report.state, report.source) == (State.READY, Rung.LOADED)
    assert whys(report) == {"loaded": "the driver has no modules"}
    assert node.kernel.loads == []
    assert node.bring_up(task).state is State.READY, "and stays so"


def test_modules_that_a_driver_had_before_are_not_forgotten(node: FakeNode) -> None:
    node.fill()

    with pytest.raises(NoRungServed, match="straw of an earlier version is still loaded") as caught:
        node.bring_up(node.task(version="2.0", modules=[], devices=DEVICES))

    assert "nodeside driver unload -f" in caught.value.hint
    assert node.loaded == ("straw",)


def test_a_module_without_a_build_id_is_refused_and_not_loaded_at_every_look(
    node: FakeNode,
) -> None:
    task = node.task()
    info = [("license", "GPL"), ("name", "straw"), ("vermagic", f"{RELEASE} SMP mod_unload ")]
    node.put_bundle(task, {"straw": ModuleWriter(info=info, build_id=b"").write()})

    with pytest.raises(
        RefusedBeforeLoad, match=r"straw\.ko has no build-id, by which nodeside"
    ) as caught:
        node.bring_up(task)

    assert "ld --build-id" in caught.value.hint
    assert (node.kernel.loads, node.kernel.unloads) == ([], [])


def test_what_is_loaded_and_right_is_not_touched(node: FakeNode) -> None:
    node.fill()

    report = node.bring_up(node.task())

    assert (node.kernel.loads, node.kernel.unloads) == ([], [])
    assert report.source is Rung.LOADED
    assert whys(report) == {"loaded": "build-ids and parameters match"}
    assert node.states == [State.READY], "a good module is never said to be loading"
    assert node.record is not None
    assert node.record.source is Rung.CACHED, "how it came here does not change"


def test_modules_are_loaded_in_the_order_of_driver_yaml(node: FakeNode) -> None:
    task = node.task(modules=[{"name": "straw-core"}, {"name": "straw"}])
    node.put_bundle(
        task,
        {
            "straw": module_bytes("straw", depends=["straw_core"]),
            "straw_core": module_bytes("straw_core"),
        },
    )
    node.bring_up(task)
    assert node.kernel.loads == ["straw_core", "straw"]


KALLSYMS = """\
0000000000000000 D init_task
0000000000000000 T printk
0000000000000000 T frob_get\t[provider]
0000000000000000 T old_call\t[straw]
"""


def test_a_module_linked_beside_a_stand_in_uses_the_loaded_one_that_has_its_symbol(
    node: FakeNode,
) -> None:
    node.insmod("provider")
    write(node.host.proc / "kallsyms", KALLSYMS)
    task = node.task()
    file = module_bytes("straw", depends=["standin"], imports=["frob_get", "printk"])
    node.put_bundle(task, {"straw": file})

    assert "would load straw" in node.run("load", "--dry-run").output
    assert node.bring_up(task).state is State.READY
    assert node.kernel.loads == ["straw"]
    assert node.kernel.modules["provider"].holders == ["straw"]


def test_a_symbol_of_the_version_that_leaves_does_not_serve_the_next_one(node: FakeNode) -> None:
    """Refused before the loaded version is touched."""
    node.fill()
    write(node.host.proc / "kallsyms", KALLSYMS)
    node.upgrade()
    task = node.task()
    file = module_bytes("straw", "2", depends=["standin"], imports=["old_call"])
    node.put_bundle(task, {"straw": file})

    with pytest.raises(RefusedBeforeLoad, match="nothing else exports old_call"):
        node.bring_up(task)

    assert node.kernel.unloads == []


def test_a_module_of_the_tree_with_another_name_is_loaded_for_its_symbol(node: FakeNode) -> None:
    """As modprobe does, for which depmod looks at symbols and never at `depends`."""
    write(node.host.proc / "kallsyms", KALLSYMS)
    tree = node.host.lib_modules(RELEASE)
    write(tree / "modules.dep", "kernel/renamed.ko:\n")
    write(tree / "modules.symbols", "alias symbol:video_call renamed\n")
    write_bytes(tree / "kernel/renamed.ko", module_bytes("renamed", exports=["video_call"]))
    task = node.task()
    file = module_bytes("straw", depends=["standin"], imports=["video_call"])
    node.put_bundle(task, {"straw": file})

    assert node.bring_up(task).state is State.READY
    assert node.kernel.loads == ["renamed", "straw"]


# --- the kernel's command line

MODES = [{"name": "straw", "parameters": {"mode": "fast"}}]


def said_at_boot(node: FakeNode, text: str) -> None:
    write(node.host.proc / "cmdline", f"root=/dev/vda1 ro quiet {text}\n")


def given(node: FakeNode, **spec: Any) -> tuple[str, ...]:
    """The notes of a bring-up of a module with the parameters mode and depth."""
    task = node.task(**spec)
    node.put_bundle(task, {"straw": module_bytes("straw", parameters=["mode", "depth"])})
    return node.bring_up(task).notes


def test_the_command_line_sets_what_driver_yaml_does_not_and_both_are_told(node: FakeNode) -> None:
    said_at_boot(node, 'straw.mode=slow "straw.depth=very deep" straw.wdith=3 other.mode=1')

    notes = given(node, modules=MODES)

    assert node.kernel.loads == ['straw depth="very deep" wdith=3 mode=fast']
    assert notes == (
        "straw: depth=very deep (the kernel's command line)",
        "straw: wdith=3 (the kernel's command line)",
        "straw: mode=fast (driver.yaml; the kernel's command line says slow)",
        (
            "straw has no parameter 'wdith', and ignores that of the kernel's command line; "
            "did you mean depth? known parameters: depth, mode"
        ),
    )
    assert node.record is not None
    assert node.record.modules[0].parameters == {
        "depth": "very deep",
        "wdith": "3",
        "mode": "fast",
    }


def test_what_no_module_can_be_given_stops_no_upgrade_and_is_told(node: FakeNode) -> None:
    said_at_boot(node, 'straw.a:b=1 straw.mode="s low" straw.x[0] straw.depth=in"n er')
    node.fill()
    node.upgrade()

    notes = given(node)

    assert node.kernel.loads[-1] == 'straw mode="s low"'
    assert notes == (
        "straw: mode=s low (the kernel's command line)",
        *(
            f"straw: the kernel's command line has {words}, which is left out: expected a {what}"
            for words, what in (
                ("a:b=1", "name of ASCII letters, digits and _"),
                ("x[0]", "name of ASCII letters, digits and _"),
                (
                    'depth=in"n er',
                    "value whose double quotes enclose all of its blanks, or none",
                ),
            )
        ),
    )


def typed_module(node: FakeNode, *types: str) -> bytes:
    """A module `straw` whose parameters are these: `name:type`."""
    info = [("license", "GPL"), ("name", "straw"), ("vermagic", f"{RELEASE} SMP mod_unload ")]
    info += [("parmtype", each) for each in types]
    machine = 62 if node.host.kernel.architecture == "x86_64" else 183
    return ModuleWriter(machine=machine, info=info, build_id=b"typed" * 4).write()


def test_a_name_alone_is_for_booleans_and_left_out_for_others(node: FakeNode) -> None:
    """With any other type, the kernel refuses the module."""
    said_at_boot(node, "straw.on straw.depth straw.mode straw.sizes straw.unknown straw.dyndbg")
    types = ("on:bool", "depth:int", "mode:charp", "sizes:array of int")
    task = node.task()
    node.put_bundle(task, {"straw": typed_module(node, *types)})

    report = node.bring_up(task)

    assert node.kernel.loads == ["straw on=y unknown=y dyndbg=+p"]
    left = ("depth", "int"), ("mode", "charp"), ("sizes", "array of int")
    for name, declared in left:
        assert (
            f"straw: the kernel's command line has {name}, which is left out: expected a value, "
            f"since its type is {declared}"
        ) in report.notes
    assert node.record is not None
    assert node.record.modules[0].parameters == {"on": "y", "unknown": "y", "dyndbg": "+p"}
    assert node.bring_up(node.task()).source is Rung.LOADED
    assert len(node.kernel.loads) == 1


def test_a_module_with_parameters_of_the_command_line_stays_when_the_pod_starts_again(
    node: FakeNode,
) -> None:
    said_at_boot(node, "straw.mode=slow straw.wdith=3")
    given(node)
    node.kernel.loads.clear()

    assert node.bring_up(node.task()).source is Rung.LOADED
    node.forget_cache()
    assert node.bring_up(node.task()).source is Rung.LOADED
    assert (node.kernel.loads, node.kernel.unloads) == ([], [])


def test_parameters_are_shown_with_who_asks_for_them(node: FakeNode) -> None:
    said_at_boot(node, "straw.mode=slow straw.depth=9")
    words = (
        "straw: depth=9 (the kernel's command line)",
        "straw: mode=fast (driver.yaml; the kernel's command line says slow)",
    )
    given(node, modules=MODES)

    for verb in ("status", "plan", "doctor"):
        output = node.run(verb).output
        assert all(line in output for line in words), output
    assert "do: leave out one of the two: driver.yaml wins" in node.run("doctor").output


def test_a_module_of_the_tree_gets_its_parameters_of_the_command_line(node: FakeNode) -> None:
    said_at_boot(node, "core.power=3 core.a:b=1 core.colour")
    tree = node.host.lib_modules(RELEASE)
    write(tree / "modules.dep", "kernel/core.ko:\n")
    write_bytes(tree / "kernel/core.ko", module_bytes("core", parameters=["colour"]))
    task = node.task()
    node.put_bundle(task, {"straw": module_bytes("straw", depends=["core"])})

    node.bring_up(task)

    assert node.kernel.loads == ["core power=3", "straw"]


def test_a_value_of_the_command_line_that_the_kernel_would_refuse_is_named(node: FakeNode) -> None:
    said_at_boot(node, "straw.depth=deep")
    task = node.task()
    node.put_bundle(task, {"straw": typed_module(node, "depth:int")})

    with pytest.raises(RefusedBeforeLoad) as refused:
        node.bring_up(task)

    assert str(refused.value) == (
        "straw: parameter depth of straw: expected an integer -2147483648 to 2147483647, got "
        "'deep', on the kernel's command line"
    )
    assert refused.value.hint == (
        "correct it there and reboot, or set the parameter in driver.yaml, which wins"
    )


def test_a_module_that_the_command_line_forbids_is_refused_and_the_place_named(
    node: FakeNode,
) -> None:
    said_at_boot(node, "module_blacklist=pcspkr,straw")

    with pytest.raises(
        RefusedBeforeLoad, match="the kernel's command line has it in module_blacklist="
    ) as no:
        given(node)

    assert no.value.hint == (
        "remove it from module_blacklist= on the kernel's command line (/proc/cmdline), then reboot"
    )
    assert "the kernel's command line has straw in module_blacklist=" in node.run("doctor").output


def test_a_parameter_change_alone_reloads_with_the_new_one(node: FakeNode) -> None:
    files = {"straw": module_bytes("straw", parameters=["mode"])}
    before = node.task(modules=[{"name": "straw", "parameters": {"mode": "slow"}}])
    node.put_bundle(before, files)
    node.bring_up(before)

    report = node.bring_up(node.task(modules=[{"name": "straw", "parameters": {"mode": "fast"}}]))

    assert node.kernel.loads == ["straw mode=slow", "straw mode=fast"]
    assert node.kernel.unloads == ["straw"]
    assert whys(report)["loaded"] == "straw loaded with parameters mode=slow, wanted mode=fast"


def test_an_upgrade_replaces_the_loaded_version(node: FakeNode) -> None:
    node.fill()
    node.upgrade()
    task = node.task()
    node.put_bundle(task)

    report = node.bring_up(task)

    assert node.kernel.unloads == ["straw"]
    assert node.kernel.loads == ["straw"]
    assert report.version == "2.0"
    assert node.states == [State.LOADING, State.UNLOADING, State.LOADING, State.READY]
    assert node.record is not None
    assert node.record.key == task.key


def test_modules_that_the_new_version_has_no_more_go_too(node: FakeNode) -> None:
    first = node.task(modules=[{"name": "straw"}, {"name": "straw_extra"}])
    node.put_bundle(first)
    node.bring_up(first)
    second = node.task(version="2.0", modules=[{"name": "straw"}])
    node.put_bundle(second)

    node.bring_up(second)

    assert node.loaded == ("straw",)
    assert set(node.kernel.unloads) == {"straw", "straw_extra"}


def test_a_driver_whose_module_has_another_name_now_replaces_the_old_one(node: FakeNode) -> None:
    node.fill()
    task = node.task(version="2.0", modules=[{"name": "straw_ng"}])
    node.put_bundle(task)
    node.bring_up(task)
    assert node.loaded == ("straw_ng",)


def test_a_new_version_with_the_very_same_modules_touches_nothing(node: FakeNode) -> None:
    node.fill()
    same = {"straw": module_bytes("straw", node.task().key)}
    task = node.task(version="1.1")
    node.put_bundle(task, same)
    node.kernel.unloads.clear()

    report = node.bring_up(task)

    assert (node.kernel.loads, node.kernel.unloads) == ([], [])
    assert report.source is Rung.LOADED
    assert node.record is not None
    assert node.record.version == "1.1"


def test_a_new_version_of_the_same_source_needs_no_bundle_of_its_own(node: FakeNode) -> None:
    node.fill()
    task = node.task(version="1.1")

    assert node.bring_up(task).source is Rung.LOADED
    assert (node.kernel.loads, node.kernel.unloads) == ([], [])

    node.kernel.delete_module("straw")
    report = node.bring_up(task)
    assert report.source is Rung.CACHED
    assert whys(report)["cached"].startswith("the cache holds 1.0-")


# --- what is in the way ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"upgrade": "onReboot"}, "upgrade: onReboot"),
        ({"unload": {"policy": "never"}}, "unload.policy: never"),
    ],
)
def test_a_running_node_is_not_touched_but_the_cache_is_filled(
    node: FakeNode, spec: dict[str, Any], words: str
) -> None:
    node.fill()
    node.upgrade(**spec)
    task = node.task()
    node.put_bundle(task)

    with pytest.raises(RebootRequired, match=f"another straw is loaded.*{words}"):
        node.bring_up(task)

    assert (node.kernel.loads, node.kernel.unloads) == ([], [])


def test_a_foreign_module_is_replaced_unless_driver_yaml_keeps_it(node: FakeNode) -> None:
    node.insmod("straw")
    task = node.task(unload={"foreign": "keep"})
    node.put_bundle(task)

    with pytest.raises(
        RefusedBeforeLoad, match=r"nodeside did not load, and driver.yaml says"
    ) as caught:
        node.bring_up(task)
    assert "rmmod straw" in caught.value.hint
    assert node.kernel.unloads == []

    report = node.bring_up(node.task(unload={"foreign": "replace"}))
    assert node.kernel.unloads == ["straw"]
    assert whys(report)["loaded"].startswith("straw loaded, but with another build-id")


def test_a_foreign_module_is_not_brought_back_as_if_it_were_ours(node: FakeNode) -> None:
    node.fill()
    node.kernel.delete_module("straw")
    node.insmod("straw")
    node.upgrade()
    task = node.task()
    node.put_bundle(task)
    node.kernel.refuse_load["straw"] = [Refusal(errno.ENODEV)]

    with pytest.raises(SequenceFailed, match="nothing had to be rolled back"):
        node.bring_up(task)
    assert node.loaded == ()


def test_a_module_in_use_is_named_and_nothing_else_has_been_disturbed(node: FakeNode) -> None:
    node.fill()
    node.kernel.add("rival")
    write(node.host.lib_modules("6.1.0-test") / "modules.dep", "kernel/rival.ko:\n")
    node.kernel.modules["straw"].refcnt = 1
    node.kernel.show()
    node.upgrade(conflicts={"modules": ["rival"]})
    task = node.task()
    node.put_bundle(task)

    with pytest.raises(InUse, match="cannot unload straw"):
        node.bring_up(task)

    assert set(node.loaded) == {"straw", "rival"}
    assert node.kernel.unloads == []
    assert node.record is not None
    assert node.record.version == "1.0"


# --- failures --------------------------------------------------------------------------------


def test_a_failed_load_brings_back_the_previous_version_and_says_so(node: FakeNode) -> None:
    node.fill()
    before = node.record
    node.upgrade()
    task = node.task()
    node.put_bundle(task)
    node.kernel.refuse_load["straw"] = [Refusal(errno.ENODEV, ("straw: no such hardware",))]

    with pytest.raises(SequenceFailed) as caught:
        node.bring_up(task)

    assert caught.value.exit_code == ExitCode.LOAD_FAILED
    assert "straw: no such hardware" in str(caught.value)
    assert "rolled back: the previous straw is loaded again" in str(caught.value)
    assert node.loaded == ("straw",)
    assert node.record == before
    report = node.journal(task).report_failure(caught.value)
    assert report.state is State.FAILED
    assert "rolled back" in report.message


def test_a_damaged_bundle_of_the_loaded_version_does_not_serve_for_a_roll_back(
    node: FakeNode,
) -> None:
    node.fill()
    damaged = node.cache.root / "straw" / node.task().tag / "modules/straw.ko"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    node.upgrade()
    task = node.task()
    node.put_bundle(task)
    node.kernel.refuse_load["straw"] = [Refusal(errno.ENODEV)]

    with pytest.raises(SequenceFailed, match="nothing had to be rolled back"):
        node.bring_up(task)
    assert node.loaded == ()
    assert node.record is None, "nothing of ours is loaded"


def in_tree(node: FakeNode, name: str) -> None:
    """An in-tree module, on disk and in the kernel."""
    tree = node.host.lib_modules("6.1.0-test")
    write_bytes(tree / f"kernel/{name}.ko", module_bytes(name))
    write(tree / "modules.dep", f"kernel/{name}.ko:\n")
    node.kernel.add(name)


def test_conflicting_modules_go_before_the_load_and_the_report_says_it(node: FakeNode) -> None:
    in_tree(node, "rival")
    task = node.task(conflicts={"modules": ["rival"]})
    node.put_bundle(task)
    report = node.bring_up(task)
    assert node.loaded == ("straw",)
    assert report.notes == ("removed the module rival",)


def test_conflicting_modules_come_back_when_the_load_fails(node: FakeNode) -> None:
    in_tree(node, "rival")
    task = node.task(conflicts={"modules": ["rival"]})
    node.put_bundle(task)
    node.kernel.refuse_load["straw"] = [Refusal(errno.ENODEV)]
    journal = node.journal(task)

    with pytest.raises(SequenceFailed):
        bring_up(Attempt(task, journal, node.kernel.loader))

    assert node.loaded == ("rival",)
    assert "put back after the failed load: rival" in journal.notes


def test_a_conflict_that_cannot_go_brings_the_previous_version_back(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fill()
    in_tree(node, "rival")
    node.kernel.modules["rival"].refcnt = 1
    node.kernel.show()
    node.upgrade(conflicts={"modules": ["rival"]})
    task = node.task()
    node.put_bundle(task)

    with pytest.raises(SequenceFailed, match="the previous straw is loaded again") as caught:
        node.bring_up(task)

    assert caught.value.exit_code == ExitCode.IN_USE
    assert set(node.loaded) == {"rival", "straw"}
    assert node.record is not None
    assert node.record.version == "1.0"


def test_what_the_checks_refuse_never_reaches_the_kernel(node: FakeNode) -> None:
    task = node.task(modules=[{"name": "straw", "parameters": {"speed": "1"}}])
    node.put_bundle(task)

    with pytest.raises(RefusedBeforeLoad, match="speed") as caught:
        node.bring_up(task)

    assert caught.value.exit_code == ExitCode.REFUSED
    assert (node.kernel.loads, node.states) == ([], [])


def test_a_failed_validation_keeps_the_module_and_is_reported(node: FakeNode) -> None:
    write(node.root / "sys/class/straw/state", "broken\n")
    task = node.task(
        validate={"timeoutSeconds": 1, "sysfs": [{"path": "class/straw/state", "value": "good"}]}
    )
    node.put_bundle(task)
    journal = node.journal(task)

    with pytest.raises(ValidationFailed, match="expected good, found broken") as caught:
        bring_up(Attempt(task, journal, node.kernel.loader))

    assert node.loaded == ("straw",)
    assert node.record is not None
    report = journal.report_failure(caught.value)
    assert (report.state, report.exit_code) == (State.FAILED, ExitCode.VALIDATION_FAILED)
    assert [(check["name"], check["ok"]) for check in report.checks] == [
        ("module straw", True),
        ("/sys/class/straw/state", False),
        ("kernel log", True),
    ]
    assert node.kernel.seconds > 0, "it is tried again until the deadline, by the given clock"


def test_a_splat_during_the_load_fails_the_validation(node: FakeNode) -> None:
    task = node.task()
    node.put_bundle(task)
    original = node.kernel.add

    def add(name: str, module: FakeModule | None = None, *, uses: tuple[str, ...] = ()) -> None:
        original(name, module, uses=uses)
        node.kernel.say("BUG: kernel NULL pointer dereference, address: 0000000000000000")

    node.kernel.add = add  # type: ignore[method-assign]
    with pytest.raises(ValidationFailed, match="NULL pointer dereference"):
        node.bring_up(task)


def test_a_bundle_without_a_wanted_module_does_not_serve_and_does_not_stay_in_the_way(
    node: FakeNode,
) -> None:
    task = node.task(modules=[{"name": "straw"}, {"name": "straw_extra"}])
    node.put_bundle(task, {"straw": module_bytes("straw")})

    with pytest.raises(NoRungServed, match="has no module straw_extra") as caught:
        node.bring_up(task)
    assert caught.value.exit_code == ExitCode.FETCH


def test_without_any_rung_it_is_said_what_each_of_them_lacked(node: FakeNode) -> None:
    with pytest.raises(NoRungServed) as caught:
        node.bring_up(node.task())
    assert str(caught.value) == (
        f"no way to get the modules: loaded: straw not loaded; "
        f"cached: no bundle {node.task().tag} in {node.cache.root}; "
        "fetched: driver.yaml names no prebuilt sources; compatible: driver.yaml says reuse: "
        "exact; built: no toolkit: no shared directory is configured"
    )
    assert "--shared" in caught.value.hint


def test_restoring_conflicts_is_asked_for_nothing_when_nothing_was_cleared(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = node.task()
    node.put_bundle(task)
    node.kernel.refuse_load["straw"] = [Refusal(errno.ENODEV)]
    monkeypatch.setattr(
        conflicts, "restore_cleared", lambda *_, **__: pytest.fail("nothing to restore")
    )
    with pytest.raises(SequenceFailed):
        node.bring_up(task)


# --- what an earlier driver left ---------------------------------------------------------------


def test_a_load_that_a_killed_driver_began_is_waited_for(node: FakeNode) -> None:
    node.fill()
    module = node.kernel.modules["straw"]
    module.state = "Loading"
    node.kernel.show()

    def sleep(seconds: float) -> None:
        module.state = "Live"
        node.kernel.show()

    node.kernel.sleep = sleep  # type: ignore[method-assign]
    report = node.bring_up(node.task())

    assert report.source is Rung.LOADED
    assert (node.kernel.loads, node.kernel.unloads) == ([], [])
    assert node.states == [State.LOADING, State.READY]
    assert node.told[0].message == "straw is coming; waiting until that ends"


@pytest.mark.slow
def test_bundles_of_the_last_versions_stay_for_the_way_back(node: FakeNode) -> None:
    for number in range(1, 6):
        node.source(f"obj-m := straw.o  # {number}\n")
        task = node.task(version=f"{number}.0")
        os.utime(node.put_bundle(task).directory, (number, number))
        node.bring_up(task)

    kept = sorted(cached.manifest.version for cached in node.cache.list_manifests("straw"))
    assert kept == ["3.0", "4.0", "5.0"]


def test_firmware_follows_a_search_path_that_somebody_sets_later(node: FakeNode) -> None:
    path = write(node.host.sys_module / "firmware_class/parameters/path", "\n")
    write(node.image / "fw/straw.bin", "firmware")
    node.write_driver(firmware={"path": "fw"})
    node.fill()
    root = node.directory / "root-of-init"
    root.mkdir()
    (node.host.proc / "1").mkdir()
    (node.host.proc / "1/root").symlink_to(root)

    write(path, "/run/nvidia/driver/lib/firmware\n")
    assert node.bring_up(node.task()).source is Rung.LOADED
    assert (root / "run/nvidia/driver/lib/firmware/straw.bin").read_text() == "firmware"

    write(path, "nonsense\n")
    assert node.bring_up(node.task()).state is State.READY, "it works with what it got at the load"


def test_modules_of_the_cache_get_the_label_of_modules(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled: list[tuple[str, str]] = []
    monkeypatch.setattr(
        cache_module, "label_file", lambda path, kind: labelled.append((path.name, kind))
    )
    node.put_bundle(node.task())
    assert labelled == [("straw.ko", "modules_object_t")]
