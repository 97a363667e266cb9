"""The kernel properties that decide whether it accepts a module: the input of `checks`.

`read_facts` reads /proc, /sys and /lib/modules of the host once; `checks` is then a pure decision.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from nodeside.driver.module.modulefile import parse_module
from nodeside.driver.node.command_line import read_command_line
from nodeside.driver.node.intree import built_in_modules
from nodeside.errors import NodesideError
from nodeside.protocol.module_names import name_of_file
from nodeside.system.host import Host, Kernel
from nodeside.values import frozen

_TRIED_FOR_VERMAGIC = 5  # in-tree modules tried before giving up
_DEP_LIMIT = 64 << 20  # bytes of modules.dep; a distribution's has about 1 MiB
_LAX_NAMESPACES = "CONFIG_MODULE_ALLOW_MISSING_NAMESPACE_IMPORTS"
_KEYRING = re.compile(r"\skeyring\s+\.builtin_trusted_keys:")
_KEY = re.compile(r"\sasymmetri\S*\s+.*: ([0-9a-f]{2,}): X509\.")


@frozen
class KernelFacts:
    """The properties of a running kernel that matter to a module.

    `vermagic` comes from an in-tree module, "" if none could be read. `lockdown` is none,
    integrity, confidentiality or "". `loaded`, `available` (modprobe could load them) and `builtin`
    are module names with `_`. `enrolled` are the ids of the certificates in the kernel's keyrings;
    None if they are not visible. `namespaces_lax` is whether a missing import of a symbol namespace
    is only warned of, None if the kernel's configuration cannot be read. `blacklist` are the
    modules that the command line forbids.
    """

    kernel: Kernel
    vermagic: str = ""
    modversions: bool = False
    signatures_enforced: bool = False
    lockdown: str = ""
    loaded: frozenset[str] = frozenset()
    available: frozenset[str] = frozenset()
    builtin: frozenset[str] = frozenset()
    enrolled: frozenset[str] | None = None
    modules_disabled: bool = False
    blacklist: frozenset[str] = frozenset()
    namespaces_lax: bool | None = None


def read_facts(host: Host) -> KernelFacts:
    """Read the facts of a host's running kernel. Unreadable facts keep their default."""
    kernel = host.kernel
    tree = host.lib_modules(kernel.release)
    vermagic = kernel_vermagic(tree)
    proc_keys = _read_text(host.proc / "keys")
    return KernelFacts(
        kernel=kernel,
        vermagic=vermagic,
        modversions="modversions" in vermagic.split(),
        signatures_enforced=_read_text(host.sys_module / "module/parameters/sig_enforce").strip()
        == "Y",
        lockdown=lockdown_mode(_read_text(host.sys / "kernel/security/lockdown")),
        loaded=frozenset(line.split()[0] for line in _read_lines(host.proc / "modules")),
        available=frozenset(name_of_file(path) for path in _tree_modules(tree)),
        builtin=built_in_modules(tree),
        enrolled=enrolled_keys(proc_keys),
        modules_disabled=_read_text(host.proc / "sys/kernel/modules_disabled").strip() == "1",
        blacklist=read_command_line(host).blacklist,
        namespaces_lax=_namespaces_lax(host, tree),
    )


def _namespaces_lax(host: Host, tree: Path) -> bool | None:
    """Return whether the kernel's configuration has the option; None if there is none to read."""
    build = host.resolve_link(tree / "build")
    boot = host.root / "boot" / f"config-{tree.name}"
    for path in (tree / "config", boot, build / ".config", build / "include/config/auto.conf"):
        if text := _read_text(path):
            return f"{_LAX_NAMESPACES}=y" in text.split()
    return None


def kernel_vermagic(lib_modules_dir: Path) -> str:
    """Return a kernel's vermagic, read from one of its in-tree modules; "" if there is none."""
    for path in islice(_in_tree(lib_modules_dir), _TRIED_FOR_VERMAGIC):
        try:
            if vermagic := parse_module(path).vermagic:
                return vermagic
        except NodesideError:
            continue
    return ""


def lockdown_mode(text: str) -> str:
    """Parse `none [integrity] confidentiality` (security/lockdown/lockdown.c); "" if absent."""
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else ""


def enrolled_keys(proc_keys: str) -> frozenset[str] | None:
    """Return the ids of all X.509 certificates in /proc/keys, in lower-case hex; None if hidden.

    The file does not show which keyring a key is in. So a listed id may still not be trusted for
    modules, but an id that is not listed certainly is not. A reader only sees keys that it may view
    (keyrings(7)). If the built-in keyring is not visible, the result is None.
    """
    if not _KEYRING.search(proc_keys):
        return None
    return frozenset(match[1] for match in _KEY.finditer(proc_keys))


def _in_tree(tree: Path) -> Iterator[Path]:
    """Yield modules below kernel/, from modules.dep or by walking; others are out of tree."""
    listed = False
    for relative in _tree_modules(tree):
        if relative.startswith("kernel/"):
            listed = True
            yield tree / relative
    if not listed:
        yield from (path for path in (tree / "kernel").rglob("*.ko*") if path.is_file())


def _tree_modules(tree: Path) -> Iterator[str]:
    """Yield the paths in modules.dep, relative to the tree (modules.dep(5))."""
    for line in _read_lines(tree / "modules.dep"):
        path, colon, _ = line.partition(":")
        if colon:
            yield path


def _read_lines(path: Path) -> Iterator[str]:
    return (line for line in _read_text(path).splitlines() if line.strip())


def _read_text(path: Path) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(_DEP_LIMIT)
    except OSError:
        return ""
