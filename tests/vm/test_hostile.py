"""Build code that means harm, in the toolkit container: what it finds and what it leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from nodeside.trial.containers import TOOLKIT_UID
from nodeside.trial.kernel_disk import KernelDisk
from nodeside.trial.machine import Machine
from nodeside.trial.workshop import Workshop
from tests.vm.conftest import switched_on
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import SHARED, Pod
from tests.vm.variants import DriverImage, SmallModule, own_key

pytestmark = pytest.mark.vm

_LOOKS_AROUND = r"""
exec 2>&1
echo "uid: $(id -u)"
grep -E '^(Cap|NoNewPrivs)' /proc/self/status
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
ln -s /etc/shadow "$OUTPUT/more.ko"
mkfifo "$OUTPUT/pipe.ko"
ln -s / "$OUTPUT/root"
"""


@pytest.fixture(scope="module")
def machine(
    workshop: Workshop, newest: KernelDisk, image: DriverImage, host_builds: HostBuilds
) -> Iterator[Machine]:
    tiny = host_builds(image.small("tiny", SmallModule("tiny")), newest).module_path("tiny")
    image.instant("good", tiny)
    signing = own_key(image.directory / "key")
    image.instant("looks-around", tiny, _LOOKS_AROUND, spec={"signing": signing})
    image.instant("forks-away", tiny, _FORKS_AWAY)
    image.instant("plants-links", tiny, _PLANTS_LINKS)
    image.instant("delivers-a-link", tiny, 'ln -s /etc/passwd "$OUTPUT/tiny.ko"; exit 0')
    image.instant("fills", tiny, "dd if=/dev/zero of=fill bs=1M; sleep 1000")
    image.instant("never-ends", tiny, "while :; do :; done", timeout=3)
    with switched_on(workshop, newest, image, devices=(), network=True) as machine:
        yield machine


def must_still_build(pod: Pod) -> None:
    """After the harm that was tried, an honest build succeeds at the same sidecar."""
    built = pod.run_once(of="good")
    assert (built["source"], built["state"]) == ("built", "ready")


def processes_of_builds(pod: Pod) -> str:
    """Every process of the toolkit's user but the sidecar itself."""
    rows = pod.node("ps", "-o", "pid,user,args").splitlines()
    return "\n".join(row for row in rows if f" {TOOLKIT_UID} " in row and "toolkit.pyz" not in row)


def test_a_build_finds_no_privilege_no_network_no_key_and_no_host(pod: Pod) -> None:
    pod.start_sidecar()

    done = pod.driver("run", "--once", of="looks-around")

    assert done.exit_code == 0, done.errors
    said = [line.removeprefix("build | ").rstrip() for line in done.errors.splitlines()]
    for name in ("Inh", "Prm", "Eff", "Bnd", "Amb"):
        assert f"Cap{name}:\t0000000000000000" in said
    assert "NoNewPrivs:\t1" in said
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
    assert pod.report("status", of="looks-around")["ready"]


def test_processes_that_fork_away_do_not_outlive_the_build(pod: Pod) -> None:
    pod.start_sidecar()

    built = pod.run_once(of="forks-away")

    assert (built["source"], built["state"]) == ("built", "ready")
    assert processes_of_builds(pod) == ""


def test_links_and_pipes_planted_where_the_sidecar_writes_lead_nowhere(pod: Pod) -> None:
    pod.start_sidecar()
    before = pod.node("sh", "-c", "ls -la /toolkit/etc | md5sum")

    done = pod.driver("run", "--once", of="plants-links")

    assert done.exit_code == 0, done.errors
    assert "root:" not in done.errors, "a file was read through a link"
    assert pod.node("sh", "-c", "ls -la /toolkit/etc | md5sum") == before
    assert pod.report("status", of="plants-links")["ready"]


def test_a_link_in_the_place_of_the_module_is_no_module(pod: Pod) -> None:
    pod.start_sidecar()

    failed = pod.run_once(of="delivers-a-link", code=10)

    assert failed["reason"] == "NoModule"
    must_still_build(pod)


def test_a_build_that_fills_the_disk_is_stopped_and_room_is_made_for_the_answer(pod: Pod) -> None:
    pod.node("mount", "-t", "tmpfs", "-o", "size=160m,mode=755", "small", SHARED)
    try:
        pod.start_sidecar()
        full = pod.run_once(of="fills", code=51)
        assert full["reason"] == "DiskFull"
        assert full["retryable"]
        must_still_build(pod)
    finally:
        pod.close()
        pod.node("umount", SHARED)


def test_a_build_that_never_ends_is_ended_at_its_deadline(pod: Pod) -> None:
    pod.start_sidecar()

    late = pod.run_once(of="never-ends", code=50)

    assert late["reason"] == "Timeout"
    assert "the build did not end within 3 s" in late["message"]
    assert processes_of_builds(pod) == ""
    must_still_build(pod)
