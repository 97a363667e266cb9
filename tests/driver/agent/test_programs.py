"""Hooks and services of a driver through the life of its container. The kernel is fake."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.agent.run import DriverLoop
from nodeside.driver.bringup import hooks
from nodeside.driver.bringup.journal import Report
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.node.loaded_record import HooksRun
from nodeside.driver.node.node_lock import node_lock, node_lock_path
from nodeside.driver.node.run_directory import hold_pod_lock, loaded_path
from nodeside.driver.services import processes
from nodeside.driver.services.services import Services
from nodeside.errors import ExitCode, NoSpace
from nodeside.protocol.node_status import Rung, ServiceStatus, State
from nodeside.protocol.ready_file import ReadyRecord, read_ready, ready_path, write_ready
from nodeside.protocol.records import publish
from tests.console import until
from tests.driver.fakes.kernel import add_device, add_process, write
from tests.driver.fakes.node import BOOT_ID, FakeNode
from tests.patience import patience
from tests.tries import sampled

LONG = patience(60.0)  # seconds: a deadline that only a broken test meets


class Scene:
    """A node whose driver has hooks and services, and the order of all that happens."""

    def __init__(self, directory: Path) -> None:
        self.node = FakeNode(directory)
        self.services: Services | None = None
        self.file = directory / "happened"
        self.file.touch()
        kernel, load, unload = (
            self.node.kernel,
            self.node.kernel.finit_module,
            self.node.kernel.delete_module,
        )

        def finit_module(fd: int, parameters: str, timeout: float) -> None:
            load(fd, parameters, timeout)
            self.happens("load")

        def delete_module(name: str, timeout: float = 1) -> None:
            self.happens("unload")
            unload(name, timeout)

        kernel.finit_module = finit_module  # type: ignore[method-assign]
        kernel.delete_module = delete_module  # type: ignore[method-assign]
        hooks = {name: [self.hook(name)] for name in ("afterLoad", "beforeUnload", "afterUnload")}
        self.node.spec |= {
            "hooks": hooks,
            "services": [self.service("first"), self.service("second")],
            "validate": {"commands": [self.hook("validate")], "timeoutSeconds": 1},
        }

    def hook(self, name: str, after: str = "") -> dict[str, Any]:
        return {"command": ["sh", "-c", f"echo {name} >>{self.file}; {after}"]}

    def service(self, name: str) -> dict[str, Any]:
        script = (
            f"trap 'echo {name} ends >>{self.file}; exit 0' TERM; echo {name} starts >>{self.file};"
            " echo up; while :; do sleep 0.05; done"
        )
        return {"name": name, "command": ["sh", "-c", script], "ready": {"log": "^up$"}}

    def happens(self, what: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{what}\n")

    @property
    def happened(self) -> list[str]:
        """What happened since the last time."""
        lines = self.file.read_text().splitlines()
        self.file.write_text("")
        return lines

    def live(self, *acts: Callable[[], None]) -> None:
        """Be the container: when the driver is ready, do one thing after the other, then end."""
        run = DriverLoop(
            self.node.config(), Listener(), self.node.told.append, loader=self.node.kernel.loader
        )
        failure: list[BaseException] = []
        earlier = len(self.node.told)

        def play() -> None:
            try:
                self.until_ready(earlier)
                for act in acts:
                    before = len(self.node.told)
                    act()
                    self.until_ready(before)
            except BaseException as error:
                failure.append(error)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        player = threading.Thread(target=play)
        player.start()
        run.run_for_ever()
        player.join(LONG)
        assert not failure, failure

    def until_ready(self, before: int) -> None:
        told = self.node.told
        until(lambda: told[before:] and told[-1].state is State.READY, f"ready, after {told[-1:]}")

    def kill(self, name: str) -> None:
        """Kill the processes of a service."""
        for pid in processes.find_running("straw", name).pids:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


UP = ["load", "afterLoad", "first starts", "second starts", "validate"]
DOWN = ["second ends", "first ends"]


@pytest.mark.slow
def test_all_comes_in_order_and_goes_in_reverse_but_the_modules_stay(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())

    scene.live()
    assert scene.happened == [*UP, *DOWN]
    assert node.told[-1].services == (ServiceStatus("first", True), ServiceStatus("second", True))
    assert "services" in node.told[-1].stages
    assert node.loaded == ("straw",)

    scene.live()  # the container is restarted
    assert scene.happened == [*UP[2:], *DOWN]
    assert node.told[-1].source is Rung.LOADED


@pytest.mark.slow
def test_without_its_services_a_driver_is_not_ready(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())
    failing = scene.hook("no", f"test ! -e {ready_path(node.host, 'straw')}")
    node.write_driver(validate={"commands": [failing], "timeoutSeconds": 1})
    record = ReadyRecord("straw", "1.0", "6.1.0-test", BOOT_ID, Rung.LOADED, ("straw",), 0.0)
    write_ready(node.host, record)

    scene.live(lambda: node.told.append(replace(node.told[-1])))

    write_ready(node.host, record)
    scene.live()
    assert read_ready(node.host, "straw", BOOT_ID) is None


@pytest.mark.slow
def test_one_that_is_killed_makes_the_driver_not_ready_and_comes_back(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())
    scene.live(lambda: scene.kill("first"), lambda: scene.kill("second"))
    failures = [each for each in node.told if each.state is State.FAILED]
    assert [each.reason for each in failures] == ["ServiceFailed"] * 2
    assert failures[0].message.startswith("service first ended after ")
    assert failures[0].message.endswith("s: killed by SIGKILL\nup")
    assert [each.ready for each in failures[0].services] == [False, True]
    assert [each.restarts for each in node.told[-1].services] == [1, 1]
    assert node.kernel.loads == ["straw"]
    assert scene.happened == [*UP, "first starts", "validate", "second starts", "validate", *DOWN]


@pytest.mark.slow
def test_a_new_version_stops_services_before_it_unloads(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())

    def upgrade() -> None:
        node.source("obj-m := straw.o  # 2.0\n")
        task = node.task(version="2.0", modules=[{"name": "straw"}])
        node.put_bundle(task)

    scene.live(upgrade)
    assert scene.happened == [
        *UP,
        *("beforeUnload", *DOWN, "unload", "afterUnload"),
        *UP,
        *DOWN,
    ]
    assert node.told[-1].version == "2.0"


def be_in_namespace(directory: Path, namespace: str = "") -> None:
    """Put a process of the fake node into a PID namespace, without one into that of this test."""
    (directory / "ns").mkdir()
    (directory / "ns" / "pid").symlink_to(namespace or Path("/proc/self/ns/pid").readlink())
    write(directory / "status", f"Name:\tx\nUid:\t{os.getuid()}\t0\t0\t0\n")


def held(node: FakeNode, *, by_service: bool) -> None:
    """A process has a device of the module open."""
    add_device(node.host, "c1:3", "straw", "virtual/misc/straw")  # the number of /dev/null
    directory = add_process(node.host, 4711, "reader", ("/dev/null",))
    if by_service:
        write(directory / "environ", f"A=b\0{processes.VARIABLE}=straw/first\0")
        be_in_namespace(directory)
    node.kernel.modules["straw"].refcnt = 1
    node.kernel.show()


def test_a_hook_that_fails_after_the_load_takes_the_modules_out_again(scene: Scene) -> None:
    node = scene.node
    hooks = {"afterLoad": [scene.hook("afterLoad"), scene.hook("no", "echo no licence; exit 3")]}
    task = node.task(hooks=hooks)
    node.put_bundle(task)
    run = DriverLoop(node.config(), Listener(), node.told.append, loader=node.kernel.loader)
    _, report = run.run_once()
    assert (report.exit_code, report.reason) == (ExitCode.PROGRAM_FAILED, "HookFailed")
    assert report.message.startswith("hooks.afterLoad[1]: exit code 3: sh -c ")
    assert report.message.endswith("\nno licence")
    assert scene.happened == ["load", "afterLoad", "no", "unload"]
    assert node.loaded == ()
    assert node.record is None


@pytest.mark.slow
def test_a_new_version_whose_hook_fails_gives_way_to_the_one_before_and_is_not_repeated(
    scene: Scene,
) -> None:
    node = scene.node
    node.put_bundle(node.task())
    scene.live()
    node.source("obj-m := straw.o  # 2.0\n")
    hooks = node.spec["hooks"] | {"afterLoad": [scene.hook("no", "exit 3")]}
    node.put_bundle(node.task(version="2.0", hooks=hooks))
    scene.happened  # noqa: B018
    run = DriverLoop(node.config(), Listener(), node.told.append, loader=node.kernel.loader)
    _, report = run.run_once()
    assert "the previous straw is loaded again" in report.message
    assert scene.happened == [
        "beforeUnload",
        "unload",
        "afterUnload",
        "load",
        "no",
        "unload",
        "load",
    ]
    run = replace(run, listener=replace(run.listener, repeat_failed=False))
    _, again = run.run_once()
    assert (again.reason, scene.happened) == ("HookFailed", [])


def test_a_hook_that_fails_before_the_unload_keeps_all_and_others_run_once(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())
    run = DriverLoop(node.config(), Listener(), node.told.append, loader=node.kernel.loader)
    run.run_once()
    assert node.record is not None
    assert node.record.hooks is HooksRun.AFTER_LOAD
    node.write_driver(hooks={"beforeUnload": [scene.hook("no", "exit 3")]})
    scene.happened  # noqa: B018
    done = node.run("unload")
    assert done.code == ExitCode.PROGRAM_FAILED
    assert "hooks.beforeUnload[0]: exit code 3" in done.errors
    assert (node.loaded, scene.happened) == (("straw",), ["no"])

    node.write_driver(
        hooks={
            "beforeUnload": [scene.hook("before")],
            "afterUnload": [scene.hook("after", "exit 1")],
        }
    )
    node.kernel.refuse_unload["straw"] = [errno.EAGAIN] * 1000
    assert node.run("unload").code == ExitCode.IN_USE
    node.kernel.refuse_unload.clear()
    assert node.run("unload").code == 0, "the hook of after is only logged"
    assert [each for each in scene.happened if each != "unload"] == ["before", "after"]


def test_once_starts_no_service_and_says_so(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())
    run = DriverLoop(node.config(), Listener(), node.told.append, loader=node.kernel.loader)
    _, report = run.run_once()
    assert report.state is State.READY
    assert report.notes == ("services are not started: `nodeside driver run` starts them",)
    assert scene.happened == ["load", "afterLoad", "validate"]


def current(scene: Scene) -> Services:
    """The services that `up` runs."""
    assert scene.services is not None
    return scene.services


@contextmanager
def up(scene: Scene) -> Iterator[Report]:
    """The services run in this process while commands are tried."""
    services = scene.services = Services()
    run = DriverLoop(
        scene.node.config(), Listener(), scene.node.told.append, loader=scene.node.kernel.loader
    )
    try:
        yield replace(run, services=services).run_once()[1]
    finally:
        services.stop()


def test_who_else_holds_a_module_keeps_the_services(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())
    with up(scene):
        held(node, by_service=False)
        done = node.run("unload")
        assert done.code == ExitCode.IN_USE
        assert "reader (pid 4711" in done.errors
        assert scene.happened == UP


@pytest.mark.slow
def test_a_service_that_holds_a_module_is_stopped(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())
    with up(scene):
        held(node, by_service=True)
        node.run("unload")  # which the process of this test then still holds
        assert scene.happened == [*UP, "beforeUnload", *DOWN]


@pytest.mark.slow
def test_services_come_back_if_the_kernel_then_keeps_the_modules(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())

    def upgrade() -> None:
        node.kernel.refuse_unload["straw"] = [errno.EAGAIN] * 1000
        node.source("obj-m := straw.o  # 2.0\n")
        node.put_bundle(node.task(version="2.0"))
        until(lambda: State.REBOOT_REQUIRED in node.states)
        until(lambda: scene.file.read_text().split().count("starts") >= 4)
        node.kernel.refuse_unload.clear()

    scene.live(upgrade)
    happened = [each for each in scene.happened if each != "unload"]
    again = [*DOWN, "first starts", "second starts"]
    assert happened[: len(UP) + 5] == [*UP, "beforeUnload", *again]
    assert happened.count("beforeUnload") == 1
    assert node.told[-1].version == "2.0"


@pytest.mark.slow
def test_a_stranger_with_the_variable_of_a_service_is_a_stranger(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())
    with up(scene):
        held(node, by_service=False)
        process = node.host.proc / "4711"
        write(process / "environ", f"{processes.VARIABLE}=straw/first\0")
        be_in_namespace(process, "pid:[4026532999]")
        node.kernel.refuse_unload["straw"] = [errno.EAGAIN] * 1000
        scene.happened  # noqa: B018
        assert node.run("unload").code == ExitCode.IN_USE
        assert scene.happened == []


def test_a_service_of_another_container_is_known_by_who_holds_the_lock_of_its_driver(
    scene: Scene,
) -> None:
    host, theirs = scene.node.host, "pid:[4026532999]"
    process = add_process(host, 4711, "reader")
    write(process / "environ", f"{processes.VARIABLE}=reed/first\0")
    be_in_namespace(process, theirs)
    be_in_namespace(add_process(host, 4700, "nodeside"), theirs)
    with node_lock(host, "reed.pod", "driver reed", timeout=0):
        file = node_lock_path(host, "reed.pod").stat()
        number = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
        write(host.proc / "locks", f"1: FLOCK  ADVISORY  WRITE 4700 {number} 0 EOF\n1: -> what\n")
        assert processes.is_of_a_service(host, 4711, "reed")
        write(host.proc / "locks", "1: FLOCK  ADVISORY  WRITE 4700 00:01:1 0 EOF\n")
        assert not processes.is_of_a_service(host, 4711, "reed")


def test_in_the_namespace_of_the_node_a_service_has_our_user_and_no_container(
    scene: Scene,
) -> None:
    host = scene.node.host
    process = add_process(host, 4711, "reader")
    write(process / "environ", f"{processes.VARIABLE}=straw/first\0")
    be_in_namespace(process, "pid:[4026531836]")
    assert processes.is_of_a_service(host, 4711, "straw")
    write(process / "cgroup", f"0::/../../kubepods.slice/cri-containerd-{'a' * 64}.scope\n")
    assert not processes.is_of_a_service(host, 4711, "straw")
    write(process / "cgroup", "0::/system.slice/straw.service\n")
    write(process / "status", f"Name:\tx\nUid:\t{os.getuid() + 1}\t0\t0\t0\n")
    assert not processes.is_of_a_service(host, 4711, "straw")


@pytest.mark.slow
def test_an_unload_that_is_in_vain_is_not_tried_again_at_once(scene: Scene) -> None:
    """A reference that nothing shows, as that of an open dma-buf."""
    node = scene.node
    node.put_bundle(node.task())
    with up(scene) as report:
        assert report.state is State.READY
        held(node, by_service=True)
        node.source("obj-m := straw.o  # 2.0\n")
        node.put_bundle(node.task(version="2.0"))
        run = DriverLoop(node.config(), Listener(), node.told.append, loader=node.kernel.loader)
        run = replace(run, services=current(scene))
        scene.happened  # noqa: B018
        assert run.run_once()[1].reason == "InUse"
        assert scene.happened == ["beforeUnload", *DOWN, "first starts", "second starts"]
        assert run.run_once()[1].reason == "InUse"
        assert scene.happened == []


@pytest.mark.slow
def test_services_come_back_with_the_modules_of_before(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())
    with up(scene):
        node.source("obj-m := straw.o  # 2.0\n")
        hooks = node.spec["hooks"] | {"afterLoad": [scene.hook("no", "exit 3")]}
        node.put_bundle(node.task(version="2.0", hooks=hooks))
        run = DriverLoop(node.config(), Listener(), node.told.append, loader=node.kernel.loader)
        _, report = replace(run, services=current(scene)).run_once()
        assert report.reason == "HookFailed"
        assert all(processes.find_running("straw", name).pids for name in ("first", "second"))


def test_a_bug_does_not_make_a_driver_ready_without_its_services(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def surprised(*_: object) -> None:
        raise ZeroDivisionError

    node = scene.node
    node.put_bundle(node.task())
    monkeypatch.setattr(Services, "_start_service", surprised)
    with up(scene) as report:
        assert (report.state, report.reason) == (State.FAILED, "Bug")


def test_a_hook_of_an_unload_that_failed_runs_at_the_next_one(scene: Scene) -> None:
    node = scene.node
    node.spec |= {"services": [], "hooks": {"beforeUnload": [scene.hook("before")]}}
    node.put_bundle(node.task())
    run = DriverLoop(node.config(), Listener(), node.told.append, loader=node.kernel.loader)
    run.run_once()
    node.kernel.refuse_unload["straw"] = [errno.EAGAIN] * 1000
    assert node.run("unload").code == ExitCode.IN_USE
    node.kernel.refuse_unload.clear()
    assert run.run_once()[1].state is State.READY, "it stays"
    assert node.run("unload").code == 0
    assert scene.happened.count("before") == 2


@pytest.mark.slow
def test_a_service_that_is_no_longer_wanted_is_in_nobodys_way(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())
    with up(scene):
        held(node, by_service=True)
        node.source("obj-m := straw.o  # 2.0\n")
        node.put_bundle(node.task(version="2.0", services=[], hooks={}))
        run = DriverLoop(node.config(), Listener(), node.told.append, loader=node.kernel.loader)
        scene.happened  # noqa: B018
        replace(
            run, services=current(scene)
        ).run_once()  # the process of this test holds it for good
        assert scene.happened[:2] == DOWN


def test_only_one_pod_at_a_time_runs_services(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = scene.node
    node.put_bundle(node.task())
    monkeypatch.setattr("nodeside.driver.agent.run._LOCK_TIMEOUT", 0.0)
    with hold_pod_lock(node.host, "straw", timeout=0):
        done = node.run("run", "--once", "--with-services")
    assert done.code == ExitCode.LOCKED
    assert scene.happened == []


@pytest.mark.slow
def test_commands_show_and_stop_them(scene: Scene) -> None:
    node = scene.node
    node.put_bundle(node.task())
    with up(scene):
        rows = node.run("services", "-o", "json").document["services"]
        assert [(row["name"], row["state"]) for row in rows] == [
            ("first", "running"),
            ("second", "running"),
        ]
        assert all(row["memory"] > 0 and row["pids"] for row in rows)
        table = node.run("services").output
        assert table.splitlines()[0].split() == [
            *("SERVICE", "STATE", "RESTARTS", "PROCESSES", "MEMORY", "CPU")
        ]
        assert "second" in node.run("status").output
        assert node.run("services", "--stop").output.split() == ["stopped", "second,", "first"]
        rows = node.run("services", "-o", "json").document["services"]
        assert [row["state"] for row in rows] == ["not running"] * 2


@pytest.mark.slow
def test_an_expression_that_takes_too_long_is_named_and_no_service_started_anew(
    scene: Scene,
) -> None:
    node = scene.node
    service = scene.service("first") | {"ready": {"log": "(u+)+$"}}
    service["command"][2] = service["command"][2].replace("echo up", f"echo {'u' * 200}p")
    node.put_bundle(node.task(services=[service]))
    with up(scene) as report:
        assert "the regular expression did not finish within 5 s" in report.message
        assert report.state is State.FAILED
        assert scene.happened == ["load", "afterLoad", "first starts"]


def test_where_no_record_can_be_written_no_look_repeats_the_hooks(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody fills /run while the module loads."""
    node = scene.node
    del node.spec["services"]
    node.put_bundle(node.task())
    loaded, full = loaded_path(node.host, "straw"), True

    def publish_if_room(path: Path, record: Any) -> None:
        if path == loaded and full and node.loaded:
            raise NoSpace(f"no space left writing {path}")
        publish(path, record)

    monkeypatch.setattr("nodeside.protocol.node_records.publish", publish_if_room)
    run = DriverLoop(node.config(), Listener(), node.told.append, loader=node.kernel.loader)
    for _ in range(4):
        assert run.run_once()[1].reason == NoSpace.reason
    assert scene.happened == ["load", "afterLoad"]

    full = False
    assert run.run_once()[1].state is State.READY
    assert run.run_once()[1].state is State.READY
    assert scene.happened == ["afterLoad", "validate", "validate"]


