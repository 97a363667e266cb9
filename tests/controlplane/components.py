"""What each program of the control plane is started with, and where it says that it is ready.

Real authorization and admission; nothing is kept on disk longer than it lives, so etcd need not
sync. The client limits are raised, since the defaults would be all that a benchmark measures.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.audit import Audit
from tests.controlplane.binaries import Binaries
from tests.controlplane.certificates import Certificates
from tests.controlplane.stages import OWN_STATUS, stages

LOOPBACK = "127.0.0.1"
_BELOW_THE_EPHEMERAL = (20000, 32000)  # no outgoing connection takes one of these ports
_QUICK = ("--kube-api-qps=2000", "--kube-api-burst=4000")

Argv = tuple[str | Path, ...]


@dataclass(frozen=True)
class Component:
    """A program with its arguments; `ready` answers 200 as soon as it works."""

    name: str
    argv: Argv
    ready: str


@dataclass(frozen=True)
class Place:
    """Where a control plane lives: a directory, certificates, a port for each program.

    `address` is the API server's; all others are on loopback.
    """

    directory: Path
    certificates: Certificates
    ports: Mapping[str, int]
    address: str = LOOPBACK

    def url(self, name: str, scheme: str = "https") -> str:
        address = self.address if name == "kube-apiserver" else LOOPBACK
        return f"{scheme}://{address}:{self.ports[name]}"


def free_ports(*names: str) -> dict[str, int]:
    """A port for each name that is free on every address: a program may take them all."""
    chosen: dict[str, int] = {}
    candidates = random.sample(range(*_BELOW_THE_EPHEMERAL), 2000)
    for name in names:
        chosen[name] = next(port for port in iter(candidates.pop, None) if _is_free(port))
    return chosen


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def etcd(binaries: Binaries, place: Place) -> Component:
    """Only who has a certificate of ours may talk to it."""
    certificate, key = place.certificates.server
    url, peer = place.url("etcd"), place.url("etcd-peer", "http")
    argv: Argv = (
        binaries["etcd"],
        "--name=nodeside",
        f"--data-dir={place.directory / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=nodeside={peer}",
        f"--cert-file={certificate}",
        f"--key-file={key}",
        f"--trusted-ca-file={place.certificates.ca}",
        "--client-cert-auth",
        "--log-level=warn",
    )
    return Component("etcd", argv, f"{url}/health")


def api_server(binaries: Binaries, place: Place) -> Component:
    """It reaches kubelets by the addresses that they tell, and as their administrator."""
    signing, verifying = place.certificates.accounts
    certificate, key = place.certificates.server
    own, own_key = place.certificates.pair("admin")
    argv: Argv = (
        binaries["kube-apiserver"],
        f"--bind-address={place.address}",
        f"--advertise-address={place.address}",
        f"--kubelet-client-certificate={own}",
        f"--kubelet-client-key={own_key}",
        "--kubelet-preferred-address-types=InternalIP",
        "--endpoint-reconciler-type=none",
        f"--etcd-servers={place.url('etcd')}",
        f"--etcd-cafile={place.certificates.ca}",
        f"--etcd-certfile={certificate}",
        f"--etcd-keyfile={key}",
        f"--client-ca-file={place.certificates.ca}",
        "--authorization-mode=Node,RBAC",
        # The second is on in OpenShift: who names an owner must be allowed to hold it up.
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
        "--allow-privileged=true",
        "--service-cluster-ip-range=10.0.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={signing}",
        f"--service-account-key-file={verifying}",
        *Audit(place.directory).flags(),
        *_serving(place, "kube-apiserver"),
    )
    return Component("kube-apiserver", argv, f"{place.url('kube-apiserver')}/readyz")


def controller_manager(binaries: Binaries, place: Place) -> Component:
    signing, _ = place.certificates.accounts
    name = "kube-controller-manager"
    argv: Argv = (
        binaries[name],
        f"--bind-address={LOOPBACK}",
        *_as_user(place, f"system:{name}"),
        "--use-service-account-credentials",
        f"--service-account-private-key-file={signing}",
        f"--root-ca-file={place.certificates.ca}",
        *_serving(place, name),
    )
    return Component(name, argv, f"{place.url(name)}/healthz")


def scheduler(binaries: Binaries, place: Place) -> Component:
    name = "kube-scheduler"
    argv: Argv = (
        binaries[name],
        f"--bind-address={LOOPBACK}",
        *_as_user(place, f"system:{name}"),
        *_serving(place, name),
    )
    return Component(name, argv, f"{place.url(name)}/readyz")


def kwok(binaries: Binaries, place: Place) -> Component:
    """Every node is simulated: it keeps a lease, and its pods run at once."""
    played = place.directory / "stages.yaml"
    played.write_text(stages(binaries.stages))
    argv: Argv = (
        binaries["kwok"],
        f"--kubeconfig={place.certificates.kubeconfig('kwok')}",
        f"--config={played}",
        "--manage-all-nodes",
        f"--disregard-status-with-annotation-selector={'='.join(OWN_STATUS)}",
        "--node-lease-duration-seconds=40",
        f"--server-address={LOOPBACK}:{place.ports['kwok']}",
    )
    return Component("kwok", argv, f"{place.url('kwok', 'http')}/healthz")


def _serving(place: Place, name: str) -> tuple[str, ...]:
    certificate, key = place.certificates.server
    port = f"--secure-port={place.ports[name]}"
    return port, f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"


def _as_user(place: Place, user: str) -> tuple[str, ...]:
    config = place.certificates.kubeconfig(user)
    flags = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return *(f"--{flag}={config}" for flag in flags), "--leader-elect=false", *_QUICK
