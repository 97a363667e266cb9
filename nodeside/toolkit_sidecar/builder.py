"""Runs one build, from the request to its result.

The stages are: check the toolchain, copy the source, evaluate the recipe, build, collect. Each
stage is timed. `answer_request` always returns a result, unless the request is withdrawn or the
sidecar is stopped.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nodeside import log
from nodeside.errors import NodesideError, NoSpace
from nodeside.log import escape_controls
from nodeside.protocol.build_records import (
    BuildRequest,
    BuildResult,
    BuiltModule,
    FailureKind,
    Toolchain,
)
from nodeside.protocol.bundle_key import BuildKind
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system import process
from nodeside.system.files import UntrustedFile, disk_errors, open_untrusted
from nodeside.toolkit_sidecar import dkms_conf, memory
from nodeside.toolkit_sidecar.buildlog import BuildLog, Echo
from nodeside.toolkit_sidecar.collect import collect_modules, remove_prebuilt
from nodeside.toolkit_sidecar.confinement import (
    BuildWatch,
    Step,
    disk_full_error,
    free_bytes,
    leave_no_process,
    run_confined,
)
from nodeside.toolkit_sidecar.dkms import dkms_recipe, make_plan, needs_in_words
from nodeside.toolkit_sidecar.extra_symbols import write_extra_symbols
from nodeside.toolkit_sidecar.failure import BuildFailed, Withdrawn
from nodeside.toolkit_sidecar.jobs import count_jobs
from nodeside.toolkit_sidecar.recipe import (
    Recipe,
    Workplace,
    build_environment,
    extra_symbols_path,
    flags_for_same_bytes,
    make_recipe,
    patch_steps,
)
from nodeside.toolkit_sidecar.toolchain import LEAST_SPACE, Bench, require_toolchain
from nodeside.toolkit_sidecar.tree import copy_tree, move_to, remove_tree, tree_size

_CONF_SECONDS = 60.0  # seconds; a dkms.conf that runs longer is taken to be endless


@dataclass
class BuildRun:
    """The state of one build, filled in as it proceeds. The result reports whatever is set."""

    request: BuildRequest
    shared: SharedDir
    root: Path
    log: BuildLog
    watch: BuildWatch
    attempt: int = 1
    place: Workplace | None = None
    toolchain: Toolchain | None = None
    modules: tuple[BuiltModule, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unmet: str = ""  # what the source needs of other drivers and was not given, in words

    @property
    def out(self) -> Path:
        return self.shared.out_dir(self.request.id)

    def run(self) -> None:
        """Run the whole build. Raises BuildFailed, Withdrawn and other NodesideErrors."""
        jobs, request = _choose_jobs(self.root, self.attempt), self.request
        self.log.say(
            f"{request.driver} {request.version} for {request.kernel.release}, {jobs} jobs"
        )
        if self.attempt > 1:
            self.notes.append(f"attempt {self.attempt}: a process of the previous attempt died")
        with self._time_stage("check"):
            self.place = place = self._check_request(jobs)
        with self._time_stage("copy"):
            self._copy_source()
        with self._time_stage("evaluate"):
            for step in patch_steps(place, self.request.settings.patches, place.source):
                self._run_step(step)
            recipe = self._make_recipe(place)
            for note in recipe.notes:
                self._note_and_log(note)
        with self._time_stage("build"):
            for step in recipe.before:
                self._run_step(step)
        with self._time_stage("collect"):
            self._collect_modules(recipe)
            for step in recipe.after:
                self._run_step(step)

    def _check_request(self, jobs: int) -> Workplace:
        request, out = self.request, self.out
        source = self.shared.source_path(request.source)
        if not source.is_dir():
            raise BuildFailed(
                FailureKind.BAD_SOURCE,
                f"the source of the request is not in the shared directory: {source}",
                hint="the driver puts it there before the request; restart the driver container",
            )
        size = tree_size(source)
        self.watch.leave_to_others(size)
        bench = Bench(self.root, request.kernel, request.settings, out, size)
        with leave_no_process(str(out), "the check of the toolchain"):
            self.toolchain = require_toolchain(bench, jobs)
        self.notes += bench.notes
        self.log.say(f"compiler: {self.toolchain.compiler}; headers: {self.toolchain.headers}")
        (out / "tmp").mkdir()
        assert bench.compiler is not None
        flags = flags_for_same_bytes(request, out, bench.compiler)
        compiler = bench.compiler
        env = build_environment(request, out, flags, compiler.argument)
        if request.settings.symbols:
            given = self.shared.symbols / request.settings.symbols
            kernels = bench.known_headers.directory / "Module.symvers"
            write_extra_symbols(given, kernels, extra_symbols_path(out))
        return Workplace(
            *(request, out, bench.known_headers, jobs),
            compiler=compiler.name,
            env=env,
            flags=flags,
            compiler_argument=compiler.argument,
        )

    def _copy_source(self) -> None:
        target = self.out / "build"
        copy_tree(self.shared.source_path(self.request.source), target)
        (self.out / "output").mkdir()
        self.watch.check()
        prebuilt = remove_prebuilt(target)
        if prebuilt and self.request.settings.kind is not BuildKind.COMMAND:
            self.notes.append(f"removed modules that came with the source: {', '.join(prebuilt)}")

    def _make_recipe(self, place: Workplace) -> Recipe:
        if self.request.settings.kind is not BuildKind.DKMS:
            return make_recipe(place)
        kernel, headers, tree = self.request.kernel, place.headers, self.out / "dkms"
        values = dkms_conf.evaluate_conf(
            place.directory / "dkms.conf",
            dump=self.out / "dkms.conf.values",
            shell=dkms_conf.shell_variables(
                headers, kernel.release, kernel.architecture, tree=tree, jobs=place.jobs
            ),
            env=place.env,
            mark=str(self.out),
            log=self.log,
            watch=self.watch.limited_to(_CONF_SECONDS, "dkms.conf"),
        )
        try:
            plan = make_plan(values, kernel, headers)
        except BuildFailed as failed:
            if failed.kind is FailureKind.EXCLUDED and (lines := self.log.build_lines()):
                failed.hint = f"{failed.hint}; it printed: {'; '.join(lines[-3:])}"
            raise
        if plan.needs and not self.request.settings.symbols:
            self.unmet = needs_in_words(plan.needs)
            self._note_and_log(self.unmet)
        package = tree / plan.name / plan.version
        directory = package / "build"
        move_to(place.directory, directory)
        # dkms's output directory while POST_BUILD runs; the script of zfs copies into it.
        base = package / kernel.release / kernel.architecture
        with disk_errors(base):
            (base / "module").mkdir(parents=True, exist_ok=True)
        return dkms_recipe(plan, place, directory)

    def _note_and_log(self, words: str) -> None:
        """Tell in the log and the result what the build does not do as one might expect."""
        self.notes.append(words)
        self.log.say(words)

    def _run_step(self, step: Step) -> None:
        """Run one step and log its output. Raises BuildFailed with the command that repeats it."""
        self.log.say(step.by_hand)
        started, killed_before = time.monotonic(), memory.count_kills(self.root)
        try:
            code = run_confined(step, mark=str(self.out), log=self.log, watch=self.watch)
        except BuildFailed as failed:
            failed.command = failed.command or step.by_hand
            self.log.say(f"{step.name}: stopped: {failed}")
            raise
        except process.ToolMissing as exc:
            raise BuildFailed(
                FailureKind.NO_TOOLS, str(exc), hint=exc.hint, command=step.by_hand
            ) from exc
        outcome = process.exit_code_in_words(code)
        self.log.say(f"{step.name}: {outcome} after {time.monotonic() - started:.2f} s")
        self.log.first_error.end_step(code)
        if code == 0:
            return
        raise self._step_error(step, code, outcome, killed_before)

    def _step_error(self, step: Step, code: int, outcome: str, killed_before: int) -> BuildFailed:
        if memory.count_kills(self.root) > killed_before:
            jobs = _choose_jobs(self.root, self.attempt)
            what = "the OOM killer killed a process of the build"
            failed = memory.out_of_memory_error(self.root, what, jobs)
            failed.command, failed.step_exit_code = step.by_hand, code
            return failed
        free = free_bytes(self.out)
        short = self.log.reported_full and free < LEAST_SPACE
        if self.log.out_of_space or short or free < 1 << 20:
            failed = disk_full_error(self.out, free)
            failed.command, failed.step_exit_code = step.by_hand, code
            return failed
        kind = FailureKind.BAD_SOURCE if step.name == "patch" else FailureKind.COMPILE
        advice = f"read {self.log.path}, or repeat the command in the toolkit container"
        return BuildFailed(
            kind,
            f"{step.name} failed: {outcome}",
            hint="; or ".join(filter(None, (self.unmet, self._hint_for(step) or advice))),
            command=step.by_hand,
            step_exit_code=code,
        )

    def _hint_for(self, step: Step) -> str:
        """Return what to do about the first error, from the output, the source and the headers."""
        from nodeside.toolkit_sidecar.advice import advise_on_error  # only a failed build needs it

        found, place = self.log.first_error, self.place
        if place is None:
            return found.hint
        is_dkms = self.request.settings.kind is BuildKind.DKMS  # which has a directory of its own
        return found.hint_with(
            advise_on_error(found.error, place, step.cwd if is_dkms else place.source)
        )

    def _collect_modules(self, recipe: Recipe) -> None:
        roots = [self.out / "output", recipe.directory]
        if recipe.directory == Path():
            roots[1] = self.out / "build"
        remove_tree(self.out / "modules")  # the build may have created one itself
        required = self.request.settings.modules
        collected = collect_modules(recipe, roots, self.out, required, self.watch.check)
        self.modules = collected.modules
        self.notes += collected.notes

    @contextmanager
    def _time_stage(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            self.watch.check()
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - started, 4)


def answer_request(
    request: BuildRequest,
    shared: SharedDir,
    *,
    root: Path,
    echo: Echo,
    deaths: int = 0,
    first: bool = False,
) -> BuildResult:
    """Build the request and return its result. Raises nothing but Withdrawn and Stopped.

    `deaths`: number of worker processes that died on this build in the sidecar's lifetime.
    `first`: the sidecar has just started, so any earlier attempt was killed with its container.
    """
    out = shared.out_dir(request.id)
    watch = BuildWatch(
        seconds=request.timeout, request=shared.request_path(request.id), disk=shared.out
    )
    try:
        while True:
            begun = _begin_output(out, root, deaths, first=first)
            with BuildLog(shared.build_log(request.id), echo) as buildlog:
                result = _run_to_result(BuildRun(request, shared, root, buildlog, watch, begun))
            again = result.failure is FailureKind.OUT_OF_MEMORY
            if not again or begun >= memory.lives_for(count_jobs(root)):
                return result
            deaths = begun
    except Withdrawn:
        raise
    except NodesideError as error:
        return refusal_result(request.id, request.boot_id, _as_build_error(error))


def _choose_jobs(root: Path, attempt: int) -> int:
    """Return the job count, halved for each kill of the build, most likely for lack of memory."""
    return max(1, count_jobs(root) >> (attempt - 1))


def _begin_output(out: Path, root: Path, deaths: int, *, first: bool) -> int:
    """Create a fresh output directory. Return how often this build has begun, this time included.

    A build that is killed again and again thus gets a result in the end. The file `begun` counts
    across container restarts. The build can write that file, so `deaths` counts too while this
    container lives.
    """
    before = 0
    with suppress(OSError, ValueError, UntrustedFile), open_untrusted(out / "begun", limit=9) as f:
        before = int(f.read())
    begun = max(before, deaths) + 1
    if begun > 1:
        _require_lives_left(root, begun - 1, killed_with_container=first)
    remove_tree(out)
    with disk_errors(out):
        out.mkdir()
        (out / "begun").write_text(str(begun))
    return begun


def _require_lives_left(root: Path, times: int, *, killed_with_container: bool) -> None:
    """Raise BuildFailed if the build was killed so often that it would be killed again."""
    if killed_with_container or memory.count_kills(root):
        if times >= memory.lives_for(count_jobs(root)):
            who = "the toolkit container" if killed_with_container else "the build"
            what = f"{who} was killed {times} times, probably by the OOM killer"
            raise memory.out_of_memory_error(root, what, _choose_jobs(root, times))
    elif times >= memory.MOST_LIVES:
        raise BuildFailed(
            FailureKind.INTERNAL,
            f"the worker process of the build died {times} times",
            hint="see the log of the toolkit container",
        )


def _run_to_result(build: BuildRun) -> BuildResult:
    failed: BuildFailed | None = None
    try:
        build.run()
    except Withdrawn as exc:
        build.log.say(str(exc))
        raise
    except NodesideError as error:
        failed = _as_build_error(error)
    except Exception as exc:
        log.warning("a bug in nodeside", traceback=traceback.format_exc())
        failed = _internal_error(exc)
    build.log.say(f"failed: {failed}" if failed else "succeeded")
    return result_of(build, failed)


def result_of(build: BuildRun, failed: BuildFailed | None) -> BuildResult:
    """Return the outcome of a build as the record that the driver reads.

    Texts are escaped, since they may contain file names of the source, which may be of any bytes.
    """
    return BuildResult(
        request=build.request.id,
        boot_id=build.request.boot_id,
        succeeded=failed is None,
        modules=() if failed else build.modules,
        toolchain=build.toolchain,
        failure=failed.kind if failed else None,
        message=escape_controls(str(failed or ""), keep="\t\n"),
        hint=escape_controls(failed.hint, keep="\t\n") if failed else "",
        first_error=build.log.first_error.line if failed else "",
        log_tail=build.log.tail(),
        command=failed.command if failed else "",
        exit_code=failed.step_exit_code if failed else 0,
        seconds=build.seconds,
        notes=tuple(escape_controls(note) for note in build.notes),
        finished_at=time.time(),
    )


def refusal_result(id: str, boot_id: str, failed: BuildFailed) -> BuildResult:
    """Return the result for a request without a build to report on."""
    return BuildResult(
        request=id,
        boot_id=boot_id,
        succeeded=False,
        failure=failed.kind,
        message=str(failed),
        hint=failed.hint,
        finished_at=time.time(),
    )


def _as_build_error(error: NodesideError) -> BuildFailed:
    if isinstance(error, BuildFailed):
        return error
    kind = FailureKind.DISK_FULL if isinstance(error, NoSpace) else FailureKind.INTERNAL
    return BuildFailed(kind, str(error), hint=error.hint)


def _internal_error(exc: Exception) -> BuildFailed:
    return BuildFailed(
        FailureKind.INTERNAL,
        f"a bug in nodeside: {type(exc).__name__}: {exc}",
        hint="the sidecar's log has the traceback; please report it",
    )
