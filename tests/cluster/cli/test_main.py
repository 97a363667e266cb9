"""The command as a person types it: help, errors with hints, exit codes.

Most run in this process (`command`). Each verb starts once as a process of its own (`started`).
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cluster.cli.extra import PACKAGES, require_extra
from cluster.cli.main import root
from cluster.cli.options import INSTALLING, LOOKING, TRYING
from nodeside.errors import ExitCode
from nodeside.system import process
from tests import TOP
from tests.cluster.fakes.model import document
from tests.cluster.fakes.scripted import Asked, Said, ScriptedServer, kubeconfig
from tests.console import nodeside_cluster as command
from tests.patience import patience

NOTHING = Said(404, json.dumps({"kind": "Status", "code": 404, "message": "not found"}))
LONG = patience(60.0)  # seconds: a deadline that only a broken test meets
COMMANDS = ("run", "status", "explain", "resolve", "crds", "manifests", "install", "uninstall")


def started(*argv: str | Path) -> process.Completed:
    words = [sys.executable, "-m", "cluster", *map(str, argv)]
    return process.run(words, timeout=LONG, check=False, env={"COLUMNS": "200"})


def documents_of(text: str) -> list[dict[str, Any]]:
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))  # in C, at a tenth of the cost


def config(server: ScriptedServer, directory: Path) -> Path:
    path = directory / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(server.url, "secret")))
    return path


@pytest.mark.slow
def test_help_names_every_command_and_the_exit_codes() -> None:
    done = started("--help")

    assert done.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in done.output
    words = " ".join(done.output.split())
    assert "60 the Kubernetes API server refused or did not answer" in words


@pytest.mark.slow
def test_uninstall_asks_about_the_whole_namespace(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        place = config(server, tmp_path)
        done = started("uninstall", "--kubeconfig", place, "--namespace", "tools")

    assert "and the namespace tools with everything in it?" in done.output
    assert done.exit_code == ExitCode.INTERRUPTED


def test_uninstall_that_is_answered_with_no_deletes_nothing(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        place = config(server, tmp_path)
        done = CliRunner().invoke(root, ["uninstall", "--kubeconfig", str(place)], input="n\n")

    assert done.output.endswith("nothing was deleted\n")
    assert done.exit_code == ExitCode.OK
    assert not server.asked


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    assert command(name, "--help").output.startswith(f"Usage: nodeside-cluster {name}")


# nodeside as `pip install` leaves it without the extra: its packages are not to be found.
WITHOUT_EXTRA = """
import sys
from importlib import metadata
from cluster.cli import extra, main
sys.modules |= dict.fromkeys(extra.PACKAGES)
{more}
sys.argv = ["nodeside-cluster", "status"]
main.main()
"""


def without_extra(more: str = "") -> process.Completed:
    words = [sys.executable, "-c", WITHOUT_EXTRA.format(more=more)]
    return process.run(words, timeout=LONG, check=False)


@pytest.mark.slow
def test_in_a_checkout_without_the_extra_it_says_how_to_install_it() -> None:
    done = without_extra()

    assert done.exit_code == ExitCode.SYSTEM
    assert done.errors == (
        "error: nodeside-cluster needs Python packages that are not installed, such as urllib3\n"
        f"hint: install them: {sys.executable} -m pip install --editable '{TOP}[cluster]'\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noted", "named"),
    [
        ('{"url": "file:///tmp/a%20b/nodeside-0.1.0-py3-none-any.whl"}', "/tmp/a b/nodeside-0.1.0"),
        ("", "./nodeside-VERSION-py3-none-any.whl[cluster]"),
    ],
)
def test_after_a_wheel_it_names_that_wheel_and_never_an_index(noted: str, named: str) -> None:
    more = (
        'extra.__file__ = "/usr/lib/python3/site-packages/cluster/cli/extra.py"\n'
        f"metadata.Distribution.read_text = lambda *_: {noted!r}\n"
        "metadata.distribution = lambda _: metadata.Distribution\n"
    )

    done = without_extra(more)

    assert done.exit_code == ExitCode.SYSTEM
    [_, _, command] = done.errors.strip().split(": ", 2)[-1].rpartition(" -m pip install ")
    assert command.startswith(f"'{named}")
    assert command.endswith("whl[cluster]'")


def test_another_module_that_is_missing_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such"), require_extra():
        raise ModuleNotFoundError("no_such", name="no_such")


def test_the_extra_is_that_of_pyproject() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=]", each)[0] for each in project["optional-dependencies"]["cluster"]}

    imported = {name.removeprefix("google-").replace("-", "_") for name in names}
    assert imported <= {*PACKAGES}


def modules_after(code: str) -> set[str]:
    """The modules that some code has imported at its end."""
    code = f"{code}\nprint(*sys.modules, sep='\\n', file=sys.stderr)"
    return set(process.run([sys.executable, "-c", code], timeout=LONG).errors.split())


HEAVY = {"importlib.metadata", "jinja2", "kubernetes", "prometheus_client", "re2", "requests"}
HEAVY |= {"ssl", "subprocess", "urllib3", "yaml"}


@pytest.mark.slow
@pytest.mark.parametrize("argv", [["--help"], ["status", "--help"], ["explain", "--help"]])
def test_help_imports_nothing_but_the_options(argv: list[str]) -> None:
    loaded = modules_after(
        f"import sys\nsys.argv = ['nodeside-cluster', *{argv!r}]\n"
        "from cluster.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass"
    )

    ours = {"main", "completion", "installation", "options", "extra"}
    ours |= {"preflight", "diff", "rollout_verbs", "node_verbs"}
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("cluster.")} == {
        "cluster.cli",
        *(f"cluster.cli.{name}" for name in ours),
    }


@pytest.mark.slow
def test_the_status_is_shown_without_what_plans() -> None:
    loaded = modules_after("import sys, cluster.cli.status")

    assert loaded & (HEAVY - {"ssl"}) == set()
    parts = {name.split(".")[1] for name in loaded if name.startswith("cluster.")}
    assert parts == {"cli", "install", "kube", "model"}


def test_an_api_server_that_refuses_is_one_line_and_a_hint(tmp_path: Path) -> None:
    refusal = json.dumps({"kind": "Status", "code": 403, "message": "it is forbidden"})
    with ScriptedServer(Said(403, refusal), Said(403, refusal)) as server:
        done = command("status", "--kubeconfig", config(server, tmp_path))

    assert done.code == ExitCode.CLUSTER
    error, hint = done.errors.splitlines()
    assert error.startswith("error: no permission to list drivers")
    assert error.endswith(": it is forbidden")
    assert hint.startswith("hint: see what is missing: kubectl auth can-i list drivers")


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        (("explain", "edu"), LOOKING),
        (("resolve", "12"), LOOKING),
        (("preflight", "edu", "--toolkit", "x"), TRYING),
        (("install", "--image", "x"), INSTALLING),
        (("uninstall", "--yes"), INSTALLING),
    ],
)
def test_who_may_not_is_told_what_role_the_command_takes(
    tmp_path: Path, words: tuple[str, ...], needs: str
) -> None:
    with ScriptedServer() as server:
        server.always = lambda _: Said(403, json.dumps({"message": "it is forbidden"}))
        done = command(*words, "--kubeconfig", config(server, tmp_path))

    assert done.code == ExitCode.CLUSTER
    hint = done.errors.splitlines()[-1]
    assert hint.startswith("hint: see what is missing: kubectl auth can-i ")
    assert hint.endswith(f"; {needs}")


@pytest.mark.slow
def test_a_kubeconfig_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = started("explain", "edu", "--kubeconfig", tmp_path / "none")

    assert done.exit_code == ExitCode.USAGE
    assert f"error: there is no kubeconfig {tmp_path}/none\n" in done.errors


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("status", "--watch"), ("preflight", "edu", "--kernel", "6.1"), ("install", "--image", "x")],
)
def test_an_api_server_that_is_down_is_said_at_once(tmp_path: Path, words: tuple[str, ...]) -> None:
    with ScriptedServer() as server:
        path = config(server, tmp_path)
    done = started(*words, "--kubeconfig", path)

    assert done.exit_code == ExitCode.CLUSTER
    assert done.output == ""
    assert done.errors == (
        f"error: no answer from the API server {server.url}: Connection refused\n"
        "hint: is it up, and is there a way to it? kubectl get --raw /readyz\n"
    )


def test_a_wrong_command_line_is_exit_code_2() -> None:
    assert command("explain").code == ExitCode.USAGE


def test_a_toolkit_image_that_nobody_could_pull_is_refused_before_anything_is_tried() -> None:
    done = command("preflight", "edu", "--toolkit", "https://registry.example.com/toolkit:6.1")

    assert done.code == ExitCode.USAGE
    assert done.errors == (
        "error: --toolkit https://registry.example.com/toolkit:6.1: expected a pull spec such as "
        "registry.example.com/team/image:tag\n"
        "hint: write it without https:// or another scheme\n"
    )


@pytest.mark.slow
def test_resolve_looks_into_the_image_stream_of_the_cluster(tmp_path: Path) -> None:
    version = "418.94.202501221327-0"
    tag = {
        "name": version,
        "from": {"kind": "DockerImage", "name": "quay.example.com/toolkit@sha256:1"},
    }
    stream = {
        "metadata": {"name": "driver-toolkit", "namespace": "openshift"},
        "spec": {"tags": [tag]},
    }
    streams = Said(body=json.dumps({"metadata": {}, "items": [stream]}))
    with ScriptedServer(streams, streams) as server:
        path = config(server, tmp_path)
        found = started("resolve", version, "--kubeconfig", path, "--output", "json")
        missing = command("resolve", "419.96.202507011200-0", "--kubeconfig", path)

    assert json.loads(found.output)["image"] == "quay.example.com/toolkit@sha256:1"
    assert found.exit_code == ExitCode.OK
    assert missing.code == ExitCode.NOT_READY
    assert version in missing.output


def test_resolve_for_a_driver_that_is_not_there_says_which_are(tmp_path: Path) -> None:
    listed = {"metadata": {}, "items": [{"metadata": {"name": "edu"}}]}
    with ScriptedServer(NOTHING, Said(body=json.dumps(listed))) as server:
        path = config(server, tmp_path)
        done = command("resolve", "12", "--driver", "nope", "--kubeconfig", path)

    assert done.code == ExitCode.USAGE
    assert done.errors == "error: no Driver 'nope' in this cluster\nhint: there is: edu\n"


def test_resolve_asks_for_the_kernel_where_the_images_are_named_by_it(tmp_path: Path) -> None:
    with ScriptedServer(Said(body=json.dumps(document()))) as server:
        path = config(server, tmp_path)
        done = command("resolve", "12", "--driver", "edu", "--kubeconfig", path)

    assert done.code == ExitCode.USAGE
    assert "error: toolkit.imageTemplate of driver edu contains {kernel}" in done.errors
    assert "resolve 12 --driver edu --kernel RELEASE" in done.errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resolve", ""], "it is empty"),
        (["resolve", "12", "--architecture", "amd64"], "'amd64' is not one of 'x86_64'"),
        (["run", "--health-port", "99999"], "99999 is not in the range"),
        (["run", "--health-port", "-1"], "-1 is not in the range"),
        (["run", "--proxy", "FTP_PROXY=x"], "expected one of HTTP_PROXY=VALUE"),
        (["manifests", "--proxy", "HTTPS_PROXY"], "expected one of HTTP_PROXY=VALUE"),
        (["manifests", "--node-selector", "infra"], "'infra': expected KEY=VALUE"),
        (["manifests", "--format", "helm"], "--format helm makes a directory: add --output DIR"),
        (["manifests", "--output", "x"], "--output is for --format helm and kustomize"),
        (["manifests", "--driver", "x", "--pull-secret", "x"], "does not go with --pull-secret"),
        (["manifests", "--no-extended-resource"], "--extended-resource needs --driver"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_option(words: list[str], said: str) -> None:
    done = command(*words)

    assert done.code == ExitCode.USAGE
    assert said in done.errors
    assert "Traceback" not in done.errors


def test_install_wants_to_know_the_image() -> None:
    done = command("install")

    assert done.code == ExitCode.USAGE
    assert done.errors.startswith("error: --image is missing: ")
    assert "hint: make the image and push it (images/README.md), then: " in done.errors


def test_manifests_without_an_image_say_so_beside_the_text() -> None:
    assert command("manifests").errors.startswith(
        "note: without --image, the controller's image is "
    )
    assert command("manifests", "--image", "registry.example.com/x").errors == ""


def test_what_driver_pods_are_given_reaches_the_command_line_of_the_controller() -> None:
    given = [
        "--ca-config-map",
        "trust",
        "--proxy",
        "NO_PROXY=.svc",
        "--proxy",
        "HTTP_PROXY=http://p",
    ]
    documents = documents_of(command("manifests", "--image", "x", *given).output)
    [deployment] = [document for document in documents if document["kind"] == "Deployment"]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]

    params = root.commands["run"].make_context("run", arguments[1:]).params
    assert params["ca_config_map"] == "trust"
    assert params["proxy"] == {"NO_PROXY": ".svc", "HTTP_PROXY": "http://p"}


def test_the_controllers_own_nodes_can_be_chosen() -> None:
    label = "node-role.kubernetes.io/infra="
    documents = documents_of(command("manifests", "--node-selector", label).output)
    [deployment] = [document for document in documents if document["kind"] == "Deployment"]
    found = deployment["spec"]["template"]["spec"]["nodeSelector"]
    assert found == {"node-role.kubernetes.io/infra": ""}


@pytest.mark.parametrize(
    ("format", "file", "said"),
    [
        ("helm", "values.yaml", "helm install nodeside {} --namespace drivers --create-namespace"),
        ("kustomize", "controller.yaml", "kubectl apply --server-side -k {}"),
    ],
)
def test_a_chart_and_a_base_are_directories_and_what_to_do_with_them_is_said(
    tmp_path: Path, format: str, file: str, said: str
) -> None:
    place = tmp_path / "made"
    words = ("manifests", "--image", "r.example.com/x:1", "-n", "drivers", "--format", format)
    done = command(*words, "--output", place)

    assert done.output == f"made {place}; next: {said.format(place)}\n"
    assert (place / file).is_file()


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Chart.yaml").write_text("name: theirs\n")
    done = command("manifests", "--image", "x", "--format", "helm", "--output", tmp_path)

    assert done.code == ExitCode.USAGE
    assert "was not made by nodeside-cluster" in done.errors
    assert "hint: name a directory that does not exist yet" in done.errors


def into_a_closed_pipe(*argv: str | Path) -> tuple[int, str]:
    """The exit code, and what was said on stderr, of a command to whose output nobody listens."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "cluster", *map(str, argv)]
    try:
        with tempfile.TemporaryFile() as errors:
            child = process.start(words, stdout=writing, stderr=errors)
            code = child.wait(LONG)
            errors.seek(0)
            return code, errors.read().decode()
    finally:
        os.close(writing)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["crds"]])
