from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nodeside.driver.kernel.errors import InUse, RebootRequired
from nodeside.driver.kernel.unload import (
    Blocked,
    ModulesToUnload,
    Obstacle,
    plan_unload,
    unload_modules,
)
from nodeside.driver.node.modules import LoadedState
from nodeside.errors import ExitCode
from tests.driver.fakes.kernel import FakeKernel, FakeModule


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def states(*modules: LoadedState) -> dict[str, LoadedState]:
    return {module.name: module for module in modules}


def test_the_modules_that_use_another_go_first() -> None:
    plan = plan_unload(
        ModulesToUnload(("core", "bus", "net-rtsp")),
        states(
            LoadedState("core", 2, holders=("bus", "net_rtsp")),
            LoadedState("bus", 1, holders=("net_rtsp",)),
            LoadedState("net_rtsp"),
        ),
    )

    assert plan.order == ("net_rtsp", "bus", "core")
    assert plan.blocked == ()


def test_a_module_of_ours_that_uses_it_goes_too() -> None:
    kernel = states(LoadedState("core", 1, holders=("addon",)), LoadedState("addon"))

    assert plan_unload(ModulesToUnload(("core", "addon")), kernel).order == ("addon", "core")


def test_a_module_that_is_not_ours_stays_and_blocks() -> None:
    plan = plan_unload(
        ModulesToUnload(("core",)),
        states(LoadedState("core", 1, holders=("theirs",)), LoadedState("theirs")),
    )

    assert plan.order == ("core",)
    assert plan.blocked == (Blocked("core", Obstacle.NEEDED, ("theirs",)),)


@pytest.mark.parametrize(
    ("state", "obstacle"),
    [
        (LoadedState("edu", permanent=True), Obstacle.PERMANENT),
        (LoadedState("edu", initstate="going"), Obstacle.COMING_OR_GOING),
        (LoadedState("edu", initstate="coming"), Obstacle.COMING_OR_GOING),
        (LoadedState("edu", refcnt=1), Obstacle.HELD),
    ],
)
def test_what_stands_in_the_way_of_one_module(state: LoadedState, obstacle: Obstacle) -> None:
    assert plan_unload(ModulesToUnload(("edu",)), states(state)).blocked == (
        Blocked("edu", obstacle),
    )


def test_a_reference_of_a_module_that_goes_too_is_no_obstacle_but_one_more_is() -> None:
    addon = LoadedState("addon")
    one = states(LoadedState("core", 1, holders=("addon",)), addon)
    two = states(LoadedState("core", 2, holders=("addon",)), addon)

    assert plan_unload(ModulesToUnload(("core", "addon")), one).blocked == ()
    assert plan_unload(ModulesToUnload(("core", "addon")), two).blocked == (
        Blocked("core", Obstacle.HELD),
    )


def test_names_that_are_not_loaded_are_nothing_to_do() -> None:
    assert plan_unload(ModulesToUnload(("edu",)), {}).order == ()


def test_modules_are_removed_leaf_first(kernel: FakeKernel) -> None:
    kernel.add("core")
    kernel.add("addon", uses=("core",))

    assert unload_modules(ModulesToUnload(("core", "addon")), kernel.loader) == ("addon", "core")
    assert kernel.modules == {}


def test_nothing_is_touched_if_one_of_them_is_held(kernel: FakeKernel) -> None:
    kernel.add("core", FakeModule(refcnt=1))
    kernel.add("addon", uses=("core",))

    with pytest.raises(
        InUse, match="cannot unload core: core is held by the module addon"
    ) as caught:
        unload_modules(ModulesToUnload(("addon", "core")), kernel.loader)

    assert set(kernel.modules) == {"core", "addon"}
    assert caught.value.exit_code is ExitCode.IN_USE
    assert caught.value.removed == ()


def test_a_file_open_for_a_moment_is_waited_for(kernel: FakeKernel) -> None:
    kernel.add("edu", FakeModule(refcnt=1))

    def close(seconds: float) -> None:
        kernel.modules["edu"].refcnt = 0
        kernel.show()

    kernel.sleep = close  # type: ignore[method-assign]

    assert unload_modules(ModulesToUnload(("edu",)), kernel.loader) == ("edu",)


def test_a_failure_half_way_says_how_far_it_came(kernel: FakeKernel) -> None:
    kernel.add("core")
    kernel.add("addon", uses=("core",))
    kernel.refuse_unload["core"] = [errno.EAGAIN] * 1000

    with pytest.raises(InUse) as caught:
        unload_modules(ModulesToUnload(("core", "addon")), kernel.loader)

    assert caught.value.removed == ("addon",)


def test_a_permanent_module_takes_a_reboot_at_once(kernel: FakeKernel) -> None:
    kernel.add("edu", FakeModule(permanent=True))

    with pytest.raises(RebootRequired, match="it is permanent") as caught:
        unload_modules(ModulesToUnload(("edu",)), kernel.loader)

    assert caught.value.exit_code is ExitCode.REBOOT_REQUIRED
    assert kernel.sleeps == []
