"""The Job that builds a driver once per kernel for nodes to fetch: its name and its document.

Pure; builds.py decides which Jobs are desired. Each step of nodeside/protocol/build_job.py is a
container. Mounts and environment match what `nodeside driver order|finish` and `toolkit.pyz` read.

No container is privileged or has a host path or a token. Vendor code can write only what its own
container mounts writable: its answer and its output. Only the last step mounts the signing key. It
trusts only the order, which vendor code cannot write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final

from cluster.driver.daemonset import document_digest
from cluster.driver.pod import (
    CA_DIRECTORY,
    DRIVER_FILE,
    DRIVER_REQUESTS,
    SHARED,
    SIDECAR_COMMAND,
    SIGNING_DIRECTORY,
    TOOLKIT_USER,
    memory_limit,
    mount_volume,
    signing_secret,
    unprivileged_context,
)
from cluster.driver.pod_policy import container_resources, rebuilt_pods_of, with_pull_policy
from cluster.driver.revisions import owner_references
from cluster.model.names import (
    APPLIED_NOTE,
    BUILDER,
    DRIVER_LABEL,
    MANAGED_BY,
    TRUSTED_CONTAINERS,
    config_map_name,
    object_labels,
)
from cluster.model.snapshot import DriverObject, Node, Settings, Taint
from nodeside.errors import ExitCode
from nodeside.spec import Driver, to_document
from nodeside.spec.model import PrebuiltSource
from nodeside.spec.pods import Pods, PullPolicy, TaintEffect, Toleration, TolerationOperator

Document = dict[str, Any]

# Containers, in execution order.
PROVIDE: Final = "provide"
KERNELS: Final = "kernels"
ORDER, FINISH = TRUSTED_CONTAINERS
ANSWER_CONTAINER: Final = "answer"

WORK: Final = "/build"
PUBLISH_DIRECTORY: Final = "/publish"
_PUBLISH, _PULL = "publish.json", "pull.json"
# The first file that exists is used; a registry without passwords needs neither.
_CREDENTIALS: Final = f"{PUBLISH_DIRECTORY}/{_PUBLISH}:{PUBLISH_DIRECTORY}/{_PULL}"
_SHARED: Final = f"{WORK}/shared"
_BUILD_USER: Final = 65533
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

RETRIES: Final = 3  # Kubernetes waits 10 s before the first, and twice as long each time
_PULLS: Final = 1800  # seconds for image pulls, added to the deadline of the build
# Failures that a retry would not change. Any other failure may be transient.
_FINAL: Final = (
    ExitCode.BUG,
    ExitCode.USAGE,
    ExitCode.SPEC,
    ExitCode.BUILD_FAILED,
    ExitCode.NO_MODULE,
    ExitCode.NO_HEADERS,
    ExitCode.TOOLCHAIN,
    ExitCode.BUNDLE,
    ExitCode.SIGNING,
    ExitCode.NO_MEMORY,
    ExitCode.EXCLUDED,
)
_TOLERATIONS: Final = 32  # of a Job
_WORK_LIMIT = "16Gi"
_SCRATCH_LIMIT = "4Gi"


@dataclass(frozen=True, slots=True)
class SharedBuild:
    """One build: `driver` as of `revision`; `publish` in the syntax of `--to`, "" for nowhere.

    `kernel` is a release, or "" for the one in the toolkit image, which may exist before any node
    has its kernel. If the image has several kernels, `variant` selects one; None: it has only one.
    `symbols_of` are bundles of the drivers that this one comes after, in the syntax of
    `--symbols-of`. `rebuild` is the time of an order to build even what the store has.
    """

    driver: Driver
    revision: str
    toolkit: str
    architecture: str
    publish: str = ""
    kernel: str = ""
    variant: str | None = ""
    symbols_of: tuple[str, ...] = ()
    rebuild: str = ""

    @property
    def name(self) -> str:
        """Returns the Job name, at most 40 + 7 + 12 characters.

        Equal builds have equal names, before and after a reboot, and across revisions that build
        the same.
        """
        spec = to_document(self.driver)["spec"]
        inputs = {key: spec.get(key) for key in ("image", "version", "source", "build", "signing")}
        inputs["modules"] = [module.name for module in self.driver.spec.modules]
        inputs["for"] = [self.toolkit, self.architecture, self.kernel, self.variant, self.publish]
        if self.symbols_of:
            inputs["after"] = self.symbols_of
        if self.rebuild:
            inputs["rebuild"] = self.rebuild
        text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
        return f"{self.driver.name}-build-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def description(self) -> str:
        """Returns a readable description of the build."""
        variant = f"its {self.variant} kernel" if self.variant else "its kernel"
        return f"{self.kernel or variant} with {self.toolkit}"


def publish_target(driver: Driver) -> str:
    """Return where a Driver's bundles are published, in the syntax of `--to`; "" for nowhere."""
    return next(
        (_target_argument(each) for each in driver.spec.prebuilt.sources if each.publish), ""
    )


