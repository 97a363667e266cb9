"""Where feature labels go: to a file of Node Feature Discovery, else to the node itself.

Node Feature Discovery (NFD) makes labels of the lines of files in a directory. Where it is, it
should be the one that writes labels. Where it is not, the agent patches its own node, if it has a
token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from nodeside import log
from nodeside.kube.client import Caller, Client, PodAccess
from nodeside.kube.nodes import label_node, read_node
from nodeside.protocol.labels import feature_prefix
from nodeside.protocol.timestamps import rfc3339
from nodeside.system.files import publish_bytes

CALLER: Final = Caller("device agent", {"nodes": ("", ("get", "patch"))})
# Seconds that NFD keeps the labels after the agent's last word. An upgrade of the driver, whose
# build may take minutes, and a reboot fit in; no label goes and comes meanwhile.
EXPIRES: Final = 3600.0
_FILE_RENEW: Final = 600.0
_NODE_RENEW: Final = 3600.0


class Sink(Protocol):
    """A place for labels. `renew` is how many seconds later unchanged ones are written again."""

    renew: float

    def write_labels(self, labels: Mapping[str, str]) -> None:
        """Have these labels of the driver, and no others. Raises NodesideError."""


class FeatureFile:
    """A file in NFD's directory of features. It is not removed at the end: it expires.

    NFD reads it once a minute, up to 64 KiB of it, and no file whose name begins with a dot.
    https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/customization-guide.html#feature-files
    """

    renew = _FILE_RENEW

    def __init__(
        self, directory: Path, driver: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.directory = directory
        self.path = directory / f"nodeside-{driver}"
        self._clock = clock

    def write_labels(self, labels: Mapping[str, str]) -> None:
        lines = [
            "# Of the device agent of nodeside, which writes it anew.",
            f"# +expiry-time={rfc3339(self._clock() + EXPIRES)}",
            *(f"{key}={value}" for key, value in labels.items()),
        ]
        publish_bytes(self.path, "".join(f"{line}\n" for line in lines).encode("ascii"))


class NodeLabels:
    """The labels of this node that begin as the driver's do."""

    renew = _NODE_RENEW

    def __init__(self, client: Client, node: str, driver: str) -> None:
        self.node = node
        self._client = client
        self._prefix = feature_prefix(driver)

    def write_labels(self, labels: Mapping[str, str]) -> None:
        try:
            there = self._our_labels(self._client.send(read_node(self.node)))
            gone = sorted(there.keys() - labels.keys())
            changes: dict[str, str | None] = {
                key: value for key, value in labels.items() if there.get(key) != value
            }
            changes |= dict.fromkeys(gone)
            if changes:
                self._client.send(label_node(self.node, changes))
                log.fact("labelled the node", node=self.node, changed=",".join(changes))
        finally:
            self._client.close()  # the next change may be weeks away

    def _our_labels(self, node: Mapping[str, Any]) -> Mapping[str, str]:
        labels = (node.get("metadata") or {}).get("labels") or {}
        return {key: value for key, value in labels.items() if key.startswith(self._prefix)}


class Sinks:
    """The sinks that there may be, and the one that is used, which is logged when it changes."""

    def __init__(self, file: FeatureFile | None, node: NodeLabels | None) -> None:
        self._file = file
        self._node = node
        self._logged_sink: object = self  # nothing yet

    @staticmethod
    def of(driver: str, directory: Path | None, access: PodAccess | None, name: str) -> Sinks:
        """Return those of a pod: NFD's directory, if any, and the node of this name.

        Without a token there is no node to label.
        """
        node = None
        if access and name and (access.directory / "token").exists():
            node = NodeLabels(Client(access, CALLER), name, driver)
        return Sinks(FeatureFile(directory, driver) if directory else None, node)

    def choose_sink(self) -> Sink | None:
        """Return the file if NFD's directory is there, else the node; None if neither is."""
        file, node = self._file, self._node
        sink: Sink | None = file if file and file.directory.is_dir() else node
        if sink is not self._logged_sink:
            self._logged_sink = sink
            if file and sink is file:
                log.fact("Node Feature Discovery labels the node", file=file.path)
            elif node:
                log.fact("the device agent labels the node itself", node=node.node)
            else:
                log.warning(
                    "the node gets no labels: neither Node Feature Discovery nor a token is there",
                    directory=file.directory if file else "",
                )
        return sink
