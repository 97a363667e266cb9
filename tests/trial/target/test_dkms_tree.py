"""A driver.yaml for a bare dkms tree, evaluated in the toolkit's root file system on this host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeside.spec import parse
from nodeside.trial.errors import TargetError
from nodeside.trial.progress import Progress
from nodeside.trial.target import dkms_tree
from nodeside.trial.target.dkms_tree import Evaluator
from nodeside.trial.workshop import Workshop

pytestmark = pytest.mark.toolkit


@pytest.fixture(scope="module")
def evaluate() -> Iterator[Evaluator]:
    with Workshop(Progress(quiet=True)) as workshop:
        kernel = workshop.kernel("cloud-amd64")
        yield dkms_tree.make_evaluator(kernel, workshop.roots.toolkit(kernel.compiler))


def describe(tmp_path: Path, conf: str, evaluate: Evaluator) -> dict[str, Any]:
    tree = tmp_path / "tree"
    tree.mkdir(exist_ok=True)
    (tree / "dkms.conf").write_text(conf)
    document = dkms_tree.describe_dkms_tree(tree, evaluate)
    parse(document)  # it is a valid driver.yaml
    return document


def modules(document: dict[str, Any]) -> list[str]:
    return [module["name"] for module in document["spec"]["modules"]]


def test_names_that_bash_computes_are_found(tmp_path: Path, evaluate: Evaluator) -> None:
    conf = """\
PACKAGE_NAME=Two_Drivers
PACKAGE_VERSION=1.0-$((1 + 1))
i=0
for name in one two; do
    BUILT_MODULE_NAME[$i]=my-$name
    DEST_MODULE_LOCATION[$i]=/updates
    i=$((i + 1))
done
"""

    document = describe(tmp_path, conf, evaluate)

    assert document["metadata"] == {"name": "two-drivers"}
    assert document["spec"]["version"] == "1.0-2"
    assert document["spec"]["build"] == {"kind": "dkms"}
    assert modules(document) == ["my-one", "my-two"]


def test_a_version_in_a_file_beside_it_is_read(tmp_path: Path, evaluate: Evaluator) -> None:
    """As with `dkms add .`, and as the sidecar does it."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/VERSION").write_text("1.2.1\n")
    conf = 'PACKAGE_NAME=hello\nPACKAGE_VERSION="$(cat VERSION)"\n'

    assert describe(tmp_path, conf, evaluate)["spec"]["version"] == "1.2.1"


def test_a_single_module_is_named_after_its_package(tmp_path: Path, evaluate: Evaluator) -> None:
    conf = "PACKAGE_NAME=hello\nPACKAGE_VERSION=1\nDEST_MODULE_LOCATION[0]=/updates\n"

    assert modules(describe(tmp_path, conf, evaluate)) == ["hello"]


def test_the_kernels_own_configuration_can_be_read(tmp_path: Path, evaluate: Evaluator) -> None:
    conf = """\
PACKAGE_NAME=hello
PACKAGE_VERSION=1
DEST_MODULE_LOCATION[0]=/updates
BUILT_MODULE_NAME[0]=without_modules
grep -q ^CONFIG_MODULES=y "$kernel_config" && BUILT_MODULE_NAME[0]=with_modules
"""

    assert modules(describe(tmp_path, conf, evaluate)) == ["with_modules"]


def test_modules_of_an_excluded_kernel_are_named_so_that_the_node_can_say_why(
    tmp_path: Path, evaluate: Evaluator
) -> None:
    conf = """\
PACKAGE_NAME=hello
PACKAGE_VERSION=1
BUILT_MODULE_NAME[0]=hello
DEST_MODULE_LOCATION[0]=/updates
BUILD_EXCLUSIVE_KERNEL=^2\\.4
"""

    assert modules(describe(tmp_path, conf, evaluate)) == ["hello"]


def test_strange_code_runs_as_nobody_in_particular(tmp_path: Path, evaluate: Evaluator) -> None:
    conf = """\
PACKAGE_NAME=hello
PACKAGE_VERSION=1
DEST_MODULE_LOCATION[0]=/updates
BUILT_MODULE_NAME[0]=user_$(id -u)
touch /tree/planted /root/planted 2>/dev/null && BUILT_MODULE_NAME[0]=root
grep -q : <(tail -n +3 /proc/net/dev | grep -v lo:) && BUILT_MODULE_NAME[0]=network
"""

    assert modules(describe(tmp_path, conf, evaluate)) == ["user_65532"]
    assert not (tmp_path / "tree" / "planted").exists()


