"""Everything that is installed in a cluster, from the templates beside this file.

`manifests` gives documents in the order in which they are applied; `to_yaml` gives the text for
`kubectl apply -f -` and for a repository of manifests. Pure: what is rendered is parsed before
anybody uses it, and a name that the templates do not know is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.crds import crds
from nodeside.contract import API_GROUP, State, state_label
from nodeside.errors import ExitCode, NodesideError

Document = dict[str, Any]

NAMESPACE = "nodeside"
CONTROLLER = "nodeside-controller"  # its service account, roles, Deployment
DRIVER = "nodeside-driver"  # the service account and the roles of driver pods; their SCC
IMAGE = "localhost/nodeside-cluster"  # what images/build calls it
HEALTH_PORT = 8080

_TEMPLATES = ("namespace", "accounts", "admission", "controller")
_ON_OPENSHIFT = "openshift"
_ANY_STATE_LABEL = "^" + re.escape(state_label("<>")).replace("<>", "[a-z0-9-]{1,40}") + "$"


# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
)


class NotInstallable(NodesideError):
    """A value of an `Installation` that no API server or kubelet would take."""

    exit_code = ExitCode.USAGE
    reason = "NotInstallable"


class TemplateBroken(Exception):
    """A template does not give what it should. No NodesideError: it is a bug of ours."""


@dataclass(frozen=True)
class Installation:
    """What whoever installs decides. `arguments` are further ones of `nodeside-cluster run`."""

    namespace: str = NAMESPACE
    image: str = IMAGE
    openshift: bool = False
    pull_secrets: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


def manifests(installation: Installation) -> tuple[Document, ...]:
    """Definitions first, then what the controller needs, then the controller."""
    _check(installation)
    names = _TEMPLATES[:-1] + ((_ON_OPENSHIFT,) if installation.openshift else ())
    values = _values(installation)
    made = [document for name in (*names, _TEMPLATES[-1]) for document in _render(name, values)]
    return (*crds(), *made)


def to_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """One text; keys stay in the order in which they were written."""
    import yaml

    return "".join(
        "---\n" + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
        for document in documents
    )


def _check(installation: Installation) -> None:
    """Before anything is applied: half of an installation is worse than none."""
    if not _LABEL.fullmatch(installation.namespace):
        raise NotInstallable(
            f"{installation.namespace!r} is no name of a namespace: expected lower case letters, "
            "digits and -, at most 63"
        )
    if not installation.image or re.search(r"\s", installation.image):
        raise NotInstallable(f"{installation.image!r} is no pull spec of the controller's image")
    for name in installation.pull_secrets:
        if not _SUBDOMAIN.fullmatch(name):
            raise NotInstallable(f"{name!r} is no name of a pull secret")


def _arguments(installation: Installation) -> list[str]:
    """The command line of the controller: what it is to give its pods."""
    words = ["run", "--namespace", installation.namespace]
    words += ["--scc", DRIVER] if installation.openshift else []
    words += [f"--pull-secret={name}" for name in installation.pull_secrets]
    return [*words, *installation.arguments]


def _values(installation: Installation) -> dict[str, Any]:
    return {
        "namespace": installation.namespace,
        "image": installation.image,
        "openshift": installation.openshift,
        "pull_secrets": list(installation.pull_secrets),
        "arguments": _arguments(installation),
        "controller": CONTROLLER,
        "driver": DRIVER,
        "scc": DRIVER,
        "group": API_GROUP,
        "states": [state.value for state in State],
        "state_label": _ANY_STATE_LABEL,
        "health_port": HEALTH_PORT,
    }


def _render(name: str, values: Mapping[str, Any]) -> list[Document]:
    import jinja2
    import yaml

    loader = jinja2.PackageLoader("cluster")
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined)  # noqa: S701
    environment.filters["tojson"] = _quoted
    try:
        text = environment.get_template(f"{name}.yaml.j2").render(values)
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except (jinja2.TemplateError, yaml.YAMLError) as exc:
        raise TemplateBroken(f"the template {name}.yaml.j2 cannot be used: {exc}") from exc


def _quoted(value: Any) -> str:
    """A value as JSON, which YAML and CEL both read. Jinja's own filter escapes for HTML."""
    return json.dumps(value, default=str)  # the text of an undefined value is its error
