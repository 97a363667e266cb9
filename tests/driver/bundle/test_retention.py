"""Which bundles stay in the cache: a table, newest bundle first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.bundle.cache import CachedManifest
from nodeside.driver.bundle.manifest import BundleManifest
from nodeside.driver.bundle.retention import KERNELS, VERSIONS, tags_to_keep
from nodeside.protocol.bundle_key import store_tag
from nodeside.system.host import Kernel
from tests.driver.fakes.bundles import KERNEL, sample_bundle


@pytest.fixture
def sample(tmp_path: Path) -> BundleManifest:
    return sample_bundle(tmp_path / "bundle").manifest


def kernel(release: str) -> Kernel:
    return replace(KERNEL, release=release)


def shelved(
    sample: BundleManifest, version: str, key: str, release: str = KERNEL.release
) -> CachedManifest:
    manifest = replace(sample, version=version, key=key * 64, kernel=kernel(release))
    return CachedManifest(store_tag(version, manifest.kernel, manifest.key), manifest)


def test_the_wanted_bundle_stays_also_before_it_is_there() -> None:
    assert tags_to_keep([], "wanted", KERNEL) == {"wanted"}


def test_the_last_versions_for_this_kernel_stay(sample: BundleManifest) -> None:
    shelf = [shelved(sample, f"{n}.0", str(n)) for n in range(9, 0, -1)]
    wanted = shelf[0].tag
    assert tags_to_keep(shelf, wanted, KERNEL) == {item.tag for item in shelf[: 1 + VERSIONS]}


def test_one_bundle_for_each_of_the_last_kernels_stays(sample: BundleManifest) -> None:
    shelf = [shelved(sample, v, v[0], f"6.{n}") for n in range(9, 5, -1) for v in ("2.0", "1.0")]
    newest = [item.tag for item in shelf if item.manifest.version == "2.0"]
    assert tags_to_keep(shelf, "wanted", KERNEL) == {"wanted", *newest[:KERNELS]}


def test_the_loaded_bundle_stays_though_it_is_older_than_all_that_stay(
    sample: BundleManifest,
) -> None:
    shelf = [shelved(sample, f"{n}.0", str(n), f"6.{n}") for n in range(9, 0, -1)]
    loaded = shelf[-1]
    assert loaded.tag in tags_to_keep(shelf, "wanted", KERNEL, loaded.manifest.key)
    assert loaded.tag not in tags_to_keep(shelf, "wanted", KERNEL)


def test_of_many_versions_with_the_loaded_key_one_more_stays(sample: BundleManifest) -> None:
    """A version whose source did not change has a tag of its own under the same key."""
    shelf = [shelved(sample, f"{n}.0", "a", "6.1") for n in range(9, 0, -1)]
    newer = [shelved(sample, "10.0", "b", "6.3"), shelved(sample, "10.0", "c", "6.2")]
    found = tags_to_keep([*newer, *shelf], "wanted", KERNEL, "a" * 64)
    assert found == {"wanted", *(item.tag for item in newer), shelf[0].tag}


def test_if_the_wanted_one_is_loaded_older_tags_of_its_key_are_versions_like_others(
    sample: BundleManifest,
) -> None:
    shelf = [shelved(sample, f"{n}.0", "a") for n in range(9, 0, -1)]
    found = tags_to_keep(shelf, shelf[0].tag, KERNEL, "a" * 64)
    assert found == {item.tag for item in shelf[: 1 + VERSIONS]}
