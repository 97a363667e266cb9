"""What is wrong with a kubeconfig that the client could not use, in words of a person.

The client says it in words of its own code ("Expected key current-context"), or not at all. Read
only after it has failed. Called by access.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cluster.apierror import ApiError
from nodeside.errors import ExitCode

_NAME_ONE = "name one that can be used: --kubeconfig FILE, or KUBECONFIG in the environment"
_KEPT = 10  # contexts that are named


class BadKubeconfig(ApiError):
    """There is no kubeconfig to connect with, or it cannot be meant."""

    exit_code = ExitCode.USAGE
    reason = "BadKubeconfig"


def mistake(files: str, context: str) -> BadKubeconfig | None:
    """What a person can correct; None if it is something else. `files` is as KUBECONFIG has it."""
    there = [Path(name) for name in files.split(os.pathsep) if name and os.path.lexists(name)]
    if not there:
        return BadKubeconfig(f"there is no kubeconfig {files}", hint=_NAME_ONE)
    read = [_read(path) for path in there]
    wrong = next((each for each in read if isinstance(each, BadKubeconfig)), None)
    return wrong or _context(files, context, [each for each in read if isinstance(each, dict)])


def _read(path: Path) -> dict[str, Any] | BadKubeconfig:
    import yaml

    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except OSError as exc:
        return BadKubeconfig(f"cannot read the kubeconfig {path}: {exc.strerror}", hint=_NAME_ONE)
    except UnicodeDecodeError as exc:
        return BadKubeconfig(
            f"the kubeconfig {path} is not UTF-8: {exc.reason} at byte {exc.start}",
            hint="save it as UTF-8 text",
        )
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        said = getattr(exc, "problem", None) or "it cannot be parsed"
        return BadKubeconfig(f"the kubeconfig {path}{line} is not YAML: {said}", hint=_NAME_ONE)
    if isinstance(document, dict):
        return document
    found = "is empty" if document is None else "holds no mapping"
    return BadKubeconfig(f"the kubeconfig {path} {found}", hint=_NAME_ONE)


def _context(files: str, context: str, read: list[dict[str, Any]]) -> BadKubeconfig | None:
    known = [each["name"] for each in _entries(read, "contexts")]
    wanted = context or next((str(c) for each in read if (c := each.get("current-context"))), "")
    hint = f"it has: {', '.join(known[:_KEPT]) or 'none'}; choose one: --context NAME"
    if not wanted:
        return BadKubeconfig(f"the kubeconfig {files} names no current context", hint=hint)
    if wanted not in known:
        return BadKubeconfig(f"the kubeconfig {files} has no context {wanted!r}", hint=hint)
    cluster = next(_cluster(each) for each in _entries(read, "contexts") if each["name"] == wanted)
    if cluster not in [each["name"] for each in _entries(read, "clusters")]:
        return BadKubeconfig(
            f"the kubeconfig {files} has no cluster {cluster!r}: context {wanted!r} names it",
            hint="kubectl config view",
        )
    return None


def _cluster(entry: dict[str, Any]) -> str:
    context = entry.get("context")
    return str(context.get("cluster") or "") if isinstance(context, dict) else ""


def _entries(read: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Those that have a name, of all files."""
    lists = [each[kind] for each in read if isinstance(each.get(kind), list)]
    entries = (entry for found in lists for entry in found if isinstance(entry, dict))
    return [entry for entry in entries if isinstance(entry.get("name"), str)]
