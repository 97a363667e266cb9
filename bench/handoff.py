"""The hand-off: how soon each side notices what the other one left in the shared directory.

The bench plays one side of the protocol (`nodeside/protocol/shared_directory.py`) against the real
process of the other. A sample begins right before the rename that makes the record visible, and
ends when the bench reads what the other process wrote about it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bench.builds import FLAVOUR
from bench.candidates import write_hello
from bench.ground import Ground
from bench.lines import Lines
from bench.page import Goal, Section, markdown_table
from bench.room import await_end
from bench.samples import Samples, latency
from bench.sidecar import find_sidecar
from bench.size import Size
from bench.waiting import Waiting
from nodeside.protocol.build_records import BuildRequest, BuildResult, FailureKind
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.protocol.records import encode, publish
from nodeside.protocol.shared_directory import SharedDir, request_id
from nodeside.system.directory_watch import DirectoryWatch
from nodeside.system.host import Host, Kernel
from nodeside.trial.machine.kernel_disk import KernelDisk
from tests.sidecar_lock import hold_sidecar_lock

_SAMPLES = {Size.FULL: 50, Size.QUICK: 10, Size.SMALLEST: 1}
_TIMEOUT = 30.0
_GOAL = 0.05


def measure(ground: Ground, size: Size) -> Section:
    """Both directions."""
    samples, kernel = _SAMPLES[size], ground.kernel(FLAVOUR)
    ground.progress.print_step(f"hand-off: {samples} requests to the sidecar")
    begun, answered = _to_sidecar(ground, kernel, samples)
    ground.progress.print_step(f"hand-off: {samples} results to the driver")
    noticed = _to_driver(ground, kernel, samples)
    rows = [
        ("request visible → the sidecar says that it begins", *latency(begun)),
        ("request visible → the sidecar's answer visible (it refuses at once)", *latency(answered)),
        ("result visible → the driver has said what is in it", *latency(noticed)),
    ]
    before = (
        f"{samples} samples each, the other side being the real process in its own root file "
        "system. The first number includes the fork of a worker and its imports, the last one the "
        "wording of the error."
    )
    table = markdown_table(("direction", "median", "95 %", "max"), rows)
    return Section("Hand-off", before, table, goals=(_goal("to the sidecar", begun),
                                                     _goal("to the driver", noticed)))  # fmt: skip


def _goal(direction: str, samples: Samples) -> Goal:
    median, p95, high = latency(samples)
    measured = f"{median}, 95 %: {p95}, max {high}"
    return Goal(f"hand-off {direction}", "≤ 50 ms", measured, samples.median <= _GOAL)


def _to_sidecar(ground: Ground, kernel: KernelDisk, count: int) -> tuple[Samples, Samples]:
    """Publish requests whose source is missing: the real sidecar refuses them at once."""
    lines = Lines()
    toolkit = ground.sidecar(kernel, ground.directory("handoff-toolkit"), lines.write)
    begun, answered = [], []
    with toolkit as shared, DirectoryWatch([shared.results]) as notice:
        lines.await_line(b"toolkit sidecar is there")
        sidecar = find_sidecar(shared)
        for number in range(count):
            request = _request(ground.identity(kernel), number)
            # It waits, as it does for weeks.
            _await(notice, lambda: not sidecar.children(), "no worker of the sidecar", shared)
            path = shared.request_path(request.id)
            start = _appear(path, encode(request))
            begun.append(lines.await_line(b"build begins") - start)
            seen = _await(notice, _visible(shared, request), f"an answer to {request.id}", shared)
            answered.append(seen - start)
            path.unlink()
            gone = _gone(shared.result_path(request.id))
            _await(notice, gone, f"the end of the answer to {request.id}", shared)
    lines.close()
    return Samples.of(begun), Samples.of(answered)


def _visible(shared: SharedDir, request: BuildRequest) -> Callable[[], bool]:
    return lambda: shared.read_result(request.id, request.boot_id) is not None


def _gone(path: Path) -> Callable[[], bool]:
    return lambda: not path.exists()


def _to_driver(ground: Ground, kernel: KernelDisk, count: int) -> Samples:
    """Answer the request of a real driver process, that it is refused."""
    tree = write_hello(ground.directory("handoff-hello") / "tree")
    image = ground.prepare("handoff", str(tree), kernel).image
    directory = ground.directory("handoff-driver")
    shared = SharedDir(directory / "shared")
    shared.create()
    binds = {image: "/driver-image", shared.root: "/shared", Path("/proc"): "/host/proc"}
    room = ground.driver_room(directory, binds)
    identity = ground.identity(kernel)
    argv = ["nodeside", "driver", "build", "--cache", "/cache", "--kernel", identity.release]
    argv += ["--kernel-version", identity.version]
    noticed = []
    with hold_sidecar_lock(shared), DirectoryWatch([shared.requests]) as notice:
        for number in range(count):
            lines = Lines()
            with room.running(argv, lines.write) as child:
                noticed.append(_answer(shared, notice, lines, number))
                await_end(child, _TIMEOUT)
            lines.close()
            _withdraw_all(shared)
    return Samples.of(noticed)


def _answer(shared: SharedDir, notice: DirectoryWatch, lines: Lines, number: int) -> float:
    _await(notice, lambda: bool(shared.request_ids()), "a request of the driver", shared)
    (name,) = shared.request_ids()
    result = BuildResult(
        name, Host().boot_id, succeeded=False, failure=FailureKind.COMPILE, message="no such luck"
    )
    # The driver waits by now; a growing pause keeps step with nothing that it does periodically.
    time.sleep(0.1 + number * 0.007)
    return -_appear(shared.result_path(name), encode(result)) + lines.await_line(b"no such luck")


def _withdraw_all(shared: SharedDir) -> None:
    for name in shared.request_ids():
        shared.request_path(name).unlink()
        shared.result_path(name).unlink(missing_ok=True)


def _appear(path: Path, record: dict[str, object]) -> float:
    """Make a record visible, synced beforehand; the moment right before it is."""
    hidden = path.with_name(f".tmp-bench-{path.name}")
    publish(hidden, record)
    started = time.monotonic()
    hidden.replace(path)
    return started


def _await(
    notice: DirectoryWatch, condition: Callable[[], bool], what: str, shared: SharedDir
) -> float:
    waiting = Waiting(_TIMEOUT, pause=notice.wait)
    return waiting.until(condition, what, lambda: f"the requests {list(shared.request_ids())}")


def _request(kernel: Kernel, number: int) -> BuildRequest:
    return BuildRequest(
        id=request_id(f"{number:012x}", 1),
        driver="absent",
        version="1.0",
        kernel=kernel,
        boot_id=Host().boot_id,
        source="0" * 64,
        settings=BuildSettings(BuildKind.KBUILD, ("absent",)),
        timeout=60.0,
    )
