"""The programs that `scripts/setup test` installs, and what shows of each that it works there.

Most are started by a test of another directory. The rest, which only machines, root file systems
and images take, say their version: so they and their libraries are there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_WHICH_START = ("tests", "nodeside")  # directories
_OTHER_TIERS = ("tests/cluster/", "tests/lab/", "tests/vm/")
_NOWHERE = {"nodeside", "nodeside-none"}  # in a machine's containers, and what there is none of

_OCI = "tests/driver/store/test_oci.py"
_MODULES = "tests/driver/module/test_modulefile.py"
_DISKS = "tests/trial/machine/test_disks.py"
_INITRAMFS = "tests/trial/machine/test_initramfs.py"

# By program, or by package where setup looks for that: a test that starts it.
TESTS: Mapping[str, str] = {
    "docker-registry": f"{_OCI}::test_skopeo_understands_and_copies_what_we_publish",
    "skopeo": f"{_OCI}::test_skopeo_understands_and_copies_what_we_publish",
    "setpriv": f"{_OCI}::test_skopeo_understands_and_copies_what_we_publish",
    "openssl": "tests/driver/module/test_signing.py::test_elliptic_keys_sign_too",
    "strip": f"{_MODULES}::test_module_stripped_of_local_symbols_keeps_its_parameters",
    "zstd": f"{_MODULES}::test_compressed_module_reads_as_the_plain_one[.zst]",
    "mke2fs": f"{_DISKS}::test_an_image_has_the_content_and_modes_of_the_tree",
    "qemu-img": f"{_DISKS}::test_an_overlay_reads_from_its_base",
    "cpio": f"{_INITRAMFS}::test_cpio_reads_the_archive",
    "busybox-static": f"{_INITRAMFS}::test_compressed_modules_are_stored_as_the_kernel_loads_them",
    "depmod": "tests/trial/machine/test_kernel_disk.py"
    "::test_the_kernel_its_modules_and_its_headers_come_from_the_packages",
    "patch": "tests/toolkit_sidecar/test_sidecar.py::test_patches_apply_before_the_build",
    "pip": "tests/test_constraints.py::test_what_is_installed_is_what_the_constraints_say",
    "promtool": "tests/monitoring/test_rules.py::test_promtool_finds_no_fault",
    "prometheus": "tests/monitoring/test_prometheus.py"
    "::test_alerts_about_drivers_say_what_happens_to_them",
}

COMMANDS: Mapping[str, str] = {
    **{
        name: f"{name} --version"
        for name in (
            *("qemu-system-x86_64", "qemu-system-aarch64", "qemu-aarch64-static"),
            *("arch-test", "update-binfmts", "mmdebstrap", "buildah", "git"),
        )
    },
    "debian-archive-keyring": "test -s /usr/share/keyrings/debian-archive-keyring.gpg",
}


def installed_by(setup: str) -> set[str]:
    """What `scripts/setup test` installs, out of its text."""
    lists = dict(re.findall(r'^(tools_\w+)="([^"]*)"', setup, re.MULTILINE))
    [steps] = re.findall(r"^test\)\n(.*?);;", setup, re.MULTILINE | re.DOTALL)
    pairs = [pair for name in re.findall(r"\$(tools_\w+)", steps) for pair in lists[name].split()]
    packages = re.findall(r"\|\| echo ([\w-]+)$", setup, re.MULTILINE)
    return {
        *(pair.partition(":")[0] for pair in pairs),
        *packages,
        *re.findall(r"-x \.venv/bin/(\w+)", setup),
    }


def started_by_name(top: Path) -> set[str]:
    """The programs that tests of the tiers above, and what they test, start by a literal name."""
    paths = [path for name in _WHICH_START for path in (top / name).rglob("*.py")]
    here = [path for path in paths if not str(path.relative_to(top)).startswith(_OTHER_TIERS)]
    return {name for path in here for name in first_words(path.read_text())} - _NOWHERE


def first_words(source: str) -> list[str]:
    """Of the lists that `run` and `start` are given. A path is no name."""
    return re.findall(r'\b(?:run|start)\(\s*\[\s*"([\w.+-]+)"', source)
