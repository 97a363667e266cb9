"""All objects that are installed in a cluster: the files of deploy/, with the options set in them.

`manifests` returns the documents in the order in which they are applied; `to_yaml` returns the text
for `kubectl apply -f -` and for a repository of manifests. The definitions come from the code
(crds.py). The files have the default of each option; nothing but the options is set here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cluster.install.crds import crd_documents
from cluster.model.names import DRIVER, METRICS, NAMESPACE
from cluster.model.snapshot import KUBELET_ROOT
from nodeside.errors import ExitCode, NodesideError
from nodeside.spec.patterns import ABSOLUTE_PATH, PULL_SPEC

Document = dict[str, Any]

IMAGE = "localhost/nodeside-cluster"  # the name that images/build uses

# Files of deploy/ in dependency order; the controller is last. ONLY_IF has the optional ones, with
# the field of InstallSettings that enables each.
FILES: Final = {
    "namespace": "base/namespace.yaml",
    "accounts": "base/accounts.yaml",
    "admission": "base/admission.yaml",
    "people": "base/people.yaml",
    "metrics": "base/metrics.yaml",
    "servicemonitor": "service-monitor/servicemonitor.yaml",
    "openshift": "openshift/openshift.yaml",
    "controller": "base/controller.yaml",
}
ONLY_IF: Final = {"openshift": "openshift", "servicemonitor": "service_monitor"}
_DEPLOY: Final = Path(__file__).parent / "deploy"
_CONTROL_PLANE = {
    "key": "node-role.kubernetes.io/control-plane",
    "operator": "Exists",
    "effect": "NoSchedule",
}
_RESOURCES = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}

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


@dataclass(frozen=True)
class InstallSettings:
    """The options of an installation. `arguments` are further ones of `nodeside-cluster run`.

    Pull secrets, CA and proxy are for driver pods; node selector, tolerations and resources are for
    the controller itself. Without `agent_image` no devices are offered, and the stage `devices` of
    a Driver says so. `service_monitor` needs the Prometheus Operator, which defines that kind.
    `kubelet_root` is the `--root-dir` of the kubelets.
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
    kubelet_root: str = KUBELET_ROOT


def all_manifests(installation: InstallSettings) -> tuple[Document, ...]:
    """Return the definitions first, then what the controller needs, then the controller."""
    parts = manifests_by_file(installation)
    return (*crd_documents(), *(document for part in parts.values() for document in part))


def manifests_of_any(namespace: str) -> tuple[Document, ...]:
    """Return what any installation in this namespace could have made.

    So it can be removed without knowing its options.
    """
    return all_manifests(InstallSettings(namespace, openshift=True, service_monitor=True))


def manifests_by_file(installation: InstallSettings) -> dict[str, list[Document]]:
    """Return everything except the definitions, by the names of FILES."""
    check_settings(installation)
    names = (name for name in FILES if getattr(installation, ONLY_IF.get(name, ""), True))
    return {name: list(_read_documents(FILES[name], installation)) for name in names}


def text_of(path: str) -> str:
    """Return the text of a file of deploy/. Raises NotInstallable if this copy has none."""
    try:
        return (_DEPLOY / path).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise missing_files_error(_DEPLOY / path) from exc


def missing_files_error(path: Path) -> NotInstallable:
    """Return the error of a copy of nodeside without the files that the links here lead to."""
    hint = (
        "a .zip and a checkout on Windows lose the links in cluster/install: install from a git "
        "clone, a .tar.gz or a wheel"
    )
    return NotInstallable(f"this copy of nodeside lacks {path}", hint=hint)


