"""The sidecar in a real toolkit's root file system, with real headers, as an ordinary user."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeside.driver.handoff.source import source_digest
from nodeside.driver.module.modulefile import read_module
from nodeside.protocol.build_records import BuildRequest, BuildResult, FailureKind
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.protocol.shared_directory import SharedDir, request_id
from nodeside.system import process
from nodeside.system.host import Host, Kernel
from nodeside.system.process import Completed
from nodeside.toolkit_sidecar.headers import read_headers
from nodeside.trial.host.container import ENVIRONMENT, UNPRIVILEGED, make_entrance
from nodeside.trial.host.toolkit import HostToolkit
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.workshop import Workshop
from tests.toolkit_sidecar.faketoolkit import until

pytestmark = pytest.mark.toolkit

HELLO = """#include <linux/module.h>
static int __init hello_init(void) { pr_info("hello\\n"); return %s; }
module_init(hello_init);
MODULE_LICENSE("GPL");
"""
CONF = """
PACKAGE_NAME="hello"
PACKAGE_VERSION="1.0"
. $kernel_source_dir/.config
[ "$CONFIG_MODULES" = y ] && BUILT_MODULE_NAME[0]="hello"
DEST_MODULE_LOCATION[0]="/extra"
"""
# As in Linux Device Drivers, chapter 2, and in every book since.
TEXTBOOK = """\
ifneq ($(KERNELRELEASE),)
obj-m := hello.o
else
all:
\t$(MAKE) -C /lib/modules/$(shell uname -r)/build M=$(PWD) modules
endif
"""
WHO_AM_I = """#!/bin/sh
echo "uid $(id -u)"; grep -E '^(CapEff|NoNewPrivs)' /proc/self/status; grep -c : /proc/net/dev
command -v python3 || echo "no python"
exit 3
"""


class RealToolkit:
    """A sidecar that lives in a real toolkit; each source is asked for once."""

    def __init__(self, shared: SharedDir, kernel: Kernel, layers: tuple[Path, ...]) -> None:
        self.shared = shared
        self.kernel = kernel
        self.layers = layers

    def build(self, source: Path, settings: BuildSettings, *, place: str = "") -> BuildResult:
        """`place` makes another directory of the build."""
        digest = hashlib.sha256(f"{source}{place}".encode()).hexdigest()
        shutil.copytree(source, self.shared.source_path(digest))
        self.shared.source_path(digest).chmod(0o755)
        request = BuildRequest(
            *(request_id(digest, 1), "hello", "1.0", self.kernel, Host().boot_id, digest),
            settings=settings,
            timeout=300.0,
        )
        self.shared.publish_request(request)
        result = until(
            lambda: self.shared.read_result(request.id, request.boot_id),
            "an answer",
            request.timeout,
        )
        assert result is not None
        return result

    def type(self, line: str, scratch: Path) -> Completed:
        """A line that an engineer types in a container of this toolkit."""
        with make_entrance(self.layers, scratch, {self.shared.root: "/shared"}) as enter:
            argv = [*UNPRIVILEGED, "sh", "-c", line]
            return process.run(argv, env=ENVIRONMENT, wrapper=enter, timeout=300, check=False)


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealToolkit]:
    with Workshop() as workshop:
        disk = workshop.kernel("cloud-amd64")
        scratch = tmp_path_factory.mktemp("toolkit")
        root = workshop.roots.toolkit(disk.compiler)
        with HostToolkit(disk, root, scratch, python=workshop.packed_python()) as shared:
            yield RealToolkit(shared, kernel_of(disk), (disk.tree, root))


def kernel_of(disk: KernelDisk) -> Kernel:
    headers = read_headers(disk.tree / "usr/src" / f"linux-headers-{disk.release}")
    return Kernel(disk.release, headers.version, "x86_64")


def source(directory: Path, **files: str) -> Path:
    """A source tree; `_` in a name stands for the dot."""
    for name, text in files.items():
        path = directory / name.replace("_", ".")
        path.write_text(text)
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    return directory


def test_a_module_is_built_for_exactly_this_kernel(toolkit: RealToolkit, tmp_path: Path) -> None:
    tree = source(tmp_path, hello_c=HELLO % "0", Makefile="obj-m := hello.o\n")
    result = toolkit.build(tree, BuildSettings(BuildKind.KBUILD, ("hello",)))
    assert result.succeeded, result.message
    out = toolkit.shared.out_dir(result.request)
    module = read_module(out / result.modules[0].file)
    assert module.name == "hello"
    assert module.vermagic.startswith(f"{toolkit.kernel.release} ")
    assert module.build_id
    assert result.toolchain is not None
    assert result.toolchain.compiler.split()[-1] == result.toolchain.kernel_compiler.split()[-1]
    built = out / "build"
    assert (built / "hello.mod.c").exists()
    assert source_digest(built) == source_digest(tree), "what kbuild leaves behind is no source"


@pytest.mark.parametrize(
    ("settings", "conf"),
    [
        (BuildSettings(BuildKind.KBUILD, ("hello",)), ""),
        (
            BuildSettings(BuildKind.KBUILD, ("hello",), make_arguments=("KCFLAGS=-DOWN=1",)),
            "",
        ),
        (BuildSettings(BuildKind.COMMAND, ("hello",), command=("make",)), ""),
        (BuildSettings(BuildKind.DKMS, ("hello",)), CONF),
    ],
    ids=["kbuild", "kbuild with flags of its own", "command", "dkms"],
)
def test_the_same_source_makes_the_same_bytes_wherever_it_is_built(
    toolkit: RealToolkit, tmp_path: Path, settings: BuildSettings, conf: str
) -> None:
    """So that a second machine can publish what the first one has published.

    The Makefile is that of the textbooks: it builds for the kernel that runs, which is another one
    on this host, but for a rare chance. The dkms.conf reads the configuration of the kernel.
    """
    files = {"dkms_conf": conf} if conf else {}
    where = HELLO.replace('"hello\\n"', 'KERN_INFO __FILE__ "\\n"')
    tree = source(tmp_path, hello_c=where % "0", Makefile=TEXTBOOK, **files)

    one, other = (toolkit.build(tree, settings, place=place) for place in ("one", "other"))

    assert one.succeeded, one.log_tail
    assert one.request != other.request
    assert [module.file for module in one.modules] == ["modules/hello.ko"]
    assert one.modules[0].sha256 == other.modules[0].sha256
    module = toolkit.shared.out_dir(one.request) / one.modules[0].file
    assert b"/usr/src/hello-1.0/" in module.read_bytes(), "the name of the file, as the log has it"
    assert read_module(module).vermagic.startswith(f"{toolkit.kernel.release} ")


def test_the_makefile_of_the_textbooks_builds_for_the_requested_kernel_as_a_dkms_conf_calls_it(
    toolkit: RealToolkit, tmp_path: Path
) -> None:
    conf = f"{CONF}MAKE=\"'make' all\"\n"
    tree = source(tmp_path, hello_c=HELLO % "0", Makefile=TEXTBOOK, dkms_conf=conf)
    result = toolkit.build(tree, BuildSettings(BuildKind.DKMS, ("hello",)))
    assert result.succeeded, result.log_tail
    module = read_module(toolkit.shared.out_dir(result.request) / result.modules[0].file)
    assert module.vermagic.startswith(f"{toolkit.kernel.release} ")


def test_the_compilers_first_error_is_in_the_answer_and_the_command_repeats_it(
    toolkit: RealToolkit, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    tree = source(tmp_path / "source", hello_c=HELLO % "nothing", Makefile="obj-m := hello.o\n")
    result = toolkit.build(tree, BuildSettings(BuildKind.KBUILD, ("hello",)))
    assert result.failure is FailureKind.COMPILE
    assert result.message.startswith("make failed: exit code 2")
    assert "hello.c:2:" in result.first_error
    assert re.search(r"error: (\u2018nothing\u2019|'nothing')", result.first_error)

    assert "make -C " in result.command
    again = toolkit.type(result.command, tmp_path)
    assert again.exit_code == 2
    assert re.search(r"error: (\u2018nothing\u2019|'nothing')", again.errors)


def test_vendor_code_has_no_privilege_no_network_and_no_python(
    toolkit: RealToolkit, tmp_path: Path
) -> None:
    tree = source(tmp_path, who_sh=WHO_AM_I)
    settings = BuildSettings(BuildKind.COMMAND, (), command=("./who.sh",))
    result = toolkit.build(tree, settings)
    said = [line for line in result.log_tail if not line.startswith("#")]
    assert said == ["uid 65532", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "1", "no python"]
