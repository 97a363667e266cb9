"""A build in steps, each a process that ends, as the containers of a build Job run them.

The toolkit is one of straw, the store is a directory; the steps are the real commands.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.bundle.archive import pack_bundle, unpack_bundle
from nodeside.driver.bundle.bundle import SIGNATURE
from nodeside.driver.commands.options import first_existing_path
from nodeside.errors import ExitCode
from nodeside.protocol.build_job import BuildOutcome, BuildVerdict, read_outcome
from nodeside.system import process
from nodeside.system.host import Kernel
from tests import yaml_in_c as yaml
from tests.driver.fakes.keys import make_pair
from tests.driver.fakes.node import module_bytes
from tests.driver.fakes.pages import compare
from tests.toolkit_sidecar.faketoolkit import KERNEL, LONG, FakeToolkit

pytestmark = pytest.mark.slow

COMING = Kernel("6.1.0-10-cloud-amd64", "#1 SMP Debian 6.1.38-1 (2023-07-14)", "x86_64")


class Steps:
    """The four steps; the node that runs them has `KERNEL`, they build for `COMING`."""

    def __init__(self, directory: Path) -> None:
        self.toolkit = FakeToolkit(directory)
        self.toolkit.headers(COMING)
        self.shared = self.toolkit.shared
        self.store = directory / "store"
        self.image = directory / "image"
        self.message = directory / "termination-log"
        self.message.touch()
        self.cache = directory / "cache"
        source = self.image / "source"
        source.mkdir(parents=True)
        (source / "Makefile").write_text("obj-m := straw.o\n")
        (source / "straw.bin").write_bytes(module_bytes("straw", release=COMING.release))
        self.vendor("cp straw.bin straw.ko\n")
        document = {
            "apiVersion": "nodeside.io/v1alpha1",
            "kind": "Driver",
            "metadata": {"name": "straw"},
            "spec": {
                "version": "1.0",
                "source": {"path": "source"},
                "modules": [{"name": "straw"}],
                "prebuilt": {"sources": [{"directory": str(self.store)}]},
            },
        }
        (self.image / "driver.yaml").write_text(yaml.safe_dump(document))

    def vendor(self, script: str) -> None:
        (self.image / "source/vendor.sh").write_text(script)

    def in_toolkit(self, verb: str) -> process.Completed:
        argv = [sys.executable, "-m", "nodeside.toolkit_sidecar", verb]
        argv += ["--shared", str(self.shared.root), "--root", str(self.toolkit.root)]
        env = {"PATH": self.toolkit.path()}
        return process.run(argv, timeout=4 * LONG, env=env, check=False)

    def in_driver_image(self, verb: str, *more: str) -> process.Completed:
        argv = [sys.executable, "-m", "nodeside", "driver", verb, "--output", "json"]
        argv += ["--driver", str(self.image), "--host-root", str(self.toolkit.root)]
        argv += ["--shared", str(self.shared.root), "--cache", str(self.cache)]
        argv += ["--outcome-file", str(self.message), *more]
        return process.run(argv, timeout=4 * LONG, check=False)

    def order(self, *more: str) -> dict[str, Any]:
        return documented(self.in_driver_image("order", "--kernel", COMING.release, *more))

    def outcome(self) -> BuildOutcome:
        found = read_outcome(self.message.read_text())
        assert found is not None, self.message.read_text()
        return found


def documented(done: process.Completed) -> dict[str, Any]:
    assert done.exit_code == 0, done.errors
    found: dict[str, Any] = json.loads(done.output)
    return found


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


def test_a_bundle_for_a_kernel_that_runs_nowhere_is_built_and_published(steps: Steps) -> None:
    said = steps.in_toolkit("kernels")
    assert f"{COMING.release}  {COMING.version}" in said.output.splitlines()
    ordered = steps.order()
    assert ordered["kernel"]["version"] == COMING.version
    assert steps.in_toolkit("answer").exit_code == 0

    finished = documented(steps.in_driver_image("finish"))

    assert finished["verdict"] == "published"
    assert [path.name for path in steps.store.glob("*.tar.gz")] == [f"{ordered['tag']}.tar.gz"]
    outcome = steps.outcome()
    assert outcome.verdict is BuildVerdict.PUBLISHED
    assert outcome.kernel == COMING.release
    assert outcome.digest.startswith("sha256:")
    compare("order", ordered)
    compare("finish", finished)


def test_what_the_store_has_is_not_built_again(steps: Steps) -> None:
    for _ in range(2):
        steps.in_toolkit("kernels")
        ordered = steps.order()
        steps.in_toolkit("answer")
        documented(steps.in_driver_image("finish"))

    assert ordered["request"] == ""
    assert steps.outcome().verdict is BuildVerdict.PRESENT
    assert "was already published" in steps.outcome().message


def test_what_the_store_has_is_built_again_and_replaced_when_that_is_ordered(steps: Steps) -> None:
    digests = []
    for more in ((), ("--rebuild",)):
        steps.in_toolkit("kernels")
        ordered = steps.order(*more)
        steps.in_toolkit("answer")
        documented(steps.in_driver_image("finish"))
        digests.append(steps.outcome().digest)
        repaired = (steps.toolkit.bin / "gcc").read_text().replace("12.2.0-14", "12.2.0-15")
        steps.toolkit.tool("gcc", repaired)

    assert ordered["request"]
    assert ordered["rebuild"] is True
    assert steps.outcome().verdict is BuildVerdict.PUBLISHED
    assert len(list(steps.store.glob("*.tar.gz"))) == 1
    assert digests[0] != digests[1]


def test_what_is_built_is_signed_whole_and_an_unsigned_bundle_counts_as_none(
    steps: Steps, tmp_path: Path
) -> None:
    pair = make_pair(tmp_path, "Acme")
    path = steps.image / "driver.yaml"
    document = yaml.safe_load(path.read_text())
    document["spec"]["signing"] = {"key": str(pair.key), "certificate": str(pair.certificate)}
    document["spec"]["prebuilt"]["trust"] = {"certificate": str(pair.certificate)}
    path.write_text(yaml.safe_dump(document))

    def build() -> dict[str, Any]:
        steps.in_toolkit("kernels")
        ordered = steps.order()
        steps.in_toolkit("answer")
        documented(steps.in_driver_image("finish"))
        return ordered

    tag = build()["tag"]
    assert build()["request"] == "", "it is there, and signed"
    archive = steps.store / f"{tag}.tar.gz"
    stripped = unpack_bundle(archive, tmp_path / "stripped", 1 << 20)
    (stripped.directory / SIGNATURE).unlink()
    archive.unlink()
    (steps.store / f"{tag}.tar.gz.sha256").unlink()
    pack_bundle(stripped, archive)

    assert build()["request"] != "", "what nobody would take is not there"
    assert steps.outcome().verdict is BuildVerdict.PUBLISHED
    assert build()["request"] == ""


def test_a_driver_that_does_not_compile_is_refused_with_its_first_error(steps: Steps) -> None:
    steps.vendor("echo 'straw.c:42:7: error: too few arguments'; exit 1\n")
    steps.in_toolkit("kernels")
    steps.order()
    assert steps.in_toolkit("answer").exit_code == 0

    done = steps.in_driver_image("finish")

    assert done.exit_code == ExitCode.BUILD_FAILED
    outcome = steps.outcome()
    assert (outcome.verdict, outcome.reason) == (BuildVerdict.REFUSED, "Compile")
    assert outcome.first_error == "straw.c:42:7: error: too few arguments"
    assert outcome.kernel == COMING.release
    assert not steps.store.exists()


def test_a_store_that_refuses_is_no_fault_of_the_driver(steps: Steps) -> None:
    steps.in_toolkit("kernels")

    done = steps.in_driver_image(
        "order", "--kernel", COMING.release, "--to", "oci+http:127.0.0.1:1/x"
    )

    assert done.exit_code == ExitCode.FETCH
    assert steps.outcome().verdict is BuildVerdict.BROKEN
    assert steps.outcome().kernel == COMING.release


def test_without_publishing_no_store_is_asked_and_the_cache_has_it(steps: Steps) -> None:
    steps.in_toolkit("kernels")
    steps.order("--no-publish")
    steps.in_toolkit("answer")

    assert documented(steps.in_driver_image("finish"))["verdict"] == "built"
    assert not steps.store.exists()
    assert list(steps.cache.glob("straw/1.0-*/modules/straw.ko"))


def test_of_several_credentials_the_first_that_is_there_is_taken(tmp_path: Path) -> None:
    publish, pull = tmp_path / "publish.json", tmp_path / "pull.json"
    both = Path(f"{publish}:{pull}")
    assert first_existing_path(both) is None
    pull.touch()
    assert first_existing_path(both) == pull
    publish.touch()
    assert first_existing_path(both) == publish
    assert first_existing_path(tmp_path / "typo.json") == tmp_path / "typo.json"


def test_a_step_that_comes_too_early_says_which_one_is_missing(steps: Steps) -> None:
    early = steps.in_driver_image("finish")
    assert "nothing was ordered in" in early.errors
    before = steps.in_driver_image("order")
    assert "toolkit.pyz kernels --shared DIR" in before.errors
    steps.in_toolkit("kernels")
    steps.order()
    unanswered = steps.in_driver_image("finish")
    assert "has no answer" in unanswered.errors
    assert steps.outcome().reason == "StepMissing"


def test_a_source_that_changed_since_the_order_is_not_published_under_its_name(
    steps: Steps,
) -> None:
    steps.in_toolkit("kernels")
    steps.order()
    steps.in_toolkit("answer")
    (steps.image / "source/more.c").write_text("")

    assert (
        "was ordered, but driver.yaml and its source now give"
        in steps.in_driver_image("finish").errors
    )


def test_a_toolkit_without_the_kernel_is_named_with_those_it_has(steps: Steps) -> None:
    steps.in_toolkit("kernels")

    done = steps.in_driver_image("order", "--kernel", "6.9.0")

    assert done.exit_code == ExitCode.NO_HEADERS
    assert steps.outcome().message == (
        f"the toolkit image has headers of {COMING.release}, {KERNEL.release}; expected 6.9.0"
    )


def test_a_dry_run_says_what_a_step_would_do_and_leaves_nothing(steps: Steps) -> None:
    steps.in_toolkit("kernels")
    [would] = steps.order("--dry-run")["would"]
    assert would.startswith("ask the toolkit for 1.0-6.1.0-10-cloud-amd64")
    assert steps.shared.request_ids() == ()
    steps.order()
    said = documented(steps.in_driver_image("finish", "--dry-run"))
    assert said["would"] == ["check, sign", f"publish to {steps.store}"]
    path = steps.shared.root / "order.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"to": ""}))
    said = documented(steps.in_driver_image("finish", "--dry-run"))
    assert said["would"] == ["check, sign", "publish nothing"]
    assert not steps.store.exists()