def stores_of(driver: Driver) -> tuple[str, ...]:
    """Return the registries that a Driver's nodes fetch from, in the syntax of `--to`."""
    return tuple(_target_argument(each) for each in driver.spec.prebuilt.sources if each.oci)


def _target_argument(source: PrebuiltSource) -> str:
    return f"{'oci+http' if source.insecure else 'oci'}:{source.oci}"


def build_job(
    build: SharedBuild,
    found: DriverObject,
    settings: Settings,
    tolerated: Collection[Toleration] = (),
) -> Document:
    """Return the Job with its own hash as an annotation; it is created once and never changed.

    `tolerated` are the taints of the Driver's nodes.
    """
    pods = rebuilt_pods_of(found)
    if build.rebuild and pods.image_pull_policy is PullPolicy.IF_NOT_PRESENT:
        pods = replace(pods, image_pull_policy=PullPolicy.ALWAYS)  # no node waits for this pod
    spec = job_spec(build, settings, pods, tolerated)
    metadata, own = spec["template"]["metadata"], object_labels(build.driver.name, build.revision)
    metadata["labels"] = {**pods.labels, **metadata["labels"]}
    metadata["annotations"] = {**pods.annotations, **metadata["annotations"]}
    if pods.build_jobs.priority_class_name:
        spec["template"]["spec"]["priorityClassName"] = pods.build_jobs.priority_class_name
    document: Document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": build.name,
            "namespace": settings.namespace,
            "labels": {**pods.labels, **own},
            "ownerReferences": owner_references(found),
        },
        "spec": spec,
    }
    document["metadata"]["annotations"] = {APPLIED_NOTE: document_digest(document)}
    return document


def job_spec(
    build: SharedBuild,
    settings: Settings,
    pods: Pods,
    tolerated: Collection[Toleration] = (),
    config_map: str = "",
) -> Document:
    """Return the Job spec of a build or of a preflight.

    `build_job` adds what `spec.pods` asks of labels, annotations and priority; a preflight has none
    of these. `config_map` holds driver.yaml; it defaults to that of the revision.
    """
    notes = {"openshift.io/required-scc": "restricted-v2"} if settings.scc else {}
    revision = config_map or config_map_name(build.driver.name, build.revision)
    return {
        "backoffLimit": RETRIES,
        "activeDeadlineSeconds": build.driver.spec.build.timeout_seconds + _PULLS,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"operator": "In", "values": [int(code) for code in _FINAL]},
                },
            ]
        },
        "template": {
            "metadata": {
                "labels": {MANAGED_BY: BUILDER, DRIVER_LABEL: build.driver.name},
                "annotations": {"kubectl.kubernetes.io/default-container": FINISH, **notes},
            },
            "spec": with_pull_policy(_pod_spec(build, settings, pods, tolerated, revision), pods),
        },
    }


