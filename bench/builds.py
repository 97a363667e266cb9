"""Builds: plain `make -jN`, nodeside's two processes, and dkms, in turn, round by round.

All three run in the same toolkit root file system with the same headers, on the same file system,
with the same number of jobs, and begin with sources that are in the page cache.

- plain make runs, by hand, the very commands that nodeside's build log shows, in a fresh copy of
  the source; the copy is not counted.
- nodeside is counted from the start of the driver process to its end: source in, verified bundle
  in an empty cache out. The sidecar is there already, as it is in a pod.
- dkms is `dkms build` and `dkms install`; `dkms add`, a link, is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.candidates import CHOSEN, Candidate, write_hello
from bench.contenders import Dkms, Nodeside, Plain
from bench.ground import Ground, Prepared
from bench.page import Goal, Section, markdown_table
from bench.room import BenchError, Timing
from bench.samples import Samples, ratio, seconds, signed_seconds
from bench.size import Size
from nodeside.errors import NodesideError
from nodeside.protocol.build_records import BuildResult
from nodeside.protocol.shared_directory import SharedDir
from nodeside.toolkit_sidecar.jobs import count_jobs
from nodeside.trial.machine.kernel_disk import KernelDisk

FLAVOUR = "amd64"
ROUNDS, LONG_ROUNDS = 5, 3
_ROUNDS = {Size.QUICK: 2, Size.SMALLEST: 1}  # of every driver
_LONG = 30.0  # seconds; from here on the ratio counts, below it the difference
_STAGES = ("check", "copy", "evaluate", "build", "collect")


@dataclass
class Row:
    """What was measured for one driver."""

    driver: Prepared
    plain: list[Timing] = field(default_factory=list)
    nodeside: list[Timing] = field(default_factory=list)
    dkms_build: list[Timing] = field(default_factory=list)
    dkms_install: list[Timing] = field(default_factory=list)
    results: list[BuildResult] = field(default_factory=list)

    @property
    def dkms(self) -> list[Timing]:
        pairs = zip(self.dkms_build, self.dkms_install, strict=True)
        return [built + installed for built, installed in pairs]

    @property
    def ratio(self) -> Samples:
        return wall(self.nodeside).against(wall(self.plain))

    @property
    def difference(self) -> Samples:
        return wall(self.nodeside).minus(wall(self.plain))

    def stage(self, name: str) -> float:
        return Samples.of(result.seconds.get(name, 0.0) for result in self.results).median


def wall(timings: Sequence[Timing]) -> Samples:
    return Samples.of(timing.wall for timing in timings)


def cpu(timings: Sequence[Timing]) -> Samples:
    return Samples.of(timing.cpu for timing in timings)


def measure(ground: Ground, size: Size, rounds: int | None = None) -> Section:
    """Build every candidate, all three ways. `rounds` None: as many as the size takes."""
    rounds = rounds or _ROUNDS.get(size)
    kernel = ground.kernel(FLAVOUR)
    jobs = count_jobs(Path("/"))
    rows = []
    missing = []
    with ground.sidecar(kernel, ground.directory("toolkit")) as shared:
        for candidate in CHOSEN[size]:
            try:
                warm = not candidate.long and size is not Size.SMALLEST
                rows.append(
                    _measure_one(
                        ground, kernel, candidate, shared, rounds=rounds, jobs=jobs, warm=warm
                    )
                )
            except NodesideError as error:
                ground.progress.print_step(f"{candidate.name}: cannot be measured: {error}")
                missing.append(f"{candidate.name}: {str(error).partition(chr(10))[0]}")
    if not rows:
        raise BenchError(f"no driver could be built: {'; '.join(missing)}")
    entry = Plain(ground, kernel, rows[0].driver).room.entry()
    return _section(kernel, jobs, rows, missing, entry)


def _measure_one(
    ground: Ground,
    kernel: KernelDisk,
    candidate: Candidate,
    shared: SharedDir,
    *,
    rounds: int | None,
    jobs: int,
    warm: bool,
) -> Row:
    word = candidate.package or str(write_hello(ground.directory("hello") / "tree"))
    driver = ground.prepare(candidate.name, word, kernel)
    plain = Plain(ground, kernel, driver)
    nodeside = Nodeside(ground, kernel, driver, shared)
    dkms = Dkms(ground, kernel, driver, jobs)
    row = Row(driver)
    if warm:  # for a long one, the first builds have warmed what it reads
        ground.progress.print_step(f"{candidate.name}: warm-up")
        _round(Row(driver), plain, nodeside, dkms)
    count = rounds or (LONG_ROUNDS if candidate.long else ROUNDS)
    for number in range(1, count + 1):
        ground.progress.print_step(f"{candidate.name}: round {number} of {count}")
        _round(row, plain, nodeside, dkms)
    if row.results[-1].toolchain is None or row.results[-1].toolchain.jobs != jobs:
        raise BenchError(f"the sidecar did not use {jobs} jobs")
    return row


def _round(row: Row, plain: Plain, nodeside: Nodeside, dkms: Dkms) -> None:
    """One build each; nodeside comes first, since its log has the commands of plain make."""
    nodeside.prepare()
    timing, result = nodeside.build()
    row.nodeside.append(timing)
    row.results.append(result)
    plain.commands = nodeside.commands("/build")
    plain.prepare()
    row.plain.append(plain.build())
    dkms.prepare()
    built, installed = dkms.build()
    row.dkms_build.append(built)
    row.dkms_install.append(installed)


def _section(
    kernel: KernelDisk, jobs: int, rows: Sequence[Row], missing: Sequence[str], entry: Samples
) -> Section:
    header = (
        "driver (.c files)", f"make -j{jobs}", "nodeside", "dkms", "of it: build", "install",
        "nodeside - make", "nodeside / make", "dkms / make", "dkms / nodeside",
    )  # fmt: skip
    table = markdown_table(header, [_cells(row) for row in rows])
    stages = markdown_table(
        ("nodeside, median", *_STAGES, "driver process"), [_stage_cells(row) for row in rows]
    )
    before = (
        f"Kernel {kernel.release}, {kernel.compiler}, {jobs} jobs, in turn nodeside, make, dkms. "
        "nodeside: `nodeside driver build --shared`, from the start of the driver process with an "
        "empty cache to the verified bundle in it; the sidecar waits in its own root file system, "
        "as another user. make: the same commands by hand, in a copy of the source made "
        "beforehand. dkms: `dkms build` and `dkms install` of the unmodified package. Each "
        f"command is entered into a container of its own, which takes {entry.median * 1000:.0f} ms "
        "of every number (twice of dkms's)."
    )
    usage = markdown_table(
        ("CPU seconds", f"make -j{jobs}", "nodeside", "dkms", "nodeside / make", "dkms / make"),
        [_cpu_cells(row) for row in rows],
    )
    after = (
        "The same builds in CPU seconds, all processes together, the sidecar's too: what else "
        f"happens on the machine disturbs these less than the wall clock.\n\n{usage}\n\n"
        f"Where nodeside's time goes (the sidecar's stages; the rest is the driver process: start, "
        f"digests, copies, checks):\n\n{stages}\n\n"
        "What dkms does that the others do not: it strips and signs each module (its own key, "
        "made before the measurement), saves and compares an original module, and runs depmod "
        "over all modules of the kernel. No initramfs is made. What nodeside does that the others "
        "do not: it digests the source, checks headers, compiler and tools, strips, hashes and "
        "reads each module, and leaves a bundle with provenance on disk, synced."
    )
    if missing:
        after += "\n\nNot measured: " + "; ".join(missing) + "."
    return Section("Builds", before, table, after, tuple(_goals(rows)))


def _cells(row: Row) -> tuple[str, ...]:
    plain, nodeside, dkms = wall(row.plain), wall(row.nodeside), wall(row.dkms)
    return (
        f"{row.driver.name} ({row.driver.files})",
        seconds(plain),
        seconds(nodeside),
        seconds(dkms),
        seconds(wall(row.dkms_build)),
        seconds(wall(row.dkms_install)),
        signed_seconds(row.difference),
        ratio(row.ratio),
        ratio(dkms.against(plain)),
        ratio(dkms.against(nodeside)),
    )


def _cpu_cells(row: Row) -> tuple[str, ...]:
    plain, nodeside, dkms = cpu(row.plain), cpu(row.nodeside), cpu(row.dkms)
    return (
        row.driver.name,
        seconds(plain),
        seconds(nodeside),
        seconds(dkms),
        ratio(nodeside.against(plain)),
        ratio(dkms.against(plain)),
    )


def _stage_cells(row: Row) -> tuple[str, ...]:
    stages = [row.stage(name) for name in _STAGES]
    rest = wall(row.nodeside).median - sum(stages)
    return (row.driver.name, *(f"{value:.2f} s" for value in (*stages, rest)))


def _goals(rows: Sequence[Row]) -> list[Goal]:
    goals = []
    for row in rows:
        if wall(row.plain).median >= _LONG:
            what = f"build of {row.driver.name}: nodeside / make -jN"
            goals.append(Goal(what, "≤ 1.05", ratio(row.ratio), row.ratio.median <= 1.05))
    short = rows[0]
    goals.append(
        Goal(
            f"build of {short.driver.name}: nodeside - make -jN",
            "≤ 0.3 s",
            signed_seconds(short.difference),
            short.difference.median <= 0.3,
        )
    )
    return goals
