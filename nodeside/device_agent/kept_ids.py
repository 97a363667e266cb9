"""The ids of devices, kept over restarts of the agent: `<state>/ids/<digest of the resource>.json`.

Ids hold in one boot only: in the next one, drivers may number their devices in another order. If
the ids do not fit in a record, the devices seen last keep theirs. A record that cannot be read
counts as absent. The first failure to write one is logged, later ones are not.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nodeside import log
from nodeside.devices.identity import DeviceIds
from nodeside.errors import NodesideError
from nodeside.protocol.records import (
    RECORD_LIMIT,
    MalformedRecord,
    decode,
    encode,
    publish,
    read_untrusted,
)
from nodeside.system.files import disk_errors
from nodeside.values import frozen

_ID = re.compile(r"[A-Za-z0-9_.:-]{1,63}")
_UNUSABLE = "the saved device ids cannot be used; devices get new ids"


@frozen
class _Record:
    resource: str
    boot_id: str
    paths: tuple[str, ...]  # of devices, resolved; the latest seen comes last
    ids: tuple[str, ...]

    @property
    def ids_by_path(self) -> Mapping[Path, str]:
        """The ids by paths. Raises MalformedRecord."""
        if len(self.paths) != len(self.ids) or not all(map(_ID.fullmatch, self.ids)):
            raise MalformedRecord("its paths and ids do not match, or an id is not valid")
        return dict(zip(map(Path, self.paths), self.ids, strict=True))


class KeptIds:
    """The ids of one resource's devices on disk. Without a `state` directory nothing is kept."""

    def __init__(self, state: Path | None, resource: str, boot_id: str) -> None:
        digest = hashlib.sha256(resource.encode()).hexdigest()[:12]
        self._path = state / "ids" / f"{digest}.json" if state else None
        self._resource, self._boot_id = resource, boot_id
        self._written: Mapping[Path, str] = {}
        self._is_failure_logged = False

    def read(self) -> DeviceIds:
        """Return the ids that were given in this boot."""
        if self._path is None:
            return DeviceIds()
        try:
            found = read_untrusted(self._path)
            if found is None:
                return DeviceIds()
            record = decode(_Record, found, where=str(self._path))
            if (record.resource, record.boot_id) != (self._resource, self._boot_id):
                return DeviceIds()
            self._written = record.ids_by_path
        except NodesideError as exc:
            log.warning(_UNUSABLE, resource=self._resource, why=exc)
            return DeviceIds()
        return DeviceIds(self._written)

    def write(self, ids: DeviceIds) -> None:
        """Write the ids to the disk if they have changed."""
        if self._path is None or ids.known_ids == self._written:
            return
        paths, names = tuple(map(str, ids.known_ids)), tuple(ids.known_ids.values())
        record = _Record(self._resource, self._boot_id, paths, names)
        while len(json.dumps(encode(record))) >= RECORD_LIMIT:  # a larger one is never read
            dropped = len(record.paths) // 8 + 1
            record = replace(record, paths=record.paths[dropped:], ids=record.ids[dropped:])
        try:
            with disk_errors(self._path.parent):
                self._path.parent.mkdir(parents=True, exist_ok=True)
            publish(self._path, encode(record))
            self._written = dict(ids.known_ids)
        except NodesideError as exc:
            if not self._is_failure_logged:
                log.warning("cannot save the ids of devices", resource=self._resource, why=exc)
            self._is_failure_logged = True
