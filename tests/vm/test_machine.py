"""The machine itself: what the containers of a node can and cannot do, and what outlives a boot."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nodeside.trial.errors import MachineLost, TrialError
from nodeside.trial.machine.containers import DRIVER, TOOLKIT, TOOLKIT_UID
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from nodeside.trial.workshop import TrialNode, Workshop
from tests.patience import patience
from tests.toolkit_sidecar.faketoolkit import LONG, until
from tests.vm.conftest import Resume
from tests.vm.variants import DriverImage

pytestmark = pytest.mark.vm

SECONDS = patience(600.0)


@pytest.fixture(scope="module")
def machine(resume: Resume, image: DriverImage) -> Iterator[Machine]:
    """For what a boot means nothing to."""
    with resume(image) as machine:
        yield machine


@pytest.fixture(scope="module")
def node(workshop: Workshop, newest: KernelDisk) -> Iterator[TrialNode]:
    with workshop.node(newest) as node:
        yield node


@pytest.fixture(scope="module")
def booted(node: TrialNode) -> Iterator[Machine]:
    """With all that a boot can be asked for; a test switches it off."""
    append = ["module.sig_enforce=1", "lockdown=integrity"]
    with node.boot(devices=["edu"], append=append, network=True, cpus=1) as machine:
        yield machine


def shell(machine: Machine, text: str, where: str = "driver", *, code: int = 0) -> str:
    done = machine.run(["sh", "-c", text], where, timeout=SECONDS, check=False)
    assert done.exit_code == code, done.errors
    return done.output.strip()


def test_it_runs_the_kernel_that_was_asked_for(booted: Machine, newest: KernelDisk) -> None:
    assert shell(booted, "uname -r", "node") == newest.release
    assert shell(booted, "cat /host/proc/sys/kernel/random/boot_id") == booted.boot_id


def test_the_device_is_on_the_bus(booted: Machine) -> None:
    assert "0x11e8" in shell(booted, "cat /host/sys/bus/pci/devices/*/device")


def test_signatures_are_enforced_and_a_network_is_there_on_demand(
    booted: Machine, machine: Machine
) -> None:
    assert shell(booted, "cat /host/sys/module/module/parameters/sig_enforce") == "Y"
    assert "[integrity]" in shell(booted, "cat /sys/kernel/security/lockdown", "node")
    addresses = json.loads(shell(booted, "ip -json address show dev eth0"))
    assert addresses[0]["addr_info"][0]["local"] == "10.0.2.15"
    assert "via 10.0.2.2" in shell(booted, "ip route")

    assert shell(machine, "cat /host/sys/module/module/parameters/sig_enforce") == "N"
    assert [link["ifname"] for link in json.loads(shell(machine, "ip -json link"))] == ["lo"]


def test_what_was_written_outlives_a_reboot_and_what_was_synced_a_power_cut(
    node: TrialNode, booted: Machine, generic: KernelDisk, compressed: KernelDisk
) -> None:
    """It is the last of those with this machine."""
    shell(booted, "echo kept > /host/var/lib/nodeside/state; touch /host/run/nodeside/x")
    booted.power_off()
    with pytest.raises(MachineLost, match="switched off"):
        shell(booted, "true")

    with node.boot(generic, cpus=1) as machine:
        assert shell(machine, "uname -r") == generic.release
        assert shell(machine, "cat /host/var/lib/nodeside/state; ls /host/run/nodeside") == "kept"
        shell(machine, "cd /host/var/lib/nodeside; echo synced > a; sync; echo lost > b")
        machine.power_off(hard=True)

    with node.boot(compressed, cpus=1) as machine:
        assert shell(machine, "uname -r") == compressed.release
        assert shell(machine, "cat /host/var/lib/nodeside/a") == "synced"


def test_the_driver_container_has_the_capabilities_of_the_design(machine: Machine) -> None:
    status = shell(machine, "cat /proc/self/status")

    effective = int(re.search(r"CapEff:\s*(\w+)", status)[1], 16)  # type: ignore[index]
    numbers = {"sys_module": 16, "syslog": 34, "sys_ptrace": 19, "dac_read_search": 2}
    forbidden = {"sys_admin": 21, "net_admin": 12, "sys_rawio": 17, "sys_boot": 22}
    assert [name for name, bit in numbers.items() if not effective >> bit & 1] == []
    assert [name for name, bit in forbidden.items() if effective >> bit & 1] == []


def test_device_nodes_of_the_host_cannot_be_opened_in_the_driver_container(
    machine: Machine,
) -> None:
    done = machine.run(
        ["dd", "if=/host/dev/vda", "of=/dev/null", "count=1"], timeout=SECONDS, check=False
    )

    assert done.exit_code == 1
    assert "Permission denied" in done.errors
    assert shell(machine, "dd if=/dev/vda of=/dev/null count=1 && echo read", "consumer") == "read"


def test_the_driver_container_reads_the_kernel_log_and_loads_modules(
    machine: Machine, newest: KernelDisk
) -> None:
    dummy = f"/host/lib/modules/{newest.release}/kernel/drivers/net/dummy.ko"

    assert shell(machine, f"insmod {dummy} && lsmod | grep -c ^dummy && rmmod dummy") == "1"
    assert "Linux version" in shell(machine, "dmesg | head -n 5")


def test_the_toolkit_container_is_an_ordinary_user_with_nothing(machine: Machine) -> None:
    assert shell(machine, "id -u; id -g; id -G", "toolkit").split() == [str(TOOLKIT_UID)] * 3
    status = shell(machine, "cat /proc/self/status", "toolkit")
    for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb"):
        assert re.search(rf"Cap{kind}:\s*0+\n", status), kind
    assert "NoNewPrivs:\t1" in status
    assert shell(machine, "cat /proc/net/dev | tail -n +3 | cut -d: -f1", "toolkit") == "lo"
    assert shell(machine, "ls -d /host /driver-image 2>/dev/null", "toolkit", code=2) == ""


def test_the_toolkit_has_a_compiler_and_the_headers_and_no_python(
    machine: Machine, newest: KernelDisk
) -> None:
    shell(machine, "command -v python3 python perl5", "toolkit", code=127)
    assert "gcc" in shell(machine, "gcc --version | head -n 1", "toolkit")
    build = f"/lib/modules/{newest.release}/build"
    symbols = shell(machine, f"grep -c EXPORT_SYMBOL {build}/Module.symvers", "toolkit")
    assert int(symbols) > 5000


def test_the_containers_share_one_directory_and_no_file_system(machine: Machine) -> None:
    shell(machine, "touch /only-mine && mkdir -m 777 /shared/meeting")

    shell(machine, "echo hello > /shared/meeting/note", "toolkit")

    assert shell(machine, "cat /shared/meeting/note; ls /only-mine 2>&1 || true").startswith(
        "hello\nls: cannot access '/only-mine'"
    )


def test_killing_the_first_process_of_a_container_kills_all_of_it(machine: Machine) -> None:
    container = machine.start(["sh", "-c", "sleep 1000 & sleep 2000"], "toolkit")
    inside = machine.run(["cat", "/proc/1/cmdline"], "toolkit", timeout=SECONDS, join=container)
    assert "sleep 2000" in inside.output.replace("\0", " ")

    container.kill(signal.SIGKILL)

    assert container.wait(SECONDS).exit_code == -9
    assert shell(machine, "ps | grep -c '[s]leep [12]000'", "node", code=1) == "0"


def test_a_second_process_enters_a_container_as_kubectl_exec_does(machine: Machine) -> None:
    container = machine.start(["sh", "-c", "echo inside > /tmp/mark; exec sleep 1000"], "toolkit")

    done = machine.run(
        ["sh", "-c", "until cat /tmp/mark 2>/dev/null; do :; done; id -u; echo $$"],
        "toolkit",
        timeout=SECONDS,
        join=container,
    )
    container.kill()

    mark, uid, pid = done.output.split()
    assert (mark, uid) == ("inside", str(TOOLKIT_UID))
    assert int(pid) > 1


def test_limits_of_a_container_are_seen_in_it(machine: Machine) -> None:
    small = replace(TOOLKIT, limits={"cpu.max": "50000 100000", "memory.max": "268435456"})

    done = machine.run(
        ["cat", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max"], small, timeout=SECONDS
    )

    assert done.output.split() == ["50000", "100000", "268435456"]


def test_files_of_the_node_are_written_and_read(machine: Machine) -> None:
    data = bytes(range(256)) * 3000

    machine.write_file("/run/nodeside/data", data)

    assert machine.read_file("/run/nodeside/data") == data
    assert shell(machine, "stat -c %s /host/run/nodeside/data") == str(len(data))


def test_the_nodeside_command_is_there(machine: Machine) -> None:
    assert "nodeside" in shell(machine, "nodeside --version")


def test_the_environment_of_a_container_is_made_from_nothing(machine: Machine) -> None:
    names = {row.split("=")[0] for row in shell(machine, "env").splitlines()}

    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == set(DRIVER.env)


def complain(machine: Machine) -> None:
    """Make the kernel print a backtrace. It reaches the console some time later."""
    shell(machine, "echo w > /proc/sysrq-trigger; echo l > /proc/sysrq-trigger", "node")
    until(lambda: bool(machine.splats()), "the complaint on the console", LONG)


def test_a_kernel_that_complains_fails_the_trial(resume: Resume, image: DriverImage) -> None:
    with pytest.raises(TrialError, match="kernel complained"), resume(image, devices=()) as machine:
        complain(machine)

    with (
        pytest.raises(MachineLost, match="sysrq triggered crash"),
        resume(image, devices=()) as machine,
    ):
        shell(machine, "echo c > /proc/sysrq-trigger", "node")
