"""A throwaway CA, what it signs, and the kubeconfigs that carry it. `openssl` makes them.

<directory>/
  ca.crt, ca.key            the one CA of the control plane
  server.crt, server.key    every server, and the API server as etcd's client
  accounts.key, .pub        signs and verifies service account tokens
  <user>.crt, <user>.key    admin, kube-controller-manager, kube-scheduler, kwok
  <user>.kubeconfig         everything inside, so it may be copied
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nodeside.system import process
from tests.patience import patience

_OPENSSL = patience(30.0)  # seconds
_DAYS = "30"
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_LOOPBACK = "127.0.0.1"
_NAMES = (
    "DNS:localhost,IP:10.0.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
)

# The groups by which the API server's own roles know them; KWOK plays every kubelet.
GROUPS = {
    "admin": "system:masters",
    "kwok": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
}


@dataclass(frozen=True)
class Certificates:
    """The files of a directory, by role."""

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def server(self) -> tuple[Path, Path]:
        return self.pair("server")

    @property
    def accounts(self) -> tuple[Path, Path]:
        """The key that signs service account tokens, and the one that verifies them."""
        return self.directory / "accounts.key", self.directory / "accounts.pub"

    def pair(self, name: str) -> tuple[Path, Path]:
        """Certificate and key."""
        name = name.removeprefix("system:")
        return self.directory / f"{name}.crt", self.directory / f"{name}.key"

    def kubeconfig(self, user: str) -> Path:
        return self.directory / f"{user.removeprefix('system:')}.kubeconfig"


def make_certificates(directory: Path, address: str = _LOOPBACK) -> Certificates:
    """Fill a directory with everything but the kubeconfigs; servers are at `address`, too."""
    made = Certificates(directory)
    (directory / "openssl.cnf").write_text("[req]\ndistinguished_name = subject\n[subject]\n")
    _sign(made, "ca", "nodeside throwaway CA", "basicConstraints=critical,CA:TRUE", _CA_USAGE)
    names = ",".join([_NAMES, *(f"IP:{each}" for each in sorted({_LOOPBACK, address}))])
    _sign(made, "server", _LOOPBACK, f"subjectAltName={names}", _SERVER_USAGE)
    for user, group in GROUPS.items():
        sign_client(made, user, group)
    signing, verifying = made.accounts
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    _openssl("genpkey", *curve, "-out", signing)
    _openssl("pkey", "-in", signing, "-pubout", "-out", verifying)
    return made


def sign_client(made: Certificates, user: str, group: str = "") -> Mapping[str, str]:
    """A certificate by which the API server knows a user; it as a kubeconfig's `user`."""
    _sign(made, user, user, _CLIENT_USAGE, group=group)
    certificate, key = made.pair(user)
    return {"client-certificate-data": inline(certificate), "client-key-data": inline(key)}


def write_kubeconfigs(made: Certificates, url: str) -> None:
    """One for each user."""
    for user in GROUPS:
        certificate, key = made.pair(user)
        who = {"client-certificate-data": inline(certificate), "client-key-data": inline(key)}
        write_kubeconfig(made.kubeconfig(user), made, url, who)


def write_kubeconfig(path: Path, made: Certificates, url: str, who: Mapping[str, str]) -> None:
    """`who` is a client certificate with its key, or `{"token": ...}`. JSON is YAML."""
    cluster = {"server": url, "certificate-authority-data": inline(made.ca)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "nodeside",
        "clusters": [{"name": "nodeside", "cluster": cluster}],
        "users": [{"name": "user", "user": dict(who)}],
        "contexts": [{"name": "nodeside", "context": {"cluster": "nodeside", "user": "user"}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=2) + "\n")


_CA_USAGE = "keyUsage=critical,keyCertSign,cRLSign"
_SERVER_USAGE = "extendedKeyUsage=serverAuth,clientAuth"
_CLIENT_USAGE = "extendedKeyUsage=clientAuth"


def _sign(made: Certificates, name: str, common_name: str, *said: str, group: str = "") -> None:
    """A key and its certificate: the CA's own, or signed by it."""
    certificate, key = made.pair(name)
    subject = (f"/O={group}" if group else "") + f"/CN={common_name}"
    extensions = [*said, "subjectKeyIdentifier=hash"]
    by: list[str | Path] = []
    if name != "ca":
        authority, authority_key = made.pair("ca")
        by = ["-CA", authority, "-CAkey", authority_key]
        extensions += ["basicConstraints=critical,CA:FALSE", "authorityKeyIdentifier=keyid"]
    added = [word for extension in extensions for word in ("-addext", extension)]
    config = made.directory / "openssl.cnf"
    asked = ["-x509", "-config", str(config), *_CURVE, "-days", _DAYS, "-subj", subject]
    _openssl("req", *asked, *by, *added, "-keyout", key, "-out", certificate)


def _openssl(*argv: str | Path) -> None:
    process.run(["openssl", *argv], timeout=_OPENSSL, hint="OpenSSL 3 is needed: openssl version")


def inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
