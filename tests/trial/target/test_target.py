"""What can be tried: driver.yaml and its directory, and what `trial.yaml` adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from nodeside.errors import ExitCode, SpecError
from nodeside.spec import load
from nodeside.trial.cache import TrialCache
from nodeside.trial.debian.archive import Archive
from nodeside.trial.errors import ArchiveError, TargetError
from nodeside.trial.progress import Progress
from nodeside.trial.target import target
from nodeside.trial.target.dkms_tree import Evaluated, label, plain_version
from nodeside.trial.target.target import Target

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


def evaluate_nothing(tree: Path) -> Evaluated:
    raise AssertionError(f"{tree} has no dkms.conf to evaluate")


def prepare(word: str | Path, image: Path) -> Target:
    archive = Archive(TrialCache(image.parent / "cache"), Progress(quiet=True))
    return target.prepare(str(word), image, archive, evaluate_nothing)


# The packages of a small archive, and what each depends on.
NAMES = {
    "bash": ("libc6",),
    "bashtop": (),
    "evdi-dkms": ("dkms",),
    "v4l2loopback-dkms": ("dkms",),
    "v4l2loopback-utils": (),
    "vpoll-dkms": ("dkms",),
}


def prepare_of(packages: Mapping[str, tuple[str, ...]], word: str, image: Path) -> Target:
    return target.prepare(word, image, NamesOnly(image.parent, packages), evaluate_nothing)


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


def test_a_file_of_another_name_is_the_driver_yaml_of_the_image(
    vendor: Path, tmp_path: Path
) -> None:
    (vendor / "driver.yaml").rename(vendor / "beta.yaml")

    wanted = prepare(vendor / "beta.yaml", tmp_path / "image")

    assert load(wanted.image / "driver.yaml").name == "hello"


@pytest.mark.parametrize(
    "source", ["../elsewhere", "{absolute}/elsewhere", "{absolute}/vendor/src"]
)
def test_a_source_that_is_not_below_the_image_comes_along(
    vendor: Path, tmp_path: Path, source: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "hello.c").write_text("// hello\n")
    where = source.format(absolute=tmp_path)
    (vendor / "driver.yaml").write_text(DRIVER.format(source=where))

    wanted = prepare(vendor, tmp_path / "image")

    inside = load(wanted.image / "driver.yaml").spec.source.path
    assert not Path(inside).is_absolute()
    assert (wanted.image / inside / "hello.c").exists()


def test_a_missing_source_is_said_with_its_place(vendor: Path, tmp_path: Path) -> None:
    (vendor / "driver.yaml").write_text(DRIVER.format(source="sources"))

    with pytest.raises(SpecError, match=r"\$\.spec\.source\.path: expected a directory"):
        prepare(vendor, tmp_path / "image")


def test_a_directory_without_a_driver_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"has neither a driver\.yaml nor a dkms\.conf") as caught:
        prepare(tmp_path, tmp_path / "image")

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
        "did you mean vpoll-dkms? name a directory with a driver.yaml or a dkms.conf, "
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


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("device: [edu]", r"\$\.device: unknown field"),
        ("devices: edu", r"\$\.devices: expected a list of strings, got 'edu'"),
        ("commands: [ls]", r"\$\.commands\[0\]: expected a list of strings, got 'ls'"),
        ("commands: [[ls, 5]]", r"\$\.commands\[0\]: expected a list of strings"),
        ("commands: ls", r"\$\.commands: expected a list of argvs"),
        ("[edu]", r"\$: expected a mapping"),
        ("devices: [", "not YAML"),
    ],
)
def test_mistakes_in_trial_yaml_are_named(tmp_path: Path, text: str, mistake: str) -> None:
    (tmp_path / "trial.yaml").write_text(text)

    with pytest.raises(SpecError, match=mistake):
        target.read_side_file(tmp_path / "trial.yaml")


@pytest.mark.parametrize(
    ("package", "name"),
    [("vpoll", "vpoll"), ("acpi_call", "acpi-call"), ("DM-Writeboost++", "dm-writeboost")],
)
def test_package_names_become_dns_labels(package: str, name: str) -> None:
    assert label(package) == name


@pytest.mark.parametrize(
    ("version", "plain"),
    [("1.2.3", "1.2.3"), ("1:2.0/3", "1.2.0.3"), ("~rc", "0~rc"), ("v" * 60, "v" * 40)],
)
def test_package_versions_become_versions_of_a_driver(version: str, plain: str) -> None:
    assert plain_version(version) == plain


def test_a_side_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_bytes(b"\xff\xfe\xfa")

    with pytest.raises(SpecError, match=r"trial\.yaml: not YAML"):
        target.read_side_file(tmp_path / "trial.yaml")


def test_a_package_that_is_not_free_is_found_where_main_does_not_have_it(tmp_path: Path) -> None:
    archive = NamesOnly(tmp_path, NAMES, {"zfs-dkms": ("dkms",)})
    with pytest.raises(Fetched, match="zfs-dkms"):
        target.prepare("zfs-dkms", tmp_path / "image", archive, evaluate_nothing)


def test_a_mirror_need_not_have_more_than_main(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no Debian package of that name"):
        prepare_of(NAMES, "zfs-dkms", tmp_path / "image")
