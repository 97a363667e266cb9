"""The pod of a driver.

Pure; daemonset.py runs it on the nodes of one pool and revision. Mounts and environment match what
`nodeside driver run` reads and what `nodeside try` emulates (trial/machine/containers.py).

There are no probes. The ready file in the host's /run/nodeside and the node's state label show
whether a driver works. An exec probe would start a process every few seconds on every node, an HTTP
probe would need a server and a port, and neither would know more. A liveness probe is useless too:
restarting the container does not help a failed driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from cluster.driver.pod_policy import container_resources, with_pull_policy
from cluster.model.names import (
    DRIVER_CONTAINER,
    POLICY_DIRECTORY,
    POLICY_FILE,
    TOOLKIT_CONTAINER,
    config_map_name,
    daemonset_name,
    policy_name,
)
from cluster.model.snapshot import DriverObject, Pool, Settings, assignment_name
from nodeside.protocol.labels import assigned_label
from nodeside.spec import Driver
from nodeside.spec.pods import Pods, Resources
from nodeside.spec.services import Hooks

PROVIDE_CONTAINER: Final = "provide"

# The driver image has its driver.yaml here. The revision's file is mounted over it, so that its
# relative paths keep their meaning. A subPath mount is never updated; a revision never changes.
DRIVER_FILE: Final = "/driver-image/driver.yaml"
SHARED: Final = "/shared"
TOKEN_DIRECTORY: Final = "/var/run/secrets/nodeside.io/api"  # noqa: S105
SIGNING_DIRECTORY: Final = "/signing"
CREDENTIALS_DIRECTORY: Final = "/credentials"
CA_DIRECTORY: Final = "/ca"

TOOLKIT_USER: Final = 65532
NO_LIMITS: Final[Mapping[str, str]] = {}
DRIVER_REQUESTS: Final = {"cpu": "10m", "memory": "64Mi"}  # of containers of the driver image

# Starts what `nodeside.driver.handoff.provide` puts into the shared directory.
SIDECAR_COMMAND: Final = (
    f"{SHARED}/python/loader", "--library-path", f"{SHARED}/python/libs",
    f"{SHARED}/python/bin/python3", "-I", "-S", "-B", f"{SHARED}/toolkit.pyz",
    "run", "--shared", SHARED, "--log-format", "json",
)  # fmt: skip

# In addition to the container runtime's defaults. SYS_MODULE loads modules, SYSLOG reads the kernel
# log; the last two are needed to find the processes that hold a module.
_CAPABILITIES = ("SYS_MODULE", "SYSLOG", "SYS_PTRACE", "DAC_READ_SEARCH")

# Host path, hostPath type, whether read-only. All are mounted below /host. The host's modprobe.d is
# read at /proc/1/root: not every node has its directories.
_HOST_PATHS = (
    ("/sys", "Directory", False),
    ("/proc", "Directory", False),
    ("/dev", "Directory", False),
    ("/lib/modules", "Directory", True),
    ("/run/nodeside", "DirectoryOrCreate", False),
    ("/run/nodeside-locks", "DirectoryOrCreate", False),
    ("/var/lib/nodeside", "DirectoryOrCreate", False),
)

# The kubelet reports a pod that exceeds this, but does not evict a critical one; the sidecar stops
# a build that fills the disk. Only a runaway build exceeds it, not a large driver.
_SHARED_LIMIT = "16Gi"
_SCRATCH_LIMIT = "4Gi"
_RUN_LIMIT = "64Mi"  # sockets, pid files and the like
_TOKEN_SECONDS = 3607  # the kubelet renews it after 80 %

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DaemonSetInput:
    """A driver on one pool: `driver` as of this revision; `toolkit` is "" for no sidecar.

    `link` is the link of the chain that gave the toolkit image (toolkit_image.py). `image` is a
    driver image for this kernel, "" for the image of all kernels. `fell_back` is why these nodes
    build although those of their pool need not (kernel_images.py), "" if they do not. `pods` is
    that of the Driver as it is now, whatever the revision.
    """

    owner: DriverObject
    driver: Driver
    revision: str
    pool: Pool
    toolkit: str
    link: str
    settings: Settings
    image: str = ""
    fell_back: str = ""
    pods: Pods = field(default_factory=Pods)

    @property
    def assignment(self) -> str:
        builds = bool(self.fell_back)
        return assignment_name(self.driver.name, self.pool, self.revision, builds=builds)

    @property
    def driver_image(self) -> str:
        return self.image or self.driver.spec.image

    @property
    def name(self) -> str:
        """Returns the name of the DaemonSet."""
        return daemonset_name(self.driver.name, self.assignment)


def pod_spec(inputs: DaemonSetInput) -> Document:
    """Return the pod spec.

    The driver container is first: containers are pulled and started one by one in this order.
    """
    builds, services = bool(inputs.toolkit), inputs.driver.spec.services
    spec: Document = {
        "serviceAccountName": inputs.settings.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {assigned_label(inputs.driver.name): inputs.assignment},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": inputs.pods.priority_class_name,
        # SIGTERM ends both containers immediately. But the driver first waits for the kernel if
        # that is loading a module, and ends its services, one after another.
        "terminationGracePeriodSeconds": 60 + sum(s.stop_timeout_seconds for s in services),
        # Both containers use one level because their types differ. Otherwise each container start
        # would relabel the shared directory and lock out the other container.
        "securityContext": {"seLinuxOptions": {"level": "s0"}},
        "initContainers": [_provide_container(inputs)] if builds else [],
        "containers": [
            _driver_container(inputs),
            *([_toolkit_container(inputs)] if builds else []),
        ],
        "volumes": _list_volumes(inputs),
    }
    if inputs.settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in inputs.settings.pull_secrets]
    given = {key: value for key, value in spec.items() if value != []}
    return with_pull_policy(given, inputs.pods) if inputs.pods.image_pull_policy else given


def _runs_programs(driver: Driver) -> bool:
    """Return whether it has hooks or services, which write to /run/<driver>."""
    return bool(driver.spec.services) or driver.spec.hooks != Hooks()


def unprivileged_context(**ids: Any) -> Document:
    """Return the security context of an unprivileged container; `ids` sets its user and group."""
    return {
        **ids,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _provide_container(inputs: DaemonSetInput) -> Document:
    """Return the init container that copies the sidecar and its Python to the shared directory."""
    return {
        "name": PROVIDE_CONTAINER,
        "image": inputs.driver_image,
        "command": ["nodeside", "driver", "provide"],
        "env": _environment_of({"NODESIDE_SHARED": SHARED}),
        "securityContext": unprivileged_context(runAsUser=0),
        "resources": _resources_of(inputs.pods.resources.driver, DRIVER_REQUESTS),
        "volumeMounts": [mount_volume("shared", SHARED)],
    }


def _driver_container(inputs: DaemonSetInput) -> Document:
    return {
        "name": DRIVER_CONTAINER,
        "image": inputs.driver_image,
        "command": ["nodeside", "driver", "run"],
        "env": _driver_env(inputs),
        "securityContext": _driver_security(privileged=inputs.driver.spec.privileged),
        "resources": _resources_of(inputs.pods.resources.driver, DRIVER_REQUESTS),
        "volumeMounts": _driver_mounts(inputs),
    }


def _driver_env(inputs: DaemonSetInput) -> list[Document]:
    driver, settings = inputs.driver, inputs.settings
    values = {
        "NODESIDE_DRIVER": DRIVER_FILE,
        "NODESIDE_HOST": "/host",
        "NODESIDE_SHARED": SHARED if inputs.toolkit else "",
        "NODESIDE_REVISION": inputs.revision,
        "NODESIDE_TOOLKIT": inputs.toolkit,
        "NODESIDE_POLICY": POLICY_FILE,
        "NODESIDE_KERNEL": inputs.pool.kernel,
        "NODESIDE_TOKEN_DIR": TOKEN_DIRECTORY,
        "NODESIDE_LOG_FORMAT": "json",
        "NODESIDE_CA_FILE": f"{CA_DIRECTORY}/ca-bundle.crt" if settings.ca_config_map else "",
        "NODESIDE_CREDENTIALS": (
            f"{CREDENTIALS_DIRECTORY}/config.json" if _pull_secret(driver, settings) else ""
        ),
        **settings.proxy,
    }
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return [node, *_environment_of(values)]


def _driver_security(*, privileged: bool) -> Document:
    """Return the driver's security context.

    It only prevents accidents: a process that can load a module is root on the node.
    """
    if privileged:
        return {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True}
    return {
        "runAsUser": 0,
        "readOnlyRootFilesystem": True,
        "capabilities": {"add": list(_CAPABILITIES)},
        "appArmorProfile": {"type": "Unconfined"},
        "seLinuxOptions": {"level": "s0", "type": "spc_t"},
    }


def _driver_mounts(inputs: DaemonSetInput) -> list[Document]:
    mounts = [
        mount_volume("driver-yaml", DRIVER_FILE, read_only=True) | {"subPath": "driver.yaml"},
        mount_volume("policy", POLICY_DIRECTORY, read_only=True),
        *(
            mount_volume(_volume_name(path), f"/host{path}", read_only=read_only)
            for path, _, read_only in _HOST_PATHS
        ),
        mount_volume("token", TOKEN_DIRECTORY, read_only=True),
        mount_volume("tmp", "/tmp"),  # noqa: S108
    ]
    if _runs_programs(inputs.driver):
        mounts.append(mount_volume("run", f"/run/{inputs.driver.name}"))
    if inputs.toolkit:
        mounts.append(mount_volume("shared", SHARED))
    return mounts + [mount_volume(n, at, read_only=True) for n, at, _ in _optional_volumes(inputs)]


def _toolkit_container(inputs: DaemonSetInput) -> Document:
    """Return the sidecar that compiles vendor code in a foreign image.

    It has no privilege, no key and no token.
    """
    return {
        "name": TOOLKIT_CONTAINER,
        "image": inputs.toolkit,
        "command": list(SIDECAR_COMMAND),
        "securityContext": unprivileged_context(
            runAsUser=TOOLKIT_USER, runAsGroup=TOOLKIT_USER, runAsNonRoot=True
        ),
        "resources": _resources_of(
            inputs.pods.resources.toolkit,
            {"cpu": "10m", "memory": "32Mi"},
            {"memory": memory_limit(inputs.driver)},
        ),
        "volumeMounts": [
            mount_volume("shared", SHARED),
            mount_volume("toolkit-tmp", "/tmp"),  # noqa: S108
        ],
    }


def _resources_of(
    asked: Resources, requests: Mapping[str, str], limits: Mapping[str, str] = NO_LIMITS
) -> Document:
    """Return the resources of a container: those that nodeside sets, or what is asked for."""
    if asked != Resources():
        return container_resources(asked, requests, limits)
    return {"requests": dict(requests)} | ({"limits": dict(limits)} if limits else {})


def memory_limit(driver: Driver) -> str:
    """Return the memory limit for compiling vendor code.

    The pod may not be evicted, so it must not exhaust its node's memory. The quantity uses the
    largest unit, as the API server returns it: any other form would look like an edit and would be
    reverted on every pass.
    """
    mib, units = driver.spec.build.memory_limit_mib, ["Mi", "Gi", "Ti"]
    while mib % 1024 == 0 and len(units) > 1:
        mib, units = mib // 1024, units[1:]
    return f"{mib}{units[0]}"


def _list_volumes(inputs: DaemonSetInput) -> list[Document]:
    revision = config_map_name(inputs.driver.name, inputs.revision)
    volumes = [
        {"name": "driver-yaml", "configMap": {"name": revision}},
        {"name": "policy", "configMap": {"name": policy_name(inputs.driver.name)}},
        *(
            {"name": _volume_name(path), "hostPath": {"path": path, "type": kind}}
            for path, kind, _ in _HOST_PATHS
        ),
        token_volume(),
        {"name": "tmp", "emptyDir": {"sizeLimit": _SCRATCH_LIMIT}},
    ]
    if _runs_programs(inputs.driver):
        volumes.append({"name": "run", "emptyDir": {"sizeLimit": _RUN_LIMIT}})
    if inputs.toolkit:
        volumes += [
            {"name": "shared", "emptyDir": {"sizeLimit": _SHARED_LIMIT}},
            {"name": "toolkit-tmp", "emptyDir": {"sizeLimit": _SCRATCH_LIMIT}},
        ]
    return volumes + [{"name": n, **source} for n, _, source in _optional_volumes(inputs)]


def token_volume() -> Document:
    """Return the volume with a token of the pod, short-lived, and the API server's certificate."""
    certificate = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    sources: list[Document] = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_SECONDS}},
        {"configMap": certificate},
    ]
    return {"name": "token", "projected": {"sources": sources}}


