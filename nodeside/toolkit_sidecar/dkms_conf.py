"""Evaluates a dkms.conf, which is a bash program, with bash and in the way that dkms does.

The program may compute its values, read the kernel's configuration, print, fail, or never end. Like
all vendor code, it is confined. Only data is read back: variable, index, value.

How dkms 3 evaluates it (`safe_source` and `read_conf`): dkms sources the file in a subshell
with $kernelver, $arch, $kernel_source_dir and similar set as shell variables that are not exported.
It prints the values of known variables with white space folded, and expands each one again as a
string in double quotes. Quotes in a value are therefore lost (`--host=""` becomes `--host=`).
Quotes around white space, on which dkms itself fails, are kept. White space before the value of
MAKE becomes one blank, as in dkms, for which ` make` does not begin with make. A file that exits
the shell yields no values at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from nodeside.protocol.build_records import FailureKind
from nodeside.system.files import UntrustedFile, open_untrusted
from nodeside.toolkit_sidecar.buildlog import BuildLog
from nodeside.toolkit_sidecar.confinement import BuildWatch, Step, run_confined
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.headers import Headers
from nodeside.values import frozen

VARIABLES = (
    *("PACKAGE_NAME", "PACKAGE_VERSION", "BUILT_MODULE_NAME", "BUILT_MODULE_LOCATION"),
    *("DEST_MODULE_NAME", "DEST_MODULE_LOCATION", "STRIP", "MAKE", "MAKE_MATCH", "CLEAN"),
    *("PATCH", "PATCH_MATCH", "PRE_BUILD", "POST_BUILD", "BUILD_DEPENDS"),
    *("BUILD_EXCLUSIVE_KERNEL", "BUILD_EXCLUSIVE_KERNEL_MIN", "BUILD_EXCLUSIVE_KERNEL_MAX"),
    *("BUILD_EXCLUSIVE_ARCH", "BUILD_EXCLUSIVE_CONFIG", "AUTOINSTALL", "NO_WEAK_MODULES"),
    *("OBSOLETE_BY", "POST_ADD", "PRE_INSTALL", "POST_INSTALL", "POST_REMOVE", "REMAKE_INITRD"),
    *("MODULES_CONF", "MODULES_CONF_OBSOLETES", "MODULES_CONF_ALIAS_TYPE"),
    *("MODULES_CONF_OBSOLETE_ONLY", "SIGN_FILE", "MOK_SIGNING_KEY", "MOK_CERTIFICATE"),
)
# Variables whose values are extended regular expressions (regex(7)), which bash matches.
_KERNEL_PATTERNS = ("MAKE_MATCH", "PATCH_MATCH", "BUILD_EXCLUSIVE_KERNEL")
_ARCH_PATTERNS = ("BUILD_EXCLUSIVE_ARCH",)

_DUMP_LIMIT = 1 << 20  # bytes of all values together
_END = "nodeside-end"

# Arguments: dkms.conf, dump file, then name=value for the shell variables that dkms sets.
# The file is read twice, because $module and $module_version come from the first reading. The
# second reading is not in ( ): in a subshell, bash takes the last program of a file that ends in
# `a && b` for its last command and execs it without a fork (execute_cmd.c, should_suppress_fork).
_EVALUATE = r"""
_ns_conf=$1 _ns_dump=$2; shift 2
for _ns_word in "$@"; do declare "$_ns_word"; done
read_conf() { . "$_ns_conf" </dev/null; }
_ns_value() {
    local _ns_text=${1%$'\r'} _ns_parts
    IFS=$' \t\n' builtin read -r -d '' -a _ns_parts <<<"$_ns_text"
    _ns_text="${_ns_parts[*]}"
    [[ $_ns_name = MAKE && $_ns_text && $1 = [[:space:]]* ]] && _ns_text=" $_ns_text"
    local _ns_once='^([^"\\]|\\.)*("[A-Za-z0-9_./,:=+@%${}-]*"([^"\\]|\\.)*)*$'
    case $_ns_text in *['$`\"']*)
        if [[ $_ns_text =~ $_ns_once ]]; then
            builtin eval "_ns_text=\"$_ns_text\"" 2>/dev/null
        fi ;;
    esac
    builtin printf -v _ns_result %s "$_ns_text"
}
_ns_print() {
    local _ns_name _ns_i _ns_result IFS=' '
    for _ns_name in $_ns_names; do
        declare -n _ns_ref=$_ns_name
        for _ns_i in "${!_ns_ref[@]}"; do
            _ns_value "${_ns_ref[$_ns_i]}"
            builtin printf '%s\0%s\0%s\0' "$_ns_name" "$_ns_i" "$_ns_result"
            case " $_ns_kernel_patterns " in *" $_ns_name "*)
                [[ $kernelver =~ $_ns_result ]] &&
                    builtin printf '%s\0%s\0%s\0' "$_ns_name:matches" "$_ns_i" yes ;;
            esac
            case " $_ns_arch_patterns " in *" $_ns_name "*)
                [[ $arch =~ $_ns_result ]] &&
                    builtin printf '%s\0%s\0%s\0' "$_ns_name:matches" "$_ns_i" yes ;;
            esac
        done
        declare +n _ns_ref
    done 2>/dev/null
    builtin printf '%s\0\0\0' "$_ns_end"
}
_ns_again=$(
    exec 3>&1 >&2
    read_conf >/dev/null 2>&1
    builtin printf '%s %s' "$PACKAGE_NAME" "$PACKAGE_VERSION" >&3
)
module=${_ns_again%% *} module_version=${_ns_again#* }
read_conf
set +eufvx
_ns_print >"$_ns_dump"
"""


@frozen
class Values:
    """The variables of a dkms.conf, by name: each maps indices, in order, to values."""

    by_name: Mapping[str, Mapping[int, str]]

    def __getitem__(self, name: str) -> Mapping[int, str]:
        return self.by_name.get(name, {})

    def first(self, name: str) -> str:
        """Return the value of a plain variable, which bash keeps at index 0."""
        return self[name].get(0, "")

    def matches(self, name: str, index: int) -> bool:
        """Return whether the kernel, or the architecture, matches the pattern at this index."""
        return index in self[f"{name}:matches"]


def evaluation_step(
    conf: Path, dump: Path, shell: Mapping[str, str], env: Mapping[str, str]
) -> Step:
    """Return the step that evaluates `conf` and writes its values to `dump`."""
    our_variables = {
        "_ns_names": " ".join(VARIABLES),
        "_ns_kernel_patterns": " ".join(_KERNEL_PATTERNS),
        "_ns_arch_patterns": " ".join(_ARCH_PATTERNS),
        "_ns_end": _END,
    }
    assignments = [f"{name}={value}" for name, value in {**shell, **our_variables}.items()]
    bash = ("bash", "--noprofile", "--norc", "-c", _EVALUATE, "dkms", str(conf), str(dump))
    return Step("dkms.conf", (*bash, *assignments), conf.parent, env)


def evaluate_conf(
    conf: Path,
    *,
    dump: Path,
    shell: Mapping[str, str],
    env: Mapping[str, str],
    mark: str,
    log: BuildLog,
    watch: BuildWatch,
) -> Values:
    """Run a dkms.conf and return its values. Raises BuildFailed: bad-source, or timeout."""
    if not conf.is_file():
        raise BuildFailed(
            FailureKind.BAD_SOURCE,
            "build.kind is dkms, but there is no dkms.conf in the directory of the build",
            hint="set build.directory in driver.yaml to the directory that has it",
        )
    step = evaluation_step(conf, dump, shell, env)
    code = run_confined(step, mark=mark, log=log, watch=watch)
    try:
        with open_untrusted(dump, limit=_DUMP_LIMIT) as file:
            values = parse_dump(file.read(_DUMP_LIMIT))
    except (FileNotFoundError, UntrustedFile):
        values = None
    if values is None:
        raise BuildFailed(
            FailureKind.BAD_SOURCE,
            f"dkms.conf ended the shell that read it (exit code {code}), so it has no values",
            hint=f"bash -n {conf}, and look for `exit` in it; its output is in build.log",
            step_exit_code=code,
        )
    return values


def parse_dump(data: bytes) -> Values | None:
    """Return the values in a dump; None if the dump is incomplete."""
    words = data.decode(errors="replace").split("\0")
    if words[-4:-1] != [_END, "", ""]:
        return None
    variables: dict[str, dict[int, str]] = {}
    for start in range(0, len(words) - 4, 3):
        name, index, value = words[start : start + 3]
        if index.isascii() and index.isdigit() and len(index) < 7:
            variables.setdefault(name, {})[int(index)] = value
    return Values({name: dict(sorted(values.items())) for name, values in variables.items()})


def shell_variables(
    headers: Headers, release: str, arch: str, *, tree: Path, jobs: int
) -> dict[str, str]:
    """Return the shell variables that dkms sets for a dkms.conf; none of them is exported."""
    return {
        "kernelver": release,
        "arch": arch,
        "kernel_source_dir": str(headers.directory),
        "kernel_config": str(headers.config_file),
        "dkms_tree": str(tree),
        "source_tree": "/usr/src",
        "install_tree": "/lib/modules",
        "tmp_location": os.fspath(tree.parent / "tmp"),
        "current_os": "Linux",
        "parallel_jobs": str(jobs),
    }