def test_a_dkms_conf_without_a_name_is_refused(tmp_path: Path, evaluate: Evaluator) -> None:
    with pytest.raises(TargetError, match=r"dkms\.conf must set PACKAGE_NAME"):
        describe(tmp_path, "PACKAGE_VERSION=1\n", evaluate)


def test_a_dkms_conf_that_ends_its_shell_is_refused(tmp_path: Path, evaluate: Evaluator) -> None:
    with pytest.raises(TargetError, match="ended the shell that read it") as caught:
        describe(tmp_path, "exit 7\n", evaluate)

    assert "bash -n" in caught.value.hint


def test_a_module_whose_file_is_renamed_has_the_name_that_the_kernel_knows(
    tmp_path: Path, evaluate: Evaluator
) -> None:
    conf = """\
PACKAGE_NAME=straw
PACKAGE_VERSION=1.0
BUILT_MODULE_NAME[0]=straw
DEST_MODULE_NAME[0]=straw-current.1
DEST_MODULE_LOCATION[0]=/updates
"""

    assert modules(describe(tmp_path, conf, evaluate)) == ["straw"]


def test_a_dkms_conf_without_an_end_is_told_in_one_line(
    tmp_path: Path, evaluate: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dkms_tree, "_TIMEOUT", 1.0)

    with pytest.raises(TargetError, match=r"^tree/dkms.conf ended .* or did not end within 1 s"):
        describe(tmp_path, "while :; do :; done\n", evaluate)


def test_a_dkms_conf_fills_no_disk(tmp_path: Path, evaluate: Evaluator) -> None:
    tree = tmp_path / "tree"
    (tree / "open").mkdir(parents=True)
    (tree / "open").chmod(0o777)
    (tree / "dkms.conf").write_text("""\
PACKAGE_NAME=hello
PACKAGE_VERSION=1
DEST_MODULE_LOCATION[0]=/updates
BUILT_MODULE_NAME[0]=hello
touch /out/more && BUILT_MODULE_NAME[0]=more
head -c 2M /dev/zero >/tree/open/more && BUILT_MODULE_NAME[0]=larger
head -c 2M /dev/zero >/out/dump && BUILT_MODULE_NAME[0]=large
wrote=0
for i in {1..64}; do head -c 1M /dev/zero >/tree/open/$i && wrote=$i; done
[ $wrote = 64 ] && BUILT_MODULE_NAME[0]=all
for i in {1..64}; do rm -f /tree/open/$i; done
for i in {1..40000}; do : >/tree/open/empty-$i || break; done
[ $i = 40000 ] && BUILT_MODULE_NAME[0]=files
""")

    assert modules(dkms_tree.describe_dkms_tree(tree, evaluate)) == ["hello"]
    assert [path.name for path in (tree / "open").iterdir()] == []


def test_a_dkms_conf_may_keep_its_version_in_a_file_that_it_writes(
    tmp_path: Path, evaluate: Evaluator
) -> None:
    """As Jool's: with dkms it is read several times, and a computed version must not change."""
    tree = tmp_path / "tree"
    (tree / "common").mkdir(parents=True)
    header = "#define STRAW_VERSION_MAJOR 4\n#define STRAW_VERSION_MINOR 1\n"
    (tree / "common/straw.h").write_text(header)
    (tree / "common/straw.h").chmod(0o600)
    (tree / "common").chmod(0o500)
    tree.chmod(0o555)
    conf = """\
PACKAGE_NAME=hello
HERE="${BASH_SOURCE%/dkms.conf}"
KEPT="$HERE/version.conf"
if test ! -e "$KEPT"; then
    eval "$(sed -n 's/^#define *\\(STRAW_VERSION_[A-Z]*\\) */\\1=/p' "$HERE/common/straw.h")"
    echo "# made on $(date)" >"$KEPT"
    echo "PACKAGE_VERSION=$STRAW_VERSION_MAJOR.$STRAW_VERSION_MINOR" >>"$KEPT"
fi
. "$KEPT"
sed -i s/4/5/ "$HERE/common/straw.h"
mkdir "$HERE/common/more"
DEST_MODULE_LOCATION[0]=/updates
BUILT_MODULE_NAME[0]=hello_$module_version
BUILT_MODULE_NAME[0]=${BUILT_MODULE_NAME[0]//./_}
"""

    document = describe(tmp_path, conf, evaluate)

    assert document["spec"]["version"] == "4.1"
    assert modules(document) == ["hello_4_1"]
    assert sorted(path.name for path in tree.rglob("*")) == ["common", "dkms.conf", "straw.h"]
    assert (tree / "common/straw.h").read_text() == header
