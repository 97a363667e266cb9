"""Build code that means harm, in the toolkit container: what it finds and what it leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nodeside.trial.machine.containers import TOOLKIT, TOOLKIT_UID, ContainerSpec
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from tests.vm.conftest import Resume
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import LONG, SHARED, Pod
from tests.vm.variants import DriverImage, SmallModule, own_key
from tests.vm.warm import WarmDriver

pytestmark = pytest.mark.vm

_LOOKS_AROUND = r"""
exec 2>&1
echo "uid: $(id -u)"
grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status
echo "links: $(tail -n +3 /proc/net/dev | cut -d: -f1 | xargs)"
(exec 3<> /dev/tcp/10.0.2.2/80) || echo "no way out"
ls -d /host /driver-image /payload /var/lib/nodeside
echo "keys: $(find / \( -path /proc -o -path /sys \) -prune -o -name key.pem -print 2>/dev/null)"
echo "secrets: $(grep -rl 'BEGIN PRIVATE[ ]KEY' /shared /tmp /run /etc /root 2>/dev/null)"
echo "names: $(cat /proc/[0-9]*/environ | tr '\0' '\n' | grep -c NODE_NAME)"
for file in requests/000000000000-1.json toolkit.pyz source/planted python/planted ../planted; do
  echo planted >> "/shared/$file" && echo "wrote $file"
