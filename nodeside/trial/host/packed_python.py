"""The sidecar's Python, packed from the driver's root file system.

images/driver.Containerfile does the same when a driver image is built. Here it is done once per
root file system and cached.
"""

from __future__ import annotations

from pathlib import Path

import nodeside
from nodeside.driver.handoff import relocatable_python, zipapp
from nodeside.system import process
from nodeside.system.scratch import scratch_directory
from nodeside.trial.cache import TrialCache, digest_of
from nodeside.trial.host.container import ENVIRONMENT, OWN_PROCESSES, make_entrance
from nodeside.trial.progress import Progress

_PACK = (
    "from pathlib import Path; from nodeside.driver.handoff.relocatable_python import pack_python; "
    "pack_python(Path('/out/python'))"
)


def pack_cached_python(driver_root: Path, cache: TrialCache, progress: Progress) -> Path:
    """Return the directory of the packed Python."""
    packers = (zipapp, relocatable_python)
    code = b"".join(Path(str(module.__file__)).read_bytes() for module in packers)
    name = f"{driver_root.parent.name}-{digest_of(code)}"

    def fill(directory: Path) -> None:
        progress.print_step("packing the sidecar's Python")
        binds = {Path(nodeside.__file__).parent.parent: "/opt/nodeside", directory: "/out"}
        with (
            scratch_directory("pack") as scratch,
            make_entrance((driver_root,), scratch, binds) as enter,
        ):
            process.run(
                [*OWN_PROCESSES, "/usr/bin/python3", "-P", "-B", "-c", _PACK],
                env=ENVIRONMENT | {"PYTHONPATH": "/opt/nodeside"},
                wrapper=enter,
                timeout=300,
            )

    return cache.make("python", name, fill, needs_mib=128) / "python"
