"""What can be tried: driver.yaml and its directory, dkms trees and packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from nodeside.driver.module.modulefile import ModuleFile
from nodeside.errors import ExitCode, SpecError
from nodeside.protocol.bundle_key import BuildSettings
from nodeside.spec import load
from nodeside.system import process
from nodeside.trial.cache import TrialCache
from nodeside.trial.debian.archive import Archive, unpack_package
from nodeside.trial.errors import ArchiveError, TargetError
from nodeside.trial.progress import Progress
from nodeside.trial.target import target
from nodeside.trial.target.dkms_tree import EvaluatedConf
from nodeside.trial.target.target import TrialTarget

DRIVER = """\
apiVersion: nodeside.io/v1alpha1
kind: Driver
metadata:
  name: hello
spec:
  version: "1.0"
  source:
    path: {source}
  modules:
    - name: hello
"""


class NamesOnly(Archive):
    """An archive that knows its packages, and of which nothing may be fetched."""

    def __init__(
        self,
        directory: Path,
        packages: Mapping[str, tuple[str, ...]],
        not_free: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        super().__init__(TrialCache(directory / "cache"), Progress(quiet=True))
        self.directory = directory
        self.packages = packages
        self.others = not_free

    def not_free(self) -> NamesOnly:
        if self.others is None:
            raise ArchiveError("this mirror has only main")
        return NamesOnly(self.directory, self.others)

    def names(self) -> tuple[str, ...]:
        return tuple(self.packages)

    def depends(self, package: str) -> tuple[str, ...]:
        return self.packages[package]

    def download(self, packages: Sequence[str], directory: Path) -> tuple[Path, ...]:
        raise Fetched(packages)


class Fetched(AssertionError):
    """Something was fetched that must not be, or that shows which archive was chosen."""


def evaluate_nothing(tree: Path) -> EvaluatedConf:
    raise AssertionError(f"{tree} has no dkms.conf to evaluate")


def build_nothing(tree: Path, _settings: BuildSettings) -> tuple[ModuleFile, ...]:
    raise AssertionError(f"{tree} is not to be built")


def prepare(word: str | Path, image: Path) -> TrialTarget:
    archive = Archive(TrialCache(image.parent / "cache"), Progress(quiet=True))
    return target.prepare_target(str(word), image, archive, evaluate_nothing, build_nothing)


# The packages of a small archive, and what each depends on.
NAMES = {
    "bash": ("libc6",),
    "bashtop": (),
    "evdi-dkms": ("dkms",),
    "v4l2loopback-dkms": ("dkms",),
    "v4l2loopback-utils": (),
    "vpoll-dkms": ("dkms",),
}


def prepare_of(packages: Mapping[str, tuple[str, ...]], word: str, image: Path) -> TrialTarget:
    archive = NamesOnly(image.parent, packages)
    return target.prepare_target(word, image, archive, evaluate_nothing, build_nothing)


def test_a_source_of_several_drivers_is_to_be_made_for_the_kernel_of_its_trial(
    tmp_path: Path,
) -> None:
    for name in ("left", "right"):
        (tmp_path / "board" / name).mkdir(parents=True)
        (tmp_path / "board" / name / "Kbuild").write_text(f"obj-m := {name}.o\n")
    archive = NamesOnly(tmp_path, {})
    source, options = tmp_path / "board", ("--kernel", "amd64")

    with pytest.raises(TargetError) as caught:
        target.prepare_target(
            str(source),
            tmp_path / "image",
            archive,
            evaluate_nothing,
            build_nothing,
            options=options,
        )

    assert f"nodeside init {source} --kernel amd64 --directory left, or" in caught.value.hint


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    """A vendor's directory with a driver.yaml and its source."""
    directory = tmp_path / "vendor"
    (directory / "src").mkdir(parents=True)
    (directory / "src" / "hello.c").write_text("// hello\n")
    (directory / "driver.yaml").write_text(DRIVER.format(source="src"))
    return directory


def test_a_directory_becomes_the_driver_image(vendor: Path, tmp_path: Path) -> None:
    (vendor / "trial.yaml").write_text("devices: [edu]\ncommands: [[cat, /dev/edu0]]\n")

    wanted = prepare(vendor, tmp_path / "image")

    assert wanted.driver.name == "hello"
    assert wanted.extras.devices == ("edu",)
    assert wanted.extras.commands == (("cat", "/dev/edu0"),)
    files = [str(p.relative_to(wanted.image)) for p in sorted(wanted.image.rglob("*"))]
    assert files == ["driver.yaml", "src", "src/hello.c"]


