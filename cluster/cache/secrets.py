"""Reads the Secrets that templates of stages name, one by one, each half minute.

The controller has no right to read Secrets. An administrator gives it one for each that a stage
names; the error of a stage says how. Nothing is listed or watched, which would need more rights.
"""

from __future__ import annotations

import base64
import binascii
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from cluster.kube.client import Api
from cluster.kube.errors import ApiError, NotFound
from cluster.kube.resources import SECRETS
from cluster.model.names import CONTROLLER
from cluster.model.snapshot import Snapshot
from cluster.model.stages import SecretData

_PAUSE = 30.0  # seconds between two reads
_FORBIDDEN = 403


class Secrets:
    """A reader of Secrets: `read_secrets` sets their names, `get_secrets` returns their data.

    `wake` is called when data changes.
    """

    def __init__(
        self, api: Api, namespace: str, wake: Callable[[], None], *, pause: float = _PAUSE
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._wake = wake
        self._pause = pause
        self._changed = threading.Condition()
        self._wanted: frozenset[str] = frozenset()
        self._seen: dict[str, SecretData] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def read_secrets(self, names: Collection[str]) -> None:
        """Read these Secrets and no others from now on."""
        with self._changed:
            if self._wanted == frozenset(names):
                return
            self._wanted = frozenset(names)
            self._seen = {name: self._seen[name] for name in self._wanted & self._seen.keys()}
            if self._wanted and self._thread is None and not self._stopping:
                self._thread = threading.Thread(
                    target=self._read_until_stopped, name="secrets", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def get_secrets(self) -> Mapping[str, SecretData]:
        with self._changed:
            return dict(self._seen)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _read_until_stopped(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                wanted = self._wanted
            changed = [self._read_secret(name) for name in sorted(wanted)]
            if any(changed):
                self._wake()
            with self._changed:
                if not self._stopping and self._wanted == wanted:
                    self._changed.wait(self._pause)

    def _read_secret(self, name: str) -> bool:
        """Read a Secret; return whether the result changed. In an outage the last result stays."""
        try:
            found = read_secret(self._api, self._namespace, name)
        except ApiError as error:
            found = SecretData(error=f"Secret {name}: {error}")
        except Exception as exc:  # a bug of ours: report and retry
            traceback.print_exc()
            found = SecretData(error=f"a bug in nodeside, please report it: {type(exc).__name__}")
        with self._changed:
            before = self._seen.get(name)
            outage = found.data is None and not found.is_certain
            if name not in self._wanted or (outage and before is not None):
                return False
            self._seen[name] = found
        return found != before


def read_secret(api: Api, namespace: str, name: str) -> SecretData:
    """Read a Secret. Raises ApiError if that says nothing about it."""
    try:
        data = api.get(SECRETS, name, namespace=namespace).get("data") or {}
    except NotFound:
        return SecretData(error=f"there is no Secret {name} in {namespace}", is_certain=True)
    except ApiError as error:
        if error.status != _FORBIDDEN:
            raise
        return SecretData(error=_forbidden_message(namespace, name), is_certain=True)
    return SecretData(dict(_text_entries(data)), is_certain=True)


def _text_entries(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the entries that are text; others cannot be in a template."""
    for key, value in data.items():
        try:
            yield key, base64.b64decode(str(value), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue


def _forbidden_message(namespace: str, name: str) -> str:
    role = f"{CONTROLLER}-reads-{name}"
    of = f"kubectl -n {namespace} create"
    return (
        f"the controller may not read Secret {name}; to let it: {of} role {role} --verb=get "
        f"--resource=secrets --resource-name={name} && {of} rolebinding {role} --role={role} "
        f"--serviceaccount={namespace}:{CONTROLLER}"
    )


def secrets_wanted(snapshot: Snapshot) -> frozenset[str]:
    """Return the Secrets that stages of valid Drivers name."""
    drivers = (each.driver for each in snapshot.drivers.values() if not each.deleting)
    return frozenset(
        each.secret
        for driver in drivers
        if driver is not None
        for stage in driver.spec.stages
        for each in stage.reads
        if each.secret
    )
