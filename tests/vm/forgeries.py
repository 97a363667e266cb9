"""Bundles that are not what they claim to be, for the tests that offer them to a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nodeside.driver.bundle.bundle import Bundle, write_bundle
from nodeside.driver.bundle.manifest import describe_module
from nodeside.driver.module.modulefile import read_module


def forged(bundle: Bundle, modules: Mapping[str, Path], to: Path) -> Bundle:
    """A bundle with the identity of `bundle` and these modules; all its digests are right."""
    described = tuple(
        describe_module(read_module(path), f"modules/{name}.ko") for name, path in modules.items()
    )
    manifest = replace(bundle.manifest, modules=described)
    return write_bundle(to / bundle.directory.name, manifest, modules)
