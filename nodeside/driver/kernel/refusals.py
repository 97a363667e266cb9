"""Why the kernel refused a load, in actionable words.

The kernel returns one errno and writes the rest to its log; `explain_refusal` combines the two by a
table. Sources of the log lines: kernel/module/main.c and version.c, kernel/params.c,
kernel/bpf/btf.c, arch/*/kernel/module.c, security/lockdown, security/selinux.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

from nodeside.text.shortlist import shortlist
from nodeside.values import frozen

LOADING_DISABLED = (  # the hint if kernel.modules_disabled is 1
    "reboot; find who sets it: grep -r modules_disabled /etc/sysctl.d /etc/sysctl.conf"
)
NOT_BLACKLISTED = (  # the hint if the kernel's command line forbids the module
    "remove it from module_blacklist= on the kernel's command line (/proc/cmdline), then reboot"
)
_NAMES = 6  # symbols shown in a message


@frozen
class KernelExplanation:
    """Why the kernel refused: a CamelCase word, a clause to follow the errno, and a hint."""

    reason: str
    meaning: str
    hint: str = ""


@frozen
class Circumstances:
    """The state of the node, for cases in which errno and kernel log are ambiguous.

    `may_load`: this process has CAP_SYS_MODULE. `lockdown` is none, integrity or confidentiality.
    `loaded`: a module of that name is in the kernel. `blacklisted`: the kernel's command line
    forbids the module. `log_readable`: the kernel log was read, so a line that is missing from it
    was never logged.
    """

    may_load: bool = True
    modules_disabled: bool = False
    lockdown: str = "none"
    loaded: bool = False
    blacklisted: bool = False
    log_readable: bool = True


@frozen
class _Rule:
    """A row of the table. It matches if the errno is listed and a log line has the pattern.

    Empty `errnos` stand for any errno, an empty `pattern` for any log. `%module%` in a pattern is
    the module's name: others may be loaded at the same time. `meaning` and `hint` may use the
    groups of the pattern. Of the names that a group matched, up to `_NAMES` are shown.
    """

    errnos: tuple[int, ...]
    pattern: str
    reason: str
    meaning: str
    hint: str = ""


_DEVICE = (errno.ENODEV, errno.ENXIO, errno.EIO, errno.ETIMEDOUT, errno.EOPNOTSUPP)
_SIGNED = "sign it with a key this kernel trusts (driver.yaml: signing), and enrol the certificate"
_REBUILD = "build it against the headers of exactly this kernel: nodeside driver build"

_RULES = (
    _Rule(
        (),
        r"`(?P<value>[^']*)' (invalid|too large) for parameter `(?P<name>[^']*)'",
        "InvalidParameter",
        "the value {value} is not valid for the parameter {name}",
        "see the module's parameters: modinfo -p {module}",
    ),
    _Rule(
        (),
        r"version magic '(?P<theirs>[^']*)' should be '(?P<kernel>[^']*)'",
        "VersionMagic",
        "it was built for another kernel: its version magic is '{theirs}', "
        "this kernel's is '{kernel}'",
        _REBUILD,
    ),
    _Rule(
        (),
        r"uses symbol (?P<name>\S+) from namespace (?P<space>\S+), but does not import it",
        "MissingNamespace",
        "it uses {name} of the symbol namespace {space}, which it does not import",
        "add MODULE_IMPORT_NS to the module's source",
    ),
    _Rule(
        (),
        r"failed to validate module \[%module%\] BTF",
        "TypeInformation",
        "its type information (BTF) does not fit that of this kernel: it was built beside another "
        "build of the kernel",
        f"{_REBUILD}; or leave the information out: objcopy --remove-section .BTF {{module}}.ko",
    ),
    _Rule(
        (errno.ENOEXEC, errno.EINVAL),
        r"%module%: no symbol version for (?P<name>\S+)",
        "SymbolVersion",
        "it has no CRC for {name}, and this kernel checks them: it was built with headers that "
        "lack a Module.symvers",
        "build it with headers that have one: the distribution's package, or a kernel tree that "
        "was built as a whole",
    ),
    _Rule(
        (errno.ENOEXEC,),
        r"\.gnu\.linkonce\.this_module section size must match",
        "KernelLayout",
        "its struct module has another size than this kernel's: it was built with the headers of "
        "another configuration of the kernel, under the same release",
        _REBUILD,
    ),
    _Rule(
        (errno.ENOEXEC,),
        r"[Ii]nvalid relocation target, existing value is nonzero",
        "Relocation",
        "its relocations were applied already: a linker or a strip that does not fit this kernel "
        "changed the file after it was compiled",
        "build it with the compiler and the binutils of this kernel, and without strip "
        "(build.environment: {{STRIP: no}})",
    ),
    _Rule(
        (errno.ENOEXEC,),
        r"`%module%' likely not compiled with -mcmodel=kernel",
        "Relocation",
        "it was not compiled with the kernel's own flags (-mcmodel=kernel)",
        "build it with kbuild, or with all of its flags",
    ),
    _Rule(
        (errno.ENOEXEC,),
        r"%module%: module PLT section\(s\) missing",
        "Relocation",
        "it was not linked with the linker script of this kernel (scripts/module.lds)",
        _REBUILD,
    ),
    _Rule(
        (errno.ENOEXEC,),
        r"No module found in object",
        "BadFormat",
        "this is an object file, not a module: kbuild's last step, modpost, did not run on it",
        "build it with kbuild, and name the .ko that it makes",
    ),
    _Rule(
        (),
        r"disagrees about version of symbol (?P<name>\S+)",
        "SymbolVersion",
        "it was built against another kernel or another dependency: the CRC of {name} differs",
        _REBUILD,
    ),
    _Rule(
        (),
        r"Unknown symbol (?P<name>\S+) \(err -22\)",
        "SymbolVersion",
        "{name}, exported by a module it depends on, has another CRC than at build time",
        "build it again, against the dependency that is loaded",
    ),
    _Rule(
        (),
        r"Unknown symbol (?P<name>\S+)",
        "UnknownSymbol",
        "nothing in the kernel exports {name}: a module it depends on is not loaded",
        "list that module before this one in driver.yaml, or see modinfo -F depends {module}",
    ),
    _Rule(
        (),
        r"exports duplicate symbol (?P<name>\S+) \(owned by (?P<owner>\S+)\)",
        "DuplicateSymbol",
        "it exports {name}, which {owner} exports already",
        "list {owner} under conflicts.modules in driver.yaml",
    ),
    _Rule(
        (errno.EPERM,),
        r"Lockdown: .*restricted",
        "Lockdown",
        "the kernel is locked down and loads only modules signed by a key it trusts",
        _SIGNED,
    ),
    _Rule(
        (errno.EKEYREJECTED, errno.ENOKEY),
        "",
        "KeyRejected",
        "this kernel enforces module signatures, and the module is not signed by a key it trusts "
        "(unsigned, changed after signing, or signed by an unknown key)",
        _SIGNED,
    ),
    _Rule(
        (errno.EBADMSG,),
        "",
        "KeyRejected",
        "the signature at the end of the module cannot be read",
        "sign it again: the file was changed or cut after it was signed",
    ),
    _Rule(
        (errno.ENOENT,),
        r"Direct firmware load for (?P<name>\S+) failed",
        "FirmwareMissing",
        "the driver did not find its firmware {name}",
        "put the file below the directory that driver.yaml names under firmware.path",
    ),
    _Rule(
        (errno.EACCES,),
        r"avc: +denied +\{ (?P<what>\w+) \}.* tclass=lockdown",
        "Lockdown",
        "SELinux forbids it by its class lockdown ({what}): unsigned code may not enter the kernel "
        "from this domain",
        f"{_SIGNED}; or allow it in the policy: ausearch -m avc | audit2allow",
    ),
    _Rule(
        (errno.EACCES,),
        "",
        "NoPermission",
        "a security module forbids it, most likely SELinux, because of the file's label",
        "run the container as SELinux type spc_t, or label the file modules_object_t; "
        "see ausearch -m avc",
    ),
    _Rule(
        _DEVICE,
        "",
        "DeviceRefused",
        "the module itself is sound, but its init function refused: the hardware, or its "
        "configuration, is not what the driver expects",
        "read the driver's own kernel log lines, and check that the device is present: lspci -nn",
    ),
    _Rule(
        (errno.ENOMEM,),
        "",
        "OutOfMemory",
        "the kernel, or the module's init function, could not allocate memory",
    ),
    _Rule(
        (errno.ETXTBSY,),
        "",
        "BadFormat",
        "the file is open for writing",
        "find the writer: fuser -v {module}.ko",
    ),
    _Rule(
        (errno.ENOEXEC,),
        "",
        "BadFormat",
        "this is not a module for this kernel: truncated, compressed, or of another architecture",
        "see what it is: file {module}.ko; modinfo {module}.ko",
    ),
    _Rule(
        (errno.ENOENT,),
        "",
        "InitRefused",
        "its init function did not find something that it needs",
        "see what the driver says in the kernel log: dmesg | tail",
    ),
    _Rule(
        (errno.EINVAL,),
        "",
        "InitRefused",
        "its init function refused: a parameter it needs is missing or wrong, or it does not "
        "support this system",
        "see the module's parameters: modinfo -p {module}",
    ),
)

_LOADED_HINT = "see what is loaded: nodeside driver status"


def explain_refusal(
    module: str, error: int, lines: Sequence[str], circumstances: Circumstances
) -> KernelExplanation:
    """Explain a refused load by its errno, the kernel's log lines and the node's state."""
    special = _explain_by_circumstances(module, error, lines, circumstances)
    if special is not None:
        return special
    for rule in _RULES:
        names = _match_rule(rule, module, error, lines)
        if names is not None:
            meaning = rule.meaning.format(**names, module=module)
            return KernelExplanation(rule.reason, meaning, rule.hint.format(**names, module=module))
    return KernelExplanation(
        "InitRefused",
        f"its init function refused: {os.strerror(error)}",
        "see what the driver says in the kernel log: dmesg | tail",
    )


def _match_rule(
    rule: _Rule, module: str, error: int, lines: Sequence[str]
) -> dict[str, str] | None:
    """Return the matched groups of the rule by name; None if the rule does not match."""
    if rule.errnos and error not in rule.errnos:
        return None
    if not rule.pattern:
        return {}
    groups: dict[str, dict[str, None]] = {}
    pattern = rule.pattern.replace("%module%", re.escape(module))
    for line in lines:
        match = re.search(pattern, line)
        for name, value in (match.groupdict() if match else {}).items():
            groups.setdefault(name, {})[value] = None
        if match:
            groups.setdefault("", {})
    if not groups:
        return None
    return {name: shortlist(list(values), _NAMES) for name, values in groups.items() if name}


def _explain_by_circumstances(
    module: str, error: int, lines: Sequence[str], circumstances: Circumstances
) -> KernelExplanation | None:
    """Explain an errno that depends on the node's state, not on the log; None for any other."""
    if error == errno.EPERM and not any("Lockdown:" in line for line in lines):
        return _explain_not_permitted(circumstances)
    if error == errno.ENOENT and not circumstances.log_readable:
        return KernelExplanation(
            "UnknownSymbol",
            "either no loaded module exports a symbol it needs, or its init function did not find "
            "something",
            "see the kernel log: dmesg | tail",
        )
    if error == errno.EEXIST:
        return _explain_exists(module, circumstances)
    if error in (errno.EBUSY, errno.EAGAIN):
        return KernelExplanation(
            "DeviceRefused",
            "its init function needs something that another driver holds",
            "see who has the device: lspci -nnk; or name the other driver under conflicts",
        )
    return None


