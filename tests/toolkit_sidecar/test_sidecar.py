"""The sidecar as a process, from a request to its answer, with tools of straw."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.errors import ExitCode
from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.bundle_key import BuildKind
from nodeside.protocol.records import encode, publish
from nodeside.toolkit_sidecar.collect import _is_near
from tests.toolkit_sidecar.faketoolkit import BOOT_ID, DIGEST, KERNEL, FakeToolkit, lives, until


def test_a_kbuild_tree_becomes_modules_with_digests(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", 'echo "CC [M] straw.o"\nko straw\n')
    request = toolkit.request()
    result = toolkit.answer(request)
    assert result.succeeded, result.message
    (module,) = result.modules
    assert (module.name, module.file, module.size) == ("straw", "modules/straw.ko", 15)
    assert (toolkit.shared.out_dir(request.id) / module.file).stat().st_size == 15
    assert set(result.seconds) == {"check", "copy", "evaluate", "build", "collect"}
    assert result.toolchain is not None
    assert result.toolchain.compiler == "gcc (Debian 12.2.0-14) 12.2.0"
    assert result.toolchain.kernel_compiler == "gcc-12 (Debian 12.2.0-14) 12.2.0"
    assert "CC [M] straw.o" in result.log_tail
    assert result.log_tail[-1] == "# succeeded"


def test_the_log_says_what_ran_and_how_it_ended(toolkit: FakeToolkit) -> None:
    request = toolkit.request(make_arguments=("EXTRA=1",), environment={"FLAVOUR": "x y"})
    toolkit.answer(request)
    text = toolkit.shared.build_log(request.id).read_text()
    out = toolkit.shared.out_dir(request.id)
    flags = f"-ffile-prefix-map={out}=/usr/src/straw-1.0"
    words = f"'FLAVOUR=x y' HOME={out} KAFLAGS={flags} KCFLAGS={flags} LC_ALL=C"
    assert f"# cd {out}/build && env {words}" in text
    assert f"M={out}/build -j" in text
    assert "EXTRA=1 modules" in text
    assert "# make: exit code 0 after " in text


def test_a_compile_error_is_answered_with_its_first_error_and_the_command(
    toolkit: FakeToolkit,
) -> None:
    toolkit.vendor("vendor.sh", "echo 'straw.c:4:2: error: no hay' >&2\nexit 2\n")
    request = toolkit.request()
    result = toolkit.answer(request)
    assert result.failure is FailureKind.COMPILE
    assert result.message == "make failed: exit code 2"
    assert result.first_error == "straw.c:4:2: error: no hay"
    assert result.exit_code == 2
    assert result.command.startswith(f"cd {toolkit.shared.out_dir(request.id)}/build && env ")
    assert str(toolkit.shared.build_log(request.id)) in result.hint


@pytest.mark.slow
def test_once_exits_with_the_code_of_the_answer(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "exit 2\n")
    toolkit.request()
    with toolkit.sidecar("--once") as sidecar:
        assert sidecar.child.wait(60) == ExitCode.BUILD_FAILED


def test_the_environment_of_a_build_is_made_from_nothing(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "env | sort\ncat\nko straw\n")
    hostile = {"LD_PRELOAD": "", "PYTHONPATH": "", "HTTPS_PROXY": "http://x", "SECRET": "s"}
    request = toolkit.request(environment={"MINE": "1"})
    with toolkit.sidecar(env=hostile) as sidecar:
        result = sidecar.result(request)
    names = {line.partition("=")[0] for line in result.log_tail if "=" in line[:20]}
    assert {"HOME", "LC_ALL", "MINE", "PATH", "TMPDIR"} <= names
    assert not names & set(hostile)


@pytest.mark.parametrize("name", ["straw-man", "straw_man"])
def test_dash_and_underscore_are_the_same_in_module_names(toolkit: FakeToolkit, name: str) -> None:
    toolkit.vendor("vendor.sh", "ko straw-man straw_man\n")
    result = toolkit.answer(toolkit.request(modules=(name,)))
    assert [module.name for module in result.modules] == ["straw_man"]


def test_a_module_that_did_not_come_out_is_named_with_those_that_did(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "ko hay; ko wood\n")
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.NO_MODULE
    assert result.message == "the build produced no module named straw; it produced: hay, wood"


@pytest.mark.slow
def test_a_misspelt_module_is_told_apart_from_one_that_does_not_compile(
    toolkit: FakeToolkit,
) -> None:
    toolkit.vendor("vendor.sh", "ko straw-man straw_man; ko hay\n")
    toolkit.request(modules=("strawman",))
    with toolkit.sidecar("--once") as sidecar:
        assert sidecar.child.wait(60) == ExitCode.NO_MODULE
    result = toolkit.shared.read_result(f"{DIGEST[:12]}-1", BOOT_ID)
    assert result is not None
    assert (
        result.message == "the build produced no module named strawman; it produced: hay, straw_man"
    )
    assert result.hint.endswith("must name modules of this source; did you mean straw_man?")


@pytest.mark.parametrize("word", ["stra", "strawx", "starw", "strew", "s_traw", "xstraw"])
def test_a_name_with_one_slip_is_guessed(word: str) -> None:
    assert _is_near(word, "straw")


@pytest.mark.parametrize("word", ["hay", "st", "strawman", "warts", "sxrxw"])
def test_another_name_is_not_guessed(word: str) -> None:
    assert not _is_near(word, "straw")


def test_whatever_comes_out_is_taken_if_no_module_is_named(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "ko hay; mkdir deep; cd deep; ko wood\n")
    result = toolkit.answer(toolkit.request(modules=()))
    assert [module.name for module in result.modules] == ["hay", "wood"]


def test_a_stale_module_of_the_source_does_not_pass_for_a_new_one(toolkit: FakeToolkit) -> None:
    toolkit.vendor("old/straw.ko", "stale")
    toolkit.vendor("vendor.sh", "true\n")
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.NO_MODULE
    assert "removed modules that came with the source: old/straw.ko" in result.notes


def test_a_command_finds_kernel_and_output_in_its_environment(toolkit: FakeToolkit) -> None:
    script = "#!/bin/bash\nR=$NODESIDE_KERNELRELEASE\n"
    script += 'echo "for $R in $NODESIDE_KERNEL_DIR with $NODESIDE_JOBS"\n'
    script += "printf '\\0name=straw\\0' >$NODESIDE_OUTPUT/straw.ko\n"
    toolkit.vendor("build.sh", script, 0o755)
    request = toolkit.request(kind=BuildKind.COMMAND, command=("./build.sh",))
    result = toolkit.answer(request)
    assert result.succeeded, result.message
    headers = toolkit.root / f"usr/src/linux-headers-{KERNEL.release}"
    assert any(f"for {KERNEL.release} in {headers} with " in line for line in result.log_tail)


def test_a_command_has_the_variables_of_a_shell_and_none_of_kbuilds(toolkit: FakeToolkit) -> None:
    toolkit.vendor("deep/file", "")
    request = toolkit.request(
        kind=BuildKind.COMMAND, modules=(), command=("env",), directory="deep"
    )
    result = toolkit.answer(request)
    names = {line.partition("=")[0] for line in result.log_tail}
    assert "NODESIDE_KERNELRELEASE" in names
    assert not names & {"KERNELRELEASE", "KERNEL_DIR", "JOBS", "OUTPUT"}
    assert f"PWD={toolkit.shared.out_dir(request.id)}/build/deep" in result.log_tail


@pytest.mark.parametrize("kind", BuildKind)
def test_uname_names_the_requested_kernel_in_every_build(
    toolkit: FakeToolkit, kind: BuildKind
) -> None:
    conf = "PACKAGE_NAME=straw\nPACKAGE_VERSION=1\nBUILT_MODULE_NAME=straw\n"
    toolkit.vendor("dkms.conf", conf + 'PRE_BUILD=build.sh\necho "conf: $(uname -r)"\n')
    toolkit.vendor("build.sh", '#!/bin/sh\necho "script: $(uname -r)"\n>straw.ko\n', 0o755)
    toolkit.vendor("vendor.sh", 'echo "make: $(uname -r)"\nko straw\n')
    command = ("./build.sh",) if kind is BuildKind.COMMAND else ()
    result = toolkit.answer(toolkit.request(kind=kind, command=command))
    assert result.succeeded, result.message
    said = [line for line in result.log_tail if line.endswith(f": {KERNEL.release}")]
    speakers = {
        BuildKind.KBUILD: ["make"],
        BuildKind.COMMAND: ["script"],
        BuildKind.DKMS: ["conf", "script", "make"],
    }
    assert [line.partition(":")[0] for line in said if not line.startswith("#")] == speakers[kind]
    assert [module.name for module in result.modules] == ["straw"]


def test_uname_stands_before_a_path_of_driver_yaml_too(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", 'echo "$(uname -r) $MINE"; echo "$PATH"; ko straw\n')
    request = toolkit.request(environment={"PATH": f"/opt/vendor:{toolkit.path()}"})
    result = toolkit.answer(request)
    ours = toolkit.shared.out_dir(request.id) / "bin"
    assert f"{ours}:/opt/vendor:{toolkit.path()}" in result.log_tail
    assert any(line.startswith(KERNEL.release) for line in result.log_tail)


def test_patches_apply_before_the_build(toolkit: FakeToolkit) -> None:
    toolkit.vendor(
        "fix.patch", "--- a/vendor.sh\n+++ b/vendor.sh\n@@ -1 +1 @@\n-ko hay\n+ko straw\n"
    )
    toolkit.vendor("vendor.sh", "ko hay\n")
    assert toolkit.answer(toolkit.request(patches=("fix.patch",))).succeeded
    assert (toolkit.source / "vendor.sh").read_text() == "ko hay\n"


def test_a_patch_that_does_not_apply_is_a_fault_of_the_source(toolkit: FakeToolkit) -> None:
    toolkit.vendor("fix.patch", "--- a/vendor.sh\n+++ b/vendor.sh\n@@ -1 +1 @@\n-nothing\n+new\n")
    result = toolkit.answer(toolkit.request(patches=("fix.patch",)))
    assert result.failure is FailureKind.BAD_SOURCE
    assert result.message.startswith("patch failed: exit code 1")


@pytest.mark.parametrize("directory", ["../..", "/etc", "nowhere"])
def test_a_directory_out_of_the_source_is_refused(toolkit: FakeToolkit, directory: str) -> None:
    result = toolkit.answer(toolkit.request(directory=directory))
    assert result.failure is FailureKind.BAD_SOURCE
    assert f"build.directory '{directory}'" in result.message


def test_a_request_of_another_boot_is_not_built(toolkit: FakeToolkit) -> None:
    toolkit.request(boot_id="another", attempt=1)
    mine = toolkit.request(attempt=2)
    with toolkit.sidecar() as sidecar:
        sidecar.result(mine)
    assert not toolkit.shared.result_path(f"{DIGEST[:12]}-1").exists()


def test_a_newer_protocol_is_answered_and_not_guessed_at(toolkit: FakeToolkit) -> None:
    request = replace(toolkit.request(), protocol=99)
    publish(toolkit.shared.request_path(request.id), encode(request) | {"kernel": "new shape"})
    result = toolkit.answer(request)
    assert result.failure is FailureKind.PROTOCOL
    assert "it has protocol 99, ours is 1" in result.message


def test_a_request_that_is_not_understood_is_answered(toolkit: FakeToolkit) -> None:
    request = toolkit.request()
    record = encode(request)
    del record["settings"]
    publish(toolkit.shared.request_path(request.id), record)
    result = toolkit.answer(request)
    assert result.failure is FailureKind.PROTOCOL
    assert "the field 'settings' is missing" in result.message


@pytest.mark.slow
def test_requests_are_answered_one_after_the_other_by_one_sidecar(toolkit: FakeToolkit) -> None:
    with toolkit.sidecar() as sidecar:
        for attempt in (1, 2, 3):
            assert sidecar.result(toolkit.request(attempt=attempt)).succeeded
        record = toolkit.shared.read_sidecar(BOOT_ID)
        assert record is not None
        assert record.pid == sidecar.child.pid
        assert record.toolkit_kernel == KERNEL.release


@pytest.mark.slow
def test_a_withdrawn_request_stops_its_build_and_leaves_nothing(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "echo $$ >$HOME/pid; sleep 1000\n")
    first = toolkit.request(attempt=1)
    out = toolkit.shared.out_dir(first.id)
    with toolkit.sidecar() as sidecar:
        until((out / "pid").exists)
        toolkit.shared.request_path(first.id).unlink()
        until(lambda: not out.exists(), "the output to go")
        toolkit.vendor("vendor.sh", "ko straw\n")
        assert sidecar.result(toolkit.request(attempt=2)).succeeded
    assert not toolkit.shared.result_path(first.id).exists()


@pytest.mark.slow
def test_leftovers_without_a_request_are_removed_at_the_start(toolkit: FakeToolkit) -> None:
    old = f"{DIGEST[:12]}-7"
    (toolkit.shared.out_dir(old) / "build").mkdir(parents=True)
    (toolkit.shared.out_dir(old) / "build").chmod(0o000)
    toolkit.shared.result_path(old).write_text("{}")
    (toolkit.shared.results / ".tmp-1-x.json").write_text("torn")
    with toolkit.sidecar("--once") as sidecar:
        assert sidecar.child.wait(60) == ExitCode.OK
    assert [path.name for path in toolkit.shared.out.iterdir()] == []
    there = sorted(path.name for path in toolkit.shared.results.iterdir())
    assert there == ["sidecar.json", "sidecar.lock", f"symvers-{KERNEL.release}"]


@pytest.mark.slow
def test_sigterm_ends_the_sidecar_and_its_build(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "echo $$ >$HOME/pid; trap '' TERM; sleep 1000\n")
    request = toolkit.request()
    pid = toolkit.shared.out_dir(request.id) / "pid"
    with toolkit.sidecar() as sidecar:
        until(lambda: pid.exists() and pid.read_text())
        assert sidecar.stop(signal.SIGTERM) == ExitCode.OK
        assert not lives(pid.read_text())
        assert "toolkit stopped signal=SIGTERM" in sidecar.output
    assert toolkit.shared.read_result(request.id, BOOT_ID) is None


def test_a_build_that_a_killed_sidecar_left_is_begun_again(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "echo $$ >$HOME/pid; [ -e ../../../go ] || sleep 1000; ko straw\n")
    request = toolkit.request()
    pid = toolkit.shared.out_dir(request.id) / "pid"
    with toolkit.sidecar() as sidecar:
        first = until(lambda: pid.exists() and pid.read_text())
        sidecar.stop(signal.SIGKILL)
    (toolkit.shared.root / "go").touch()
    with toolkit.sidecar() as sidecar:
        result = sidecar.result(request)
    assert result.succeeded
    assert not lives(str(first))
    assert "attempt 2: a process of the previous attempt died" in result.notes


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_the_request_answered(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "echo $PPID >$HOME/pid; sleep 1000\n")
    request = toolkit.request()
    with toolkit.sidecar() as sidecar:
        for number in range(1, 6):
            os.kill(int(worker_of_build(begun=number, out=toolkit.shared.out_dir(request.id))), 9)
        result = sidecar.result(request)
    assert result.failure is FailureKind.INTERNAL
    assert result.message == "the worker process of the build died 5 times"


@pytest.mark.slow
def test_json_lines_carry_the_request_and_the_compilers_words(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "echo hello; ko straw\n")
    request = toolkit.request()
    with toolkit.sidecar("--log-format", "json", "--once") as sidecar:
        sidecar.child.wait(60)
        records = [json.loads(line) for line in sidecar.output.splitlines()]
    said = [r for r in records if r["message"] == "hello"]
    assert said[0]["request"] == request.id
    assert any(r["message"] == "build ended" and r["result"] == "succeeded" for r in records)


def worker_of_build(*, begun: int, out: Path) -> str:
    """The pid that the n-th begin of a build has written down: its make's parent, the worker."""

    def written() -> str:
        if not (out / "pid").exists() or (out / "begun").read_text() != str(begun):
            return ""
        return (out / "pid").read_text().strip()

    return until(written, f"the build to be begun {begun} times")