def test_a_closed_pipe_ends_a_command_as_the_signal_would(words: list[str]) -> None:
    assert into_a_closed_pipe(*words) == (141, "")


@pytest.mark.slow
def test_install_goes_on_when_nobody_listens_any_more(tmp_path: Path) -> None:
    """Half of an installation, because of a `| head`, would be a bad surprise."""
    with ScriptedServer() as server:
        server.always = applied
        path = config(server, tmp_path)
        done = into_a_closed_pipe("install", "--image", "x", "--kubeconfig", path)

    written = [asked.path for asked in server.asked if asked.method == "PATCH"]
    assert done == (141, "")
    assert "/poddisruptionbudgets/nodeside-controller" in written[-1]


def applied(asked: Asked) -> Said:
    """A server on which everything is there and established."""
    established = {"conditions": [{"type": "Established", "status": "True"}]}
    metadata = {"name": asked.path.rpartition("/")[2], "resourceVersion": "1"}
    return Said(body=json.dumps({"metadata": metadata, "status": established}))


@pytest.mark.slow
def test_crds_and_manifests_are_yaml_for_kubectl() -> None:
    kinds = [document["kind"] for document in documents_of(started("crds").output)]
    more = [document["kind"] for document in documents_of(started("manifests").output)]

    assert kinds == ["CustomResourceDefinition"] * 2
    assert more[:2] == kinds
    assert "Deployment" in more


def test_a_cluster_without_image_streams_resolves_nothing_and_says_so(tmp_path: Path) -> None:
    with ScriptedServer(Said(404, "404 page not found")) as server:
        done = command("resolve", "12", "--kernel", "6.1", "--kubeconfig", config(server, tmp_path))

    assert done.code == ExitCode.NOT_READY
    assert "this cluster has no image streams" in done.output
