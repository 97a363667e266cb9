"""The rules that keep the parts apart, checked on the code as it stands."""

from __future__ import annotations

import ast
import io
import pkgutil
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import nodeside.toolkit_sidecar
from nodeside.driver.handoff.zipapp import SHARED, build_zipapp
from nodeside.errors import NodesideError
from nodeside.system import process
from tests.patience import patience

ROOT = Path(__file__).parents[1]
LONG = patience(120.0)  # seconds: a deadline that only a broken test meets

# The common ground takes no package from elsewhere, but for these, which import theirs late or are
# not for everybody.
COMMON = ("errors", "log", "values", "protocol", "system", "text", "http/status")
NOT_COMMON = ("system/uevents",)
SIDECAR = tuple(
    f"toolkit_sidecar.{module.name}"
    for module in pkgutil.iter_modules(nodeside.toolkit_sidecar.__path__)
    if module.name != "__main__"
)
Modules = Sequence[tuple[Path, str]]

PACKAGES = ("nodeside", "cluster")
DIRECTORIES = (*PACKAGES, "charts", "deploy", "tests", "docs", "examples", "images", ".ci")

# Split, so that this file does not hold them.
PACKAGE_HOSTS = [
    "deb." + "debian.org",
    "security." + "debian.org",
    "archive." + "ubuntu.com",
    "py" + "pi.org",
    "pythonhosted" + ".org",
    "npmjs" + ".org",
    "proxy." + "golang.org",
]


@pytest.fixture(scope="module")
def modules() -> Modules:
    """The product, as text: to parse a file takes longer than to see that it lacks a word."""
    return [
        (path.relative_to(ROOT), path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def importing(modules: Modules, name: str) -> list[str]:
    """Those that import a module, also late."""
    return [str(path) for path, text in modules if name in text and name in imported(text)]


def imported(text: str) -> set[str]:
    """The names of all modules that a module imports, also late."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


def text_files() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.is_file())
    for name in DIRECTORIES:
        for path in sorted((ROOT / name).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def fresh_python(code: str) -> str:
    """The output of a Python that has nothing but the standard library and this checkout."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"
    return process.run([sys.executable, "-I", "-S", "-c", code], timeout=LONG).output


def test_only_one_module_imports_subprocess(modules: Modules) -> None:
    assert importing(modules, "subprocess") == ["nodeside/system/process.py"]


def test_nothing_starts_a_process_behind_its_back(modules: Modules) -> None:
    forbidden = re.compile(r"\bos\.(system|popen|spawn\w+|posix_spawnp?)\(|\bshell=True")
    for path, text in modules:
        assert not forbidden.search(text), path


def test_no_python_that_we_start_takes_modules_from_the_working_directory(modules: Modules) -> None:
    """`-c` and `-m` look there first, and `nodeside try .` is root in a vendor's directory."""
    python = re.compile(r"\bsys\.executable\b|python3")
    shown = Path("cluster/cli/extra.py")  # starts none: a person does, where he trusts the place
    found = []
    for path, text in modules:
        is_worth_parsing = path != shown and python.search(text)
        for node in ast.walk(ast.parse(text)) if is_worth_parsing else ():
            if isinstance(node, ast.List | ast.Tuple) and python.search(ast.unparse(node)):
                words = {each.value for each in node.elts if isinstance(each, ast.Constant)}
                if words & {"-c", "-m"} and not words & {"-I", "-P"}:
                    found.append(f"{path}: {ast.unparse(node)}")
    assert found == []


def test_only_one_module_of_the_spec_imports_yaml(modules: Modules) -> None:
    of_spec = [module for module in modules if module[0].is_relative_to("nodeside/spec")]
    assert importing(of_spec, "yaml") == ["nodeside/spec/yamltext.py"]


def test_the_sidecar_imports_what_its_program_holds_and_the_standard_library() -> None:
    """No circle of imports hides behind the order: the contracts forbid circles."""
    names = ", ".join(f"nodeside.{name}" for name in SIDECAR)
    said = fresh_python(f"import {names}\nprint(*sys.modules, sep='\\n')")
    loaded = {name for name in said.split() if name.partition(".")[0] == "nodeside"}
    held = {f"nodeside.{stem.replace('/', '.')}".removesuffix(".__init__") for stem in SHARED}
    held = (held - {"nodeside.__init__"}) | {"nodeside"}
    assert loaded == held | {f"nodeside.{name}" for name in (*SIDECAR, "toolkit_sidecar")}


def test_the_common_ground_needs_nothing_but_the_standard_library() -> None:
    top = ROOT / "nodeside"
    files = [path for each in COMMON for path in (top / f"{each}.py", *(top / each).glob("*.py"))]
    stems = [str(path.relative_to(top).with_suffix("")) for path in files if path.exists()]
    names = [f"nodeside.{each.replace('/', '.')}" for each in stems if each not in NOT_COMMON]
    said = fresh_python(f"import {', '.join(names)}\nprint(*sys.modules, sep='\\n')")
    loaded = {name.partition(".")[0] for name in said.split()}
    assert loaded - sys.stdlib_module_names == {"__main__", "nodeside"}


def test_importing_the_spec_imports_nothing_heavy() -> None:
    said = fresh_python("import nodeside.spec.model\nprint(*sys.modules, sep='\\n')")
    heavy = {"yaml", "click", "requests", "difflib", "subprocess", "nodeside.driver"}
    assert heavy & set(said.split()) == set()


@pytest.mark.slow
def test_the_layers_are_kept() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    try:
        process.run([tool, "--no-cache"], timeout=LONG, cwd=ROOT)
    except NodesideError as error:
        pytest.fail(str(error))


def test_no_test_imports_another_test() -> None:
    """What two of them need is in `fakes/` of their package."""
    name_of_test = re.compile(r"tests\.(\w+\.)*test_\w+")
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if name_of_test.search(text := path.read_text(encoding="utf-8"))  # it is worth parsing
        for name in imported(text)
        if name_of_test.match(name)
    ]
    assert found == []


def test_a_server_of_the_tests_fails_its_test_with_what_it_does_not_survive() -> None:
    """The standard library's would print it, and go on."""
    lenient = re.compile(r"\b(Threading)?(HTTP|TCP|UnixStream)" + "Server\\b")
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if lenient.search(path.read_text(encoding="utf-8"))
    ]
    assert found == ["tests/loopback.py"]


