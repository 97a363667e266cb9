"""A `Module` of Kernel Module Management as a Driver, for `nodeside-cluster import`.

What has no counterpart becomes a comment at the place where a person has to think. The fields are
those of kmm.sigs.k8s.io/v1beta1, https://kmm.sigs.k8s.io/documentation/deploy_kmod/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodeside.errors import SpecError
from nodeside.modulenames import kernel_name
from nodeside.spec.document import read_text
from nodeside.spec.yamltext import read_yaml, write_yaml

_KIND, _GROUP = "Module", "kmm.sigs.k8s.io/"
_NAME = re.compile(r"[^a-z0-9-]+")
_NAME_LIMIT = 40
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+~-]{0,39}")
_FIRST = "1.0.0"


@dataclass
class _Part:
    """A field of `spec`, below the comments about it."""

    name: str
    value: Any
    comments: Sequence[str] = ()


@dataclass
class _Import:
    """One Module. `notes` are about what has no place of its own."""

    metadata: Mapping[str, Any]
    spec: Mapping[str, Any]
    image: str
    notes: list[str] = field(default_factory=list)

    @property
    def container(self) -> Mapping[str, Any]:
        return _mapping(_mapping(self.spec.get("moduleLoader")).get("container"))

    @property
    def modprobe(self) -> Mapping[str, Any]:
        return _mapping(self.container.get("modprobe"))

    @property
    def mappings(self) -> list[Mapping[str, Any]]:
        return [_mapping(each) for each in _list(self.container.get("kernelMappings"))]

    @property
    def name(self) -> str:
        name = _NAME.sub("-", str(self.metadata.get("name", "")).lower()).strip("-")[:_NAME_LIMIT]
        return name.rstrip("-") or "driver"

    @property
    def module_names(self) -> list[str]:
        """In load order; the other project lists the one that is loaded last first."""
        order = [str(each) for each in _list(self.modprobe.get("modulesLoadingOrder"))]
        own = str(self.modprobe.get("moduleName", ""))
        return [*reversed(order)] if order else [own] if own else []

    def parts(self) -> Iterator[_Part]:
        yield self._version()
        yield self._image()
        yield self._hardware()
        yield from self._build()
        yield self._modules()
        yield from self._conflicts()
        yield from self._firmware()
        yield from self._signing()
        yield from self._stages()

    def _version(self) -> _Part:
        given = str(self.container.get("version") or "")
        if _VERSION.fullmatch(given):
            return _Part("version", given)
        return _Part("version", _FIRST, ["a Module has no version unless its upgrade is ordered"])

    def _image(self) -> _Part:
        comments = ["the driver image: source and driver.yaml on nodeside's base image"]
        images = dict.fromkeys(
            str(each["containerImage"]) for each in self.mappings if each.get("containerImage")
        )
        comments += [f"not {image}: that has modules only" for image in images]
        return _Part("image", self.image, comments)

    def _hardware(self) -> _Part:
        selector = {str(k): str(v) for k, v in _mapping(self.spec.get("selector")).items()}
        comments = ["better: pci, by the device that the driver is for"]
        return _Part("hardware", {"nodeSelector": selector}, comments)

    def _build(self) -> Iterator[_Part]:
        """How the modules are made: a Dockerfile there, a source with a Makefile here."""
        if not self.module_names:
            return
        comments = ["the source below src/, with a Kbuild, a Makefile or a dkms.conf"]
        for each in self.mappings:
            build = _mapping(each.get("build"))
            kernels = each.get("literal") or each.get("regexp") or "every kernel"
            if build:
                where = _mapping(build.get("dockerfileConfigMap")).get("name")
                file = f"the Dockerfile in ConfigMap {where}" if where else "a Dockerfile"
                comments.append(f"{kernels}: what {file} does between FROM and `make`")
                arguments = [str(a.get("name")) for a in _list(build.get("buildArgs"))]
                comments += [f"build argument {name}: build.makeArguments" for name in arguments]
                secrets = [str(s.get("name")) for s in _list(build.get("secrets"))]
                comments += [f"Secret {name} at build time: no counterpart" for name in secrets]
            else:
                comments.append(f"{kernels}: was built elsewhere; here by the node or by a Job")
        yield _Part("source", {"path": "src"}, comments)

    def _modules(self) -> _Part:
        parameters = {}
        for each in map(str, _list(self.modprobe.get("parameters"))):
            key, equals, value = each.partition("=")
            parameters[key] = value if equals else "1"
        raw = _mapping(self.modprobe.get("rawArgs"))
        comments = [f"rawArgs {k}: {v}: no counterpart" for k, v in raw.items()]
        own = str(self.modprobe.get("moduleName", ""))
        modules: list[dict[str, Any]] = [{"name": name} for name in self.module_names]
        for module in modules:
            if module["name"] == own and parameters:
                module["parameters"] = parameters
        if not modules:
            comments.append("none: the driver is the kernel's own, so `devices` have to be named")
        return _Part("modules", modules, comments)

    def _conflicts(self) -> Iterator[_Part]:
        places = [self.container, *self.mappings]
        names = [
            str(name)
            for place in places
            for name in (
                *_list(place.get("inTreeModulesToRemove")),
                *([place["inTreeModuleToRemove"]] if place.get("inTreeModuleToRemove") else []),
            )
        ]
        ours = {kernel_name(name) for name in self.module_names}
        others = [name for name in dict.fromkeys(names) if kernel_name(name) not in ours]
        same = [name for name in dict.fromkeys(names) if kernel_name(name) in ours]
        comments = [f"{name}: a loaded module of that name is replaced anyway" for name in same]
        if others or comments:
            yield _Part("conflicts", {"modules": others}, comments)

    def _firmware(self) -> Iterator[_Part]:
        if path := self.modprobe.get("firmwarePath"):
            yield _Part("firmware", {"path": str(path)})

    def _signing(self) -> Iterator[_Part]:
        for place in (self.container, *self.mappings):
            sign = _mapping(place.get("sign"))
            if sign:
                key = _mapping(sign.get("keySecret")).get("name", "")
                certificate = _mapping(sign.get("certSecret")).get("name", "")
                secret = f"one Secret {self.name}-signing in nodeside's namespace"
                comments = [f"of the Secrets {key} (key) and {certificate} (cert), {secret}"]
                names = {"key": "/signing/key.pem", "certificate": "/signing/certificate.der"}
                yield _Part("signing", names, comments)
                return

    def _stages(self) -> Iterator[_Part]:
        plugin = _mapping(self.spec.get("devicePlugin"))
        if plugin:
            comments = [
                f"its DaemonSet is in ConfigMap {self._manifests} below; `devices` needs no plugin"
            ]
            stage = {"name": "device-plugin", "manifests": self._manifests}
            yield _Part("stages", [stage], comments)

    @property
    def _manifests(self) -> str:
        return f"{self.name}-device-plugin"

    def config_map(self) -> dict[str, Any] | None:
        """The device plugin as a template of a stage."""
        plugin = _mapping(self.spec.get("devicePlugin"))
        if not plugin:
            return None
        main = {"name": "device-plugin", **_mapping(plugin.get("container"))}
        kubelet = {"name": "kubelet", "mountPath": "/var/lib/kubelet/device-plugins"}
        main["volumeMounts"] = [*_list(main.get("volumeMounts")), kubelet]
        main.setdefault("securityContext", {"privileged": True})
        path = {"path": "/var/lib/kubelet/device-plugins", "type": "Directory"}
        pod: dict[str, Any] = {
            "containers": [main],
            "volumes": [*_list(plugin.get("volumes")), {"name": "kubelet", "hostPath": path}],
        }
        if plugin.get("initContainer"):
            first = {"name": "init", **_mapping(plugin["initContainer"])}
            pod["initContainers"] = [first]
        for name in ("serviceAccountName", "automountServiceAccountToken"):
            if name in plugin:
                pod[name] = plugin[name]
        labels = {"app": self._manifests}
        daemonset = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": self._manifests},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }
        text = write_yaml(daemonset)
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self._manifests, "namespace": "nodeside"},
            "data": {"daemonset.yaml": text},
        }

    def left_over(self) -> Iterator[str]:
        """What is about the whole, and has no field."""
        if secret := _mapping(self.spec.get("imageRepoSecret")).get("name"):
            yield f"imageRepoSecret: nodeside-cluster install --pull-secret {secret}"
        if self.spec.get("tolerations"):
            yield "tolerations: driver pods tolerate every taint"
        if self.modprobe.get("dirName"):
            yield "modprobe.dirName: modules are found by their names, wherever the build puts them"
        for name in ("imagePullPolicy", "registryTLS"):
            if any(name in place for place in (self.container, *self.mappings)):
                yield f"{name}: no counterpart; images are pulled by the nodes' container runtime"


def convert(text: str, where: str, image: str) -> str:
    """Return a Module as a Driver, in YAML with comments. `image` is that of the driver.

    What is missing for a valid Driver is said in comments at the top. Raises SpecError if the text
    is not one Module.
    """
    document = read_yaml(text, where).data
    if not isinstance(document, dict) or document.get("kind") != _KIND:
        found = document.get("kind") if isinstance(document, dict) else type(document).__name__
        raise SpecError(f"expected one {_KIND} of {_GROUP}v1beta1, got {found}")
    if not str(document.get("apiVersion", "")).startswith(_GROUP):
        raise SpecError(f"expected apiVersion {_GROUP}v1beta1, got {document.get('apiVersion')}")
    module = _Import(_mapping(document.get("metadata")), _mapping(document.get("spec")), image)
    driver = _driver(module)
    mistakes = _mistakes(driver)
    return "".join((*mistakes, driver, _second(module)))


def _driver(module: _Import) -> str:
    lines = [f"# Made of the Module {module.metadata.get('name')} of Kernel Module Management."]
    lines += [f"# {note}" for note in module.left_over()]
    lines += ["apiVersion: nodeside.io/v1alpha1", "kind: Driver", "metadata:"]
    lines += [f"  name: {module.name}", "spec:"]
    for part in module.parts():
        lines += [f"  # {_one_line(comment)}" for comment in part.comments]
        lines += [f"  {line}" for line in write_yaml({part.name: part.value}).splitlines()]
    return "\n".join(lines) + "\n"


def _second(module: _Import) -> str:
    config_map = module.config_map()
    return f"---\n{write_yaml(config_map)}" if config_map else ""


def _mistakes(driver: str) -> list[str]:
    """Return what a person has to mend before the result is a Driver, as comments."""
    try:
        read_text(driver, "Driver")
    except SpecError as error:
        return [f"# to mend: {_one_line(line)}\n" for line in str(error).splitlines()]
    return []


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
