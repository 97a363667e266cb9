"""An API server, as its administrator has it: requests, kubectl, and waiting.

`ControlPlane` is one that runs here; tests/lab/elsewhere.py reaches another's.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from nodeside.errors import DeadlinePassed
from nodeside.system import process
from tests.patience import patience

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_WAIT = patience(120.0)  # seconds
_REQUEST = patience(30.0)  # seconds
_KUBECTL = patience(60.0)  # seconds
_LOOK = 0.05  # seconds between two looks whether something is so
_SOON = 2.0  # seconds; who has waited longer looks less often: a look costs both ends
_LATER = 0.2  # seconds between two looks then


@dataclass(frozen=True)
class Answer:
    """What the API server said."""

    status: int
    document: Mapping[str, Any]

    @property
    def message(self) -> str:
        return str(self.document.get("message", ""))


class Refused(AssertionError):
    """The API server did not do what a test's own preparation asked of it."""


class ApiServer(ABC):
    """`patience`: how many seconds a wait lasts that names no limit."""

    def __init__(self, patience: float = _WAIT) -> None:
        self._patience = patience
        self._sessions: dict[str, requests.Session] = {}

    @property
    @abstractmethod
    def url(self) -> str: ...

    @property
    @abstractmethod
    def kubeconfig(self) -> Path:
        """Of the administrator."""

    @property
    @abstractmethod
    def kubectl_program(self) -> Path: ...

    @property
    @abstractmethod
    def home(self) -> Path:
        """Where kubectl keeps what it discovered."""

    @abstractmethod
    def new_session(self, token: str) -> requests.Session:
        """Of the owner of a token, or of the administrator."""

    def request(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        token: str = "",
    ) -> Answer:
        """One request as the administrator, or with a token; any answer is an answer."""
        response = self._session(token).request(
            method,
            self.url + path,
            data=None if document is None else json.dumps(document).encode(),
            headers={"Content-Type": content_type},
            timeout=_REQUEST,
        )
        text = response.text
        body = json.loads(text) if text.startswith("{") else {"message": text}
        return Answer(response.status_code, body)

    def do(self, method: str, path: str, document: Any = None, **more: Any) -> Mapping[str, Any]:
        """A request that must succeed; the document that came back."""
        answer = self.request(method, path, document, **more)
        if answer.status >= 300:
            raise Refused(f"{method} {path}: {answer.status} {answer.message}")
        return answer.document

    def kubectl(self, *argv: str | Path, input: str = "", check: bool = True) -> process.Completed:
        """kubectl as the administrator. Raises ToolError if `check` and it fails."""
        words = [self.kubectl_program, f"--kubeconfig={self.kubeconfig}", *argv]
        given = input.encode() if input else None
        env = {"HOME": str(self.home)}
        return process.run(words, timeout=_KUBECTL, input=given, check=check, env=env)

    def wait_for(self, holds: Callable[[], object], what: str, *, timeout: float = 0.0) -> None:
        """Look again and again until something is so."""
        timeout = timeout or self._patience
        began = time.monotonic()
        while not holds():
            waited = time.monotonic() - began
            if waited > timeout:
                raise DeadlinePassed(f"waited {timeout:g} s for {what}")
            time.sleep(_LOOK if waited < _SOON else _LATER)

    def _session(self, token: str = "") -> requests.Session:
        if token not in self._sessions:
            self._sessions[token] = self.new_session(token)
        return self._sessions[token]

    def forget_connections(self) -> None:
        """In a forked process: what was open is the other process's."""
        self._sessions = {}

    def close_sessions(self) -> None:
        for session in self._sessions.values():
            session.close()
