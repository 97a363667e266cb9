"""What a MAKE line of a dkms.conf runs: the same commands as dkms, of any version.

dkms puts `-j` and `KERNELRELEASE=` after the text `make` with which a command begins, and nowhere
else; so that is what a Makefile sees that asks `ifneq ($(KERNELRELEASE),)`. `test_dkms_judges` asks
dkms itself about each line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from nodeside.protocol.build_records import BuildRequest
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.system import process
from nodeside.toolkit_sidecar import dkms_conf
from nodeside.toolkit_sidecar.buildlog import BuildLog
from nodeside.toolkit_sidecar.confinement import BuildWatch
from nodeside.toolkit_sidecar.dkms import make_command, make_plan
from nodeside.toolkit_sidecar.recipe import Workplace
from tests.toolkit_sidecar.dkms_make_lines import CONF, HEADERS, LINES, MAKE
from tests.toolkit_sidecar.faketoolkit import BOOT_ID, DIGEST, KERNEL, LONG
from tests.tries import sampled


@pytest.mark.parametrize(("line", "ran"), sampled(LINES, 4))
def test_make_gets_what_it_gets_from_dkms(tmp_path: Path, line: str, ran: Sequence[str]) -> None:
    place = workplace(tmp_path)
    assert run(place, line) == [re.sub("DIRECTORY|SOURCE", str(place.out), words) for words in ran]


def workplace(directory: Path) -> Workplace:
    """A build of four jobs in `directory`, with a make that writes its arguments down."""
    make = directory / "bin" / "make"
    make.parent.mkdir()
    make.write_text(MAKE)
    make.chmod(0o755)
    path = f"{make.parent}:{process.make_environment()['PATH']}"
    env = {"PATH": path, "SAID": str(directory / "said")}
    settings = BuildSettings(BuildKind.DKMS, ("straw",))
    request = BuildRequest("1", "straw", "1.0", KERNEL, BOOT_ID, DIGEST, settings, LONG)
    return Workplace(request, directory, HEADERS, jobs=4, env=env)


def run(place: Workplace, line: str) -> list[str]:
    """Evaluate a dkms.conf with this line and run its command; the arguments that make got."""
    conf, here = place.out / "dkms.conf", place.out
    conf.write_text(f"{CONF}{line}\n")
    with BuildLog(place.out / "build.log", lambda _: None) as log:
        values = dkms_conf.evaluate_conf(
            conf,
            dump=place.out / "values",
            shell=dkms_conf.shell_variables(
                HEADERS, KERNEL.release, KERNEL.architecture, tree=place.out / "dkms", jobs=4
            ),
            env=place.env,
            mark=str(place.out),
            log=log,
            watch=BuildWatch(seconds=LONG, request=conf, disk=place.out),
        )
    command = make_command(make_plan(values, KERNEL, HEADERS), place, here)
    process.run(["bash", "-c", command], timeout=LONG, env=place.env, cwd=here)
    return (place.out / "said").read_text().splitlines()
