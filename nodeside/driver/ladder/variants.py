"""Which variant of a build a kernel gets."""

from __future__ import annotations

import re
from functools import cache
from itertools import zip_longest

from nodeside.errors import SystemRefused
from nodeside.spec.model import Build, Kernels, merge_variant
from nodeside.system.regex_search import search_texts


def build_for(build: Build, release: str) -> tuple[Build, str]:
    """Return the build for a kernel's release, and what its variant is called, "" if it has none.

    The first variant that fits is taken. Raises SystemRefused if an expression takes too long,
    which is retryable, since the node may be busy.
    """
    for number, variant in enumerate(build.variants):
        name = f"build.variants[{number}]"
        try:
            if fits_kernels(variant.when, release):
                return merge_variant(build, variant), name
        except SystemRefused as error:
            raise SystemRefused(f"{name}.when.kernel: {error}", retryable=True) from error
    return build, ""


def fits_kernels(when: Kernels, release: str) -> bool:
    """Return whether a kernel is one of these. Raises SystemRefused."""
    if when.at_least and _is_older(release, when.at_least):
        return False
    if when.below and not _is_older(release, when.below):
        return False
    return not when.kernel or _matches_release(when.kernel, release)


@cache
def _matches_release(expression: str, release: str) -> bool:
    """Return whether an expression matches. Cached, since each search starts a process."""
    return search_texts(expression, release)[0]


def _is_older(release: str, version: str) -> bool:
    """Return whether a release is of an older version: 6.8.0-45-generic is 6.8.0."""
    pairs = zip_longest(_version_numbers(release), _version_numbers(version), fillvalue=0)
    return next((one < other for one, other in pairs if one != other), False)


def _version_numbers(text: str) -> list[int]:
    found = re.match(r"\d+(\.\d+)*", text)
    return [int(each) for each in found[0].split(".")] if found else []
