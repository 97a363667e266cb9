"""A DRA driver on a node, as the kubelet finds it.

<plugins>/<name>/agent.lock   of several agents on a node, one is the driver
<plugins>/<name>/dra.sock     service.py
<registry>/<name>-reg.sock    tells the kubelet about dra.sock; it looks for such sockets
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeside import log
from nodeside.device_agent import messages
from nodeside.device_agent.dra.service import VERSIONS, ClaimService
from nodeside.device_agent.dra.site import Site
from nodeside.device_agent.rpc import RpcServer, Unary
from nodeside.errors import NodesideError
from nodeside.protocol.labels import dra_driver
from nodeside.system.clock import backoff
from nodeside.system.file_lock import LockFile
from nodeside.system.files import Identity, file_identity

_FIRST, _LONGEST = 1.0, 30.0  # seconds between attempts to listen


class DraDriver:
    """The DRA driver of a Driver, if this agent has its lock; `check` is called every second or so.

    `on_kubelet_answer` is called when the kubelet has accepted or refused a registration.
    """

    def __init__(
        self, driver: str, site: Site, service: ClaimService, on_kubelet_answer: Callable[[], None]
    ) -> None:
        self.name = dra_driver(driver)
        self._socket, self._registered_by = site.service(driver), site.registration(driver)
        self._service = service
        self._on_kubelet_answer = on_kubelet_answer
        self._server = RpcServer(service.services)
        self._registration = RpcServer(
            {
                "pluginregistration.Registration": {
                    "GetInfo": Unary(self._answer_info, messages.InfoRequest),
                    "NotifyRegistrationStatus": Unary(
                        self._note_registration, messages.RegistrationStatus
                    ),
                }
            }
        )
        self._lock = LockFile(self._socket.with_name("agent.lock"))
        self._sockets: Mapping[Path, Identity | None] = {}
        self._failures, self._next, self._trouble = 0, 0.0, ""
        self.registrations = 0  # since the start
        self.is_registered = False

    def check(self, now: float) -> bool:
        """See that the kubelet can find the driver; return whether this agent is the driver."""
        if now < self._next and not self._sockets:
            return False
        try:
            if not self._is_locked():
                self._log_trouble("another agent is the DRA driver here; waiting for its end")
                return False
            if not self._is_listening():
                self._start_listening()
        except (OSError, NodesideError) as exc:
            self._failures += 1
            self._next = now + backoff(self._failures, _FIRST, _LONGEST)
            self._log_trouble(f"cannot serve the kubelet: {exc}")
            return False
        self._failures, self._trouble = 0, ""
        return True

    def close(self) -> None:
        """Stop, and let another agent be the driver."""
        self._stop_listening()
        self._service.close()
        self._lock.release()

    def _is_locked(self) -> bool:
        if self._lock.is_lost:
            self.close()  # somebody has removed the directory
        if self._lock.is_held:
            return True
        self._socket.parent.mkdir(mode=0o750, exist_ok=True)
        return self._lock.take()

    def _is_listening(self) -> bool:
        """Whether both sockets are still the ones that this agent made."""
        sockets = self._sockets
        return bool(sockets) and all(
            file_identity(path) == known for path, known in sockets.items()
        )

    def _start_listening(self) -> None:
        """Serve, then be found. What an earlier agent left behind is removed: we hold the lock."""
        self._stop_listening()
        self._service.open()
        paths = (self._registered_by, self._socket)
        for path in paths:
            path.unlink(missing_ok=True)
        self._server.start(self._socket)
        self._registration.start(self._registered_by)
        self._sockets = {path: file_identity(path) for path in paths}
        log.fact("waiting for the kubelet", driver=self.name, socket=self._registered_by)

    def _stop_listening(self) -> None:
        """Deregister first, so that the kubelet sends no claim to a socket without a server."""
        paths, self._sockets = list(self._sockets), {}
        self.is_registered = False
        self._registration.stop()
        self._server.stop()
        for path in paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _log_trouble(self, words: str) -> None:
        """Log a trouble once."""
        if words != self._trouble:
            self._trouble = words
            log.warning(words, driver=self.name)

    # --- for the server's threads

    def _answer_info(self, _request: Any) -> Any:
        return messages.PluginInfo(
            type="DRAPlugin",
            name=self.name,
            endpoint=str(self._socket),
            supported_versions=VERSIONS,
        )

    def _note_registration(self, status: Any) -> Any:
        self.is_registered = status.plugin_registered
        if status.plugin_registered:
            self.registrations += 1
            log.fact("registered with the kubelet", driver=self.name)
        else:
            log.warning(
                "the kubelet refused to register the driver", driver=self.name, why=status.error
            )
        self._on_kubelet_answer()
        return messages.RegistrationStatusResponse()
