"""Keeps a plugin registered with the kubelet of this node.

A kubelet that restarts forgets its plugins, and some versions remove the plugins' sockets. A
restart shows in any of three ways: our socket has vanished, kubelet.sock is another file (compared
by ctime too, since ext4 reuses inodes), or no kubelet watches the plugin.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

from nodeside import log
from nodeside.errors import NodesideError
from nodeside.system.clock import backoff
from nodeside.system.file_lock import LockFile
from nodeside.system.files import Identity, file_identity

KUBELET_SOCKET = "kubelet.sock"
_FIRST, _LONGEST = 1.0, 30.0  # seconds between attempts
_UNWATCHED = 10.0  # seconds after which a plugin that nobody watches is registered again


def file_prefix(resource: str) -> str:
    """Return the prefix of the names of a resource's files in the kubelet's directory.

    The path of a socket has at most 107 characters (unix(7)), so a digest stands for the resource.
    """
    return f"nodeside-{hashlib.sha256(resource.encode()).hexdigest()[:12]}"


class NotRegistered(NodesideError):
    """A plugin that the kubelet refused, with the kubelet's message."""

    reason = "NotRegistered"


class RegisteredPlugin(Protocol):
    """The part of a plugin that its registration uses."""

    @property
    def resource(self) -> str: ...

    @property
    def endpoint(self) -> str:
        """The name of the plugin's socket; "" if there is none or it has vanished."""

    @property
    def is_watched(self) -> bool:
        """Whether the kubelet watches the list of devices."""

    def start(self) -> None:
        """Listen on a new socket. Raises OSError."""

    def stop(self) -> None: ...

    def register(self) -> None:
        """Tell the kubelet the name of the socket. Raises NotRegistered."""


class Registration:
    """The registration of one plugin; `check` is called every second or so."""

    def __init__(self, plugin: RegisteredPlugin, directory: Path) -> None:
        self._plugin = plugin
        self._directory = directory
        self._lock = LockFile(directory / f"{file_prefix(plugin.resource)}.lock")
        self._kubelet: Identity | None = None
        self._is_registered = False
        self._next = 0.0  # monotonic seconds
        self._failures = 0
        self._trouble = ""

    def check(self, now: float) -> bool:
        """Register the plugin if that is missing and due; return whether the kubelet was asked.

        Nothing that the kubelet does raises an exception.
        """
        try:
            if not self._is_locked():
                self._log_trouble("another agent offers this resource here; waiting for its end")
                return False
        except OSError as error:
            self._log_trouble(f"cannot lock a file in {self._directory}: {error.strerror}")
            return False
        kubelet = file_identity(self._directory / KUBELET_SOCKET)
        if kubelet != self._kubelet:
            self._forget_registration(now)
            self._kubelet = kubelet
        elif self._is_registered and not self._plugin.endpoint:
            self._forget_registration(now)
        if (self._is_registered and self._plugin.is_watched) or now < self._next:
            return False
        if self._kubelet is None:
            self._note_failure(now, "there is no kubelet; waiting for it")
            return False
        if not self._start_listening(now):
            return False
        self._try_to_register(now)
        return True

    def _forget_registration(self, now: float) -> None:
        self._is_registered, self._failures, self._next = False, 0, now

    def _start_listening(self, now: float) -> bool:
        """Listen on a new socket; return whether that worked."""
        try:
            self._plugin.start()
        except OSError as error:
            self._note_failure(now, f"cannot listen in {self._directory}")
            log.detail("cannot listen", why=error)
            return False
        return True

    def close(self) -> None:
        """Stop the plugin and release the lock, so that another agent may offer the resource."""
        self._plugin.stop()
        self._is_registered, self._failures, self._next = False, 0, 0.0
        self._lock.release()

    def _is_locked(self) -> bool:
        if self._lock.is_lost:
            self.close()  # an older kubelet removes all files when it starts
        return self._lock.take()

    def _try_to_register(self, now: float) -> None:
        try:
            self._plugin.register()
        except NotRegistered as error:
            self._note_failure(now, f"the kubelet does not take the plugin: {error}")
            return
        # If the kubelet was replaced meanwhile, its identity differs at the next check.
        self._is_registered, self._trouble = True, ""
        self._failures += 1  # counts as a failure until the kubelet watches
        self._next = now + backoff(self._failures, _UNWATCHED, _LONGEST)
        log.fact("registered with the kubelet", resource=self._plugin.resource)

    def _note_failure(self, now: float, words: str) -> None:
        self._failures += 1
        self._next = now + backoff(self._failures, _FIRST, _LONGEST)
        self._log_trouble(words)

    def _log_trouble(self, words: str) -> None:
        """Log a problem, unless it is the one that was logged last."""
        if words != self._trouble:
            self._trouble = words
            log.warning(words, resource=self._plugin.resource)