def _pod_spec(
    build: SharedBuild,
    settings: Settings,
    pods: Pods,
    tolerated: Collection[Toleration],
    config_map: str,
) -> Document:
    """Return the pod spec; each container is one step and ends before the next begins."""
    asked = pods.build_jobs
    tolerations = tolerated if asked.tolerations is None else asked.tolerations
    spec: Document = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {
            **asked.node_selector,
            "kubernetes.io/arch": _ARCHITECTURES.get(build.architecture, build.architecture),
            "kubernetes.io/os": "linux",
        },
        "securityContext": _pod_security(settings),
        "initContainers": [
            _driver_step(PROVIDE, build, settings, pods, "provide"),
            _toolkit_step(KERNELS, build, settings, pods),
            _driver_step(ORDER, build, settings, pods, "order", *_select_options(build)),
            _toolkit_step(ANSWER_CONTAINER, build, settings, pods),
        ],
        "containers": [_driver_step(FINISH, build, settings, pods, "finish")],
        "volumes": _job_volumes(build, settings, config_map),
    }
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in settings.pull_secrets]
    if tolerations:
        spec["tolerations"] = [to_toleration(each) for each in tolerations]
    return spec


_CONTROL_PLANE: Final = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")


def tolerations_for(nodes: Iterable[Node]) -> list[Toleration]:
    """Return tolerations for the taints of these nodes.

    The taints of control planes are tolerated only if all these nodes are control planes: otherwise
    a compiler of vendor code has no business there.
    """
    of_each = [frozenset(node.taints) for node in nodes]
    planes = all(any(taint.key in _CONTROL_PLANE for taint in each) for each in of_each)
    taints = {
        taint
        for taint in frozenset[Taint]().union(*of_each)
        if planes or taint.key not in _CONTROL_PLANE
    }
    return [
        Toleration(
            key, TolerationOperator.EQUAL if value else TolerationOperator.EXISTS, value,
            TaintEffect(effect),
        )
        for key, value, effect in sorted(taints)[:_TOLERATIONS]
    ]  # fmt: skip


def to_toleration(toleration: Toleration) -> Document:
    """Return the document of a toleration, as the API server returns it: without empty values."""
    values = {
        "key": toleration.key,
        "operator": toleration.operator.value,
        "value": toleration.value,
        "effect": toleration.effect.value if toleration.effect else "",
    }
    return {key: value for key, value in values.items() if value}


def _pod_security(settings: Settings) -> Document:
    """Return the pod's security context.

    On OpenShift, restricted-v2 sets the user and group of the namespace.
    """
    common: Document = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return common if settings.scc else common | {"fsGroup": TOOLKIT_USER}


def _security_context(user: int, settings: Settings) -> Document:
    ids = {} if settings.scc else {"runAsUser": user, "runAsGroup": TOOLKIT_USER}
    return unprivileged_context(**ids, runAsNonRoot=True)


def _select_options(build: SharedBuild) -> Iterator[str]:
    """Yield the options that select the kernel and the publish target."""
    if build.kernel:
        yield from ("--kernel", build.kernel)
    elif build.variant is not None:
        yield f"--kernel-variant={build.variant}"
    yield from ("--to", build.publish) if build.publish else ("--no-publish",)


def _driver_step(
    step: str, build: SharedBuild, settings: Settings, pods: Pods, *args: str
) -> Document:
    return {
        "name": step,
        "image": build.driver.spec.image,
        "command": ["nodeside", "driver", *args],
        "env": _step_environment(step, build, settings),
        "securityContext": _security_context(_BUILD_USER, settings),
        "resources": container_resources(pods.resources.driver, DRIVER_REQUESTS),
        "volumeMounts": [
            mount_volume("driver-yaml", DRIVER_FILE, read_only=True) | {"subPath": "driver.yaml"},
            mount_volume("work", WORK),
            mount_volume("tmp", "/tmp"),  # noqa: S108
            *(
                mount_volume(n, at, read_only=True)
                for n, at, steps, _ in _list_inputs(build, settings)
                if step in steps
            ),
        ],
    }


def _step_environment(step: str, build: SharedBuild, settings: Settings) -> list[Document]:
    # The driver image names the place where a driver pod mounts the host; this pod mounts none.
    values = {"NODESIDE_SHARED": _SHARED, "NODESIDE_HOST": "/"}
    if step in TRUSTED_CONTAINERS:
        values |= {
            "NODESIDE_DRIVER": DRIVER_FILE,
            "NODESIDE_REVISION": build.revision,
            "NODESIDE_CACHE": f"{WORK}/cache",
            "NODESIDE_OUTCOME": "/dev/termination-log",
            "NODESIDE_LOG_FORMAT": "json",
            "NODESIDE_CA_FILE": f"{CA_DIRECTORY}/ca-bundle.crt" if settings.ca_config_map else "",
            "NODESIDE_CREDENTIALS": _CREDENTIALS if build.publish or build.symbols_of else "",
            "NODESIDE_SYMBOLS_OF": " ".join(build.symbols_of),
            **settings.proxy,
        }
    if build.rebuild and step == ORDER:  # no option: an older driver image would refuse that
        values["NODESIDE_REBUILD"] = "1"
    return [{"name": key, "value": value} for key, value in values.items() if value]


