"""What the real dkms makes of a tree: the one of Debian 12, and the newest that Debian has.

Each package is fetched once, by its version and the digest that the archive's signed lists have for
it, into the trial's cache, and unpacked there: nothing is installed. dkms is a shell script; it
runs in a container of the toolkit's root file system, as an ordinary user, and only builds.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeside.system import process
from nodeside.trial.cache import TrialCache
from nodeside.trial.debian.archive import Archive, Sources, unpack_package
from nodeside.trial.host.container import ENVIRONMENT, UNPRIVILEGED, make_entrance
from tests.costs.cold import building
from tests.patience import patience
from tests.toolkit_sidecar.faketoolkit import KERNEL

SUITES = {"3.0": "bookworm", "newest": "sid"}
_SECONDS = patience(600.0)

# A tree is in /judged/trees/NAME, with programs of its own in bin/; what each dkms makes of it is
# in /judged/DKMS/NAME.
_BUILD = f"""
cd /judged/trees
for dkms in /dkms/*; do
    for name in *; do
        here=/judged/${{dkms##*/}}/$name
        mkdir -p "$here/tree" "$here/src"
        cp -r "$name/source" "$here/src/straw-1.0"
        PATH=$PWD/$name/bin:$PATH SAID=$here/said "$dkms/usr/sbin/dkms" build -m straw -v 1.0 \\
            -k {KERNEL.release} -a {KERNEL.architecture} -j 4 --kernelsourcedir /headers \\
            --dkmstree "$here/tree" --sourcetree "$here/src" >"$here/output" 2>&1 </dev/null
        echo $? >"$here/code"
    done
done
"""


@dataclass(frozen=True)
class Verdict:
    """The exit code of a dkms, and what the programs of the tree have written to $SAID.

    In it, DIRECTORY is dkms's directory of the build; that of the source is the usual one.
    """

    code: int
    said: tuple[str, ...]
    output: str


def fetch_dkms(suite: str, cache: TrialCache, usual: Archive) -> tuple[str, Path]:
    """The version of a suite's dkms, and the directory that it was unpacked to."""
    archive = usual if usual.sources.suite == suite else _archive_of(suite, cache, usual)
    fields = archive.show("dkms")
    version, digest = fields["Version"], fields["SHA256"]

    def fill(directory: Path) -> None:
        downloads = directory / "downloads"
        downloads.mkdir()
        with building(cache.directory, f"dkms {version}"):
            (package,) = archive.download(["dkms"], downloads)
        assert hashlib.sha256(package.read_bytes()).hexdigest() == digest, package
        unpack_package(package, directory / "root")
        shutil.rmtree(downloads)

    name = f"dkms-{version.replace('+', '_')}-{digest[:12]}"
    return version, cache.make("dkms", name, fill) / "root"


def _archive_of(suite: str, cache: TrialCache, usual: Archive) -> Archive:
    """Another suite of the archive that the usual packages come from."""
    archive = Archive(cache, usual.progress)
    main = re.compile(rf"/? {usual.sources.suite} main$")
    lines = [main.sub(f" {suite} main", line) for line in usual.sources.lines if main.search(line)]
    archive._sources = Sources(suite, tuple(lines[:1]))
    return archive


def judge(
    trees: Mapping[str, Path],
    judges: Mapping[str, Path],
    headers: Path,
    layers: Sequence[Path],
    scratch: Path,
) -> Mapping[str, Mapping[str, Verdict]]:
    """Build each tree with each dkms; the verdicts, by dkms and by tree.

    A tree has `source/` and the programs of `bin/`.
    """
    work = scratch / "work"
    for name, tree in trees.items():
        shutil.copytree(tree, work / "trees" / name)
    for name in judges:
        (work / name).mkdir()
    process.run(["chmod", "-R", "a+rwX", work], timeout=60)
    binds = {work: "/judged", headers: "/headers"}
    binds |= {path: f"/dkms/{name}" for name, path in judges.items()}
    with make_entrance(layers, scratch, binds) as enter:
        argv = [*UNPRIVILEGED, "bash", "-c", _BUILD]
        process.run(argv, env=ENVIRONMENT, wrapper=enter, timeout=_SECONDS)
    return {each: {name: _verdict(work / each / name) for name in trees} for each in judges}


def _verdict(place: Path) -> Verdict:
    here = f"/judged/{place.parent.name}/{place.name}"
    said = (place / "said").read_text() if (place / "said").exists() else ""
    said = said.replace(f"{here}/tree/straw/1.0/build", "DIRECTORY")
    said = said.replace(f"{here}/src/", "/usr/src/")
    code = int((place / "code").read_text())
    return Verdict(code, tuple(said.splitlines()), (place / "output").read_text())
