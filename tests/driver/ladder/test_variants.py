"""Which variant of a build a kernel gets, and what becomes of it in a real toolkit."""

from __future__ import annotations

import difflib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.ladder import variants
from nodeside.driver.ladder.variants import build_for, fits_kernels
from nodeside.errors import SystemRefused
from nodeside.protocol.bundle_key import BuildKind
from nodeside.spec.model import Build, Kernels, Variant
from nodeside.system.host import Kernel
from nodeside.trial.workshop import Workshop
from tests import yaml_in_c as yaml
from tests.driver.fakes.node import FakeNode
from tests.tries import sampled
from tests.vm.hostbuilds import HostBuilds

EDU = Path("examples/edu")
RHEL = "5.14.0-427.13.1.el9_4.x86_64"
UBUNTU = "6.8.0-45-generic"
ODD = "next-20260101"


@pytest.mark.parametrize(
    ("when", "fitting"),
    sampled(
        [
            (Kernels(kernel=r"\.el9_4\."), {RHEL}),
            (Kernels(kernel="^6[.]8"), {UBUNTU}),
            (Kernels(kernel="el9_5"), set()),
            (Kernels(at_least="5.14"), {RHEL, UBUNTU}),
            (Kernels(at_least="5.14.0"), {RHEL, UBUNTU}),
            (Kernels(at_least="5.14.1"), {UBUNTU}),
            (Kernels(at_least="5.9"), {RHEL, UBUNTU}),
            (Kernels(at_least="6.10"), set()),
            (Kernels(below="6.10"), {RHEL, UBUNTU, ODD}),
            (Kernels(below="6.8"), {RHEL, ODD}),
            (Kernels(below="6.8.1"), {RHEL, UBUNTU, ODD}),
            (Kernels(at_least="5.0", below="6.0"), {RHEL}),
            (Kernels(kernel="generic", below="6.0"), set()),
        ],
        4,
    ),
)
def test_a_kernel_fits_by_release_and_by_version(when: Kernels, fitting: set[str]) -> None:
    assert {release for release in (RHEL, UBUNTU, ODD) if fits_kernels(when, release)} == fitting


def test_the_first_variant_that_fits_replaces_what_it_has() -> None:
    build = Build(
        kind=BuildKind.KBUILD,
        directory="src",
        patches=("all.patch",),
        make_arguments=("V=1",),
        environment={"A": "1"},
        timeout_seconds=7,
        variants=(
            Variant(Kernels(kernel="el9_4"), patches=(), environment={"B": "2"}),
            Variant(Kernels(below="6.9"), directory="old", kind=BuildKind.DKMS),
        ),
    )

    rhel, rhel_name = build_for(build, RHEL)
    ubuntu, ubuntu_name = build_for(build, UBUNTU)

    assert (rhel_name, ubuntu_name) == ("build.variants[0]", "build.variants[1]")
    assert (rhel.patches, rhel.environment, rhel.directory) == ((), {"B": "2"}, "src")
    assert (ubuntu.patches, ubuntu.directory) == (("all.patch",), "old")
    assert ubuntu.kind is BuildKind.DKMS
    assert rhel.timeout_seconds == ubuntu.timeout_seconds == 7
    assert build_for(build, "6.12.1") == (build, "")


def test_a_variant_changes_the_key_of_the_kernels_that_it_is_for(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    kernels = [Kernel(release, "#1 SMP", "x86_64") for release in (RHEL, UBUNTU)]
    before = [node.task(kernel) for kernel in kernels]
    variant = {"when": {"kernel": "generic"}, "makeArguments": ["NEW=1"]}

    rhel, ubuntu = (node.task(kernel, build={"variants": [variant]}) for kernel in kernels)

    assert (rhel.key, rhel.variant) == (before[0].key, "")
    assert ubuntu.key != before[1].key
    assert (ubuntu.variant, ubuntu.settings.make_arguments) == ("build.variants[0]", ("NEW=1",))
    alike = node.task(kernels[1], build={"makeArguments": ["NEW=1"]})
    assert alike.key == ubuntu.key, "what is built in the same way is the same"


def test_an_expression_is_searched_for_once_and_a_slow_moment_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def search(expression: str, release: str) -> tuple[bool, ...]:
        asked.append(expression)
        if len(asked) == 1:
            raise SystemRefused("the regular expression did not finish within 5 s")
        return (True,)

    monkeypatch.setattr(variants, "search_texts", search)
    build = Build(variants=(Variant(Kernels(kernel="once"), directory="a"),))

    with pytest.raises(
        SystemRefused, match=r"^build\.variants\[0\]\.when\.kernel: the reg"
    ) as caught:
        build_for(build, RHEL)
    assert caught.value.retryable
    assert [build_for(build, RHEL)[1] for _ in range(3)] == ["build.variants[0]"] * 3
    assert len(asked) == 2


@pytest.mark.toolkit
def test_one_source_is_patched_for_one_kernel_and_not_for_another(tmp_path: Path) -> None:
    """Debian's kernels, their headers and compilers; `patch`, make and gcc of the toolkit."""
    tmp_path.chmod(0o755)
    example = tmp_path / "edu"
    shutil.copytree(EDU, example)
    source = example / "src" / "edu.c"
    plain, said = "Driver for the educational PCI device of QEMU", "It was patched"
    lines = source.read_text().splitlines(keepends=True)
    patched = [line.replace(plain, said) for line in lines]
    patch = difflib.unified_diff(lines, patched, "a/edu.c", "b/edu.c")
    (example / "src" / "cloud.patch").write_text("".join(patch))
    document: dict[str, Any] = yaml.safe_load((example / "driver.yaml").read_text())
    variants = [
        {"when": {"below": "4.0"}, "directory": "none"},
        {"when": {"kernel": "-cloud-"}, "patches": ["cloud.patch"]},
        {"when": {"atLeast": "4.0"}, "environment": {"ANY": "1"}},
    ]
    document["spec"]["build"]["variants"] = variants
    (example / "driver.yaml").write_text(json.dumps(document))

    with Workshop() as workshop, HostBuilds(workshop, tmp_path / "builds") as builds:
        cloud, generic = (
            builds(example, workshop.kernel(f"{each}amd64")) for each in ("cloud-", "")
        )

    for bundle, there, gone in ((cloud, said, plain), (generic, plain, said)):
        module = bundle.module_path("edu").read_bytes()
        assert there.encode() in module
        assert gone.encode() not in module
    assert cloud.manifest.settings.patches == ("cloud.patch",)
    assert generic.manifest.settings.environment == {"ANY": "1"}