def _toolkit_step(step: str, build: SharedBuild, settings: Settings, pods: Pods) -> Document:
    """Return a toolkit container.

    The shared directory is read-only except for the parts that the protocol assigns to the sidecar.
    """
    command = [word.replace(SHARED, _SHARED, 1) for word in SIDECAR_COMMAND]
    command[command.index("run")] = step
    return {
        "name": step,
        "image": build.toolkit,
        "command": command,
        "securityContext": _security_context(TOOLKIT_USER, settings),
        "resources": container_resources(
            pods.resources.build,
            {"cpu": "100m", "memory": "256Mi"},
            {"memory": memory_limit(build.driver)},
        ),
        "volumeMounts": [
            mount_volume("work", _SHARED, read_only=True) | {"subPath": "shared"},
            mount_volume("work", f"{_SHARED}/results") | {"subPath": "shared/results"},
            mount_volume("work", f"{_SHARED}/out") | {"subPath": "shared/out"},
            mount_volume("toolkit-tmp", "/tmp"),  # noqa: S108
        ],
    }


def _job_volumes(build: SharedBuild, settings: Settings, config_map: str) -> list[Document]:
    return [
        {"name": "driver-yaml", "configMap": {"name": config_map}},
        {"name": "work", "emptyDir": {"sizeLimit": _WORK_LIMIT}},
        {"name": "tmp", "emptyDir": {"sizeLimit": _SCRATCH_LIMIT}},
        {"name": "toolkit-tmp", "emptyDir": {"sizeLimit": _SCRATCH_LIMIT}},
        *({"name": name, **source} for name, _, _, source in _list_inputs(build, settings)),
    ]


def _list_inputs(
    build: SharedBuild, settings: Settings
) -> Iterator[tuple[str, str, tuple[str, ...], Mapping[str, Any]]]:
    """Yield the read-only inputs as (volume, path, steps, source). Each source is optional."""
    if secret := signing_secret(build.driver):
        whole = {"secretName": secret, "defaultMode": 0o440, "optional": True}
        only = {
            **whole,
            "items": [{"key": key, "path": key} for key in _certificate_keys(build.driver)],
        }
        yield "certificate", SIGNING_DIRECTORY, (ORDER,), {"secret": only}
        yield "signing", SIGNING_DIRECTORY, (FINISH,), {"secret": whole}
    if build.publish or build.symbols_of:
        sources = [_credential_volume(f"{build.driver.name}-publish", _PUBLISH)]
        sources += [_credential_volume(each, _PULL) for each in settings.pull_secrets[:1]]
        projected = {"defaultMode": 0o440, "sources": sources}
        yield "publish", PUBLISH_DIRECTORY, TRUSTED_CONTAINERS, {"projected": projected}
    if settings.ca_config_map:
        bundle = {"name": settings.ca_config_map, "optional": True}
        yield "ca", CA_DIRECTORY, TRUSTED_CONTAINERS, {"configMap": bundle}


def _certificate_keys(driver: Driver) -> Iterator[str]:
    """Yield the keys of the signing Secret that hold public certificates."""
    spec = driver.spec
    paths = [spec.signing.certificate] if spec.signing else []
    for path in dict.fromkeys((*paths, spec.prebuilt.trust.certificate)):
        if PurePosixPath(path).is_relative_to(SIGNING_DIRECTORY):
            yield str(PurePosixPath(path).relative_to(SIGNING_DIRECTORY))


def _credential_volume(secret: str, path: str) -> Document:
    items = [{"key": ".dockerconfigjson", "path": path}]
    return {"secret": {"name": secret, "optional": True, "items": items}}