def test_every_module_says_what_it_is_for(modules: Modules) -> None:
    said = re.compile(r'r?"""\s*[^\s"]')
    unclear = [(path, ast.parse(text)) for path, text in modules if not said.match(text)]
    silent = [str(path) for path, tree in unclear if tree.body and not ast.get_docstring(tree)]
    assert silent == []


def test_no_file_names_a_host_of_packages_or_the_place_of_this_checkout() -> None:
    """Hosts come from the machine's own configuration; a path of one machine is no other's."""
    words = "|".join(re.escape(host) for host in PACKAGE_HOSTS)
    checkout = rf"(?<![\w.-]){re.escape(str(ROOT))}(?![\w.-])" if len(ROOT.parts) > 2 else "(?!)"
    forbidden = re.compile(rf"{words}|{checkout}")
    suspicious = (*PACKAGE_HOSTS, str(ROOT))  # to look for these takes a tenth of the time
    found = []
    for path in text_files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        if any(word in text for word in suspicious):
            found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in forbidden.finditer(text)]
    assert found == []


def test_the_program_of_the_sidecar_holds_what_it_imports_late() -> None:
    archive = zipfile.ZipFile(io.BytesIO(build_zipapp()))
    packed = {name for name in archive.namelist() if name.endswith(".py")}
    wanted = {
        name
        for each in packed
        for node in ast.walk(ast.parse(archive.read(each)))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nodeside")
        for stem in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        if (ROOT / (name := f"{stem.replace('.', '/')}.py")).exists()
    }

    assert len(wanted) > 20
    assert wanted <= packed
