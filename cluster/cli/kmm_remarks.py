"""Remarks on the keys of a Module of KMM that have no effect on the Driver. Pure.

The table only adds explanations. A key that is not in it gets a remark too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from cluster.cli.document_keys import DocumentPart
from nodeside.spec.mistakes import path_in_words

_PULLS: Final = "images are pulled by the nodes' container runtime, which has settings of its own"
_BUILDS: Final = "nothing is built from a Dockerfile here"
_LOADS: Final = "nodeside loads modules without modprobe, so it has no options: "
_SERVER: Final = "written by the API server, nothing to do"

# By the place in the document. A kernel mapping is the same place as the container around it.
_CONTAINER: Final = "spec.moduleLoader.container"
_REMARKS: Final = {
    "metadata.namespace": "a Driver has none; its pods, and what they name, are in nodeside's "
    "namespace",
    "metadata.labels": "a Driver takes labels, too: write here those that are yours",
    "metadata.annotations": "a Driver takes annotations, too: write here those that are yours",
    "metadata.managedFields": _SERVER,
    "metadata.creationTimestamp": _SERVER,
    "metadata.uid": _SERVER,
    "metadata.resourceVersion": _SERVER,
    "metadata.generation": _SERVER,
    "metadata.finalizers": "of KMM's own, nothing to do",
    "metadata.ownerReferences": "of the Module, nothing to do",
    "status": "what KMM observed, nothing to do",
    "spec.tolerations": "nothing to do: driver pods tolerate every taint",
    "spec.imageRebuildTriggerGeneration": "nothing to do: a missing build is made again by itself; "
    "`nodeside-cluster rebuild NAME` builds anew, and so does a new `version`",
    "spec.dra.driverName": "the DRA driver in the stage registers itself by this name, and its "
    "DeviceClasses below name it",
    "spec.moduleLoader.serviceAccountName": "driver pods run as nodeside's own ServiceAccount",
    f"{_CONTAINER}.imagePullPolicy": "driver pods have Kubernetes' default: give each "
    "image its own tag",
    f"{_CONTAINER}.registryTLS": _PULLS,
    f"{_CONTAINER}.regexp": "the mapping has a literal, too, which comes first",
    f"{_CONTAINER}.modprobe.dirName": "nothing to do: modules are found by their names, wherever "
    "the build puts them",
    f"{_CONTAINER}.modprobe.args": f"{_LOADS}values for the module belong into "
    "modules[].parameters",
    f"{_CONTAINER}.modprobe.rawArgs": f"{_LOADS}name its modules in `modules`, and values in their "
    "`parameters`",
    f"{_CONTAINER}.modprobe.parameters": "the Module does not say for which module they are: "
    "write them to modules[].parameters",
    f"{_CONTAINER}.build.baseImageRegistryTLS": f"nothing to do: {_BUILDS}",
    f"{_CONTAINER}.build.kanikoParams": f"nothing to do: {_BUILDS}",
    f"{_CONTAINER}.build.selector": "no counterpart: nodes build for themselves, and a Job runs on "
    "any node of the architecture",
    f"{_CONTAINER}.sign.filesToSign": "nothing to do: every module of `modules` is signed",
    f"{_CONTAINER}.sign.unsignedImage": "no counterpart: the modules are built from source, and "
    "signed after that",
    f"{_CONTAINER}.sign.unsignedImageRegistryTLS": "nothing to do: there is no unsigned image",
}
_UNKNOWN: Final = "not known to this program; nothing of it is in the Driver below"
_SILENT: Final = ("status", "metadata.managedFields")  # whose values are not repeated


def remarks_on_unread(unread: Iterable[DocumentPart]) -> Iterator[str]:
    """Yield a sentence for each part of a Module that was not read.

    If the table has no entry for a part, but has some for keys below it, each of these keys gets
    its own sentence.
    """
    for part in unread:
        place = _generic_place(part)
        pieces = list(part.below())
        if (
            pieces
            and not _find_remark(place)
            and any(each.startswith(f"{place}.") for each in _REMARKS)
        ):
            yield from remarks_on_unread(pieces)
        else:
            value = "" if place in _SILENT else f" ({part.brief()})"
            remark = _find_remark(place) or _UNKNOWN
            yield f"{path_in_words(part.path).removeprefix('$.')}{value}: {remark}"


def _generic_place(part: DocumentPart) -> str:
    keys = [key for key in part.path if isinstance(key, str)]
    return ".".join(keys).replace("container.kernelMappings.", "container.", 1)


def _find_remark(place: str) -> str:
    """Return the sentence about a place, or about the next one around it."""
    while place and place not in _REMARKS:
        place = place.rpartition(".")[0]
    return _REMARKS.get(place, "")
