"""Reverts changes that others make to our objects, with backoff against endless fights.

A manual edit is undone in the next plan, with an Event that names its author. If another program
keeps making the edit, it is reverted with increasing backoff and named in a condition, because each
change restarts the driver's pods. If an admission webhook changes what we apply, applying it again
has no effect: the object is left as it is, and this is reported.

The state is kept in the leader's memory only; a new leader reverts once and then knows the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from cluster.kube.managed_fields import ExistingObject
from cluster.model.actions import Action, Apply, EmitEvent, Plan
from cluster.model.names import APPLIED_NOTE
from cluster.model.problems import Problem, ProblemKind
from cluster.model.snapshot import Snapshot

REASON = "FieldsContested"

_FIRST, _LONGEST = 1.0, 300.0  # seconds between two reverts of one object
_FORGET_AFTER = 900.0  # seconds without an edit, after which the count starts again
_EDITS_OF_A_PROGRAM = 3  # so many edits of one object are taken for those of a program

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _AppliedObject:
    """An object as we last applied it. `edits` is how often it was reverted, last at `at`.

    `altered`: it was reported that the object does not stay as applied.
    """

    driver: str
    digest: str
    stamp: str
    edits: int = 0
    at: float = 0.0
    words: str = ""
    altered: bool = False

    @property
    def pause(self) -> float:
        return min(_FIRST * 2.0 ** min(self.edits - 1, 20), _LONGEST) if self.edits else 0.0


@dataclass
class RevertedEdits:
    """The reverted objects, by kind and name; times are monotonic."""

    _past: dict[_Key, _AppliedObject] = field(default_factory=dict)
    _news: list[tuple[str, str, str]] = field(default_factory=list)

    def forget_all(self) -> None:
        self._past.clear()
        self._news.clear()

    def list_problems(self, snapshot: Snapshot, now: float) -> Iterator[tuple[str, Problem]]:
        """Yield the problem of each object that somebody keeps editing, by Driver."""
        self._forget_gone(snapshot)
        for (kind, name), past in self._contested_objects(snapshot, now):
            words = (
                f"{kind} {name}: {past.words}, again and again; nodeside reverts that at most once "
                f"in {past.pause:.0f} s: keep that program from changing objects of nodeside"
            )
            yield past.driver, Problem(ProblemKind.CONTESTED, REASON, words)

    def drop_futile_applies(self, plan: Plan, snapshot: Snapshot, now: float) -> Plan:
        """Return the plan without futile or premature applies, and with the pending Events."""
        self._forget_gone(snapshot)
        actions: list[Action] = []
        waits: list[float] = []
        for action in plan.actions:
            wait = self._seconds_to_wait(action, now)
            if wait == 0.0:
                actions.append(action)
            elif wait is not None:
                waits.append(wait)
        waits += [
            past.at + _FORGET_AFTER - now for _, past in self._contested_objects(snapshot, now)
        ]
        actions += self._contention_events(snapshot)
        return replace(plan, actions=tuple(actions)).requeued_within(waits)

    def record_applied(self, applied: list[tuple[Apply, str]], now: float) -> bool:
        """Record what was applied, with the resulting stamps; return whether there are reports."""
        for action, stamp in applied:
            key, digest = _object_key(action), _document_digest(action)
            before = self._past.get(key)
            past = _AppliedObject(action.driver, digest, stamp)
            if before is not None and now < before.at + _FORGET_AFTER:
                past = replace(past, edits=before.edits, at=before.at, words=before.words)
            if _is_repeated(action, before):
                words = (action.over.edit if action.over else "") or "something changed it"
                past = replace(past, edits=past.edits + 1, at=now, words=words)
                note = f"{' '.join(key)} is reverted: {words}"
                self._news.append((past.driver, "EditUndone", note))
            self._past[key] = past
        return bool(self._news)

    def _seconds_to_wait(self, action: Action, now: float) -> float | None:
        """Return the seconds until an action may be done; None if it would change nothing."""
        if not isinstance(action, Apply) or action.over is None:
            return 0.0
        past = self._past.get(_object_key(action))
        if past is None or past.digest != _document_digest(action):
            return 0.0
        if _is_changed_by_webhook(action.over, past):
            self._report_altered(_object_key(action), past)
            return None
        return max(0.0, past.at + past.pause - now)

    def _report_altered(self, key: _Key, past: _AppliedObject) -> None:
        if not past.altered:
            self._past[key] = replace(past, altered=True)
            words = (
                f"{' '.join(key)} differs from what was applied, and applying it again does not "
                "help: most likely an admission webhook of this cluster changes it; it is left as "
                "it is"
            )
            self._news.append((past.driver, "AppliedOtherwise", words))

    def _contention_events(self, snapshot: Snapshot) -> Iterator[EmitEvent]:
        news, self._news = self._news, []
        for name, reason, note in news:
            if driver := snapshot.drivers.get(name):
                yield EmitEvent(name, driver.uid, warning=True, reason=reason, note=note)

    def _contested_objects(
        self, snapshot: Snapshot, now: float
    ) -> list[tuple[_Key, _AppliedObject]]:
        return [
            (key, past)
            for key, past in self._past.items()
            if past.edits >= _EDITS_OF_A_PROGRAM
            and now < past.at + _FORGET_AFTER
            and past.driver in snapshot.drivers
        ]

    def _forget_gone(self, snapshot: Snapshot) -> None:
        """Forget objects that no longer exist."""
        existing = {("DaemonSet", name) for name in snapshot.daemonsets}
        existing |= {("ConfigMap", name) for name in snapshot.revisions}
        existing |= set(snapshot.stages.objects) if snapshot.stages else set()
        self._past = {key: past for key, past in self._past.items() if key in existing}


def _object_key(action: Apply) -> _Key:
    return action.document["kind"], action.document["metadata"]["name"]


def _document_digest(action: Apply) -> str:
    """Return the hash of the document, which all but ConfigMaps have in an annotation."""
    notes: Mapping[str, str] = action.document["metadata"].get("annotations", {})
    text = json.dumps(action.document, sort_keys=True)
    return notes.get(APPLIED_NOTE) or hashlib.sha256(text.encode()).hexdigest()


def _is_repeated(action: Apply, past: _AppliedObject | None) -> bool:
    """Return whether an object was applied before and somebody has changed it since."""
    if action.over is None:
        return False
    return bool(action.over.edit) or (past is not None and past.digest == _document_digest(action))


def _is_changed_by_webhook(over: ExistingObject, past: _AppliedObject) -> bool:
    """Return whether an object differs from what was applied, with nobody's write in between."""
    return bool(over.edit) and over.last_write == past.stamp
