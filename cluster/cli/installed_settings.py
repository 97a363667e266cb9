"""The settings of the installed controller, as its Deployment has them on the command line."""

from __future__ import annotations

from dataclasses import replace

from cluster.kube.client import Api
from cluster.kube.errors import ApiError
from cluster.kube.resources import DEPLOYMENTS
from cluster.model.names import CONTROLLER
from cluster.model.snapshot import KUBELET_ROOT, Settings


def as_installed(api: Api, settings: Settings) -> Settings:
    """Return the settings of the installed controller; `settings` if it is not readable."""
    try:
        deployment = api.get(DEPLOYMENTS, CONTROLLER, namespace=settings.namespace)
    except ApiError:
        return settings
    [container, *_] = deployment["spec"]["template"]["spec"]["containers"]
    options = [word.partition("=")[::2] for word in container.get("args", ())]
    return replace(
        settings,
        scc=dict(options).get("--scc", ""),
        ca_config_map=dict(options).get("--ca-config-map", ""),
        pull_secrets=tuple(value for name, value in options if name == "--pull-secret"),
        proxy=dict(value.split("=", 1) for name, value in options if name == "--proxy"),
        agent_image=dict(options).get("--agent-image", ""),
        kubelet_root=dict(options).get("--kubelet-root", KUBELET_ROOT),
    )
