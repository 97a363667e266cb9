"""What the documents say is true: exit codes, commands, options, links, the map of the modules."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

import cluster
import nodeside
from bench.__main__ import bench
from cluster.cli.main import root as cluster_root
from nodeside.cli import root
from nodeside.driver.cli import driver
from nodeside.driver.handoff.provide import sidecar_command
from nodeside.errors import ExitCode
from nodeside.protocol.build_records import FailureKind
from nodeside.spec.document import parse as parse_driver
from nodeside.toolkit_sidecar import cli as sidecar
from tests import yaml_in_c as yaml
from tests.documents import anchors, parse

TOP = Path(__file__).parents[1]
README = (TOP / "README.md").read_text()
DEBUGGING = (TOP / "docs/debugging-a-build.md").read_text()
ARCHITECTURE = (TOP / "docs/architecture.md").read_text()
DOCUMENTS = sorted([*TOP.glob("*.md"), *TOP.glob("docs/**/*.md"), *TOP.glob("*/*/README.md")])
PACKAGE = Path(nodeside.__file__).parent
CLUSTER = Path(cluster.__file__).parent

# Made by programs, of examples and measurements.
GENERATED = {"driver-yaml.md", "benchmarks.md", "dkms-packages.md"}
# Options of others: pip, pytest, `make chaos`, the sidecar's loader, container engines, Debian's
# tools, kubectl, the kubelet.
FOREIGN = {
    *(
        "--only",
        "--editable",
        *("--all-tiers", "--costs", "--hypothesis-profile", "--pdb"),
        *("--minutes", "--outage", "--rounds", "--seed"),
        "--check",
        "--library-path",
        "--isolation",
        *("--foreground", "--persistence-mode", "--socket"),
        "--build-arg",
        *("--build", "--target", "--with-kernel", "--with-linux"),
    ),
    *(
        "--all",
        "--create-namespace",
        "--force-conflicts",
        "--include-crds",
        "--server-side",
        "--values",
    ),
    *("--strict", "--import", "--rm", "--docker-server"),
    *("--take-ownership", "--clusterrole", "--role", "--serviceaccount", "--user"),
    *("--cluster", "--subresource", "--token"),
    *("--field-selector", "--for", "--overwrite", "--profile", "--show-labels", "--timeout"),
    *("--all-containers", "--from-file", "--previous", "--resource", "--root-dir"),
    *("--tail", "--verb", "--ignore-daemonsets"),
    *("--quiet", "--type", "--package", "--push", "--all-namespaces"),
    *(
        "--cap-drop",
        "--detach",
        "--env",
        "--force",
        "--name",
        "--network",
        "--privileged",
        "--volume",
    ),
}


def named(path: Path) -> str:
    return str(path.relative_to(TOP))


def code(text: str) -> Iterator[str]:
    """Each line of a code block, and each piece of code in a sentence."""
    fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line.strip()
        else:
            yield from re.findall(r"`([^`]+)`", line)


def words_of(line: str) -> list[str]:
    """The words of a command: without its comment, and without what a shell reads."""
    plain = re.split(r"\s{2,}|\s[#>|]", line.removeprefix("$ "))[0]
    return shlex.split(plain.removeprefix(".venv/bin/"))


def nodeside_commands() -> list[tuple[str, str]]:
    return [
        (named(path), line)
        for path in DOCUMENTS
        if path.name != "benchmarks.md"  # it names ways of building, by their options
        for line in code(path.read_text())
        if re.match(r"(\$ )?(\.venv/bin/)?nodeside(-cluster)? ", line)
    ]


def options_of(command: click.Command) -> set[str]:
    own = {word for p in command.params for word in (*p.opts, *p.secondary_opts)}
    if not isinstance(command, click.Group):
        return own | {"--help"}
    context = click.Context(command)
    below = [command.get_command(context, name) for name in command.list_commands(context)]
    return own.union(*(options_of(found) for found in below if found is not None))


def sidecar_options(parser: argparse.ArgumentParser) -> set[str]:
    found = {word for action in parser._actions for word in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found = found.union(*(sidecar_options(below) for below in action.choices.values()))
    return found


# --- the README -------------------------------------------------------------------------------


def test_the_exit_codes_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", README, re.MULTILINE)

    assert rows == [(str(code.value), code.meaning) for code in ExitCode]


def test_every_verb_is_in_the_readme_and_every_verb_there_exists() -> None:
    said = re.findall(r"^nodeside driver (\w+)(?: edu)?  ", README, re.MULTILINE)
    assert isinstance(driver, click.Group)

    assert sorted(said) == sorted(n for n, verb in driver.commands.items() if not verb.hidden)


def test_the_recorded_session_ends_with_a_driver_that_is_ready() -> None:
    session = README.partition("<!-- session -->")[2].partition("<!-- /session -->")[0]

    assert "make try" in session
    assert re.search(r"^state +ready$", session, re.MULTILINE)
    assert re.search(r"^exit code +0: ", session, re.MULTILINE)


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    said = {
        (named(path), found[1])
        for path in DOCUMENTS
        for line in code(path.read_text())
        if (found := re.match(r"(?:\$ )?make ([a-z][a-z-]*)\b", line))
    }

    assert {(path, target) for path, target in said if target not in targets} == set()


# --- commands and options ---------------------------------------------------------------------


@pytest.mark.parametrize(("document", "line"), nodeside_commands())
def test_every_command_in_the_documents_is_one(document: str, line: str) -> None:
    try:
        with suppress(click.exceptions.Exit):  # --help, --version
            program, *words = words_of(line)
            parse(program, words)
    except click.UsageError as error:
        pytest.fail(f"{document}: {line}: {error.format_message()}")


def test_every_option_in_the_documents_exists() -> None:
    known = options_of(root) | options_of(cluster_root) | options_of(bench) | FOREIGN
    known |= sidecar_options(sidecar._make_parser())
    unknown = [
        f"{named(path)}: {word}"
        for path in DOCUMENTS
        if path.name not in GENERATED
        for piece in code(path.read_text())
        for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", piece)
        if word not in known
    ]

    assert unknown == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_whole_drivers_in_the_documents_are_valid(path: Path) -> None:
    for block in re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        if re.search(r"^kind: Driver$", block, re.MULTILINE):
            parse_driver(yaml.safe_load(block))


def test_every_variable_in_the_documents_is_read_somewhere() -> None:
    lab = TOP / "tests" / "lab"
    source = "\n".join(path.read_text() for path in [*PACKAGE.rglob("*.py"), *lab.glob("*.py")])
    said = {
        name
        for path in DOCUMENTS
        for name in re.findall(r"\bNODESIDE_[A-Z_]*[A-Z]\b", path.read_text())
    }

    assert {name for name in said if name not in source} == set()


def test_the_sidecars_help_has_every_exit_code_of_a_failed_build() -> None:
    listed = sidecar._EPILOG.partition("exit codes:")[2].partition("\n\n")[0]
    codes = {int(entry.split()[0]) for entry in listed.rstrip(".").split(";")}
    always = {ExitCode.OK, ExitCode.USAGE, ExitCode.LOCKED, ExitCode.INTERRUPTED}

    assert codes == always | {kind.exit_code for kind in FailureKind}


def test_the_sidecars_command_is_the_one_that_the_pod_runs() -> None:
    argv = sidecar_command(Path("/shared"))

    assert shlex.join(argv[: argv.index("run")]) in DEBUGGING


# --- tables and maps --------------------------------------------------------------------------


def test_every_kind_of_failure_is_explained_with_its_exit_code() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \|", DEBUGGING, re.MULTILINE)

    assert rows == [(kind.value, str(kind.exit_code.value)) for kind in FailureKind]


def test_what_is_said_to_be_retried_is_retried() -> None:
    said = re.search(r"^(.*) are retried automatically", DEBUGGING, re.MULTILINE)

    assert said is not None
    assert set(re.findall(r"`([a-z-]+)`", said[1])) == {k.value for k in FailureKind if k.retryable}


@pytest.mark.parametrize("part", ["", "spec", "toolkit_sidecar"])
def test_every_module_is_on_the_map(part: str) -> None:
    modules = {path.stem for path in (PACKAGE / part).glob("*.py")} - {"__init__", "__main__"}
    on_map = set(re.findall(r"[a-z_]+", ARCHITECTURE))

    assert modules - on_map == set()


ROOMS = sorted(
    path.parent
    for package in (PACKAGE, CLUSTER)
    for path in package.rglob("__init__.py")
    if path.parent not in (PACKAGE, CLUSTER, PACKAGE / "driver", PACKAGE / "spec")
)
FAKES = sorted(path for path in (TOP / "tests").rglob("fakes") if path.is_dir())


@pytest.mark.parametrize("room", [*ROOMS, *FAKES], ids=lambda path: str(path.relative_to(TOP)))
def test_every_file_of_a_room_is_on_its_map(room: Path) -> None:
    files = {path.stem for path in room.glob("*.py")} - {"__init__", "__main__"}
    rooms = {path.parent.name for path in room.glob("*/__init__.py")}
    on_map = set(re.findall(r"[a-z_]+", (room / "__init__.py").read_text()))

    assert (files | rooms) - on_map == set()


def test_every_room_is_on_the_map() -> None:
    on_map = set(re.findall(r"[a-z_]+", ARCHITECTURE))

    assert {room.name for room in ROOMS} - {"guest"} - on_map == set()


def test_a_file_that_a_docstring_names_is_there() -> None:
    sources = [
        path
        for top in ("nodeside", "cluster", "tests", "bench", "images", "examples")
        for path in (TOP / top).rglob("*.py")
    ]
    there = {str(path.relative_to(TOP)) for path in sources}
    there |= {name[start:] for name in there for start in _starts_of_names(name)}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    missing = [
        f"{path.relative_to(TOP)}: {name}"
        for path in sources
        if _python_files(text := path.read_text()) - there  # it is worth parsing
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented)
        for name in sorted(_python_files(ast.get_docstring(node) or "") - there)
    ]
    assert missing == []


def _python_files(text: str) -> set[str]:
    """The names in a text; to look for them in each line of it takes twenty times as long."""
    lines = "\n".join(line for line in text.splitlines() if ".py" in line)
    return set(re.findall(r"[\w./-]*\w\.py\b", lines))


def _starts_of_names(path: str) -> list[int]:
    return [match.end() for match in re.finditer("/", path)]


# --- links ------------------------------------------------------------------------------------


def test_every_row_of_a_table_is_one_line() -> None:
    rows = [
        f"{named(document)}: {row}"
        for document in DOCUMENTS
        for row in re.findall(r"^ *\|.*$", document.read_text(), re.MULTILINE)
    ]

    assert [row for row in rows if not row.rstrip().endswith("|")] == []


def test_every_link_of_the_documents_leads_somewhere() -> None:
    broken = []
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", document.read_text()):
            there = document.parent / target if target else document
            if not there.exists() or (anchor and anchor not in anchors(there)):
                broken.append(f"{named(document)}: {target}#{anchor}")

    assert broken == []


def test_every_test_that_the_threat_model_names_is_there() -> None:
    names = ("security.md", "device-agent.md")
    pages = "".join((TOP / "docs" / name).read_text() for name in names)
    named_there = set(re.findall(r"`(test_\w+)`", pages))
    defined = {
        name
        for pattern in ("test_*.py", "long_*.py")
        for path in TOP.glob(f"tests/**/{pattern}")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named_there) > 15
    assert named_there <= defined
