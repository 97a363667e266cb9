"""The template of every pod that nodeside makes on OpenShift, and of those of the examples' stages.

Each is made by the code that makes it in a cluster, with the options that add something to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.driver.daemonset import daemonset_document
from cluster.install.manifests import InstallSettings, all_manifests
from cluster.model.parse import driver_from
from cluster.model.snapshot import DriverObject, Node, Settings
from cluster.options.build_once.job_manifest import SharedBuild, build_job, job_spec
from cluster.options.devices.agent_manifests import device_agent
from cluster.options.stages.manifests import Frame, frame_built_in, frame_documents
from cluster.options.unload.pod import unload_pod
from cluster.render.templates import render_to_documents
from nodeside.spec import Driver
from nodeside.spec.pods import Pods
from tests import TOP
from tests import yaml_in_c as yaml
from tests.cluster.fakes.daemonsets import COREOS, wanted
from tests.cluster.fakes.model import document

Document = dict[str, Any]

TOOLKIT = "quay.io/openshift/driver-toolkit@sha256:94"
SETTINGS = Settings(
    scc="nodeside-driver",
    agent_image="registry.example.com/nodeside-agent:1.0",
    pull_secrets=("registry", "other"),
    ca_config_map="trusted-ca",
    proxy={"HTTPS_PROXY": "http://proxy.example.com:3128"},
)
FULL: Mapping[str, Any] = {
    "signing": {"key": "/signing/key.pem", "certificate": "/signing/cert.pem"},
    "prebuilt": {"sources": [{"oci": "registry.example.com/bundles/edu", "publish": True}]},
    "firmware": {"path": "firmware"},
    "userspace": {"paths": ["/opt/edu"]},
    "hooks": {"afterUnload": [{"command": ["true"]}]},
    "services": [{"name": "daemon", "command": ["/usr/bin/daemon"]}],
}
_DECLARED = {"resource": "example.com/edu", "discover": {"pci": [{"vendor": "1234"}]}}
DEVICES: Mapping[str, Any] = {
    "plain": _DECLARED,
    "dra": {**_DECLARED, "expose": "dra"},
    "labels": {**_DECLARED, "attributes": [{"name": "a", "path": "a", "label": True}]},
}
_STACK = TOP / "examples" / "edu" / "stack"


def controller() -> Document:
    everything = all_manifests(
        InstallSettings(
            openshift=True,
            agent_image=SETTINGS.agent_image,
            pull_secrets=SETTINGS.pull_secrets,
            ca_config_map=SETTINGS.ca_config_map,
            proxy=SETTINGS.proxy,
            service_monitor=True,
        )
    )
    [deployment] = [each for each in everything if each["kind"] == "Deployment"]
    return _template(deployment)


def of_a_driver(**spec: Any) -> Iterator[tuple[str, Document]]:
    """What follows from one Driver besides its stages, by what it is."""
    inputs = wanted(SETTINGS, COREOS, TOOLKIT, **spec)
    node = Node("n1", kernel=COREOS.kernel, boot_id="c0ffee")
    yield "driver", _template(daemonset_document(inputs))
    yield "unload", unload_pod(inputs.owner, inputs.driver, inputs.revision, node, SETTINGS)
    build = SharedBuild(
        inputs.driver, inputs.revision, TOOLKIT, "x86_64", publish="oci:r.example.com/x"
    )
    yield "build", _template(build_job(build, inputs.owner, SETTINGS))
    symbols = replace(build, publish="", symbols_of=("oci:r.example.com/other",))
    preflight = job_spec(symbols, SETTINGS, Pods(), config_map="preflight-x")
    yield "preflight", _template({"spec": preflight})


def agent(devices: Sequence[Mapping[str, Any]], after: str = "") -> Document:
    """The device agent, behind a stage or none."""
    owner = driver_from(document(devices=list(devices)))
    frame = _frame(owner, "devices", after)
    made, _ = frame_built_in(frame, device_agent(frame.driver, SETTINGS), frozenset())
    [found] = [each for each in made if each["kind"] == "DaemonSet"]
    return _template(found)


def stack() -> Iterator[tuple[str, Document]]:
    """The stages of examples/edu/stack, in order; their accounts are as they are written there."""
    owner, after = _owner(_STACK / "driver.yaml"), ""
    for stage in _driver(owner).spec.stages:
        frame = _frame(owner, stage.name, after)
        if stage.manifests:
            made, _ = frame_documents(
                frame, stage.manifests, _rendered(stage.name, frame), frozenset()
            )
        else:
            made, _ = frame_built_in(frame, device_agent(frame.driver, SETTINGS), frozenset())
        for workload in (each for each in made if "template" in each.get("spec", {})):
            yield stage.name, _template(workload)
            after = stage.name


def workload() -> Document:
    """What a user of the devices starts, in examples/edu/stack."""
    return _template(yaml.safe_load((_STACK / "workload.yaml").read_text()))


def lone_agent() -> Document:
    """That of examples/fpga/aws, which no controller makes."""
    path = TOP / "examples" / "fpga" / "aws" / "daemonset.yaml"
    return _template(yaml.safe_load(path.read_text()))


def _rendered(stage: str, frame: Frame) -> Sequence[tuple[str, Document]]:
    files = {path.name: path.read_text() for path in sorted((_STACK / stage).iterdir())}
    driver = {"name": frame.driver.name, "image": frame.driver.spec.image}
    return render_to_documents(f"edu-{stage}", files, {"driver": driver})


def _frame(owner: DriverObject, stage: str, after: str) -> Frame:
    return Frame(owner, _driver(owner), stage, after, SETTINGS)


def _owner(path: Path) -> DriverObject:
    written = yaml.safe_load(path.read_text())
    return driver_from(document(written["metadata"]["name"], **written["spec"]))


def _driver(owner: DriverObject) -> Driver:
    assert owner.driver is not None, owner.mistakes
    return owner.driver


def _template(workload: Mapping[str, Any]) -> Document:
    found: Document = workload["spec"]["template"]
    return found
