"""Checks before a load: predict and explain what the kernel would refuse.

Pure: takes modules, desired modules and kernel facts, returns refusals. A check refuses only what
it can prove; if a fact is unknown, the kernel decides. Modules that some kernels load only by force
(taint F, with CONFIG_MODULE_FORCE_LOAD) are refused too: nodeside never forces. The checks run in
the kernel's own order (load_module in kernel/module/main.c), so the first refusal is the one that
the kernel would have raised.

The docstring of each check says where the kernel would refuse, too. Three refusals are nodeside's
alone, since the kernel takes these: a module without a build-id, a module with another name than in
driver.yaml, and a parameter of driver.yaml that the module does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from nodeside.driver.kernel.dependencies import absent_dependencies, is_certain, unprovided_symbols
from nodeside.driver.kernel.refusals import LOADING_DISABLED, NOT_BLACKLISTED
from nodeside.driver.module.elf import MACHINES
from nodeside.driver.module.modulefile import ModuleFile
from nodeside.driver.module.parameters import wrong_parameters, wrong_values
from nodeside.driver.module.signature import Certificate
from nodeside.driver.module.symvers import KernelSymbol, compare_symbols
from nodeside.driver.node.exports import NO_EXPORTS_READ, RunningExports
from nodeside.driver.node.facts import KernelFacts
from nodeside.protocol.module_names import kernel_name, name_of_file
from nodeside.spec.model import Module
from nodeside.text.shortlist import shortlist
from nodeside.values import frozen

_LOCKED_DOWN = ("integrity", "confidentiality")
_NAMED_SYMBOLS = 5  # symbols named in one message
_FAMILIES = {"i386": "i686", "i486": "i686", "i586": "i686", "armv6l": "armv7l", "armv8l": "armv7l"}


@frozen
class Refusal:
    """A reason not to load a module. `check` is the stable name of the check that found it."""

    module: str
    check: str
    message: str
    hint: str = ""


def check_before_load(
    modules: Sequence[ModuleFile],
    specs: Sequence[Module],
    facts: KernelFacts,
    symbols: Mapping[str, KernelSymbol] | None = None,
    *,
    exported: Mapping[str, KernelSymbol] = MappingProxyType({}),
    running: RunningExports = NO_EXPORTS_READ,
    certificate: Certificate | None = None,
    boot: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> tuple[Refusal, ...]:
    """Return every reason not to load `modules`, which are in load order. Empty means none.

    `symbols` is the kernel's Module.symvers, if available; `exported` are the symbols of drivers
    that this one comes after; `running` is where the kernel has those that are in doubt (see
    `dependencies.doubtful_symbols`). `certificate` is the one that driver.yaml names; it identifies
    the signer of a module. `boot` has the parameters of each module that only the kernel's command
    line sets.
    """
    one_by_one: tuple[Callable[[ModuleFile, KernelFacts], Iterator[Refusal]], ...] = (
        _check_machine,
        lambda module, facts: _check_signature(module, facts, certificate),
        _check_blacklist,
        _check_vermagic,
    )
    refusals = [*_check_modules_disabled(modules, facts), *_check_names(modules, specs)]
    refusals += [r for module in modules for check in one_by_one for r in check(module, facts)]
    lacking = {
        m.name: unprovided_symbols(m, modules, facts, running, symbols=symbols, exported=exported)
        for m in modules
    }
    refusals += _check_dependencies(modules, facts, lacking)
    if symbols is not None:
        others = {**symbols, **exported}
        refusals += _check_symbols(
            modules,
            facts,
            others,
            lambda symbol: symbol in exported or is_certain(symbol, symbols, running),
        )
    elif exported:
        refusals += _check_symbols(
            [_with_these_imports_only(each, exported) for each in modules], facts, exported
        )
    refusals += _check_parameters(modules, specs, boot)
    return tuple(refusals)


def check_build_ids(modules: Sequence[ModuleFile]) -> Iterator[Refusal]:
    """Check that each module has a build-id. The kernel needs none, but nodeside does.

    Without it, a loaded module cannot be told from another one, and would be loaded anew at every
    look.
    """
    for module in modules:
        if not module.build_id:
            yield Refusal(
                module.name,
                "build-id",
                f"{module.path.name} has no build-id, by which nodeside recognises a loaded module",
                "link it with `ld --build-id`, as kbuild does, and keep its notes when stripping",
            )


def _check_modules_disabled(modules: Sequence[ModuleFile], facts: KernelFacts) -> Iterator[Refusal]:
    """Check kernel.modules_disabled. The kernel refuses: may_init_module(), EPERM."""
    if facts.modules_disabled:
        for module in modules:
            yield Refusal(
                module.name,
                "modules-disabled",
                f"{module.name} cannot be loaded in this boot: kernel.modules_disabled is 1",
                LOADING_DISABLED,
            )


def _check_names(modules: Sequence[ModuleFile], specs: Sequence[Module]) -> Iterator[Refusal]:
    """Check that every desired module is present under the name that the kernel will use.

    The kernel takes any name, but a loaded module could not be found again.
    """
    names = {module.name for module in modules}
    for spec in specs:
        name = kernel_name(spec.name)
        if name in names:
            continue
        renamed = next((m for m in modules if name_of_file(m.path.name) == name), None)
        if renamed is not None:
            message = f"{renamed.path.name} is the module {renamed.name}, driver.yaml lists {name}"
            yield Refusal(name, "name", message, f"write {renamed.name} in driver.yaml")
        else:
            message = (
                f"driver.yaml lists the module {name}, the bundle has {', '.join(sorted(names))}"
            )
            yield Refusal(name, "name", message, "list the modules that the build makes")


def _check_machine(module: ModuleFile, facts: KernelFacts) -> Iterator[Refusal]:
    """Check the architecture. The kernel refuses: elf_check_arch(), ENOEXEC."""
    machine = facts.kernel.architecture
    family = _FAMILIES.get(machine, machine)
    if family in MACHINES and module.machine != family:
        yield Refusal(
            module.name,
            "machine",
            f"{module.path.name} is for {module.machine} ({module.elf_class}-bit), "
            f"this kernel runs on {machine}",
            "build or fetch the module for this architecture",
        )


def _check_blacklist(module: ModuleFile, facts: KernelFacts) -> Iterator[Refusal]:
    """Check module_blacklist=. The kernel refuses: blacklisted() in kernel/module/main.c, EPERM."""
    if module.name in facts.blacklist:
        yield Refusal(
            module.name,
            "blacklist",
            f"{module.name} cannot be loaded in this boot: the kernel's command line has it in "
            "module_blacklist=",
            NOT_BLACKLISTED,
        )


# --- vermagic ---------------------------------------------------------------------------------


def _check_vermagic(module: ModuleFile, facts: KernelFacts) -> Iterator[Refusal]:
    """Mirror same_magic() in kernel/module/version.c, as far as the facts are known.

    Without vermagic or CRCs, the kernel refuses in try_to_force_load() (main.c), ENOEXEC.
    """
    if not module.vermagic:
        message = f"{module.path.name} has no vermagic: it was not linked by a kernel build"
        yield Refusal(module.name, "vermagic", message, "build it with kbuild")
    elif facts.modversions and not module.modversions:
        message = f"{module.path.name} has no symbol CRCs, and this kernel checks them"
        hint = f"build it with the Module.symvers of {facts.kernel.release} in its headers"
        yield Refusal(module.name, "modversions", message, hint)
    elif problem := _vermagic_problem(module, facts):
        yield Refusal(
            module.name,
            "vermagic",
            f"{module.path.name} is for another kernel: {problem}",
            f"build it against the headers of {facts.kernel.release}",
        )


def _vermagic_problem(module: ModuleFile, facts: KernelFacts) -> str:
    has_crcs = module.modversions and facts.modversions
    release, _, words = module.vermagic.partition(" ")
    if not facts.vermagic:
        if module.modversions or release == facts.kernel.release:
            return ""
        return f"it was built for {release}, this kernel is {facts.kernel.release}"
    own_release, _, own_words = facts.vermagic.partition(" ")
    if words.split() == own_words.split() and (has_crcs or release == own_release):
        return ""
    return (
        f"its vermagic is {module.vermagic.strip()!r}, the kernel's is {facts.vermagic.strip()!r}"
    )


# --- signature --------------------------------------------------------------------------------


def _check_signature(
    module: ModuleFile, facts: KernelFacts, certificate: Certificate | None
) -> Iterator[Refusal]:
    """Mirror module_sig_check() in kernel/module/signing.c, as far as the facts are known."""
    why = _enforcement_in_words(facts)
    if not why:
        return
    if module.signature is None:
        yield Refusal(
            module.name,
            "signature",
            f"{why}; {module.path.name} is not signed",
            "set spec.signing in driver.yaml to a key whose certificate is enrolled",
        )
    elif _is_surely_not_enrolled(module, facts, certificate):
        signature = module.signature
        by = signature.signer or "an unnamed signer"
        yield Refusal(
            module.name,
            "signature",
            f"{why}; {module.path.name} is signed by {by} "
            f"(key id {signature.key_id or 'unknown'}), which is not enrolled",
            "enrol its certificate: mokutil --import CERTIFICATE.der, then reboot",
        )


def _enforcement_in_words(facts: KernelFacts) -> str:
    if facts.signatures_enforced:
        return "this kernel enforces module signatures (module.sig_enforce)"
    if facts.lockdown in _LOCKED_DOWN:
        return f"this kernel loads only signed modules (lockdown is {facts.lockdown})"
    return ""


def _is_surely_not_enrolled(
    module: ModuleFile, facts: KernelFacts, certificate: Certificate | None
) -> bool:
    """Return whether it is certain that no trusted keyring has the signer's certificate.

    A signature identifies its certificate by issuer and serial number, /proc/keys by subject key
    id. Only the certificate itself connects the two; without it the kernel has to decide.
    """
    signature = module.signature
    if facts.enrolled is None or signature is None:
        return False
    if not facts.enrolled:
        return True
    if certificate is not None and certificate.has_made(signature):
        return certificate.keyring_id not in facts.enrolled
    return signature.by_key_id and signature.key_id not in facts.enrolled


# --- dependencies, symbols, parameters --------------------------------------------------------


def _check_dependencies(
    modules: Sequence[ModuleFile], facts: KernelFacts, lacking: Mapping[str, Collection[str]]
) -> Iterator[Refusal]:
    """Check that something has the symbols of each module when it is loaded.

    The kernel would refuse it (kernel/module/main.c, resolve_symbol); it does not read `depends`.
    """
    siblings = {module.name for module in modules}
    for number, module in enumerate(modules):
        earlier = {symbol for each in modules[:number] for symbol in each.exports}
        late = [
            each.name
            for each in modules[number + 1 :]
            if any(s in each.exports and s not in earlier for s in module.imports)
        ]
        missing = absent_dependencies(module, facts, siblings)
        if late:
            message = f"{module.name} needs symbols of {', '.join(late)}, which is loaded after it"
            hint = "modules that need each other cannot be loaded: link them into one"
            yield Refusal(module.name, "depends", message, hint)
        if missing and lacking[module.name]:
            yield Refusal(
                module.name,
                "depends",
                f"{module.name} needs {', '.join(missing)}: neither loaded, nor one of this "
                f"driver's modules, nor in /lib/modules/{facts.kernel.release}; and nothing else "
                f"exports {shortlist(lacking[module.name], _NAMED_SYMBOLS)}",
                "install the distribution's extra kernel modules (then depmod -a), or leave "
                f"{module.name} out of spec.modules; a driver of nodeside that exports it goes "
                "into spec.after",
            )


def _check_symbols(
    modules: Sequence[ModuleFile],
    facts: KernelFacts,
    symbols: Mapping[str, KernelSymbol],
    certain: Callable[[str], bool] = lambda _: True,
) -> Iterator[Refusal]:
    """Check symbols. The kernel refuses: resolve_symbol() (main.c), check_version() (version.c)."""
    ours = {symbol for module in modules for symbol in module.exports}
    mismatches = [
        mismatch
        for mismatch in compare_symbols(modules, symbols)
        if mismatch.symbol in ours or certain(mismatch.symbol)
        if not (mismatch.forgivable and facts.namespaces_lax is not False)
    ]
    for name in dict.fromkeys(mismatch.module for mismatch in mismatches):
        own = [f"{m.symbol} {m.why}" for m in mismatches if m.module == name]
        more = f"; and {len(own) - _NAMED_SYMBOLS} more" if len(own) > _NAMED_SYMBOLS else ""
        yield Refusal(
            name,
            "symbols",
            f"{name} does not fit this kernel's symbols: {'; '.join(own[:_NAMED_SYMBOLS])}{more}",
            f"build it against the headers of {facts.kernel.release}",
        )


def _with_these_imports_only(module: ModuleFile, names: Container[str]) -> ModuleFile:
    """Return a module as if it imported these symbols only."""
    imports = {name: crc for name, crc in module.imports.items() if name in names}
    weak = {name: crc for name, crc in module.weak_imports.items() if name in names}
    return replace(module, imports=imports, weak_imports=weak)


def _check_parameters(
    modules: Sequence[ModuleFile],
    specs: Sequence[Module],
    boot: Mapping[str, Mapping[str, str]],
) -> Iterator[Refusal]:
    """Check the values of parameters, and the names of those in driver.yaml.

    The kernel refuses wrong values: parse_args() in kernel/params.c, EINVAL. It ignores an unknown
    name (unknown_module_param_cb), which in driver.yaml is a mistake of this driver's author.
    """
    files = {module.name: module for module in modules}
    for spec in specs:
        name = kernel_name(spec.name)
        if file := files.get(name):
            for message, hint in wrong_parameters(file, spec.parameters).values():
                yield Refusal(file.name, "parameters", message, hint)
            for message, _ in wrong_values(file, boot.get(name, {})).values():
                yield Refusal(
                    file.name,
                    "parameters",
                    f"{message}, on the kernel's command line",
                    "correct it there and reboot, or set the parameter in driver.yaml, which wins",
                )
