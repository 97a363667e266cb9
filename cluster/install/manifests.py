"""All objects that are installed in a cluster, from the templates next to this file.

`manifests` returns the documents in the order in which they are applied; `to_yaml` returns the text
for `kubectl apply -f -` and for a repository of manifests. Pure: rendered text is parsed before it
is used, and an unknown name in a template is an error.

The Helm chart (helm.py) and the kustomize base (kustomize.py) use the same templates. Templates may
therefore use the fields of `InstallSettings` only in `{% if NAME %}`, `{% for … in NAME %}` and
`| tojson`: helm_templates.py lists what it can translate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from textwrap import indent
from typing import Any

from cluster.install.crds import crds
from cluster.model.names import (
    CERTIFICATE,
    CONTROLLER,
    CORDONED,
    DEVICE_AGENT,
    DRIVER,
    EVICTION,
    EXPLAIN,
    METRICS,
    METRICS_PATH,
    METRICS_READER,
    NAMESPACE,
    PREFLIGHT,
)
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.labels import (
    API_GROUP,
    DRA_DRIVER,
    FEATURE_LIMIT,
    FEATURE_PREFIX,
    STATE_LABEL,
    NamePattern,
)
from nodeside.protocol.node_status import REPORT_ITEMS, REPORT_TEXT, NodeDriverStatus, State
from nodeside.spec.patterns import PULL_SPEC
from nodeside.spec.schema import camel_case

Document = dict[str, Any]

IMAGE = "localhost/nodeside-cluster"  # the name that images/build uses
HEALTH_PORT, METRICS_PORT = 8080, 8443

# In dependency order; the controller is last. ONLY_IF lists the optional templates, with the field
# of InstallSettings that enables them.
TEMPLATES = (
    *("namespace", "accounts", "admission", "people", "metrics", "servicemonitor", "openshift"),
    "controller",
)
ONLY_IF = {"openshift": "openshift", "servicemonitor": "service_monitor"}
_CONTROL_PLANE = {
    "key": "node-role.kubernetes.io/control-plane",
    "operator": "Exists",
    "effect": "NoSchedule",
}
_RESOURCES = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
# The free-text fields of a NodeDriver.
_TEXTS = [each.name for each in fields(NodeDriverStatus) if each.type == "str"]
_OUR_LABELS = rf"^((stage|feature)[.])?{API_GROUP.replace('.', '[.]')}/"


# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
)
_NAME_63 = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = re.compile(rf"({_SUBDOMAIN.pattern}/)?{_NAME_63}")
_LABEL_VALUE = re.compile(f"({_NAME_63})?")


class NotInstallable(NodesideError):
    """A value of `InstallSettings` that no API server or kubelet would accept."""

    exit_code = ExitCode.USAGE
    reason = "NotInstallable"


class TemplateBroken(Exception):
    """A template cannot be rendered or translated. Not a NodesideError: it is a bug of ours."""


@dataclass(frozen=True)
class InstallSettings:
    """The options of an installation. `arguments` are further ones of `nodeside-cluster run`.

    Pull secrets, CA and proxy are for driver pods; node selector, tolerations and resources are for
    the controller itself. Without `agent_image` no devices are offered, and the stage `devices` of
    a Driver says so. `service_monitor` needs the Prometheus Operator, which defines that kind.
    """

    namespace: str = NAMESPACE
    image: str = IMAGE
    agent_image: str = ""
    openshift: bool = False
    pull_secrets: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    ca_config_map: str = ""
    proxy: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = (_CONTROL_PLANE,)
    resources: Mapping[str, Any] = field(default_factory=lambda: _RESOURCES)
    replicas: int = 2
    service_monitor: bool = False


def manifests(installation: InstallSettings) -> tuple[Document, ...]:
    """Return the definitions first, then what the controller needs, then the controller."""
    parts = manifests_by_template(installation)
    return (*crds(), *(document for part in parts.values() for document in part))


def manifests_of_any(namespace: str) -> tuple[Document, ...]:
    """Return what any installation in this namespace could have made, so that it can be removed
    without knowing its options."""
    return manifests(InstallSettings(namespace, openshift=True, service_monitor=True))


def manifests_by_template(installation: InstallSettings) -> dict[str, list[Document]]:
    """Return everything except the definitions, by template name."""
    check(installation)
    values = values_of(installation)
    names = (name for name in TEMPLATES if values.get(ONLY_IF.get(name, ""), True))
    return {name: _documents(name, values) for name in names}


def to_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the documents as one text; keys keep their order."""
    import yaml

    return "".join(
        "---\n" + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
        for document in documents
    )


