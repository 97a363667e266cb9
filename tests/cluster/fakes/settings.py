"""What an installation may be told."""

from __future__ import annotations

from cluster.install.manifests import InstallSettings

IMAGE = "registry.example.com/nodeside-cluster:1.0"


SETTINGS = {
    "plain": InstallSettings(image=IMAGE),
    "everything": InstallSettings(
        namespace="drivers",
        image=IMAGE,
        agent_image="registry.example.com/nodeside-agent:1.0",
        openshift=True,
        pull_secrets=("pull", "more"),
        ca_config_map="trust",
        proxy={"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".svc"},
        node_selector={"node-role.kubernetes.io/infra": ""},
        service_monitor=True,
    ),
}
