"""The Helm chart, from the templates that `nodeside-cluster install` uses.

    Chart.yaml            its version is the package's
    values.yaml           what an `Installation` decides, with its values as defaults
    values.schema.json    what Helm refuses before it renders anything
    crds/                 the definitions: Helm makes them once, and never upgrades or deletes them
    templates/            manifests.TEMPLATES in Helm's words (helm_templates.py), notes, the image

The namespace is the release's. Names are the same as everywhere: a cluster has nodeside once, and
a second release is refused by Helm, since the first one owns the roles. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cluster.install.crds import crds
from cluster.install.helm_templates import Later, go_template, wrapped
from cluster.install.manifests import (
    ONLY_IF,
    TEMPLATES,
    Installation,
    check,
    constants,
    file_text,
    fill,
    template,
    to_yaml,
    values_of,
)
from nodeside import __version__

NAME = "nodeside"

# What Helm calls the fields of an Installation.
LATER: Mapping[str, Later] = {
    "namespace": Later("$.Release.Namespace"),
    "image": Later('(include "nodeside.image" $)'),
    "openshift": Later("$.Values.openshift"),
    "pull_secrets": Later("$.Values.imagePullSecrets", each="$name.name"),
    "arguments": Later("$.Values.extraArgs"),
    "ca_config_map": Later("$.Values.caConfigMap"),
    "proxy": Later("$.Values.proxy"),
    "node_selector": Later("$.Values.nodeSelector"),
    "tolerations": Later("$.Values.tolerations"),
    "resources": Later("$.Values.resources"),
    "replicas": Later("$.Values.replicas"),
    "service_monitor": Later("$.Values.serviceMonitor"),
}
_CREATED = "$.Values.namespace.create"  # `helm install` takes a namespace that is there already

_PULL_SPEC = re.compile(
    r"(?P<repository>[^\s@]+?)(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(@(?P<digest>\S+))?"
)


def chart(defaults: Installation) -> dict[str, str]:
    """The files of the chart, by their paths in its directory."""
    check(defaults)
    files = {
        "Chart.yaml": fill("helm/Chart.yaml.j2", {"version": __version__}),
        "values.yaml": fill("helm/values.yaml.j2", _values(defaults)),
        "values.schema.json": file_text("helm/values.schema.json"),
        "templates/_helpers.tpl": file_text("helm/_helpers.tpl"),
        "templates/NOTES.txt": file_text("helm/NOTES.txt"),
    }
    files |= {f"crds/{crd['metadata']['name']}.yaml": to_yaml([crd]) for crd in crds()}
    return files | {f"templates/{name}.yaml": _template(name) for name in TEMPLATES}


def _template(name: str) -> str:
    text = go_template(template(name), constants(), LATER)
    if name == "namespace":
        return wrapped(text, _CREATED)
    return wrapped(text, LATER[ONLY_IF[name]].expression) if name in ONLY_IF else text


def _values(defaults: Installation) -> dict[str, Any]:
    """Of values.yaml: as an Installation has them, but in the forms that users of charts know."""
    names = [{"name": name} for name in defaults.pull_secrets]
    proxy = dict(sorted(defaults.proxy.items()))
    return values_of(defaults) | _image(defaults.image) | {"pull_secrets": names, "proxy": proxy}


def _image(pull_spec: str) -> dict[str, str]:
    """A colon before a slash is a port's, not a tag's."""
    found = _PULL_SPEC.fullmatch(pull_spec)
    assert found is not None, pull_spec  # checked: it has a character, and no space
    return {name: value or "" for name, value in found.groupdict().items()}
