"""DaemonSets of every kind that a plan makes."""

from __future__ import annotations

from typing import Any

from cluster.driver.pod import DaemonSetInput
from cluster.driver.revisions import revision_of, revision_text
from cluster.model.parse import driver_from
from cluster.model.snapshot import Pool, Settings
from tests.cluster.fakes.model import document

POOL = Pool("x86_64", "debian12", "6.1.0-50-amd64")


COREOS = Pool("x86_64", "418.94.202501221327-0", "5.14.0-427.50.1.el9_4.x86_64")


OPENSHIFT = Settings(scc="nodeside-driver")


BEHIND_A_PROXY = Settings(
    pull_secrets=("registry", "other"),
    ca_config_map="trusted-ca",
    proxy={
        "HTTPS_PROXY": "http://proxy.example.com:3128",
        "NO_PROXY": ".cluster.local,.svc,10.0.0.0/8",
    },
)


def wanted(
    settings: Settings | None = None,
    pool: Pool = POOL,
    toolkit: str = "registry.example.com/toolkits:6.1.0-50-amd64",
    **spec: Any,
) -> DaemonSetInput:
    owner = driver_from(document(**spec))
    assert owner.driver is not None, owner.mistakes
    revision = revision_of(revision_text(owner.driver))
    link = "image-stream" if settings is OPENSHIFT else "template" if toolkit else "none"
    return DaemonSetInput(
        owner, owner.driver, revision, pool, toolkit, link, settings or Settings(),
        pods=owner.driver.spec.pods,
    )  # fmt: skip


# What an administrator's policy may ask for, with quantities that the API server writes otherwise.
POLICY: dict[str, Any] = {
    "labels": {"example.com/cost-centre": "4711"},
    "annotations": {"example.com/owner": "storage, night shift"},
    "priorityClassName": "system-cluster-critical",
    "imagePullPolicy": "Always",
    "resources": {
        "driver": {
            "requests": {"cpu": "0.25", "memory": "1024Mi", "ephemeral-storage": "2000M"},
            "limits": {"cpu": "1000m", "memory": "2048Mi"},
        },
        "toolkit": {"limits": {"ephemeral-storage": "17Gi", "cpu": "4"}},
        "build": {"requests": {"cpu": "2", "ephemeral-storage": "1500"}},
        "deviceAgent": {"limits": {"memory": "32Mi", "cpu": "0.1"}},
    },
    "buildJobs": {
        "nodeSelector": {"example.com/pool": "builders"},
        "priorityClassName": "system-cluster-critical",
        "tolerations": [
            {"key": "example.com/pool", "value": "builders"},
            {"operator": "Exists", "effect": "NoExecute"},
        ],
    },
}


CASES = {
    "policy": wanted(pods=POLICY),
    "kubernetes": wanted(),
    "openshift": wanted(OPENSHIFT, COREOS, "quay.io/openshift/driver-toolkit@sha256:94"),
    "privileged": wanted(privileged=True),
    "signing": wanted(signing={"key": "/signing/key.pem", "certificate": "/signing/cert.pem"}),
    "proxy": wanted(
        BEHIND_A_PROXY, prebuilt={"sources": [{"oci": "registry.example.com/drivers/edu"}]}
    ),
    "prebuilt-only": wanted(
        toolkit="", prebuilt={"sources": [{"http": "https://example.com/drivers"}]}
    ),
}
