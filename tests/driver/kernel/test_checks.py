"""The checks before a load: each refusal in the words that a person reads, and no false ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.kernel.checks import Refusal, check_before_load
from nodeside.driver.kernel.dependencies import depends_notes, doubtful_symbols, in_tree_needs
from nodeside.driver.module.modulefile import ModuleFile, Parameter
from nodeside.driver.module.signature import Certificate, Signature
from nodeside.driver.module.symvers import KernelSymbol
from nodeside.driver.node.exports import RunningExports
from nodeside.driver.node.facts import KernelFacts
from nodeside.spec.model import Module
from nodeside.system.host import Kernel

RELEASE = "6.1.0-56-cloud-amd64"
MAGIC = f"{RELEASE} SMP preempt mod_unload modversions "
FACTS = KernelFacts(
    kernel=Kernel(RELEASE, "#1 SMP Debian 6.1.192-2", "x86_64"),
    vermagic=MAGIC,
    modversions=True,
    loaded=frozenset({"virtio"}),
    available=frozenset({"videodev", "mc"}),
    builtin=frozenset({"crc32c"}),
)
EDU = ModuleFile(
    path=Path("edu.ko"),
    name="edu",
    machine="x86_64",
    vermagic=MAGIC,
    license="GPL",
    modversions=True,
    parameters={
        "debug": Parameter("debug", "int", "how much to say"),
        "irq_mode": Parameter("irq_mode", "charp"),
        "hidden": Parameter("hidden"),
    },
)


def refusals(module: ModuleFile = EDU, facts: KernelFacts = FACTS, **parameters: str) -> list[str]:
    found = check_before_load([module], [Module(module.name, parameters)], facts)
    return [refusal.message for refusal in found]


def test_good_module_is_not_refused() -> None:
    assert check_before_load([EDU], [Module("edu", {"debug": "1"})], FACTS, {}) == ()


def test_module_for_another_machine() -> None:
    assert refusals(replace(EDU, machine="aarch64")) == [
        "edu.ko is for aarch64 (64-bit), this kernel runs on x86_64"
    ]


@pytest.mark.parametrize(("machine", "running"), [("i686", "i586"), ("armv7l", "armv8l")])
def test_members_of_one_family_are_one_machine(machine: str, running: str) -> None:
    facts = replace(FACTS, kernel=replace(FACTS.kernel, architecture=running))

    assert refusals(replace(EDU, machine=machine, elf_class=32), facts) == []


def test_machine_that_nodeside_does_not_know_is_left_to_the_kernel() -> None:
    facts = replace(FACTS, kernel=replace(FACTS.kernel, architecture="parisc64"))

    assert refusals(replace(EDU, machine="elf-machine-15"), facts) == []


# --- vermagic ---------------------------------------------------------------------------------


def test_release_in_vermagic_is_ignored_if_both_sides_have_crcs() -> None:
    assert refusals(replace(EDU, vermagic=MAGIC.replace("-56-", "-55-"))) == []


def test_release_in_vermagic_counts_for_a_kernel_without_crcs() -> None:
    other = "6.1.0-55-cloud-amd64 SMP preempt mod_unload "
    facts = replace(FACTS, vermagic=f"{RELEASE} SMP preempt mod_unload ", modversions=False)

    assert refusals(replace(EDU, vermagic=other, modversions=False), facts) == [
        (
            "edu.ko is for another kernel: its vermagic is "
            "'6.1.0-55-cloud-amd64 SMP preempt mod_unload', the kernel's is "
            "'6.1.0-56-cloud-amd64 SMP preempt mod_unload'"
        )
    ]


def test_other_words_of_vermagic_always_count() -> None:
    assert refusals(replace(EDU, vermagic=MAGIC.replace("preempt", "preempt_rt"))) == [
        (
            "edu.ko is for another kernel: its vermagic is "
            "'6.1.0-56-cloud-amd64 SMP preempt_rt mod_unload modversions', the kernel's is "
            "'6.1.0-56-cloud-amd64 SMP preempt mod_unload modversions'"
        )
    ]


def test_unknown_vermagic_of_the_kernel_still_shows_another_release() -> None:
    facts = replace(FACTS, vermagic="", modversions=False)

    assert refusals(replace(EDU, vermagic="5.10.0 SMP "), facts) == []
    assert refusals(replace(EDU, vermagic="5.10.0 SMP ", modversions=False), facts) == [
        "edu.ko is for another kernel: it was built for 5.10.0, this kernel is 6.1.0-56-cloud-amd64"
    ]


def test_module_without_vermagic() -> None:
    assert refusals(replace(EDU, vermagic="")) == [
        "edu.ko has no vermagic: it was not linked by a kernel build"
    ]


def test_module_without_crcs_for_a_kernel_that_checks_them() -> None:
    assert refusals(replace(EDU, modversions=False)) == [
        "edu.ko has no symbol CRCs, and this kernel checks them"
    ]


# --- names, dependencies, symbols -------------------------------------------------------------


def test_wanted_module_that_is_not_there() -> None:
    assert check_before_load([EDU], [Module("edu"), Module("edu-net")], FACTS) == (
        Refusal(
            "edu_net",
            "name",
            "driver.yaml lists the module edu_net, the bundle has edu",
            "list the modules that the build makes",
        ),
    )


def test_file_that_calls_itself_differently() -> None:
    renamed = replace(EDU, path=Path("edu2.ko"))

    assert [r.message for r in check_before_load([renamed], [Module("edu2")], FACTS)] == [
        "edu2.ko is the module edu, driver.yaml lists edu2"
    ]


def test_dependency_may_be_loaded_in_tree_built_in_or_an_earlier_sibling() -> None:
    library = replace(EDU, path=Path("library.ko"), name="library")
    user = replace(EDU, depends=("virtio", "videodev", "crc32c", "library"))

    assert check_before_load([library, user], [Module("library"), Module("edu")], FACTS) == ()


def test_sibling_whose_symbols_come_too_late() -> None:
    library = replace(EDU, path=Path("library.ko"), name="library", exports={"help": None})
    user = replace(EDU, depends=("library",), imports={"help": None})
    found = check_before_load([user, library], [Module("edu"), Module("library")], FACTS)

    assert [(r.message, r.hint) for r in found] == [
        (
            "edu needs symbols of library, which is loaded after it",
            "modules that need each other cannot be loaded: link them into one",
        )
    ]


def test_later_sibling_that_only_depends_names_is_no_reason_to_refuse() -> None:
    """The kernel looks for symbols, and an earlier sibling has them."""
    provider = replace(EDU, path=Path("provider.ko"), name="provider", exports={"help": None})
    user = replace(EDU, depends=("library",), imports={"help": None})
    library = replace(EDU, path=Path("library.ko"), name="library", imports={"own": None})
    specs = [Module("provider"), Module("edu"), Module("library")]

    assert check_before_load([provider, user, library], specs, FACTS) == ()


def test_what_depends_names_in_vain_is_told() -> None:
    assert depends_notes([replace(EDU, depends=("videodev", "library", "standin"))], FACTS) == (
        (
            "edu was linked beside library, standin (its `depends`), which this node does not "
            "have: the kernel looks only for the symbols"
        ),
    )


MEM2MEM = replace(
    EDU, depends=("videodev", "v4l2_mem2mem"), imports={"v4l2_m2m_init": None, "printk": None}
)
NOWHERE = (
    "edu needs v4l2_mem2mem: neither loaded, nor one of this driver's modules, "
    "nor in /lib/modules/6.1.0-56-cloud-amd64; and nothing else exports v4l2_m2m_init"
)
PRINTK = {"printk": KernelSymbol("printk", 0, "vmlinux", "EXPORT_SYMBOL")}
OF_THE_IMAGE = RunningExports(image=frozenset({"printk"}), complete=True)


def needy(
    symbols: dict[str, KernelSymbol] | None = None,
    running: RunningExports = RunningExports(),  # noqa: B008
    *siblings: ModuleFile,
    exported: dict[str, KernelSymbol] | None = None,
) -> list[str]:
    found = check_before_load(
        [*siblings, MEM2MEM],
        [Module("edu"), *(Module(each.name) for each in siblings)],
        FACTS,
        symbols,
        exported=exported or {},
        running=running,
    )
    return [refusal.message for refusal in found]


def test_dependency_that_is_nowhere_and_whose_symbol_nothing_exports() -> None:
    assert needy(None, OF_THE_IMAGE) == [NOWHERE]
    assert needy(PRINTK) == [
        NOWHERE,
        "edu does not fit this kernel's symbols: v4l2_m2m_init is not exported by this kernel",
    ]


def test_dependency_that_is_nowhere_is_left_to_the_kernel_if_its_symbols_cannot_be_known() -> None:
    """A kernel without CONFIG_KALLSYMS_ALL, on a node without a Module.symvers."""
    assert needy(None, RunningExports()) == []


OF_ANOTHER_PACKAGE = "drivers/media/v4l2-core/v4l2-mem2mem"


def listed(module: str) -> dict[str, KernelSymbol]:
    """A Module.symvers that has the symbol in this module, as that of installed headers does."""
    return {**PRINTK, "v4l2_m2m_init": KernelSymbol("v4l2_m2m_init", 0, module, "EXPORT_SYMBOL")}


@pytest.mark.parametrize("running", [OF_THE_IMAGE, RunningExports()], ids=["complete", "nothing"])
def test_list_of_the_kernel_does_not_stand_for_a_module_whose_package_is_missing(
    running: RunningExports,
) -> None:
    assert needy(listed(OF_ANOTHER_PACKAGE), running) == [NOWHERE]
    others = replace(running, out_of_tree=frozenset({"nvidia"}))
    expected = [NOWHERE] if running.complete else []
    assert needy(listed(OF_ANOTHER_PACKAGE), others) == expected


@pytest.mark.parametrize("module", ["drivers/virtio/virtio", "lib/crc32c", "drivers/media/mc"])
def test_list_of_the_kernel_stands_for_a_module_that_is_here(module: str) -> None:
    """Loaded, built in, or in the tree, of which no list of symbols is known."""
    assert needy(listed(module), RunningExports()) == []


@pytest.mark.parametrize("module", ["vmlinux", "lib/crc32c"])
def test_list_of_the_kernel_stands_for_its_image(module: str) -> None:
    assert needy(listed(module), OF_THE_IMAGE) == []


@pytest.mark.parametrize(
    "running",
    [
        replace(OF_THE_IMAGE, loaded={"v4l2_m2m_init": "nvidia"}),
        replace(OF_THE_IMAGE, in_tree={"v4l2_m2m_init": "v4l2_m2m_core"}),
        replace(OF_THE_IMAGE, image=frozenset({"printk", "v4l2_m2m_init"})),
        replace(OF_THE_IMAGE, unclear=frozenset({"v4l2_m2m_init"})),
    ],
    ids=["a loaded module", "a module of the tree", "the kernel's image", "perhaps a module"],
)
def test_dependency_that_is_nowhere_is_not_missed_if_another_has_its_symbol(
    running: RunningExports,
) -> None:
    assert needy(None, running) == []


def test_symbol_of_a_loaded_module_is_not_missed_in_the_list_of_the_kernel() -> None:
    loaded = RunningExports(
        loaded={"v4l2_m2m_init": "nvidia"}, out_of_tree=frozenset({"nvidia"}), complete=True
    )

    assert needy(PRINTK, loaded) == []


def test_module_of_the_tree_is_not_loaded_for_a_symbol_that_the_kernel_may_have() -> None:
    """The kernel refuses a module that exports what another one does."""
    of_the_tree = replace(OF_THE_IMAGE, in_tree={"v4l2_m2m_init": "v4l2_m2m_core"})
    unclear = replace(of_the_tree, unclear=frozenset({"v4l2_m2m_init"}))
    loaded = replace(of_the_tree, loaded={"v4l2_m2m_init": "mlnx"})

    assert in_tree_needs(MEM2MEM, [MEM2MEM], FACTS, of_the_tree) == ("videodev", "v4l2_m2m_core")
    assert in_tree_needs(MEM2MEM, [MEM2MEM], FACTS, unclear) == ("videodev",)
    assert in_tree_needs(MEM2MEM, [MEM2MEM], FACTS, loaded) == ("videodev",)


def test_module_of_the_tree_is_not_loaded_if_another_has_all_its_symbols() -> None:
    """It is in the tree by the name in `depends`, but a loaded stand-in serves in its place."""
    user = replace(EDU, depends=("mc",), imports={"media_get": None, "media_put": None})
    served = RunningExports(
        loaded={"media_get": "ofed_mc", "media_put": "ofed_mc"},
        in_tree={"media_get": "mc", "media_put": "mc"},
    )
    partly = replace(served, loaded={"media_get": "ofed_mc"})

    assert in_tree_needs(user, [user], FACTS, served) == ()
    assert in_tree_needs(user, [user], FACTS, partly) == ("mc",)
    assert in_tree_needs(user, [user], FACTS, RunningExports()) == ("mc",)
    assert doubtful_symbols([user], FACTS, None, {}) == {"media_get", "media_put"}


def test_dependency_that_is_nowhere_is_not_missed_if_a_sibling_has_its_symbol() -> None:
    provider = replace(
        EDU, path=Path("provider.ko"), name="provider", exports={"v4l2_m2m_init": None}
    )

    assert needy(None, OF_THE_IMAGE, provider) == []
    assert needy(PRINTK, OF_THE_IMAGE, provider) == []


def test_dependency_that_is_nowhere_is_not_missed_if_a_driver_before_this_one_has_its_symbol() -> (
    None
):
    exported = {"v4l2_m2m_init": KernelSymbol("v4l2_m2m_init", 0, "other", "EXPORT_SYMBOL")}

    assert needy(None, OF_THE_IMAGE, exported=exported) == []
    assert needy(PRINTK, OF_THE_IMAGE, exported=exported) == []


REPLACED = replace(EDU, imports={"ib_register": 0x22})
IN_TREE_CRC = {"ib_register": KernelSymbol("ib_register", 0x11, "drivers/ib_core", "EXPORT_SYMBOL")}


def test_crc_of_a_module_that_was_replaced_by_one_of_others_is_left_to_the_kernel() -> None:
    running = RunningExports(
        loaded={"ib_register": "ib_core"}, out_of_tree=frozenset({"ib_core"}), complete=True
    )

    assert check_before_load([REPLACED], [Module("edu")], FACTS, IN_TREE_CRC, running=running) == ()


def test_symbol_that_a_module_of_others_may_export_is_left_to_the_kernel() -> None:
    running = RunningExports(
        unclear=frozenset({"ib_register"}), out_of_tree=frozenset({"ib_core"}), complete=True
    )

    for symbols in (IN_TREE_CRC, PRINTK):
        assert check_before_load([REPLACED], [Module("edu")], FACTS, symbols, running=running) == ()


def test_crc_of_a_loaded_module_of_the_kernel_is_the_one_in_its_list() -> None:
    others = frozenset({"nvidia"})
    running = RunningExports(loaded={"ib_register": "ib_core"}, out_of_tree=others, complete=True)
    found = check_before_load([REPLACED], [Module("edu")], FACTS, IN_TREE_CRC, running=running)

    assert [refusal.message for refusal in found] == [
        (
            "edu does not fit this kernel's symbols: ib_register has CRC 0x00000011 in this "
            "kernel, not 0x00000022"
        )
    ]


@pytest.mark.parametrize(("lax", "count"), [(False, 1), (True, 0), (None, 0)])
def test_missing_import_of_a_namespace_is_refused_if_the_kernel_would(
    lax: bool | None, count: int
) -> None:
    spaced = {"nvme_go": KernelSymbol("nvme_go", 0, "vmlinux", "EXPORT_SYMBOL", "NVME_CORE")}
    user = replace(EDU, imports={"nvme_go": None})
    facts = replace(FACTS, namespaces_lax=lax)

    assert len(check_before_load([user], [Module("edu")], facts, spaced)) == count


def test_symbols_that_differ_are_named_and_the_rest_counted() -> None:
    imports: dict[str, int | None] = {f"symbol_{n}": n for n in range(8)}
    found = check_before_load(
        [replace(EDU, imports=imports)],
        [Module("edu")],
        FACTS,
        {"symbol_0": KernelSymbol("symbol_0", 0xFF, "vmlinux", "EXPORT_SYMBOL")},
    )

    assert len(found) == 1
    assert found[0].check == "symbols"
    assert found[0].message.startswith(
        "edu does not fit this kernel's symbols: symbol_0 has CRC 0x000000ff in this kernel, "
        "not 0x00000000; symbol_1 is not exported by this kernel; "
    )
    assert found[0].message.endswith("; and 3 more")
    assert found[0].hint == f"build it against the headers of {RELEASE}"


def test_nothing_loads_where_modules_are_disabled() -> None:
    assert refusals(facts=replace(FACTS, modules_disabled=True)) == [
        "edu cannot be loaded in this boot: kernel.modules_disabled is 1"
    ]


# --- signatures -------------------------------------------------------------------------------

SIGNED = replace(EDU, signature=Signature("Acme module key", "0badcafe", "sha256"))
CERTIFICATE = Certificate(b"", "Acme module key", "Acme module key", "0badcafe", "5ca1ab1e")
ENFORCED = replace(FACTS, signatures_enforced=True)


def test_unsigned_module_is_refused_where_signatures_are_enforced() -> None:
    assert refusals() == []
    assert refusals(facts=ENFORCED) == [
        "this kernel enforces module signatures (module.sig_enforce); edu.ko is not signed"
    ]


@pytest.mark.parametrize("mode", ["integrity", "confidentiality"])
def test_unsigned_module_is_refused_under_lockdown(mode: str) -> None:
    assert refusals(facts=replace(FACTS, lockdown=mode)) == [
        f"this kernel loads only signed modules (lockdown is {mode}); edu.ko is not signed"
    ]


def test_signer_that_is_not_enrolled_is_named() -> None:
    facts = replace(ENFORCED, enrolled=frozenset({"aaaa"}))
    found = check_before_load([SIGNED], [Module("edu")], facts, certificate=CERTIFICATE)

    assert [refusal.message for refusal in found] == [
        (
            "this kernel enforces module signatures (module.sig_enforce); edu.ko is signed by "
            "Acme module key (key id 0badcafe), which is not enrolled"
        )
    ]


def test_enrolled_signer_is_let_through() -> None:
    facts = replace(ENFORCED, enrolled=frozenset({"5ca1ab1e"}))

    assert check_before_load([SIGNED], [Module("edu")], facts, certificate=CERTIFICATE) == ()


def test_signature_by_key_id_needs_no_certificate() -> None:
    by_id = replace(EDU, signature=Signature("", "5ca1ab1e", "sha256", by_key_id=True))

    assert refusals(by_id, replace(ENFORCED, enrolled=frozenset({"5ca1ab1e"}))) == []
    assert refusals(by_id, replace(ENFORCED, enrolled=frozenset({"aaaa"}))) == [
        (
            "this kernel enforces module signatures (module.sig_enforce); edu.ko is signed by "
            "an unnamed signer (key id 5ca1ab1e), which is not enrolled"
        )
    ]


def test_what_cannot_be_known_of_a_signature_is_left_to_the_kernel() -> None:
    assert refusals(SIGNED, ENFORCED) == []  # the keyrings are not visible
    assert refusals(SIGNED, replace(ENFORCED, enrolled=frozenset({"aaaa"}))) == []


def test_empty_keyrings_trust_nobody() -> None:
    assert len(refusals(SIGNED, replace(ENFORCED, enrolled=frozenset()))) == 1


# --- parameters -------------------------------------------------------------------------------


def test_unknown_parameter_is_refused_with_the_known_ones() -> None:
    found = check_before_load([EDU], [Module("edu", {"debgu": "1"})], FACTS)

    assert found == (
        Refusal(
            "edu",
            "parameters",
            "edu has no parameter 'debgu'",
            "did you mean debug? known parameters: debug, hidden, irq_mode",
        ),
    )


def test_module_without_parameters_says_so() -> None:
    found = check_before_load([replace(EDU, parameters={})], [Module("edu", {"debug": "1"})], FACTS)

    assert found[0].hint == "edu takes no parameters: remove it from driver.yaml"


def test_dashes_in_parameters_dyndbg_and_undescribed_ones_are_allowed() -> None:
    wanted = {"irq-mode": "msi", "dyndbg": "+p", "async_probe": "1", "hidden": "whatever"}

    assert check_before_load([EDU], [Module("edu", wanted)], FACTS) == ()


def test_value_of_the_wrong_type_is_refused_with_the_description() -> None:
    found = check_before_load([EDU], [Module("edu", {"debug": "loud"})], FACTS)

    assert found[0].message == (
        "parameter debug of edu: expected an integer -2147483648 to 2147483647, got 'loud'"
    )
    assert found[0].hint == "debug: how much to say"


@pytest.mark.parametrize("with_kernels_list", [True, False])
def test_the_symbols_of_drivers_before_this_one_have_to_fit(with_kernels_list: bool) -> None:
    exported = {"bend": KernelSymbol("bend", 0xBEEF, "straw", "EXPORT_SYMBOL")}
    kernels = {"printk": KernelSymbol("printk", 1, "vmlinux", "EXPORT_SYMBOL")}
    for crc, expected in ((0xBEEF, []), (0xF00D, ["symbols"])):
        module = replace(EDU, imports={"bend": crc, "printk": 1})
        symbols = kernels if with_kernels_list else None
        found = check_before_load([module], [Module("edu")], FACTS, symbols, exported=exported)
        assert [each.check for each in found] == expected
        assert all("bend has CRC 0x0000beef" in each.message for each in found)