def to_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the documents as one text; keys keep their order."""
    import yaml

    def text_of(document: Mapping[str, Any]) -> str:
        writer = yaml.CSafeDumper  # in C: the same text, at a fifth of the cost
        return yaml.dump(document, Dumper=writer, sort_keys=False, allow_unicode=True, width=100)

    return "".join(f"---\n{text_of(document)}" for document in documents)


_EXPECTED = "expected lower case letters, digits, - and ."


def check_settings(installation: InstallSettings) -> None:
    """Raise NotInstallable for a bad value.

    This runs before anything is applied: half of an installation is worse than none.
    """
    if not _LABEL.fullmatch(installation.namespace):
        raise NotInstallable(
            f"{installation.namespace!r} is not a valid name of a namespace: expected lower case "
            "letters, digits and -, at most 63"
        )
    _check_image(installation.image, "the controller's image", "nodeside-cluster")
    if installation.agent_image:
        _check_image(installation.agent_image, "the device agent's image", "nodeside-agent")
    for name in installation.pull_secrets:
        if not _SUBDOMAIN.fullmatch(name):
            raise NotInstallable(f"{name!r} is not a valid name of a pull secret: {_EXPECTED}")
    for key, value in installation.node_selector.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            words = "expected KEY=VALUE, such as node-role.example.com/infra=true"
            raise NotInstallable(f"{key}={value} is not a valid label of a node: {words}")
    if installation.ca_config_map and not _SUBDOMAIN.fullmatch(installation.ca_config_map):
        name = installation.ca_config_map
        raise NotInstallable(f"{name!r} is not a valid name of a ConfigMap: {_EXPECTED}")
    if not ABSOLUTE_PATH.fits(installation.kubelet_root):
        root = installation.kubelet_root
        raise NotInstallable(
            f"{root!r} is not a valid root of the kubelet: expected {ABSOLUTE_PATH.words}"
        )


def _check_image(image: str, what: str, name: str) -> None:
    if not PULL_SPEC.fits(image):
        expected = f"expected something like registry.example.com/nodeside/{name}:1.0"
        hint = PULL_SPEC.remedy(image) or expected
        raise NotInstallable(f"{image!r} is not a valid pull spec of {what}", hint=hint)


def _read_documents(path: str, installation: InstallSettings) -> Iterator[Document]:
    """Yield the documents of a file of deploy/, as `installation` has them."""
    import yaml

    for document in yaml.load_all(text_of(path), Loader=yaml.CSafeLoader):
        _set_namespace(document, installation.namespace)
        if document["kind"] == "Deployment":
            _set_controller(document["spec"], installation)
        for variable in document.get("spec", {}).get("variables", ()):
            if variable["name"] == "pullSecrets":
                names = json.dumps(installation.pull_secrets, separators=(",", ":"))
                variable["expression"] = names
        if installation.openshift:
            _set_openshift(document, installation.namespace)
        yield document


def _set_namespace(document: Document, namespace: str) -> None:
    if document["kind"] == "Namespace":
        document["metadata"]["name"] = namespace
    for place in (document["metadata"], *document.get("subjects", ())):
        if place.get("namespace") == NAMESPACE:
            place["namespace"] = namespace


def _set_controller(spec: Document, installation: InstallSettings) -> None:
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    spec["replicas"] = installation.replicas
    pod["tolerations"] = [dict(each) for each in installation.tolerations]
    if installation.node_selector:
        pod["nodeSelector"] = dict(installation.node_selector)
    if installation.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in installation.pull_secrets]
    container["image"] = installation.image
    container["resources"] = dict(installation.resources)
    container["args"] += _controller_arguments(installation)


def _controller_arguments(installation: InstallSettings) -> Iterator[str]:
    if installation.openshift:
        yield f"--scc={DRIVER}"
    for name in installation.pull_secrets:
        yield f"--pull-secret={name}"
    if installation.ca_config_map:
        yield f"--ca-config-map={installation.ca_config_map}"
    for name, value in sorted(installation.proxy.items()):
        yield f"--proxy={name}={value}"
    if installation.agent_image:
        yield f"--agent-image={installation.agent_image}"
    if installation.kubelet_root != KUBELET_ROOT:
        yield f"--kubelet-root={installation.kubelet_root}"
    yield from installation.arguments


def _set_openshift(document: Document, namespace: str) -> None:
    """Set what deploy/openshift/kustomization.yaml patches, and the certificate of metrics."""
    metadata = document["metadata"]
    match document["kind"]:
        case "Namespace":
            metadata["labels"]["security.openshift.io/scc.podSecurityLabelSync"] = "false"
            metadata["annotations"] = {"openshift.io/node-selector": ""}
        case "Service":
            certificate = "service.beta.openshift.io/serving-cert-secret-name"
            metadata["annotations"] = {certificate: METRICS}
        case "ServiceMonitor":
            document["spec"]["endpoints"][0]["tlsConfig"] = {
                "caFile": "/etc/prometheus/configmaps/serving-certs-ca-bundle/service-ca.crt",
                "serverName": f"{METRICS}.{namespace}.svc",
            }
        case "Deployment":
            user = document["spec"]["template"]["spec"]["securityContext"]
            del user["runAsUser"], user["runAsGroup"]  # OpenShift chooses them
