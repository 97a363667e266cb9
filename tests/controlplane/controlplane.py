"""Start a control plane in order, talk to it, stop it in order, leave nothing.

`ControlPlane` is a context manager. Every wait has a deadline, and a program that does not become
ready is shown with the last lines of its log. The programs die with the process that started them.
"""

from __future__ import annotations

import hashlib
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import requests

from nodeside.errors import DeadlinePassed, NodesideError
from nodeside.system import process
from nodeside.system.scratch import scratch_directory
from tests.controlplane import components
from tests.controlplane.api_server import ApiServer
from tests.controlplane.binaries import Binaries, Say, binaries
from tests.controlplane.certificates import (
    make_certificates,
    write_kubeconfig,
    write_kubeconfigs,
)
from tests.controlplane.components import LOOPBACK, Component, Place
from tests.patience import patience

_START = patience(120.0)  # seconds for one program to become ready; 4 are usual
_STOP = patience(20.0)  # seconds for one program to end by itself
_REQUEST = patience(30.0)  # seconds


@dataclass
class _Running:
    """A program and its log, which goes on where the program is started again."""

    component: Component
    log: Path
    child: process.Child

    @staticmethod
    def begin(component: Component, log: Path) -> _Running:
        return _Running(component, log, _started(component, log))

    def again(self) -> None:
        self.child = _started(self.component, self.log)

    def kill(self) -> None:
        process.kill_group(self.child.pid)
        self.child.wait(_STOP)

    def check(self) -> None:
        """Raise if it has ended."""
        if self.child.poll() is not None:
            code = process.exit_code_in_words(self.child.returncode)
            raise NodesideError(f"{self.component.name} ended: {code}\n{self.last_words}")

    @property
    def last_words(self) -> str:
        return process.last_lines_of(self.log.read_text(errors="replace"))

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            self.child.send_signal(signal.SIGTERM)
        with suppress(process.StillRunning):
            self.child.wait(_STOP)
        self.kill()


def _started(component: Component, log: Path) -> process.Child:
    with log.open("ab") as output:
        # A parent that is killed takes them along.
        argv = [_setpriv(), "--pdeathsig", "KILL", *component.argv]
        return process.start(argv, stdout=output, stderr=process.INTO_STDOUT)


class ControlPlane(ApiServer):
    """etcd, API server, controller manager, scheduler and KWOK on loopback.

    `simulated`: KWOK plays every node; without it, nodes are real ones. `address` is the API
    server's; all else is on loopback.
    """

    def __init__(
        self, say: Say = lambda _: None, *, simulated: bool = True, address: str = LOOPBACK
    ) -> None:
        super().__init__()
        self._say = say
        self._simulated = simulated
        self._address = address
        self._stack = ExitStack()
        self._running: dict[str, _Running] = {}
        self.binaries: Binaries
        self.place: Place

    def __enter__(self) -> ControlPlane:
        self.binaries = binaries(self._say)
        with ExitStack() as stack:
            directory = stack.enter_context(scratch_directory("control-plane"))
            directory.chmod(0o700)  # keys and the data of etcd
            stack.callback(self.close_sessions)
            self.place = self._settle_in(directory)
            self._start_all(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _settle_in(self, directory: Path) -> Place:
        names = ("etcd", "etcd-peer", "kube-apiserver", "kube-controller-manager")
        ports = components.free_ports(*names, "kube-scheduler", "kwok")
        certificates = make_certificates(directory, self._address)
        place = Place(directory, certificates, ports, self._address)
        write_kubeconfigs(place.certificates, place.url("kube-apiserver"))
        return place

    def _start_all(self, stack: ExitStack) -> None:
        """In the order of need. What was started last stops first: the API server before etcd."""
        start = partial(self._start, stack)
        self._await_ready(start(components.etcd(self.binaries, self.place)))
        self._await_ready(start(components.api_server(self.binaries, self.place)))
        rest = [components.controller_manager, components.scheduler]
        rest += [components.kwok] if self._simulated else []
        for running in [start(make(self.binaries, self.place)) for make in rest]:
            self._await_ready(running)
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        self.wait_for(
            lambda: self.request("GET", path).status == 200, "the default service account"
        )

    def _start(self, stack: ExitStack, component: Component) -> _Running:
        log = self.place.directory / f"{component.name}.log"
        running = _Running.begin(component, log)
        self._running[component.name] = running
        stack.callback(running.stop)
        return running

    def _await_ready(self, running: _Running) -> None:
        def is_ready() -> bool:
            running.check()
            with suppress(requests.RequestException):
                return self._session().get(running.component.ready, timeout=_REQUEST).ok
            return False

        name = running.component.name
        try:
            self.wait_for(is_ready, f"{name} to be ready", timeout=_START)
        except DeadlinePassed as error:
            raise DeadlinePassed(f"{error}\n{running.last_words}") from None
        self._say(f"{name} is ready")

    @property
    def url(self) -> str:
        return self.place.url("kube-apiserver")

    @property
    def kubeconfig(self) -> Path:
        """Of the administrator."""
        return self.place.certificates.kubeconfig("admin")

    @property
    def ca(self) -> Path:
        return self.place.certificates.ca

    @property
    def kubectl_program(self) -> Path:
        return self.binaries["kubectl"]

    @property
    def home(self) -> Path:
        return self.place.directory

    def new_session(self, token: str) -> requests.Session:
        session = requests.Session()
        session.trust_env = False
        session.verify = str(self.ca)
        if token:
            session.headers["Authorization"] = f"Bearer {token}"
        else:
            certificate, key = self.place.certificates.pair("admin")
            session.cert = (str(certificate), str(key))
        return session

    def pid(self, name: str) -> int:
        """The process of a program, for measurements: `kube-apiserver`, `etcd`, ..."""
        return self._running[name].child.pid

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """A program is killed, and comes back after the block with all that it had on disk."""
        running = self._running[name]
        running.kill()
        try:
            yield
        finally:
            running.again()
            self._await_ready(running)

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """A program takes connections and does not answer while the block lasts."""
        child = self._running[name].child
        process.kill_group(child.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            process.kill_group(child.pid, signal.SIGCONT)

    def pod_token(self, namespace: str, account: str, pod: Mapping[str, Any] | None) -> str:
        """A token of a service account, bound to a pod (and so to its node) if there is one."""
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if pod is not None:
            meta = pod["metadata"]
            named = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
            spec["boundObjectRef"] = named
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.do("POST", path, body)["status"]["token"])

    def kubeconfig_of(self, token: str) -> Path:
        """A kubeconfig with which a program acts as the owner of a token."""
        name = hashlib.sha256(token.encode()).hexdigest()[:16]
        path = self.place.directory / f"token-{name}.kubeconfig"
        write_kubeconfig(path, self.place.certificates, self.url, {"token": token})
        return path


def _setpriv() -> str:
    found = shutil.which("setpriv")
    if found is None:
        raise NodesideError("setpriv is not installed", hint="apt-get install util-linux")
    return found