def test_a_link_to_a_directory_is_tried_like_the_directory(vendor: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(vendor)

    wanted = prepare(tmp_path / "link", tmp_path / "image")

    assert (wanted.image / "src" / "hello.c").is_file()


def test_a_file_of_another_name_is_the_driver_yaml_of_the_image(
    vendor: Path, tmp_path: Path
) -> None:
    (vendor / "driver.yaml").rename(vendor / "beta.yaml")

    wanted = prepare(vendor / "beta.yaml", tmp_path / "image")

    assert load(wanted.image / "driver.yaml").name == "hello"


@pytest.mark.parametrize("source", ["{absolute}/vendor/src", "link", "absolute-link", "../vendor"])
def test_a_source_in_the_directory_is_found_in_the_image_by_whatever_path(
    vendor: Path, tmp_path: Path, source: str
) -> None:
    (vendor / "link").symlink_to("src")
    (vendor / "absolute-link").symlink_to(vendor / "src")
    where = source.format(absolute=tmp_path)
    (vendor / "driver.yaml").write_text(DRIVER.format(source=where))

    wanted = prepare(vendor, tmp_path / "image")

    inside = load(wanted.image / "driver.yaml").spec.source.path
    assert wanted.driver.spec.source.path == inside
    assert (wanted.image / inside).resolve().is_relative_to(wanted.image)
    assert list((wanted.image / inside).rglob("hello.c"))


@pytest.mark.parametrize("source", ["../elsewhere", "{absolute}/elsewhere", "/", "link"])
def test_a_source_elsewhere_on_the_host_is_refused(
    vendor: Path, tmp_path: Path, source: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "id_rsa").write_text("secret\n")
    (vendor / "link").symlink_to("../elsewhere")
    (vendor / "driver.yaml").write_text(DRIVER.format(source=source.format(absolute=tmp_path)))

    with pytest.raises(SpecError, match=r"\$\.spec\.source\.path: .* leads out of") as caught:
        prepare(vendor, tmp_path / "image")

    assert "copy it beside driver.yaml" in caught.value.hint
    assert not (tmp_path / "image").exists()


SIGNING = "  signing: {{key: {key}, certificate: {certificate}}}\n"
TRUST = "  prebuilt: {{trust: {{certificate: {certificate}}}}}\n"


@pytest.mark.parametrize("file", ["{absolute}/mok", "../mok", "link"])
@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("signing.key", SIGNING.replace("{certificate}", "own").replace("{key}", "{file}")),
        ("signing.certificate", SIGNING.replace("{certificate}", "{file}").replace("{key}", "own")),
        ("prebuilt.trust.certificate", TRUST.replace("{certificate}", "{file}")),
    ],
)
def test_keys_of_the_host_sign_nothing(
    vendor: Path, tmp_path: Path, field: str, text: str, file: str
) -> None:
    (tmp_path / "mok").write_text("the key of this machine\n")
    (vendor / "own").write_text("the key of the vendor\n")
    (vendor / "link").symlink_to("../mok")
    extra = text.format(file=file.format(absolute=tmp_path))
    (vendor / "driver.yaml").write_text(DRIVER.format(source="src") + extra)

    with pytest.raises(SpecError, match=rf"\$\.spec\.{field}: .* leads out of"):
        prepare(vendor, tmp_path / "image")


def test_keys_beside_driver_yaml_sign_by_whatever_path(vendor: Path, tmp_path: Path) -> None:
    (vendor / "own").write_text("the key of the vendor\n")
    extra = SIGNING.format(key="own", certificate=vendor / "own")
    (vendor / "driver.yaml").write_text(DRIVER.format(source="src") + extra)

    signing = prepare(vendor, tmp_path / "image").driver.spec.signing

    assert signing is not None
    assert (signing.key, signing.certificate) == ("own", "own")


