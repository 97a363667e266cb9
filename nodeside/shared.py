"""The shared directory between the driver container and the toolkit sidecar: a protocol.

The driver writes requests, the sidecar writes results; nobody edits a file in place, and every file
has one writer. Every record appears by rename, so a reader sees all of it or nothing.

    <shared>/                    driver   0755; nobody else may create or remove an entry here
      toolkit.pyz                driver   the sidecar's program, there before the first request
      python/                    driver   the Python that runs it; nothing of the toolkit image
      driver.lock                driver   0600, locked (flock) while a build is asked for
      order.json                 driver   BuildOrder of a build in steps (buildjob.py)
      source/<digest>/           driver   a read-only copy of a source tree
      requests/<id>.json         driver   BuildRequest: what to build, for which kernel and boot
      requests/<key>.refused     driver   why what such a build delivered cannot be used
      results/                   (1777)
        sidecar.lock             sidecar  locked (F_OFD_SETLK) while it lives
        sidecar.json             sidecar  SidecarRecord: who lives there
        kernels.json             sidecar  ToolkitKernels of a build in steps (buildjob.py)
        symvers-<release>        sidecar  Module.symvers of the headers for the running kernel
        <id>.json                sidecar  BuildResult: succeeded or failed, for that request
      out/<id>/                  (1777)   sidecar
        build.log                sidecar  grows while the build runs
        build/                   sidecar  the copy of the source that is built in
        modules/*.ko             sidecar  complete once the result exists

A request id is the first 12 digits of the bundle's key, a dash, and the attempt: a restarted driver
finds the attempt that runs and waits for it; a failed one is tried again under the next number.

A crash leaves at most a `.tmp-*` file, which both sides ignore. A record whose boot id is not this
boot's belongs to an earlier life of the node and is ignored too. A result is the truth only
together with the request it answers. The sidecar removes what is its own in `out/` and `results/`
once the request is gone; the driver removes requests and sources.

Vendor build code runs as the sidecar's user: whatever is in `out/` and `results/` may be forged by
it. The driver opens it without following links, with size caps, and uses its own copy.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nodeside.buildjob import BuildOrder, ToolkitKernels
from nodeside.contract import BuildRequest, BuildResult, SidecarRecord
from nodeside.files import disk_errors, open_untrusted
from nodeside.records import RECORD_LIMIT, decode, encode, publish, read_untrusted

REQUEST_ID = re.compile(r"^(?P<key>[0-9a-f]{12})-(?P<attempt>[1-9][0-9]{0,5})$")


def request_id(key: str, attempt: int) -> str:
    """The id of the n-th attempt (from 1) to build the bundle with this key."""
    return f"{key[:12]}-{attempt}"


@dataclass(frozen=True)
class SharedDir:
    """Paths and records of the protocol; no policy."""

    root: Path

    def create(self) -> None:
        """Make the tree; the driver's side calls it. Harmless if it is there."""
        for path, mode in (
            (self.root, 0o755),
            (self.requests, 0o755),
            (self.sources, 0o755),
            (self.results, 0o1777),
            (self.out, 0o1777),
        ):
            with disk_errors(path):
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(mode)

    @property
    def program(self) -> Path:
        return self.root / "toolkit.pyz"

    @property
    def python(self) -> Path:
        return self.root / "python"

    @property
    def requests(self) -> Path:
        return self.root / "requests"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def sources(self) -> Path:
        return self.root / "source"

    @property
    def lock(self) -> Path:
        return self.results / "sidecar.lock"

    def symvers(self, release: str) -> Path:
        return self.results / f"symvers-{release}"

    def source(self, digest: str) -> Path:
        return self.sources / digest

    def request_path(self, id: str) -> Path:
        return self.requests / f"{id}.json"

    def refusal_path(self, id: str) -> Path:
        return self.requests / f"{id.partition('-')[0]}.refused"

    def result_path(self, id: str) -> Path:
        return self.results / f"{id}.json"

    def out_dir(self, id: str) -> Path:
        return self.out / id

    def build_log(self, id: str) -> Path:
        return self.out_dir(id) / "build.log"

    def publish_request(self, request: BuildRequest) -> None:
        publish(self.request_path(request.id), encode(request))

    def publish_result(self, result: BuildResult) -> None:
        publish(self.result_path(result.request), encode(result))

    def publish_sidecar(self, sidecar: SidecarRecord) -> None:
        """On a full disk no record stands there, rather than one of an earlier life."""
        with disk_errors(self.results):
            (self.results / "sidecar.json").unlink(missing_ok=True)
        publish(self.results / "sidecar.json", encode(sidecar))

    def publish_kernels(self, kernels: ToolkitKernels) -> None:
        publish(self.results / "kernels.json", encode(kernels))

    def kernels(self, boot_id: str) -> ToolkitKernels | None:
        """What the toolkit has headers of, if it has said so in this boot."""
        record = read_untrusted(self.results / "kernels.json")
        if record is None or record.get("boot_id") != boot_id:
            return None
        return decode(ToolkitKernels, record, where="kernels.json")

    def publish_order(self, order: BuildOrder) -> None:
        publish(self.root / "order.json", encode(order))

    def order(self, boot_id: str) -> BuildOrder | None:
        record = read_untrusted(self.root / "order.json")
        if record is None or record.get("boot_id") != boot_id:
            return None
        return decode(BuildOrder, record, where="order.json")

    def request(self, id: str) -> BuildRequest | None:
        record = read_untrusted(self.request_path(id))
        return None if record is None else decode(BuildRequest, record, where=f"request {id}")

    def result(self, id: str, boot_id: str) -> BuildResult | None:
        """The answer to a request of this boot, or None."""
        record = read_untrusted(self.result_path(id))
        if record is None or record.get("boot_id") != boot_id or record.get("request") != id:
            return None
        return decode(BuildResult, record, where=f"result {id}")

    def sidecar(self, boot_id: str) -> SidecarRecord | None:
        """Who lives in the toolkit container, if it has been there in this boot."""
        record = read_untrusted(self.results / "sidecar.json")
        if record is None or record.get("boot_id") != boot_id:
            return None
        return decode(SidecarRecord, record, where="sidecar.json")

    def sidecar_boot(self) -> str:
        """The boot that the latest sidecar lived in, "" if none has said so."""
        record = read_untrusted(self.results / "sidecar.json")
        return str(record.get("boot_id", "")) if record else ""

    def request_ids(self) -> tuple[str, ...]:
        """Every request there is, oldest attempt first."""
        found = (REQUEST_ID.match(path.stem) for path in self.requests.glob("*.json"))
        pairs = sorted((m["key"], int(m["attempt"])) for m in found if m)
        return tuple(request_id(key, attempt) for key, attempt in pairs)

    @contextmanager
    def hold_sidecar_lock(self) -> Iterator[bool]:
        """Hold the sidecar's lock while the block runs; False if another sidecar has it."""
        with open(self.lock, "a+b") as file:
            try:
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
            except (BlockingIOError, PermissionError):
                yield False
                return
            yield True

    def sidecar_lives(self) -> bool:
        """Whether a sidecar holds its lock now. Does not block, and takes nothing.

        Raises UntrustedFile if something else than a file stands where the lock was.
        """
        try:
            with open_untrusted(self.lock, limit=RECORD_LIMIT) as file:
                answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))
        except FileNotFoundError:
            return False
        return int(struct.unpack(_FLOCK, answer)[0]) != fcntl.F_UNLCK


# struct flock of fcntl(2), padded to its size. An open file description lock goes with the last
# descriptor, can be asked for without taking it, and is there since Linux 3.15.
_FLOCK = "hhqqi0q"


def _flock(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)