done
mount -t tmpfs none /tmp && echo "mounted"
ls /dev | grep -vE '^(null|zero|full|random|urandom|tty|pts|ptmx|shm|fd|std.*)$' && echo "devices"
echo "looked around"
"""

_FORKS_AWAY = r"""
out=$(dirname "$PWD")
setsid bash -c 'trap "" TERM HUP INT; while :; do
  for module in /shared/out/*/modules/*.ko; do echo evil > "$module"; done
done' < /dev/null > /dev/null 2>&1 &
(setsid sleep 1000 &) &
disown -a
"""

_PLANTS_LINKS = r"""
id=$(basename "$(dirname "$PWD")")
ln -s /etc ../modules
rm -f ../build.log
ln -s /etc/shadow ../build.log
ln -s /etc/passwd "/shared/results/$id.json"
ln -s /etc/shadow "$NODESIDE_OUTPUT/more.ko"
mkfifo "$NODESIDE_OUTPUT/pipe.ko"
ln -s / "$NODESIDE_OUTPUT/root"
"""


@pytest.fixture(scope="module")
def machine(
    resume: Resume, newest: KernelDisk, image: DriverImage, host_builds: HostBuilds
) -> Iterator[Machine]:
    tiny = host_builds(image.small("tiny", SmallModule("tiny")), newest).module_path("tiny")
    image.instant("good", tiny)
    signing = own_key(image.directory / "key")
    image.instant("looks-around", tiny, _LOOKS_AROUND, spec={"signing": signing})
    image.instant("forks-away", tiny, _FORKS_AWAY)
    image.instant("plants-links", tiny, _PLANTS_LINKS)
    image.instant("delivers-a-link", tiny, 'ln -s /etc/passwd "$NODESIDE_OUTPUT/tiny.ko"; exit 0')
    image.instant("fills", tiny, "dd if=/dev/zero of=fill bs=1M; sleep 1000")
    image.instant("never-ends", tiny, "while :; do sleep 0.5; done", timeout=3)
    image.instant("eats", tiny, "exec tail /dev/zero")
    with resume(image, devices=(), network=True) as machine:
        yield machine


def must_still_build(pod: Pod) -> None:
    """After the harm that was tried, an honest build succeeds at the same sidecar."""
    built = pod.run_once(of="good")
    assert (built["source"], built["state"]) == ("built", "ready")


def no_process_of_a_build_is_left(pod: Pod) -> None:
    """The sidecar stays, and for a moment what it cleans up with; a build's go on for ever."""
    rows = f"ps -o user,args | grep '^{TOOLKIT_UID} ' | grep -v toolkit.pyz"
    pod.until(f"! {rows}")


def limited(**more: str) -> ContainerSpec:
    """The toolkit container with so little memory that a build gets a single job."""
    limits = {"memory.max": str(128 << 20)}
    return replace(
        TOOLKIT, limits=limits | {name.replace("_", "."): to for name, to in more.items()}
    )


def test_a_build_that_eats_memory_dies_before_its_sidecar_and_is_given_up(pod: Pod) -> None:
    pod.start_sidecar(limited())

    failed = pod.run_once(of="eats", code=53)

    assert (failed["reason"], failed["retryable"]) == ("OutOfMemory", False)
    assert "out of memory: the OOM killer killed a process of the build" in failed["message"]
    assert "at the limit of 128 MiB" in failed["message"]
    must_still_build(pod)


def test_a_build_that_has_its_whole_container_killed_is_given_up_too(pod: Pod) -> None:
    """As a kubelet has the kernel do it on cgroup v2: who watched the build dies with it."""
    whole = limited(memory_oom_group="1")
    sidecar = pod.start_sidecar(whole)
    driver = pod.fork_driver("run", "--once", of="eats")
    for _ in range(2):
        sidecar.wait(LONG)
        sidecar = pod.start_sidecar(whole)

    assert driver.process.wait(LONG).exit_code == 53, driver.says
    driver.says.until("the toolkit container was killed 2 times, .* at the limit of 128 MiB")
    must_still_build(pod)


@pytest.fixture(scope="module")
def standing(machine: Machine, warm: WarmDriver) -> Iterator[Pod]:
    """A pod whose sidecar serves the tests from here on, whatever their builds do to it."""
    pod = Pod(machine, warm)
    pod.reset()
    pod.start_sidecar()
    yield pod
    pod.close()


@pytest.fixture
def served(standing: Pod) -> Iterator[Pod]:
    """The same pod, on a node that has no driver."""
    standing.forget()
    yield standing
    assert not standing.machine.splats(), "\n".join(standing.machine.splats())


def test_a_build_finds_no_privilege_no_network_no_key_and_no_host(served: Pod) -> None:
    done = served.driver("run", "--once", of="looks-around")

    assert done.exit_code == 0, done.errors
    said = [line.removeprefix("build | ").rstrip() for line in done.errors.splitlines()]
    for name in ("Inh", "Prm", "Eff", "Bnd", "Amb"):
        assert f"Cap{name}:\t0000000000000000" in said
    assert "NoNewPrivs:\t1" in said
    assert "Seccomp:\t2" in said, "it is filtered: it opens no socket"
    assert f"uid: {TOOLKIT_UID}" in said
    assert "links: lo" in said
    assert "no way out" in said
    for place in ("/host", "/driver-image", "/payload", "/var/lib/nodeside"):
        assert any(place in line and "No such file" in line for line in said), place
    assert "keys:" in said
    assert "secrets:" in said
    assert "names: 0" in said
    assert "looked around" in said
    assert not [line for line in said if re.match(r"wrote |mounted|devices", line)]
    assert served.report("status", of="looks-around")["ready"]


def test_processes_that_fork_away_do_not_outlive_the_build(served: Pod) -> None:
    built = served.run_once(of="forks-away")

    assert (built["source"], built["state"]) == ("built", "ready")
    no_process_of_a_build_is_left(served)


def test_links_and_pipes_planted_where_the_sidecar_writes_lead_nowhere(served: Pod) -> None:
    before = served.node("sh", "-c", "ls -la /toolkit/etc | md5sum")

    done = served.driver("run", "--once", of="plants-links")

    assert done.exit_code == 0, done.errors
    assert "root:" not in done.errors, "a file was read through a link"
    assert served.node("sh", "-c", "ls -la /toolkit/etc | md5sum") == before
    assert served.report("status", of="plants-links")["ready"]


def test_a_link_in_the_place_of_the_module_is_no_module(served: Pod) -> None:
    failed = served.run_once(of="delivers-a-link", code=11)

    assert failed["reason"] == "NoModule"


def test_a_build_that_never_ends_is_ended_at_its_deadline(served: Pod) -> None:
    late = served.run_once(of="never-ends", code=50)

    assert late["reason"] == "Timeout"
    assert "the build did not end within 3 s" in late["message"]
    no_process_of_a_build_is_left(served)


def test_an_honest_build_succeeds_at_the_sidecar_that_had_all_these(served: Pod) -> None:
    must_still_build(served)
    assert served.sidecar is not None
    assert served.sidecar.poll() is None


def test_a_build_that_fills_the_disk_is_stopped_and_room_is_made_for_the_answer(
    machine: Machine, warm: WarmDriver
) -> None:
    """It is the last, since it ends the Python in which the commands of the others are forked."""
    pod = Pod(machine, warm)
    pod.forget()
    pod.node("mount", "-t", "tmpfs", "-o", "size=128m,mode=755", "small", SHARED)
    pod.end_containers()
    try:
        pod.start_sidecar()
        full = pod.run_once(of="fills", code=51)
        assert full["reason"] == "DiskFull"
        assert full["retryable"]
        must_still_build(pod)
    finally:
        pod.end_containers()
        pod.node("umount", SHARED)
