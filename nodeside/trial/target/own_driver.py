"""What a driver.yaml that is there already says for `nodeside init`: above all how to build.

It need not be complete: who writes two lines of `spec.build` gets modules, version and ids of
hardware from a build of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeside.driver.handoff.source import build_settings
from nodeside.errors import SpecError
from nodeside.protocol.bundle_key import BuildSettings
from nodeside.protocol.labels import API_VERSION
from nodeside.spec import parse
from nodeside.spec.document import SIZE_LIMIT
from nodeside.spec.mistakes import mistakes_error
from nodeside.spec.yamltext import read_yaml
from nodeside.system.files import open_untrusted
from nodeside.trial.vendor_tree import require_inside
from nodeside.values import frozen

_GUESSED = re.compile(r"^[ \t]+kind:.*# guess: ", re.MULTILINE)


@frozen
class OwnDriver:
    """The known fields of a driver.yaml; "" for what it does not have.

    `build` is `spec.build` as it is there, with the same settings in `settings`. It is `guessed` if
    an earlier `nodeside init` has marked it so.
    """

    name: str = ""
    version: str = ""
    source: str = "."
    modules: tuple[str, ...] = ()
    build: Mapping[str, Any] | None = None
    settings: BuildSettings | None = None
    guessed: bool = False


NO_OWN_DRIVER = OwnDriver()


def read_own_driver(path: Path, tree: Path, source: str) -> OwnDriver:
    """Return what the driver.yaml at `path` says. Raises SpecError for a mistake in what is used.

    `source` is the path of the source where it says none, and `tree` a copy of its directory or,
    if that is another one, of the source.
    """
    nothing = OwnDriver(source=source)
    if not path.is_file():
        return nothing
    with open_untrusted(require_inside(path), limit=SIZE_LIMIT) as file:
        text = file.read(SIZE_LIMIT).decode("utf-8", "replace")
    if all(line.partition("#")[0].strip() in ("", "---", "...") for line in text.splitlines()):
        return nothing
    document = read_yaml(text, str(path))
    if document.mistakes:
        raise SpecError(
            str(mistakes_error(document, document.mistakes)),
            hint=f"correct it, or remove it: init reads spec.build of {path}",
        )
    top = document.data
    spec = top.get("spec") if isinstance(top, Mapping) else None
    if not isinstance(top, Mapping) or not isinstance(spec, Mapping):
        return nothing
    kept = ("version", "source", "build", "modules")
    known = {key: spec[key] for key in kept if spec.get(key)}
    filled = {"version": "0", "modules": [{"name": "unknown"}], **known}
    metadata = top.get("metadata")
    has_name = isinstance(metadata, Mapping) and bool(metadata.get("name"))
    head = {"apiVersion": API_VERSION, "kind": "Driver"}
    named = metadata if has_name else {"name": "driver"}
    driver = parse({**head, "metadata": named, "spec": filled}, str(path))
    where = driver.spec.source.path if "source" in known else source
    part = tree / where if source == "." else tree
    if not Path(os.path.realpath(part)).is_relative_to(os.path.realpath(tree)):
        raise SpecError(f"{path}: $.spec.source.path: {where} leads out of {path.parent}")
    if not part.is_dir():
        raise SpecError(f"{path}: $.spec.source.path: there is no directory {path.parent / where}")
    return OwnDriver(
        name=driver.name if has_name else "",
        version=driver.spec.version if "version" in known else "",
        source=where,
        modules=tuple(each.name for each in driver.spec.modules) if "modules" in known else (),
        build=known.get("build"),
        settings=build_settings(driver.spec, part) if "build" in known else None,
        guessed=bool(_GUESSED.search(text)),
    )
