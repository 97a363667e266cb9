"""Where a DRA driver is: its node, the API server, and directories."""

from __future__ import annotations

from pathlib import Path

from nodeside.kube.client import PodAccess
from nodeside.protocol.labels import dra_driver
from nodeside.values import frozen

_LONGEST = 107  # characters of a socket's path: unix(7)


@frozen
class Site:
    """Where the sockets and files of a driver are.

    `plugins` and `registry` are directories of the kubelet. It is told paths, so `plugins` is the
    same path here and for the kubelet. `state` is this driver's own, and survives a reboot.
    Container runtimes look for CDI files in `cdi`.
    """

    node: str
    access: PodAccess
    plugins: Path
    registry: Path
    state: Path
    cdi: Path

    def service(self, driver: str) -> Path:
        """Return the socket that prepares claims."""
        return self.plugins / dra_driver(driver) / "dra.sock"

    def registration(self, driver: str) -> Path:
        """Return the socket by which the kubelet finds the driver."""
        return self.registry / f"{dra_driver(driver)}-reg.sock"

    def unusable_reason(self, driver: str) -> str:
        """Return why it cannot be used, "" if it can."""
        for directory in (self.plugins, self.registry):
            if not directory.is_dir():
                return f"there is no directory {directory}"
        for path in (self.service(driver), self.registration(driver)):
            if len(str(path)) > _LONGEST:
                return f"{path}: a socket's path has at most {_LONGEST} characters"
        return ""
