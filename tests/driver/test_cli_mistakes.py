"""Wrong input, missing rights, other kernels, interruptions: one clear sentence and a hint."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from nodeside.driver.cli import driver
from nodeside.driver.commands.bundles import parse_target
from nodeside.errors import ExitCode
from nodeside.spec.model import PrebuiltSource
from nodeside.system import process
from tests import console
from tests.console import Done, nodeside
from tests.driver.fakes.kernel import write
from tests.driver.fakes.node import FakeNode
from tests.toolkit_sidecar.faketoolkit import until

VERBS = sorted(name for name, command in driver.commands.items() if not command.hidden)
OTHER = "6.0.0-other"


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    made = FakeNode(tmp_path)
    made.write_driver()
    return made


# --- for a kernel that does not run here -----------------------------------------------------


def headers(node: FakeNode, release: str = OTHER, version: str = "#7 SMP other") -> None:
    generated = f"usr/src/linux-headers-{release}/include/generated"
    write(node.root / generated / "utsversion.h", f'#define UTS_VERSION "{version}"\n')
    build = node.host.lib_modules(release) / "build"
    build.parent.mkdir(parents=True, exist_ok=True)
    build.symlink_to(f"/usr/src/linux-headers-{release}")


def test_the_version_of_another_kernel_is_found_in_its_headers_below_the_host_root(
    node: FakeNode,
) -> None:
    headers(node)
    document = node.run("plan", "--kernel", OTHER, "-o", "json").document
    assert document["kernel"]["version"] == "#7 SMP other"


def test_a_kernel_of_which_nothing_is_known_needs_its_version(node: FakeNode) -> None:
    done = node.run("plan", "--kernel", OTHER)
    assert done.code == ExitCode.NO_HEADERS
    assert f"the `uname -v` of kernel {OTHER} is not known" in done.error
    assert "--kernel-version '#1 SMP ...'" in done.error
    assert node.run("plan", "--kernel", OTHER, "--kernel-version", "#1").code == 0


def test_a_version_without_a_kernel_is_a_mistake(node: FakeNode) -> None:
    done = node.run("plan", "--kernel-version", "#1")
    assert done.code == ExitCode.USAGE
    assert "--kernel-version requires --kernel" in done.errors


def test_a_kernel_of_another_architecture_has_a_bundle_of_its_own(node: FakeNode) -> None:
    words = ("plan", "--kernel", OTHER, "--kernel-version", "#1", "-o", "json")
    here = node.run(*words).document
    there = node.run(*words, "--kernel-arch", "s390x").document

    assert there["kernel"]["architecture"] == "s390x"
    assert "-s390x-" in there["tag"]
    assert there["key"] != here["key"]


def test_an_architecture_without_a_kernel_or_that_uname_does_not_report_is_a_mistake(
    node: FakeNode,
) -> None:
    alone = node.run("plan", "--kernel-arch", "aarch64")
    assert alone.code == ExitCode.USAGE
    assert "--kernel-arch requires --kernel" in alone.errors
    wrong = node.run("plan", "--kernel", OTHER, "--kernel-arch", "arm64")
    assert wrong.code == ExitCode.USAGE
    assert "'arm64' is not one of 'x86_64', 'aarch64'" in wrong.errors


def test_what_is_loaded_here_does_not_matter_for_another_kernel(node: FakeNode) -> None:
    node.fill()
    document = node.run("plan", "--kernel", OTHER, "--kernel-version", "#1", "-o", "json").document
    assert document["rungs"][0]["why"] == f"{OTHER} does not run here"
    assert document["would"] == ["fail: no rung is left"]


def test_a_laptop_whose_kernel_has_no_modules_can_plan_for_another_one(node: FakeNode) -> None:
    (node.host.proc / "modules").unlink()
    (node.host.sys / "module").rmdir()
    shared = node.directory / "shared"
    words = ("--kernel", OTHER, "--kernel-version", "#1", "--shared", shared)
    assert node.run("plan", *words, "-o", "json").document["would"] == ["ask the toolkit to build"]
    assert node.run("build", *words, "--dry-run").code == 0
    here = node.run("plan")
    assert here.code == ExitCode.SYSTEM
    assert "this kernel has no loadable modules" in here.error


# --- wrong input -----------------------------------------------------------------------------


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"doctor", "wait"}))
def test_a_missing_driver_yaml_is_said_in_one_sentence(tmp_path: Path, verb: str) -> None:
    more = ["--once"] if verb == "run" else []
    done = nodeside("driver", verb, *more, "-f", tmp_path / "driver.yaml")
    assert done.code == ExitCode.SPEC
    assert str(tmp_path / "driver.yaml") in done.error
    assert "hint: " in done.error
    assert "Traceback" not in done.errors
    assert done.output == ""


def test_a_misspelt_field_is_named_with_the_right_one(node: FakeNode) -> None:
    text = node.driver_file.read_text().replace("version:", "versoin:")
    node.driver_file.write_text(text)
    done = node.run("plan")
    assert done.code == ExitCode.SPEC
    assert "versoin" in done.error
    assert "version" in done.error


def test_a_source_that_is_not_there_is_named(node: FakeNode) -> None:
    node.write_driver(source={"path": "elsewhere"})
    done = node.run("plan")
    assert done.code == ExitCode.SPEC
    assert f"the source {node.image / 'elsewhere'} is not a directory" in done.error
    assert "spec.source.path is relative to driver.yaml" in done.error


def test_build_without_any_toolkit_says_which_two_there_are(node: FakeNode) -> None:
    done = node.run("build")
    assert done.code == ExitCode.USAGE
    assert "no toolkit to build with" in done.error
    assert "--local" in done.error


def test_a_shared_directory_that_is_not_there_is_not_made(node: FakeNode, tmp_path: Path) -> None:
    done = node.run("build", "--shared", tmp_path / "typo")
    assert done.code == ExitCode.USAGE
    assert f"{tmp_path / 'typo'} does not exist" in done.error
    assert not (tmp_path / "typo").exists()


def test_build_needs_no_toolkit_for_what_the_cache_has(node: FakeNode) -> None:
    node.put_bundle(node.task())
    assert node.run("build").code == 0


def test_fetch_without_a_source_and_from_an_empty_one(node: FakeNode, tmp_path: Path) -> None:
    assert node.run("fetch").code == ExitCode.SPEC
    (tmp_path / "store").mkdir()
    node.write_driver(prebuilt={"sources": [{"directory": str(tmp_path / "store")}]})
    done = node.run("fetch")
    assert done.code == ExitCode.FETCH
    assert f"no source delivered {node.task().tag}" in done.error
    assert "hint: build it: nodeside driver build" in done.error


@pytest.mark.parametrize(
    ("to", "words", "spelling"),
    [
        ("registry.example.com/x", "looks like a repository", "--to oci:registry.example.com/x"),
        ("localhost/x", "looks like a repository", "--to ./localhost/x for a directory"),
        ("localhost:5000/x", "looks like a repository", "oci+http: for plain HTTP"),
        ("registry:5000/team/x", "looks like a repository", "--to oci:registry:5000/team/x"),
        ("s3://bucket/x", "s3:// is not supported", "--to oci:REPOSITORY"),
        ("https://files.example.com/x", "an HTTP directory is read-only", "OCI registry"),
    ],
)
def test_publish_to_what_is_meant_for_a_registry_writes_no_directory(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, to: str, words: str, spelling: str
) -> None:
    here = node.directory / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    node.put_bundle(node.task())
    done = node.run("publish", "--to", to)
    assert done.code in (ExitCode.USAGE, ExitCode.FETCH)
    assert words in done.errors
    assert spelling in done.errors
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("to", "source"),
    [
        ("oci:r.example.com/x", PrebuiltSource(oci="r.example.com/x")),
        ("oci://r.example.com/x", PrebuiltSource(oci="r.example.com/x")),
        ("docker://r.example.com/x", PrebuiltSource(oci="r.example.com/x")),
        ("oci+http://r.example.com/x", PrebuiltSource(oci="r.example.com/x", insecure=True)),
        ("./r.example.com/x", PrebuiltSource(directory="./r.example.com/x")),
        ("../store/x", PrebuiltSource(directory="../store/x")),
        ("/srv/r.example.com/x", PrebuiltSource(directory="/srv/r.example.com/x")),
        ("there.d/x", PrebuiltSource(directory="there.d/x")),
        ("store/1.0", PrebuiltSource(directory="store/1.0")),
        ("store.d", PrebuiltSource(directory="store.d")),
    ],
)
def test_every_spelling_of_a_target_is_understood(
    to: str, source: PrebuiltSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there.d").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_target(to) == source


def test_publish_judges_its_target_before_it_asks_for_a_bundle(node: FakeNode) -> None:
    """Else a typing error shows only after a build of half an hour."""
    node.write_driver()
    done = node.run("publish", "--to", "ftp://example.com/x")
    assert done.code == ExitCode.USAGE
    assert "cannot publish to 'ftp://example.com/x'" in done.errors


def test_publish_without_a_bundle_says_how_to_make_one(node: FakeNode, tmp_path: Path) -> None:
    done = node.run("publish", "--to", tmp_path)
    assert done.code == ExitCode.FETCH
    assert f"hint: nodeside driver build -f {node.driver_file}" in done.error


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["load", "run", "unload", "fetch"])
def test_who_may_not_write_to_the_node_is_told_what_to_do(
    node: FakeNode, tmp_path: Path, verb: str
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    node.write_driver(prebuilt={"sources": [{"directory": str(store)}]})
    node.root.chmod(0o555)
    more = ["--once"] if verb == "run" else []
    done = without_capabilities(*node.command(verb, *more))
    assert done.code == ExitCode.SYSTEM, done.errors
    said = done.output + done.errors
    assert f"Permission denied: {node.root}/" in said
    assert "run as root, or check the permissions: ls -ld " in said
    assert "Traceback" not in said


def without_capabilities(*argv: str | Path) -> Done:
    """As a process for which the permissions of files count, also where root runs the tests."""
    words = [sys.executable, "-m", "nodeside", *map(str, argv)]
    if os.geteuid() == 0:
        words = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", *words]
    done = process.run(words, timeout=console.LONG, check=False)
    return Done(done.exit_code, done.output, done.errors)


def test_a_kernel_without_a_proc_is_said_with_what_a_pod_lacks(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.write_driver()
    (node.host.proc / "sys/kernel/random/boot_id").unlink()
    done = node.run("plan")
    assert done.code == ExitCode.SYSTEM
    assert "mount the host's /proc at /host/proc" in done.error


# --- env -------------------------------------------------------------------------------------


def test_env_can_be_sourced_and_says_the_facts(node: FakeNode) -> None:
    quoted = node.directory / "it's here; $(false)"
    node.image.rename(quoted)
    node.image = quoted
    done = node.run("env")
    assert done.code == 0
    script = f'{done.output}\nprintf "%s|%s|%s" "$DRIVER_NAME" "$BUNDLE_TAG" "$NODESIDE_DRIVER"'
    said = process.run(["sh", "-eu", "-c", script], timeout=console.LONG).output
    assert said == f"straw|{node.task().tag}|{node.driver_file}"


def test_env_shows_no_secret_of_its_own_environment(node: FakeNode, tmp_path: Path) -> None:
    credentials = write(tmp_path / "config.json", '{"auths": {"r": {"auth": "c2VjcmV0"}}}')
    words = node.command("env", "--credentials-file", credentials)
    done = nodeside(*words, env={"HTTPS_PROXY": "http://u:hunter2@proxy", "TOKEN": "hunter2"})
    assert "hunter2" not in done.output
    assert "c2VjcmV0" not in done.output


def test_no_secret_is_in_the_log(node: FakeNode, tmp_path: Path) -> None:
    credentials = write(
        tmp_path / "config.json", '{"auths": {"127.0.0.1:1": {"auth": "dTpzZWNyZXQ="}}}'
    )
    node.write_driver(
        prebuilt={"sources": [{"oci": "127.0.0.1:1/straw", "insecure": True}], "timeoutSeconds": 2}
    )
    done = node.run("fetch", "--verbose", "--credentials-file", credentials)
    assert done.code == ExitCode.FETCH
    for secret in ("dTpzZWNyZXQ=", "u:secret"):
        assert secret not in done.errors + done.output


# --- interruptions ---------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_is_130_and_no_traceback(node: FakeNode) -> None:
    """A check that takes long, and a person who does not wait for it."""
    node.fill()
    node.write_driver(
        validate={"commands": [{"command": ["sleep", "60"], "timeoutSeconds": 60}]},
    )
    with console.running(*node.command("validate", "--verbose")) as child:
        assert child.stderr is not None
        assert any(b"validate: started" in line for line in child.stderr)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=console.LONG)
    assert child.returncode == ExitCode.INTERRUPTED
    assert errors.endswith(b"interrupted\n")
    assert b"Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_local_build_that_is_ended_leaves_nothing_running(
    node: FakeNode, tmp_path: Path, number: signal.Signals
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = node.command("build", "--local")
    before = sidecars()
    with pytest.MonkeyPatch().context() as patch:
        patch.setenv("TMPDIR", str(scratch))
        with console.running(*words) as child:
            assert child.stderr is not None
            assert any(b"sidecar is there" in line for line in child.stderr)
            child.send_signal(number)
            child.communicate(timeout=console.LONG)
    until(lambda: sidecars() <= before, "the end of the sidecar")
    if number != signal.SIGKILL:
        assert child.returncode == 128 + number
        assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_a_local_build_without_headers_says_so(node: FakeNode) -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
    write(node.root / "proc/sys/kernel/random/boot_id", boot_id)
    done = console.run(*node.command("build", "--local"))
    assert done.code == ExitCode.NO_HEADERS, done.errors
    assert "the node runs 6.1.0-test" in done.errors


def sidecars() -> set[psutil.Process]:
    """Processes that are a sidecar."""
    found = psutil.process_iter(["cmdline"])
    return {each for each in found if "nodeside.toolkit_sidecar" in (each.info["cmdline"] or ())}
