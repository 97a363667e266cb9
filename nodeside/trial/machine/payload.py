"""The third disk, made for each trial: nodeside, the driver to try, the toolkit's program.

/python/nodeside/     this package, byte-compiled for the driver's Python
/bin/nodeside         its command
/driver-image/        driver.yaml and the source, as in a vendor's image
/toolkit/             what the init container provides for the sidecar: Python and program
/agent                what the initramfs starts last
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nodeside
from nodeside.system import process
from nodeside.trial import vendor_tree
from nodeside.trial.architecture import AMD64, Architecture
from nodeside.trial.machine import disks

_AGENT = """\
#!/bin/sh
# The driver's Python, run from outside its root file system: hence its own loader and libraries.
cd /
lib={libraries}
export PYTHONHOME=/driver/usr PYTHONPATH=/payload/python PYTHONDONTWRITEBYTECODE=1 PATH=/bin
exec $lib/{loader} --library-path $lib /driver/usr/bin/python3 \
  -S -m nodeside.trial.machine.guest
"""

_COMMAND = """\
#!/usr/bin/python3
import sys
sys.path.insert(0, "/opt/nodeside")
from nodeside.cli import main
main()
"""


def make_payload_disk(
    image: Path,
    *,
    driver_image: Path | None,
    driver_root: Path,
    python: Path,
    cache: Path | None = None,
    architecture: Architecture = AMD64,
) -> Path:
    """Make the disk `image` and return it. `driver_image` is the directory for /driver-image."""
    tree = image.parent / f"{image.stem}-tree"
    (tree / "python").mkdir(parents=True)
    package = Path(nodeside.__file__).parent
    shutil.copytree(package, tree / "python" / "nodeside", ignore=_is_cache, symlinks=True)
    compile_to_bytecode(tree / "python" / "nodeside", driver_root, architecture)
    _write_script(tree / "agent", _agent_script(architecture))
    (tree / "bin").mkdir()
    _write_script(tree / "bin" / "nodeside", _COMMAND)
    if driver_image is None:
        (tree / "driver-image").mkdir()
    else:
        vendor_tree.copy_tree(driver_image, tree / "driver-image", leave_out=(".git",))
    (tree / "toolkit").mkdir()
    process.run(["cp", "-a", python, tree / "toolkit" / "python"], timeout=120)
    pack_program(tree / "python", tree / "toolkit" / "toolkit.pyz", driver_root, architecture)
    if cache is not None:
        process.run(["cp", "-a", cache, tree / "cache"], timeout=120)
    process.run(["chown", "-R", "0:0", tree], timeout=60)
    disks.make_ext4(tree, image, label="payload")
    shutil.rmtree(tree)
    return image


def _agent_script(architecture: Architecture) -> str:
    libraries = architecture.libraries(Path("/driver"))
    return _AGENT.format(libraries=libraries, loader=architecture.loader)


def _is_cache(_: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__"}


def _write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def compile_to_bytecode(package: Path, root: Path, architecture: Architecture = AMD64) -> None:
    """Byte-compile with the Python that will read it; this saves seconds under emulation."""
    compile_all = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", package)
    _run_python(root, architecture, *compile_all)


def pack_program(packages: Path, to: Path, root: Path, architecture: Architecture = AMD64) -> None:
    """Pack the sidecar's program, which saves seconds too. `packages` is where nodeside is."""
    code = (
        f"import sys; sys.path.insert(0, {str(packages)!r}); "
        "from pathlib import Path; from nodeside.driver.handoff.zipapp import build_zipapp; "
        f"Path({str(to)!r}).write_bytes(build_zipapp())"
    )
    _run_python(root, architecture, "-B", "-c", code)


def _run_python(root: Path, architecture: Architecture, *words: str | Path) -> None:
    """Run the Python of a root file system on this host, with its own loader and libraries."""
    libraries = architecture.libraries(root)
    process.run(
        [
            libraries / architecture.loader, "--library-path", libraries,
            os.path.realpath(root / "usr" / "bin" / "python3"), "-P", "-S", *words,
        ],
        env={"PYTHONHOME": str(root / "usr")},
        timeout=120,
    )  # fmt: skip