def _explain_not_permitted(circumstances: Circumstances) -> KernelExplanation:
    if circumstances.modules_disabled:
        return KernelExplanation(
            "ModulesDisabled",
            "kernel.modules_disabled is 1: no module can be loaded until the next boot",
            LOADING_DISABLED,
        )
    if not circumstances.may_load:
        return KernelExplanation(
            "NoPermission",
            "this process lacks the capability SYS_MODULE",
            "run as root, or give the container CAP_SYS_MODULE",
        )
    if circumstances.blacklisted:
        return KernelExplanation(
            "Blacklisted",
            "module_blacklist= on the kernel's command line forbids it",
            NOT_BLACKLISTED,
        )
    if circumstances.lockdown != "none":
        return KernelExplanation(
            "Lockdown", f"the kernel is locked down ({circumstances.lockdown})", _SIGNED
        )
    return KernelExplanation(
        "NoPermission",
        "a security module, or the module's own init function, forbids it",
        "see the kernel log and the audit log: dmesg | tail; ausearch -m avc",
    )


def _explain_exists(module: str, circumstances: Circumstances) -> KernelExplanation:
    if circumstances.loaded:
        return KernelExplanation(
            "Exists", f"a module named {module} is loaded already", _LOADED_HINT
        )
    return KernelExplanation(
        "Exists",
        "its init function tried to register a name that is already taken",
        "see the kernel log for the name; another driver for the same device may have it",
    )
