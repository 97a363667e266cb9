"""The modules of three real kernels, as we and as kmod read them; and the kernel's signing tool.

kmod is started once for each module. So all modules of one kernel are read, and a fixed sample of
the others: another format of modules, another architecture. `make lab-story` reads all.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeside.driver.module.modulefile import ModuleFile, read_module, read_modules
from nodeside.driver.module.signing import sign_module, verify_module
from nodeside.driver.module.symvers import KernelSymbol, compare_symbols, parse_symvers
from nodeside.system.process import run
from nodeside.trial.architecture import ARM64
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.workshop import Workshop
from tests.driver.fakes.keys import SPECIMEN, make_pair
from tests.driver.fakes.kmod import Tools, differences

pytestmark = pytest.mark.toolkit

KERNELS = ("cloud-amd64", "6.12-cloud-amd64")  # the second has .ko.xz modules
FOREIGN = "cloud-arm64"  # its modules are read here, its tools do not run here
SAMPLE = 400  # modules
TOGETHER = 20  # modules that one process reads, as those of a driver
# A kernel, and whether all its modules are read.
CASES = [
    pytest.param((KERNELS[0], True), id=KERNELS[0]),
    *(pytest.param((name, False), id=f"some of {name}") for name in (KERNELS[1], FOREIGN)),
    *(
        pytest.param((name, True), id=name, marks=pytest.mark.long)
        for name in (KERNELS[1], FOREIGN)
    ),
]


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    with Workshop() as workshop:
        yield workshop


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, bool]:
    name, whole = request.param
    return name, whole


@pytest.fixture(scope="module")
def kernel(workshop: Workshop, case: tuple[str, bool]) -> KernelDisk:
    name, _ = case
    if name == FOREIGN:
        with Workshop(architecture=ARM64) as foreign:
            return foreign.kernel(FOREIGN)
    return workshop.kernel(name)


@pytest.fixture(scope="module", params=KERNELS)
def native(workshop: Workshop, request: pytest.FixtureRequest) -> KernelDisk:
    return workshop.kernel(str(request.param))


@pytest.fixture(scope="module")
def tools(workshop: Workshop, kernel: KernelDisk) -> Tools:
    return Tools(workshop.roots.toolkit(kernel.compiler))


@pytest.fixture(scope="module")
def modules(
    kernel: KernelDisk, case: tuple[str, bool], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, ModuleFile]]:
    """In-tree modules, by their path as in Module.symvers, out of the kernel's disk."""
    tree = tmp_path_factory.mktemp("modules") / "kernel"
    request = f"rdump /usr/lib/modules/{kernel.release}/kernel {tree.parent}"
    run(["debugfs", "-R", request, kernel.image], timeout=120)
    found = sorted(tree.rglob("*.ko*"))
    assert len(found) > 900
    _, whole = case
    if not whole:
        found = [found[number * len(found) // SAMPLE] for number in range(SAMPLE)]
    yield {
        str(module.path.relative_to(tree)).partition(".ko")[0]: module
        for start in range(0, len(found), TOGETHER)
        for module in read_modules(found[start : start + TOGETHER])
    }
    shutil.rmtree(tree)


@pytest.fixture(scope="module")
def symbols(kernel: KernelDisk) -> dict[str, KernelSymbol]:
    headers = kernel.tree / "usr/src" / f"linux-headers-{kernel.release}"
    return dict(parse_symvers((headers / "Module.symvers").read_text()))


def test_kmod_reads_modules_as_we_do(modules: dict[str, ModuleFile], tools: Tools) -> None:
    info = tools.modinfo([module.path for module in modules.values()])

    wrong = [
        difference
        for module in modules.values()
        for difference in differences(module, info[module.path], tools.modversions(module.path))
    ]
    assert wrong == []


def test_exports_are_those_of_the_kernels_module_symvers(
    modules: dict[str, ModuleFile], symbols: dict[str, KernelSymbol]
) -> None:
    listed: dict[str, dict[str, int]] = {path: {} for path in modules}
    for symbol in symbols.values():
        if symbol.module in listed:
            listed[symbol.module][symbol.name] = symbol.crc

    assert {path: dict(module.exports) for path, module in modules.items()} == listed


def test_every_module_fits_the_kernel_it_came_with(
    modules: dict[str, ModuleFile], symbols: dict[str, KernelSymbol]
) -> None:
    assert compare_symbols(list(modules.values()), symbols) == ()
    assert [m.path.name for m in modules.values() if compare_symbols([m], symbols)] == []


def test_no_module_of_one_flavour_fits_by_its_layout_alone(
    modules: dict[str, ModuleFile], symbols: dict[str, KernelSymbol]
) -> None:
    changed = {**symbols, "module_layout": symbols["module_layout"]._replace(crc=1)}

    for module in modules.values():
        assert [mismatch.symbol for mismatch in compare_symbols([module], changed)] == [
            "module_layout"
        ]


@pytest.mark.parametrize("hash", ["sha256", "sha512"])
def test_our_signature_is_byte_for_byte_that_of_the_kernels_own_tool(
    native: KernelDisk, workshop: Workshop, tmp_path: Path, hash: str
) -> None:
    tools = Tools(workshop.roots.toolkit(native.compiler))
    tool = next(native.tree.glob("usr/lib/linux-kbuild-*/scripts/sign-file"))
    pair = make_pair(tmp_path, "Acme module key")
    ours, theirs = (Path(shutil.copy(SPECIMEN, tmp_path / name)) for name in ("a.ko", "b.ko"))

    sign_module(ours, pair.key, pair.certificate, hash)
    tools.run(tool, hash, pair.key, pair.certificate, theirs)

    assert ours.read_bytes() == theirs.read_bytes()
    verify_module(theirs, pair.certificate)
    assert (
        differences(read_module(ours), tools.modinfo([ours])[ours], tools.modversions(ours)) == []
    )


def test_signature_by_key_id_of_the_kernels_tool_verifies(
    native: KernelDisk, workshop: Workshop, tmp_path: Path
) -> None:
    tools = Tools(workshop.roots.toolkit(native.compiler))
    tool = next(native.tree.glob("usr/lib/linux-kbuild-*/scripts/sign-file"))
    pair = make_pair(tmp_path, "Acme module key")
    module = Path(shutil.copy(SPECIMEN, tmp_path / "a.ko"))
    tools.run(tool, "-k", "sha256", pair.key, pair.certificate, module)

    signature = read_module(module).signature
    assert signature is not None
    assert signature.by_key_id
    verify_module(module, pair.certificate)
