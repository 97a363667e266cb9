"""The protocol of the shared directory between the driver container and the toolkit sidecar.

The driver writes requests, and the sidecar writes results. Every file has one writer and is never
edited in place. Records are published by rename, so a reader sees all of a record or nothing.

The modes are those of a pod. If driver and sidecar are the same user (`driver build --local`),
every directory is 0700.

    <shared>/                    driver   0755; only the driver may create or remove entries here
      toolkit.pyz                driver   the sidecar's program, there before the first request
      python/                    driver   the Python that runs it: a toolkit image may have none
      driver.lock                driver   0600, locked (flock) while a build is requested
      order.json                 driver   BuildOrder of a build Job (build_job.py)
      source/<digest>/           driver   a read-only copy of a source tree
      symbols/<digest>           driver   a Module.symvers of other drivers' modules
      requests/<id>.json         driver   BuildRequest: source, settings, kernel and boot id
      requests/<key>.refused     driver   why the result of this build cannot be used
      results/                   (1777)
        sidecar.lock             sidecar  locked (F_OFD_SETLK) while the sidecar runs
        sidecar.json             sidecar  SidecarRecord: the current sidecar
        kernels.json             sidecar  ToolkitKernels of a build Job (build_job.py)
        symvers-<release>        sidecar  Module.symvers of the headers for the running kernel
        <id>.json                sidecar  BuildResult: success or failure of that request
      out/<id>/                  (1777)   sidecar
        build.log                sidecar  grows during the build
        build/                   sidecar  the copy of the source in which the build runs
        modules/*.ko             sidecar  complete once the result exists

A request id is the first 12 digits of the bundle's key, a dash, and the attempt number. A restarted
driver finds the running attempt and waits for it. A failed attempt is retried with the next number.

A crash leaves at most a `.tmp-*` file, which both sides ignore. A record with another boot id is
from an earlier boot of the node and is ignored too. A result is valid only together with the
request that it answers. The driver removes requests and sources. Once a request is gone, the
sidecar removes its files in `out/` and `results/`, and anything that does not belong there.

Vendor build code runs as the sidecar's user, so it may forge anything in `out/` and `results/`. The
driver opens these files without following links, with size limits, and uses its own copies.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from pathlib import Path

from nodeside.protocol.build_job import BuildOrder, ToolkitKernels
from nodeside.protocol.build_records import BuildRequest, BuildResult, SidecarRecord
from nodeside.protocol.records import RECORD_LIMIT, decode, encode, publish, read_untrusted
from nodeside.system.files import disk_errors, open_untrusted
from nodeside.values import frozen

REQUEST_ID = re.compile(r"^(?P<key>[0-9a-f]{12})-(?P<attempt>[1-9][0-9]{0,5})$")


def request_id(key: str, attempt: int) -> str:
    """Return the id of the n-th attempt (from 1) to build the bundle with this key."""
    return f"{key[:12]}-{attempt}"


@frozen
class SharedDir:
    """The paths and records of the protocol, without policy.

    If `private`, the sidecar runs as the driver's user, and no other user may enter the directory.
    """

    root: Path
    private: bool = False

    def create(self) -> None:
        """Create the directories, on the driver's side. Existing ones get their modes again."""
        ours, sidecars = (0o700, 0o700) if self.private else (0o755, 0o1777)
        for path, mode in (
            (self.root, ours),
            (self.requests, ours),
            (self.sources, ours),
            (self.symbols, ours),
            (self.results, sidecars),
            (self.out, sidecars),
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
    def symbols(self) -> Path:
        return self.root / "symbols"

    @property
    def lock(self) -> Path:
        return self.results / "sidecar.lock"

    def symvers_path(self, release: str) -> Path:
        return self.results / f"symvers-{release}"

    def source_path(self, digest: str) -> Path:
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
        """Replace the sidecar's record. A full disk leaves no record rather than the old one."""
        with disk_errors(self.results):
            (self.results / "sidecar.json").unlink(missing_ok=True)
        publish(self.results / "sidecar.json", encode(sidecar))

    def publish_kernels(self, kernels: ToolkitKernels) -> None:
        publish(self.results / "kernels.json", encode(kernels))

    def read_kernels(self, boot_id: str) -> ToolkitKernels | None:
        """Return the kernels of the toolkit; None if they were not published in this boot."""
        record = read_untrusted(self.results / "kernels.json")
        if record is None or record.get("boot_id") != boot_id:
            return None
        return decode(ToolkitKernels, record, where="kernels.json")

    def publish_order(self, order: BuildOrder) -> None:
        publish(self.root / "order.json", encode(order))

    def read_order(self, boot_id: str) -> BuildOrder | None:
        record = read_untrusted(self.root / "order.json")
        if record is None or record.get("boot_id") != boot_id:
            return None
        return decode(BuildOrder, record, where="order.json")

    def read_request(self, id: str) -> BuildRequest | None:
        record = read_untrusted(self.request_path(id))
        return None if record is None else decode(BuildRequest, record, where=f"request {id}")

    def read_result(self, id: str, boot_id: str) -> BuildResult | None:
        """Return the result of a request; None if there is none of this boot."""
        record = read_untrusted(self.result_path(id))
        if record is None or record.get("boot_id") != boot_id or record.get("request") != id:
            return None
        return decode(BuildResult, record, where=f"result {id}")

    def read_sidecar(self, boot_id: str) -> SidecarRecord | None:
        """Return the record of the latest sidecar; None if there is none of this boot."""
        record = read_untrusted(self.results / "sidecar.json")
        if record is None or record.get("boot_id") != boot_id:
            return None
        return decode(SidecarRecord, record, where="sidecar.json")

    def read_sidecar_boot(self) -> str:
        """Return the boot id in the record of the latest sidecar; "" if there is none."""
        record = read_untrusted(self.results / "sidecar.json")
        return str(record.get("boot_id", "")) if record else ""

    def request_ids(self) -> tuple[str, ...]:
        """Return the ids of all requests, sorted by key, oldest attempt first."""
        matches = (REQUEST_ID.match(path.stem) for path in self.requests.glob("*.json"))
        pairs = sorted((m["key"], int(m["attempt"])) for m in matches if m)
        return tuple(request_id(key, attempt) for key, attempt in pairs)

    def sidecar_lives(self) -> bool:
        """Return whether a sidecar holds its lock now. Neither waits for the lock nor takes it.

        Raises UntrustedFile if the lock path is not a regular file.
        """
        try:
            with open_untrusted(self.lock, limit=RECORD_LIMIT) as file:
                answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WRITE_LOCK)
        except FileNotFoundError:
            return False
        return int(struct.unpack(_FLOCK, answer)[0]) != fcntl.F_UNLCK


# struct flock of fcntl(2), padded to its size. An open file description lock (since Linux 3.15) is
# released with the last descriptor, and can be tested without being taken.
_FLOCK = "hhqqi0q"
_WRITE_LOCK = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
