"""The command line of toolkit.pyz, the only place that prints and chooses exit codes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from nodeside import __version__
from nodeside.errors import ExitCode, NodesideError
from nodeside.toolkit_sidecar.supervisor import Life, Stopped, Supervisor, stop_on_signals

_ECHO_LIMIT = 64 << 20  # bytes of one build's lines in our own output; same as for build.log
_EPILOG = """exit codes: 0 done or stopped by SIGTERM; 1 a bug in nodeside; 2 the command line is
wrong; 3 the source is wrong; 10 the module does not compile; 11 it builds, but without a module
that driver.yaml names; 21 no headers for exactly this kernel; 22 the toolkit cannot build here;
45 another sidecar works on the directory; 50 the build took too long; 51 disk full; 52 the system
refused something, or a request cannot be read; 53 out of memory; 77 the driver excludes this
kernel; 130 interrupted.

In a pod, the toolkit container runs `run`, and a build Job runs `kernels` and `answer`. To find out
what is wrong with a toolkit, run `check` in that container. Every build.log has the commands that
repeat its steps."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code."""
    options = _make_parser().parse_args(arguments)
    stop_on_signals()
    try:
        code: ExitCode = options.verb(options)
    except NodesideError as error:
        sys.stderr.write(f"error: {error}\n")
        if error.hint:
            sys.stderr.write(f"hint: {error.hint}\n")
        return error.exit_code
    except Stopped as stopped:
        _set_up_log(options).fact("stopped", signal=str(stopped))
        return ExitCode.OK if str(stopped) == "SIGTERM" else ExitCode.INTERRUPTED
    return code


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="toolkit.pyz",
        description="Compile kernel modules on request of a nodeside driver container.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"nodeside {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    run = verbs.add_parser("run", help="answer requests in a shared directory")
    run.add_argument("--shared", type=Path, required=True, help="the shared directory")
    run.add_argument("--once", action="store_true", help="answer the open requests, then exit")
    run.set_defaults(verb=_run_verb)
    kernels = verbs.add_parser("kernels", help="list the kernels whose headers this toolkit has")
    kernels.add_argument("--shared", type=Path, help="also write the list to this directory")
    kernels.set_defaults(verb=_kernels_verb)
    answer = verbs.add_parser(
        "answer",
        help="answer the open requests, then exit; failures are in the answer, not the exit code",
    )
    answer.add_argument("--shared", type=Path, required=True, help="the shared directory")
    answer.set_defaults(verb=_answer_verb, once=True)
    check = verbs.add_parser("check", help="check whether this toolkit can build for a kernel")
    check.add_argument("--kernel", default="", help="a release (default: the running kernel's)")
    check.add_argument("--kind", choices=("kbuild", "dkms", "command"), default="dkms")
    check.add_argument("--directory", type=Path, default=Path.cwd(), help="where to build")
    check.add_argument("--output", choices=("table", "json"), default="table")
    check.set_defaults(verb=_check_verb)
    for verb in (run, kernels, answer, check):
        verb.add_argument("--root", type=Path, default=Path("/"), help="root of the toolkit")
        verb.add_argument("--log-format", choices=("text", "json"), default="text")
        verb.add_argument("--verbose", action="store_true")
    return parser


def _set_up_log(options: argparse.Namespace) -> ModuleType:
    """Set up and return the log. Imported late, because the waiting process logs nothing."""
    from nodeside import log

    log.setup("toolkit", format=options.log_format, verbose=options.verbose)
    return log


def _run_verb(options: argparse.Namespace) -> ExitCode:
    def work(life: Life) -> int:
        from nodeside.protocol.shared_directory import SharedDir
        from nodeside.system.host import Host
        from nodeside.toolkit_sidecar.sidecar import Sidecar

        _set_up_log(options)
        host, shared = Host(options.root.absolute()), SharedDir(options.shared.absolute())
        echo = _Echo(as_json=options.log_format == "json")
        return Sidecar(shared, host, echo).answer_requests(life)

    return Supervisor(options.shared.absolute(), work).run(once=options.once)


def _answer_verb(options: argparse.Namespace) -> ExitCode:
    """Act like `run --once`, but return OK: the caller reads the result, not an exit code."""
    _run_verb(options)
    return ExitCode.OK


def _kernels_verb(options: argparse.Namespace) -> ExitCode:
    from nodeside.protocol.build_job import ToolkitKernels
    from nodeside.protocol.shared_directory import SharedDir
    from nodeside.system.host import Host
    from nodeside.toolkit_sidecar.headers import toolkit_kernels

    _set_up_log(options)
    kernels = toolkit_kernels(options.root.absolute())
    if options.shared:
        host = Host(options.root.absolute())
        SharedDir(options.shared.absolute()).publish_kernels(ToolkitKernels(host.boot_id, kernels))
    for kernel in kernels:
        sys.stdout.write(f"{kernel.release}  {kernel.version or '(version unknown)'}\n")
    return ExitCode.OK


def _check_verb(options: argparse.Namespace) -> ExitCode:
    import json
    from dataclasses import asdict

    from nodeside.protocol.bundle_key import BuildKind, BuildSettings
    from nodeside.system.host import Host, Kernel
    from nodeside.toolkit_sidecar.headers import read_version_of_release
    from nodeside.toolkit_sidecar.jobs import count_jobs
    from nodeside.toolkit_sidecar.toolchain import Bench, inspect_toolchain

    kernel = Host(options.root).kernel
    if options.kernel and options.kernel != kernel.release:
        version = read_version_of_release(options.root, options.kernel)
        kernel = Kernel(options.kernel, version, kernel.architecture)
    settings = BuildSettings(BuildKind(options.kind), ())
    findings = inspect_toolchain(Bench(options.root, kernel, settings, options.directory))
    if options.output == "json":
        rows = [{**asdict(item), "kind": item.kind and item.kind.value} for item in findings]
        record = {"kernel": kernel.release, "jobs": count_jobs(options.root), "checks": rows}
        sys.stdout.write(json.dumps(record, indent=2) + "\n")
    else:
        for item in findings:
            sys.stdout.write(f"{'ok    ' if item.ok else 'FAILED'} {item.check}: {item.said}\n")
            if item.hint:
                sys.stdout.write(f"       hint: {item.hint}\n")
        sys.stdout.write(f"make would run {count_jobs(options.root)} jobs\n")
    failed = [item for item in findings if not item.ok]
    kind = failed[0].kind if failed else None
    return kind.exit_code if kind else ExitCode.SYSTEM if failed else ExitCode.OK


class _Echo:
    """An echo of build lines to our own output, given up at the first write error.

    At most `limit` bytes are shown per request, because container logs are on the node's disk.
    """

    def __init__(self, *, as_json: bool, limit: int = _ECHO_LIMIT) -> None:
        self._as_json = as_json
        self._limit = limit
        self._request, self._left = "", 0
        self._works = True

    def __call__(self, request: str, lines: Sequence[str]) -> None:
        if request != self._request:
            self._request, self._left = request, self._limit
        if not self._works or self._left <= 0:
            return
        whole = self._encode_lines(request, lines)
        if len(whole) > self._left:
            end = f"# the rest of this build is not shown here: the limit is {self._limit} bytes"
            whole = self._encode_lines(request, [end])
            self._left = 0
        self._left -= len(whole)
        data = memoryview(whole)
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            self._works = False

    def _encode_lines(self, request: str, lines: Sequence[str]) -> bytes:
        if self._as_json:
            lines = [self._json_line(request, line) for line in lines]
        return "".join(f"{line}\n" for line in lines).encode(errors="replace")

    def _json_line(self, request: str, line: str) -> str:
        import json

        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        fields = {"time": now, "level": "info", "component": "build"}
        return json.dumps({**fields, "request": request, "message": line})
