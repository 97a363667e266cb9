"""`nodeside device-agent`: offer a driver's devices to the kubelet of this node."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import click

from nodeside import log
from nodeside.errors import NodesideError, SpecError
from nodeside.system.host import Host

_LONGEST = 107 - len("/nodeside-0123456789ab-01234567.sock")  # characters of a directory: unix(7)


class NotInstalled(NodesideError):
    """The packages of the device agent are missing."""

    reason = "NotInstalled"


@click.command()
@click.option(
    "--driver",
    "-f",
    "driver_file",
    envvar="NODESIDE_DRIVER",
    default="driver.yaml",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The driver.yaml, or the directory it is in.",
)
@click.option(
    "--host-root",
    envvar="NODESIDE_HOST",
    default="/",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the host's /sys, /dev and /run/nodeside are; /host in a pod.",
)
@click.option(
    "--kubelet-directory",
    envvar="NODESIDE_KUBELET_DIRECTORY",
    default="/var/lib/kubelet/device-plugins",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The directory with the kubelet's socket for device plugins.",
)
@click.option(
    "--pod-resources",
    envvar="NODESIDE_POD_RESOURCES",
    default="/var/lib/kubelet/pod-resources/kubelet.sock",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The kubelet's socket that says which container has which devices.",
)
@click.option(
    "--plugins-directory",
    envvar="NODESIDE_PLUGINS_DIRECTORY",
    default="/var/lib/kubelet/plugins",
    show_default=True,
    type=click.Path(path_type=Path),
    help="With expose: dra, the kubelet's directory of plugins, under the path it has there.",
)
@click.option(
    "--plugins-registry",
    envvar="NODESIDE_PLUGINS_REGISTRY",
    default="/var/lib/kubelet/plugins_registry",
    show_default=True,
    type=click.Path(path_type=Path),
    help="With expose: dra, the directory where the kubelet looks for plugins.",
)
@click.option(
    "--cdi-directory",
    envvar="NODESIDE_CDI_DIRECTORY",
    default="/var/run/cdi",
    show_default=True,
    type=click.Path(path_type=Path),
    help="With expose: dra, the directory where the container runtime looks for CDI files.",
)
@click.option(
    "--state-directory",
    envvar="NODESIDE_STATE_DIRECTORY",
    default="/var/lib/nodeside-devices",
    show_default=True,
    type=click.Path(path_type=Path),
    help="What must outlive the agent: ids of devices, prepared claims; in a directory per driver.",
)
@click.option(
    "--node-name",
    envvar="NODE_NAME",
    default="",
    help="With expose: dra or labels, the name of this node in the cluster.",
)
@click.option(
    "--features-directory",
    envvar="NODESIDE_FEATURES_DIRECTORY",
    default="/etc/kubernetes/node-feature-discovery/features.d",
    show_default=True,
    help="Where Node Feature Discovery reads feature files. If it is not there, or with an empty "
    "text, the agent labels the node itself, if it has a token.",
)
@click.option(
    "--metrics-port",
    envvar="NODESIDE_METRICS_PORT",
    type=click.IntRange(0, 65535),
    help="Serve Prometheus metrics on this port; 0: a free one, which the log names.",
)
@click.option(
    "--without-driver",
    is_flag=True,
    help="The devices' driver is not brought up by nodeside here: do not wait for its ready file.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar="NODESIDE_LOG_FORMAT",
    default="text",
    show_default=True,
    help="Format of the log on stderr.",
)
@click.option("--revision", envvar="NODESIDE_REVISION", default="", hidden=True)
@click.option("--verbose", "-v", is_flag=True, help="Log details too.")
def device_agent(
    *,
    driver_file: Path,
    host_root: Path,
    kubelet_directory: Path,
    pod_resources: Path,
    plugins_directory: Path,
    plugins_registry: Path,
    cdi_directory: Path,
    state_directory: Path,
    node_name: str,
    features_directory: str,
    metrics_port: int | None,
    without_driver: bool,
    log_format: str,
    revision: str,
    verbose: bool,
) -> None:
    """Offer a driver's devices to the kubelet of this node.

    Each entry of `devices` in driver.yaml is a resource that pods can ask for. A device is healthy
    while the driver is ready on this node, and the device works. It runs until it is stopped.
    """
    for package in ("grpclib", "google.protobuf", "prometheus_client"):
        if not _is_installed(package):
            raise NotInstalled(
                f"the Python package {package} is missing", hint="pip install 'nodeside[devices]'"
            )
    from nodeside.device_agent.agent import Kubelet, run_agent, stop_signals
    from nodeside.device_agent.dra.site import Site
    from nodeside.device_agent.feature_sinks import Sinks
    from nodeside.kube.client import PodAccess
    from nodeside.spec.devices import dra_devices
    from nodeside.spec.document import load, node_load
    from nodeside.spec.userspace import devices_with_userspace

    log.setup("device-agent", format="json" if log_format == "json" else "text", verbose=verbose)
    file = driver_file / "driver.yaml" if driver_file.is_dir() else driver_file
    driver = node_load(file) if revision else load(file)
    spec = driver.spec
    devices = devices_with_userspace(driver.name, spec.devices, spec.userspace)
    driver = replace(driver, spec=replace(spec, devices=devices))
    if not driver.spec.devices:
        raise SpecError(
            f"driver {driver.name} declares no devices",
            hint="say in driver.yaml what it drives: see `devices` in `nodeside spec reference`",
        )
    if not kubelet_directory.is_dir():
        raise SpecError(
            f"there is no directory {kubelet_directory}",
            hint="run it on a node, or in a pod that mounts the directory from the host",
        )
    if len(str(kubelet_directory)) > _LONGEST:
        raise SpecError(f"{kubelet_directory}: a socket's path has at most 107 characters")
    state = state_directory / driver.name
    site = None
    access = PodAccess.from_environment(os.environ)
    if dra_devices(driver.spec.devices):
        if access is None or not node_name:
            raise SpecError(
                "devices with expose: dra need the API server, and the name of this node",
                hint="run it in a pod, with NODE_NAME; or set KUBERNETES_SERVICE_HOST, "
                "NODESIDE_TOKEN_DIR (a directory with token and ca.crt) and NODE_NAME",
            )
        site = Site(node_name, access, plugins_directory, plugins_registry, state, cdi_directory)
        if reason := site.unusable_reason(driver.name):
            raise SpecError(reason, hint="run it on a node, or in a pod that mounts the kubelet's")
    kubelet = Kubelet(kubelet_directory, pod_resources)
    features = Path(features_directory) if features_directory else None
    with stop_signals() as news:
        run_agent(
            driver,
            Host(host_root),
            kubelet,
            state=state,
            site=site,
            sinks=Sinks.of(driver.name, features, access, node_name),
            metrics_port=metrics_port,
            needs_driver=not without_driver,
            news=news,
        )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # what it is part of is missing
        return False