def test_nothing_is_written_through_a_vendors_link(vendor: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious\n")
    (vendor / "driver.yaml").rename(vendor / "beta.yaml")
    (vendor / "driver.yaml").symlink_to("../precious")
    (vendor / "beta.yaml").write_text(DRIVER.format(source=vendor / "src"))

    wanted = prepare(vendor / "beta.yaml", tmp_path / "image")

    assert (tmp_path / "precious").read_text() == "precious\n"
    assert not (wanted.image / "driver.yaml").is_symlink()
    assert load(wanted.image / "driver.yaml").name == "hello"


@pytest.mark.parametrize("name", ["driver.yaml", "trial.yaml"])
def test_a_description_elsewhere_on_the_host_is_not_read(
    vendor: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "elsewhere").write_text(DRIVER.format(source="src"))
    (vendor / name).unlink(missing_ok=True)
    (vendor / name).symlink_to("../elsewhere")

    with pytest.raises(TargetError, match=rf"{name} is a link to .*elsewhere, outside of its dir"):
        prepare(vendor, tmp_path / "image")


def test_a_tree_that_a_package_links_to_is_not_taken(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "dkms.conf").write_text("PACKAGE_NAME=x\n")
    source = tmp_path / "deb" / "usr" / "src"
    source.mkdir(parents=True)
    (source / "x-1").symlink_to(elsewhere)
    packed = package(tmp_path)

    class OnePackage(NamesOnly):
        def download(self, packages: Sequence[str], directory: Path) -> tuple[Path, ...]:
            return (packed,)

    with pytest.raises(TargetError, match="x-dkms has no dkms tree"):
        target.prepare_target(
            "x-dkms",
            tmp_path / "image",
            OnePackage(tmp_path, {"x-dkms": ("dkms",)}),
            evaluate_nothing,
            build_nothing,
        )


def package(tmp_path: Path) -> Path:
    """A Debian package of `deb` in this directory."""
    control = tmp_path / "deb" / "DEBIAN" / "control"
    control.parent.mkdir()
    control.write_text(
        "Package: x-dkms\nVersion: 1\nArchitecture: all\nMaintainer: X <x@example.com>\n"
        "Description: a package\n"
    )
    packed = tmp_path / "x.deb"
    process.run(["dpkg-deb", "-b", tmp_path / "deb", packed], timeout=60)
    return packed


def test_what_a_package_brings_gives_nobody_rights(tmp_path: Path) -> None:
    helper = tmp_path / "deb" / "usr" / "src" / "helper"
    helper.parent.mkdir(parents=True)
    helper.write_text("#!/bin/sh\n")
    helper.chmod(0o6755)
    packed = package(tmp_path)

    unpack_package(packed, tmp_path / "tree")

    assert (tmp_path / "tree" / "usr/src/helper").stat().st_mode & 0o7777 == 0o755


def test_a_missing_source_is_said_with_its_place(vendor: Path, tmp_path: Path) -> None:
    (vendor / "driver.yaml").write_text(DRIVER.format(source="sources"))

    with pytest.raises(SpecError, match=r"\$\.spec\.source\.path: expected a directory"):
        prepare(vendor, tmp_path / "image")


def test_a_source_that_is_a_circle_of_links_is_none(vendor: Path, tmp_path: Path) -> None:
    (vendor / "loop").symlink_to("loop")
    (vendor / "driver.yaml").write_text(DRIVER.format(source="loop"))

    with pytest.raises(SpecError, match=r"\$\.spec\.source\.path: expected a directory"):
        prepare(vendor, tmp_path / "image")


def test_a_directory_without_a_driver_is_refused(tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    with pytest.raises(TargetError, match="papers has no kernel module to build") as caught:
        prepare(tmp_path / "papers", tmp_path / "image")

    assert "docs/packaging-a-driver.md" in caught.value.hint
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("word", ["./nope", "some/where", "nope.yaml"])
def test_a_path_that_is_not_there_is_no_package_name(word: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"no such file or directory$"):
        prepare(word, tmp_path / "image")


def test_a_misspelt_package_name_brings_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(TargetError) as caught:
        prepare_of(NAMES, "vpol-dkms", tmp_path / "image")

    assert str(caught.value) == (
        "vpol-dkms: no such file or directory, and no Debian package of that name"
    )
    assert caught.value.hint == (
        "did you mean vpoll-dkms? name a directory with a driver.yaml or the source of a module, "
        "a driver.yaml, or a Debian package NAME-dkms"
    )
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("word", ["vpoll", "evdi", "v4l2loopback"])
def test_a_name_without_its_ending_is_understood(word: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError) as caught:
        prepare_of(NAMES, word, tmp_path / "image")

    assert caught.value.hint.startswith(f"did you mean {word}-dkms? ")


def test_a_package_that_has_no_module_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="the Debian package bash is not a dkms package"):
        prepare_of(NAMES, "bash", tmp_path / "image")


def test_a_package_that_is_not_free_is_found_where_main_does_not_have_it(tmp_path: Path) -> None:
    archive = NamesOnly(tmp_path, NAMES, {"zfs-dkms": ("dkms",)})
    with pytest.raises(Fetched, match="zfs-dkms"):
        target.prepare_target(
            "zfs-dkms", tmp_path / "image", archive, evaluate_nothing, build_nothing
        )


def test_a_mirror_need_not_have_more_than_main(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no Debian package of that name"):
        prepare_of(NAMES, "zfs-dkms", tmp_path / "image")
