"""SELinux labels of files that others than the driver container read.

A file below /var/lib is `var_lib_t`, which containers may not read and no module may be loaded
from. The types are those of the reference policy and of container-selinux. A driver container is
`spc_t` and may set them on its own files.
"""

from __future__ import annotations

import os
from pathlib import Path

from nodeside import log

_LABEL = "security.selinux"
_PARTS = 3  # user:role:type, and a level where the policy has levels
# Any container may read and run it, whatever its level is if it is s0.
FOR_CONTAINERS = "container_file_t"
FOR_MODULES = "modules_object_t"  # may be loaded by finit_module(2)


def label_file(path: Path, kind: str) -> bool:
    """Give a file, directory or link this type; return whether it has it.

    A file without a label is of a kernel or a file system without SELinux: nothing is done. A
    refusal is no error: a module is then loaded from memory, and containers may be denied the file.
    """
    try:
        before = os.getxattr(path, _LABEL, follow_symlinks=False)
    except OSError:
        return False
    end = b"\0" if before.endswith(b"\0") else b""
    parts = before.rstrip(b"\0").split(b":", _PARTS)
    if len(parts) < _PARTS:
        return False
    parts[2] = kind.encode()
    after = b":".join(parts) + end
    if after == before:
        return True
    try:
        os.setxattr(path, _LABEL, after, follow_symlinks=False)
    except OSError as error:
        log.detail("a file keeps its SELinux label", path=path, wanted=kind, why=error.strerror)
        return False
    return True


def label_tree(top: Path, kind: str) -> None:
    """Give a directory and all below it this type, as far as that is allowed."""
    if not label_file(top, kind):
        return
    for directory, directories, files in os.walk(top):
        for name in (*directories, *files):
            label_file(Path(directory) / name, kind)
