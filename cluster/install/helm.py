"""The Helm chart, made from the templates that `nodeside-cluster install` uses.

    Chart.yaml            has the version of the package
    values.yaml           the fields of `InstallSettings`, with its values as defaults
    values.schema.json    validates the values before Helm renders anything
    crds/                 the definitions: Helm creates them once, never upgrades or deletes them
    templates/            manifests.TEMPLATES as Go templates (helm_templates.py), notes, the image

The namespace is the release's. Object names are fixed, since a cluster has nodeside only once: Helm
refuses a second release because the first one owns the roles. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from cluster.install.crds import crds
from cluster.install.helm_templates import Later, go_template, wrapped
from cluster.install.manifests import (
    ONLY_IF,
    TEMPLATES,
    InstallSettings,
    check,
    constants,
    file_text,
    fill,
    template,
    to_yaml,
    values_of,
)
from cluster.install.pull_specs import parts
from nodeside import __version__

NAME = "nodeside"

# The Helm expressions for the fields of InstallSettings.
LATER: Mapping[str, Later] = {
    "namespace": Later("$.Release.Namespace"),
    "image": Later('(include "nodeside.pullSpec" $.Values.image)'),
    "agent_image": Later('(include "nodeside.pullSpec" $.Values.agentImage)'),
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
_CREATED = "$.Values.namespace.create"  # `helm install` expects an existing namespace


def chart(defaults: InstallSettings) -> dict[str, str]:
    """Return the files of the chart by their paths in its directory."""
    check(defaults)
    files = {
        "Chart.yaml": fill("helm/Chart.yaml.j2", {"version": __version__}),
        "values.yaml": fill("helm/values.yaml.j2", _values(defaults)),
        "values.schema.json": file_text("helm/values.schema.json"),
        "templates/_helpers.tpl": file_text("helm/_helpers.tpl"),
        "templates/NOTES.txt": file_text("helm/NOTES.txt"),
    }
    files |= _definitions()
    return files | {f"templates/{name}.yaml": _template(name) for name in TEMPLATES}


@cache
def _definitions() -> Mapping[str, str]:
    """Return the files that no option changes."""
    return {f"crds/{crd['metadata']['name']}.yaml": to_yaml([crd]) for crd in crds()}


def _template(name: str) -> str:
    text = go_template(template(name), constants(), LATER)
    if name == "namespace":
        return wrapped(text, _CREATED)
    return wrapped(text, LATER[ONLY_IF[name]].expression) if name in ONLY_IF else text


def _values(defaults: InstallSettings) -> dict[str, Any]:
    """Return the values for values.yaml: those of InstallSettings, in the usual form of charts."""
    names = [{"name": name} for name in defaults.pull_secrets]
    proxy = dict(sorted(defaults.proxy.items()))
    images = {"image": parts(defaults.image), "agent_image": parts(defaults.agent_image)}
    return values_of(defaults) | images | {"pull_secrets": names, "proxy": proxy}
