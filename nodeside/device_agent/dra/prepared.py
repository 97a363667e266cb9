"""The claims that are prepared on this node, and their CDI files, on disk.

    <state>/claims/<uid>.json                       until the kubelet has it unprepared
    <CDI directory>/nodeside.io-<driver>_<uid>.json    what its containers get; gone after a reboot

A record is written before its CDI file, and removed after it. A record that cannot be read counts
as absent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from nodeside import log
from nodeside.device_agent.dra.claims import UID, Claim
from nodeside.errors import NodesideError
from nodeside.protocol.records import MalformedRecord, decode, encode, publish, read_untrusted
from nodeside.system.files import TEMPORARY_PREFIX, UntrustedFile, disk_errors

_SUFFIX = ".json"
_MOST = 4096  # claims; a node has some hundred pods


class PreparedClaims:
    """The prepared claims of one DRA driver, by uid. Only one agent on a node may have them."""

    def __init__(self, state: Path, cdi: Path, kind: str) -> None:
        """Read what is there. Raises SystemRefused if a directory is missing and cannot be made."""
        self._records = state / "claims"
        self._cdi = cdi
        self._prefix = kind.replace("/", "-") + "_"
        for directory in (self._records, self._cdi):
            with disk_errors(directory):
                directory.mkdir(parents=True, exist_ok=True)
        self.claims: dict[str, Claim] = dict(self._read_records())
        self._sweep_leftovers()

    def record_claim(self, claim: Claim, spec: Mapping[str, Any] | None) -> None:
        """Record a prepared claim, and write what its containers get. Raises NodesideError."""
        if self.claims.get(claim.uid) != claim:
            publish(self._record_path(claim.uid), encode(claim))
            self.claims[claim.uid] = claim
        if spec is None:
            _unlink_file(self._spec_path(claim.uid))
        elif self._read_spec(claim.uid) != spec:
            publish(self._spec_path(claim.uid), spec)

    def forget_claim(self, uid: str) -> bool:
        """Forget a claim, if it is known; return whether it was. Raises NodesideError."""
        _unlink_file(self._spec_path(uid))
        _unlink_file(self._record_path(uid))
        return self.claims.pop(uid, None) is not None

    def _read_spec(self, uid: str) -> Mapping[str, Any] | None:
        with suppress(UntrustedFile):
            return read_untrusted(self._spec_path(uid))
        return None

    def _record_path(self, uid: str) -> Path:
        return self._records / f"{uid}{_SUFFIX}"

    def _spec_path(self, uid: str) -> Path:
        return self._cdi / f"{self._prefix}{uid}{_SUFFIX}"

    def _read_records(self) -> Iterator[tuple[str, Claim]]:
        for name in islice(_record_names(self._records), _MOST):
            uid = name.removesuffix(_SUFFIX)
            try:
                if not UID.fullmatch(uid):
                    raise MalformedRecord(f"{name[:80]!r} is not named after a claim")
                claim = decode(Claim, read_untrusted(self._records / name) or {}, where="claim")
                if claim.uid != uid:
                    raise MalformedRecord(f"it is about {claim.uid[:64]!r}")
            except NodesideError as exc:
                log.warning("a record of a claim is ignored", file=name[:80], why=exc)
            else:
                yield uid, claim

    def _sweep_leftovers(self) -> None:
        """Remove CDI files without a record, and files that a crash left half written."""
        known = {self._spec_path(uid).name for uid in self.claims}
        for name in list(_record_names(self._cdi)):
            uid = name.removeprefix(self._prefix).removesuffix(_SUFFIX)
            if name.startswith(self._prefix) and UID.fullmatch(uid) and name not in known:
                log.fact("a CDI file of no claim is removed", file=name[:120])
                with suppress(NodesideError):
                    _unlink_file(self._cdi / name)
        halves = (self._cdi, f"{TEMPORARY_PREFIX}{self._prefix}"), (self._records, TEMPORARY_PREFIX)
        for directory, prefix in halves:
            for name in [each for each in _list_directory(directory) if each.startswith(prefix)]:
                with suppress(NodesideError):
                    _unlink_file(directory / name)


def _unlink_file(path: Path) -> None:
    with disk_errors(path):
        path.unlink(missing_ok=True)


def _record_names(directory: Path) -> Iterator[str]:
    return (name for name in _list_directory(directory) if name.endswith(_SUFFIX))


def _list_directory(directory: Path) -> Iterator[str]:
    with disk_errors(directory), os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name