def check(installation: InstallSettings) -> None:
    """Raise NotInstallable for a bad value.

    This runs before anything is applied: half of an installation is worse than none.
    """
    if not _LABEL.fullmatch(installation.namespace):
        raise NotInstallable(
            f"{installation.namespace!r} is no name of a namespace: expected lower case letters, "
            "digits and -, at most 63"
        )
    _check_image(installation.image, "the controller's image", "nodeside-cluster")
    if installation.agent_image:
        _check_image(installation.agent_image, "the device agent's image", "nodeside-agent")
    for name in installation.pull_secrets:
        if not _SUBDOMAIN.fullmatch(name):
            raise NotInstallable(f"{name!r} is no name of a pull secret")
    for key, value in installation.node_selector.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise NotInstallable(f"{key}={value} is no label of a node")
    if installation.ca_config_map and not _SUBDOMAIN.fullmatch(installation.ca_config_map):
        raise NotInstallable(f"{installation.ca_config_map!r} is no name of a ConfigMap")


def _check_image(image: str, what: str, name: str) -> None:
    if not PULL_SPEC.fits(image):
        expected = f"expected something like registry.example.com/nodeside/{name}:1.0"
        hint = PULL_SPEC.remedy(image) or expected
        raise NotInstallable(f"{image!r} is no pull spec of {what}", hint=hint)


def values_of(installation: InstallSettings) -> dict[str, Any]:
    """Return the values that templates may use: the options and the constants."""
    options = {each.name: getattr(installation, each.name) for each in fields(installation)}
    lists = {name: list(value) for name, value in options.items() if isinstance(value, tuple)}
    return options | lists | {"proxy": sorted(installation.proxy.items())} | constants()


def constants() -> dict[str, Any]:
    """Return the values that templates may use and that no option sets."""
    return {
        "controller": CONTROLLER,
        "driver": DRIVER,
        "device_agent": DEVICE_AGENT,
        "eviction": EVICTION,
        "cordoned": CORDONED,
        "scc": DRIVER,
        "group": API_GROUP,
        "states": [state.value for state in State],
        "state_label": _in_cel(STATE_LABEL),
        "feature_prefix": _in_cel(FEATURE_PREFIX),
        "feature_limit": FEATURE_LIMIT,
        "dra_driver": _in_cel(DRA_DRIVER),
        "texts": [camel_case(name) for name in _TEXTS],
        "text_limit": REPORT_TEXT,
        "item_limit": REPORT_ITEMS,
        "our_labels": _OUR_LABELS,
        "health_port": HEALTH_PORT,
        "metrics": METRICS,
        "metrics_port": METRICS_PORT,
        "metrics_path": METRICS_PATH,
        "reader": METRICS_READER,
        "explain": EXPLAIN,
        "preflight": PREFLIGHT,
        "certificate": CERTIFICATE,
    }


def _in_cel(pattern: NamePattern) -> str:
    """Return the CEL expression of a name that is made of a driver's."""
    before, after = (quoted(text) if text else "" for text in pattern)
    return " + ".join(filter(None, (before, "variables.driver", after)))


def template(name: str) -> str:
    """Return the text of a template of TEMPLATES."""
    return file_text(f"{name}.yaml.j2")


def file_text(path: str) -> str:
    """Return the text of a file in the template directory."""
    return (files("cluster.install") / "templates" / path).read_text()


def fill(path: str, values: Mapping[str, Any]) -> str:
    """Render a file of the template directory as text. Raises TemplateBroken."""
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701
    environment.filters |= {"tojson": quoted, "block": _block}
    try:
        return environment.from_string(file_text(path)).render(values) + "\n"
    except jinja2.TemplateError as exc:
        raise TemplateBroken(f"the template {path} cannot be used: {exc}") from exc


def _documents(name: str, values: Mapping[str, Any]) -> list[Document]:
    import yaml

    path = f"{name}.yaml.j2"
    try:
        return [each for each in yaml.safe_load_all(fill(path, values)) if each is not None]
    except yaml.YAMLError as exc:
        raise TemplateBroken(f"the template {path} cannot be used: {exc}") from exc


def quoted(value: Any) -> str:
    """Return a value as JSON, which is valid YAML and CEL. Jinja's own filter escapes for HTML."""
    return json.dumps(value, default=str)  # str() of an undefined value raises its error


def _block(value: Any) -> str:
    """Return the YAML after a key and its colon: a block for a non-empty collection, or inline."""
    import yaml

    if not value or not isinstance(value, dict | list):
        return " " + quoted(value)
    return "\n" + indent(yaml.safe_dump(value, sort_keys=False).rstrip(), "  ")
