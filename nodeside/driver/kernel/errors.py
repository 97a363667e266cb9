"""The errors of a load or an unload, explained in actionable words.

The kernel returns one errno and writes the rest to its log; `explain_refusal` combines the two by a
table. Sources of the log lines: kernel/module/main.c and version.c, kernel/params.c,
security/lockdown.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

from nodeside.driver.node.kernel_log import Excerpt, find_splats
from nodeside.errors import ExitCode, NodesideError
from nodeside.text.shortlist import shortlist
from nodeside.values import frozen

LOADING_DISABLED = (  # the hint if kernel.modules_disabled is 1
    "reboot; find who sets it: grep -r modules_disabled /etc/sysctl.d /etc/sysctl.conf"
)
NOT_BLACKLISTED = (  # the hint if the kernel's command line forbids the module
    "remove it from module_blacklist= on the kernel's command line (/proc/cmdline), then reboot"
)
_LINES = 20  # kernel log lines shown in a message
_NAMES = 6  # symbols shown in a message


class LoadFailed(NodesideError):
    """A module that the kernel refused to load. `reason` is one CamelCase word."""

    exit_code = ExitCode.LOAD_FAILED
    reason = "LoadFailed"

    def __init__(
        self,
        module: str,
        explanation: KernelExplanation,
        *,
        errno_name: str = "",
        excerpt: Excerpt | None = None,
        retryable: bool = False,
    ) -> None:
        excerpt = excerpt or Excerpt()
        prefix = f"{errno_name}: " if errno_name else ""
        rows = [f"cannot load {module}: {prefix}{explanation.meaning}"]
        rows += [f"  kernel: {line}" for line in _relevant_lines(excerpt.lines)]
        rows += [f"  ({excerpt.note})"] if excerpt.note else []
        super().__init__("\n".join(rows), hint=explanation.hint, retryable=retryable)
        self.reason = explanation.reason


class CannotUnload(NodesideError):
    """A failed unload. `removed` lists the modules that were unloaded before the failure."""

    removed: tuple[str, ...] = ()


class InUse(CannotUnload):
    """A module that cannot be unloaded because something holds it.

    It is retryable. Until a retry succeeds, the state is reboot-required: see `Journal.failed`.
    """

    exit_code = ExitCode.IN_USE
    reason = "InUse"
    retryable = True


class RebootRequired(CannotUnload):
    """A module that must stay until the next boot: permanent, stuck, or kept by the policy."""

    exit_code = ExitCode.REBOOT_REQUIRED
    reason = "RebootRequired"


class UnloadFailed(CannotUnload):
    """An unload that the kernel refused for a reason unrelated to the module."""

    reason = "UnloadFailed"


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

    Empty `errnos` stand for any errno, an empty `pattern` for any log. `meaning` and `hint` may use
    the groups of the pattern. Of the names that a group matched, up to `_NAMES` are shown.
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
    special = _by_circumstances(module, error, lines, circumstances)
    if special is not None:
        return special
    for rule in _RULES:
        names = _match_rule(rule, error, lines)
        if names is not None:
            meaning = rule.meaning.format(**names, module=module)
            return KernelExplanation(rule.reason, meaning, rule.hint.format(**names, module=module))
    return KernelExplanation(
        "InitRefused",
        f"its init function refused: {os.strerror(error)}",
        "see what the driver says in the kernel log: dmesg | tail",
    )


def errno_name(error: int) -> str:
    """Return an errno as text, such as `ENOEXEC (Exec format error)`."""
    return f"{errno.errorcode.get(error, f'errno {error}')} ({os.strerror(error)})"


def _relevant_lines(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines to show: from the first line of a splat on, or else the last lines."""
    heads = find_splats(lines)
    for number, line in enumerate(lines):
        if heads and line.endswith(heads[0]):
            return lines[number : number + _LINES]
    return lines[-_LINES:]


def _match_rule(rule: _Rule, error: int, lines: Sequence[str]) -> dict[str, str] | None:
    """Return the matched groups of the rule by name; None if the rule does not match."""
    if rule.errnos and error not in rule.errnos:
        return None
    if not rule.pattern:
        return {}
    groups: dict[str, dict[str, None]] = {}
    for line in lines:
        match = re.search(rule.pattern, line)
        for name, value in (match.groupdict() if match else {}).items():
            groups.setdefault(name, {})[value] = None
        if match:
            groups.setdefault("", {})
    if not groups:
        return None
    return {name: shortlist(list(values), _NAMES) for name, values in groups.items() if name}


def _by_circumstances(
    module: str, error: int, lines: Sequence[str], circumstances: Circumstances
) -> KernelExplanation | None:
    """Explain an errno that depends on the node's state, not on the log; None for any other."""
    if error == errno.EPERM and not any("Lockdown:" in line for line in lines):
        return _not_permitted(circumstances)
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


def _not_permitted(circumstances: Circumstances) -> KernelExplanation:
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
