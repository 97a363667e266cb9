"""Damaged and forged bundles: refused, or as good as the honest one; never a crash, never a half.

Outside a machine each is an archive in a store, and what takes it runs in a limited child. Every
twentieth damages the cache of a node in a machine, or a store that it fetches from.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodeside.driver.bundle.bundle import MANIFEST, Bundle, read_bundle
from nodeside.driver.module.modulefile import read_module
from nodeside.driver.store.base import FetchOptions, WantedBundle
from nodeside.driver.store.sources import fetch_first
from nodeside.errors import NodesideError
from nodeside.spec.model import PrebuiltSource, Trust
from nodeside.system.scratch import scratch_directory
from tests.chaos.attempts import BUG, attempt
from tests.chaos.ledger import Ledger, Round
from tests.chaos.mutations import damaged_bytes, damaged_document
from tests.chaos.nodes import VERSIONS, Target
from tests.driver.fakes.bundles import sample_bundle
from tests.driver.fakes.keys import SPECIMEN
from tests.vm.pod import CACHE

OUTSIDE = "hostile bundle"
INSIDE = "hostile bundle on a node"
_NOTICED = "a damaged bundle"  # is set aside, or is not used: a driver's words
_ENTRY_TYPES = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"x", b"L")
_OPTIONS = FetchOptions(timeout=20, size_limit=64 << 20)

Files = dict[str, bytes]


def honest_bundle(place: Path) -> Bundle:
    """A bundle of a real module, at a directory in `place`, the same each time."""
    directory = place / "bundle"
    if directory.exists():
        return read_bundle(directory)
    return sample_bundle(directory, contents={"specimen": SPECIMEN.read_bytes()})


def offer_outside(ledger: Ledger, bundle: Bundle, count: int) -> None:
    """A new store for each round; half of the readers pin the honest digest."""
    files = {str(each.relative_to(bundle.directory)): each.read_bytes()
             for each in bundle.directory.rglob("*") if each.is_file()}  # fmt: skip
    for turn in ledger.rounds(OUTSIDE, count):
        if turn.number == 0:
            _offer_the_honest_one(turn, bundle, _packed(files))
        kind = turn.fate.choice(list(_KINDS))
        archive = _KINDS[kind](dict(files), turn.fate)
        ended = _offer(turn, kind, bundle, archive, pinned=turn.fate.random() < 0.5)
        turn.outcome(f"{kind}: {ended.partition(':')[0]}")
        met = re.search(_MET[kind], ended) is not None
        turn.happened(f"{kind}: met where it was meant to be", met)


def _offer_the_honest_one(turn: Round, bundle: Bundle, archive: bytes) -> None:
    """Through the same door: who refuses this one refuses every bundle, and finds nothing."""
    for pinned in (False, True):
        name = "the honest bundle, pinned" if pinned else "the honest bundle"
        ended = _offer(turn, name, bundle, archive, pinned=pinned)
        turn.expect(ended == "taken", f"{name}: {ended}")
        turn.happened(f"{name} was taken", ended == "taken", enough=1)


def _offer(turn: Round, kind: str, bundle: Bundle, archive: bytes, *, pinned: bool) -> str:
    with scratch_directory("chaos-store") as place:
        ended = attempt(lambda: _take(bundle, archive, place, pinned=pinned))
        left = [path.name for path in (place / "to").iterdir() if path.name != "bundle"]
    turn.expect(not ended.startswith(BUG), f"{kind}: {ended}")
    turn.expect(not left, f"{kind}: left behind {left}")
    return ended


def _take(bundle: Bundle, archive: bytes, place: Path, *, pinned: bool) -> str:
    """What a driver does with a store: fetch, verify, read the modules."""
    manifest = bundle.manifest
    wanted = WantedBundle(manifest.driver, manifest.version, manifest.kernel, manifest.key)
    trust = Trust(digests=(bundle.digest,)) if pinned else Trust()
    store, to = place / "store", place / "to"
    store.mkdir()
    to.mkdir()
    (store / f"{wanted.tag}.tar.gz").write_bytes(archive)
    try:
        got = fetch_first([PrebuiltSource(directory=str(store))], wanted, trust, _OPTIONS, to)
    except NodesideError as error:
        return f"refused: {error}"
    if got.bundle is None:
        return f"refused: {got.why}"
    if pinned and _contents(got.bundle) != _contents(bundle):
        return f"{BUG}: another bundle than the pinned one was taken"
    try:
        for module in got.bundle.manifest.modules:
            read_module(got.bundle.module_path(module.name))
    except NodesideError as error:
        return f"unreadable: {error}"
    return "taken"


def _contents(bundle: Bundle) -> set[tuple[str, str]]:
    found = (path for path in bundle.directory.rglob("*") if path.is_file())
    return {(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in found}


# --- archives


def _packed(files: Files, tamper: Callable[[tarfile.TarInfo], None] = lambda _: None) -> bytes:
    out = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=out, mtime=0) as stream,
        tarfile.TarFile(fileobj=stream, mode="w") as tar,
    ):
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            tamper(info)
            tar.addfile(info, io.BytesIO(files[name]))
    return out.getvalue()


def _broken_archive(files: Files, fate: random.Random) -> bytes:
    return damaged_bytes(_packed(files), fate)


def _broken_tar(files: Files, fate: random.Random) -> bytes:
    return gzip.compress(damaged_bytes(gzip.decompress(_packed(files)), fate), 1)


def _odd_entries(files: Files, fate: random.Random) -> bytes:
    """Links, devices, names that lead out, a name twice: one entry, and those before it are right.

    The unpacker ends at the first wrong one.
    """
    tampered = fate.choice(sorted(files))

    def tamper(info: tarfile.TarInfo) -> None:
        if info.name != tampered:
            return
        if fate.random() < 0.5:
            info.type = fate.choice(_ENTRY_TYPES)
            info.linkname = "/etc/passwd"
        else:
            odd = ("../" + info.name, "/etc/x", "modules/" + "a" * 90, "modules", MANIFEST)
            info.name = fate.choice([name for name in odd if name != tampered])

    return _packed(files, tamper)


def _broken_manifest(files: Files, fate: random.Random) -> bytes:
    files[MANIFEST] = damaged_bytes(files[MANIFEST], fate)
    return _packed(files)


def _odd_manifest(files: Files, fate: random.Random) -> bytes:
    document = damaged_document(json.loads(files[MANIFEST]), fate)
    files[MANIFEST] = json.dumps(document, sort_keys=True).encode(errors="surrogatepass")
    return _packed(files)


def _broken_module(files: Files, fate: random.Random) -> bytes:
    """Its digest is made right again: only reading the module can tell."""
    document: dict[str, Any] = json.loads(files[MANIFEST])
    for module in document["modules"]:
        data = files[module["file"]] = damaged_bytes(files[module["file"]], fate)
        module["sha256"], module["size"] = hashlib.sha256(data).hexdigest(), len(data)
    text = json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n"
    files[MANIFEST] = text.encode()
    return _packed(files)


_KINDS: dict[str, Callable[[Files, random.Random], bytes]] = {
    "damaged archive": _broken_archive,
    "damaged tar": _broken_tar,
    "odd entries": _odd_entries,
    "damaged manifest": _broken_manifest,
    "odd manifest": _odd_manifest,
    "damaged module": _broken_module,
}

# What is said when the damage was met by what it was made for, and not by a check before that.
_MET = {
    "damaged archive": "gzip|tar archive|truncated|follows the end",
    "damaged tar": "tar archive|truncated|follows the end|expected [0-9]+ bytes",
    "odd entries": "only manifest.json|twice",
    "damaged manifest": "the manifest",
    "odd manifest": "manifest[.:]|the manifest's|the manifest has|^taken",
    "damaged module": "^unreadable|^taken",
}


# --- on a node


def offer_inside(ledger: Ledger, target: Target, count: int) -> None:
    """Damage what is in the cache of a node, and see that it is never what gets loaded."""
    for turn in ledger.rounds(INSIDE, count):
        driver = turn.fate.choice(("one", "two", "stored"))
        target.run(driver)
        target.pod.node("sh", "-c", "rmmod tiny; rm -f /run/nodeside/tiny/ready; true")
        _damage(turn, target)
        done = target.judge_after(turn, driver)
        noticed = done is not None and _NOTICED in done.errors
        turn.happened("the driver met the damage", noticed)
        turn.outcome(f"cache damaged, then {VERSIONS[driver]} ready")


def _damage(turn: Round, target: Target) -> None:
    """A file of a bundle, so that it differs; locks and marks have no content."""
    words = f"find {CACHE} -type f ! -path '*/.*' ! -empty"
    place = turn.fate.choice(sorted(target.pod.node("sh", "-c", words).split()))
    right = target.machine.read_file(place)
    while (data := damaged_bytes(right, turn.fate)) == right:
        pass
    target.machine.write_file(place, data)