def signing_secret(driver: Driver) -> str:
    """Return the Secret `<driver>-signing` if a path of driver.yaml is below /signing; else "".

    Keys that are files of the driver image or of a debug shell need no Secret.
    """
    spec = driver.spec
    paths = [spec.prebuilt.trust.certificate]
    paths += [spec.signing.key, spec.signing.certificate] if spec.signing else []
    below = (PurePosixPath(path).is_relative_to(SIGNING_DIRECTORY) for path in paths)
    return f"{driver.name}-signing" if any(below) else ""


def _pull_secret(driver: Driver, settings: Settings) -> str:
    """Return the pull secret for fetching bundles; "" if none are fetched from a registry."""
    fetches = any(source.oci for source in driver.spec.prebuilt.sources)
    return settings.pull_secrets[0] if fetches and settings.pull_secrets else ""


def _optional_volumes(inputs: DaemonSetInput) -> list[tuple[str, str, Document]]:
    """Return the volumes that not every driver has, as (name, mount path, source).

    Each source is optional. If it is missing, the driver reports which file it cannot read and
    retries once the file exists. A pod that waits for a volume would report nothing.
    """
    volumes: list[tuple[str, str, Document]] = []
    if secret := signing_secret(inputs.driver):
        source: Document = {"secretName": secret, "defaultMode": 0o400, "optional": True}
        volumes.append(("signing", SIGNING_DIRECTORY, {"secret": source}))
    if secret := _pull_secret(inputs.driver, inputs.settings):
        source = {
            "secretName": secret,
            "defaultMode": 0o400,
            "optional": True,
            "items": [{"key": ".dockerconfigjson", "path": "config.json"}],
        }
        volumes.append(("credentials", CREDENTIALS_DIRECTORY, {"secret": source}))
    if bundle := inputs.settings.ca_config_map:
        volumes.append(("ca", CA_DIRECTORY, {"configMap": {"name": bundle, "optional": True}}))
    return volumes


def _environment_of(values: Mapping[str, str]) -> list[Document]:
    """Return the environment without empty values.

    The API server drops an empty value, which would look like an edit.
    """
    return [{"name": key, "value": value} for key, value in values.items() if value]


def mount_volume(volume: str, at: str, *, read_only: bool = False) -> Document:
    """Return the mount of a volume; `readOnly` is left out if it is false, as by the API server."""
    mount: Document = {"name": volume, "mountPath": at}
    return mount | {"readOnly": True} if read_only else mount


def _volume_name(path: str) -> str:
    return "host" + path.replace("/", "-")