class Killed(BaseException):
    """SIGKILL: nothing of this process runs after it."""


@contextmanager
def killed_in(
    monkeypatch: pytest.MonkeyPatch, name: str, *, before: bool = False
) -> Iterator[None]:
    """The process is killed when this hook has run and its end is not recorded, or before it."""
    run_hook = hooks._run_hook

    def run_and_die(hook: str, command: Any) -> None:
        if hook == name and before:
            raise Killed
        run_hook(hook, command)
        if hook == name:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(hooks, "_run_hook", run_and_die)
        with pytest.raises(Killed):
            yield


def test_after_a_kill_between_a_hook_and_its_record_the_hooks_run_again_and_that_is_said(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = scene.node
    del node.spec["services"]
    node.spec["hooks"]["afterLoad"].append(scene.hook("second"))
    node.put_bundle(node.task())
    with killed_in(monkeypatch, "hooks.afterLoad[1]"):
        node.bring_up(node.task())
    assert scene.happened == ["load", "afterLoad", "second"]
    assert node.record is not None
    assert (node.record.hooks, node.record.hook) == (HooksRun.NONE, "hooks.afterLoad[1]")
    assert "hooks.afterLoad[1] runs or comes next" in node.run("status").output

    note = (
        "an earlier process of this driver ended before hooks.afterLoad[1] had, which may have "
        "run: the hooks of afterLoad run again, from the first"
    )
    with killed_in(monkeypatch, "hooks.afterLoad[0]", before=True):
        node.bring_up(node.task())
    report = node.bring_up(node.task())
    assert report.notes == (note.replace("[1]", "[0]"),)
    assert scene.happened == ["afterLoad", "second", "validate"]
    assert (node.record.hooks, node.record.hook) == (HooksRun.AFTER_LOAD, "")
    report = node.bring_up(node.task())
    assert (scene.happened, report.notes) == (["validate"], ())
    assert "runs or comes next" not in node.run("status").output


def test_a_hook_that_fails_is_not_taken_for_one_that_was_killed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = scene.node
    del node.spec["services"]
    node.put_bundle(node.task())
    with killed_in(monkeypatch, "hooks.afterLoad[0]"):
        node.bring_up(node.task())
    ok = node.spec["hooks"]["afterLoad"]
    node.spec["hooks"]["afterLoad"] = [scene.hook("no", "exit 3")]
    with pytest.raises(hooks.HookFailed):
        node.bring_up(node.task())
    assert node.record is not None
    assert node.record.hook == ""
    node.spec["hooks"]["afterLoad"] = ok
    assert node.bring_up(node.task()).notes == ()


@pytest.mark.parametrize("before", sampled([False, True], 2))
@pytest.mark.parametrize("moment", ["beforeUnload", "afterUnload"])
@pytest.mark.parametrize("then", sampled(["unload", "load"], 2))
def test_an_unload_that_was_killed_in_its_hooks_is_brought_to_its_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, moment: str, then: str, before: bool
) -> None:
    node = scene.node
    del node.spec["services"]
    node.put_bundle(node.task())
    node.bring_up(node.task())
    scene.happened  # noqa: B018
    with killed_in(monkeypatch, f"hooks.{moment}[0]", before=before):
        node.run("unload")
    happened = ["beforeUnload", "unload", "afterUnload"]
    begun = happened[: happened.index(moment) + (not before)]
    assert scene.happened == begun
    assert node.record is not None
    assert node.record.hook == f"hooks.{moment}[0]"

    left = happened[happened.index(moment) :]
    if then == "unload":
        assert node.run("unload").code == 0
        assert scene.happened == left
        assert node.record is None
    elif moment == "afterUnload":
        assert "the hooks of afterUnload run again" in node.bring_up(node.task()).notes[0]
        assert scene.happened == ["afterUnload", "load", "afterLoad", "validate"]
        assert node.record.hook == ""
    else:
        assert "the hooks of afterLoad run again" in node.bring_up(node.task()).notes[0]
        assert scene.happened == ["afterLoad", "validate"], "the modules stay"
        assert node.record.hook == ""
