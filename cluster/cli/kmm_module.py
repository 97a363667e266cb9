"""A `Module` of Kernel Module Management as a Driver, for `nodeside-cluster import`.

What has no counterpart becomes a comment at the place where a person has to think. Every key that
was not read is named at the top, even one that this code does not know (see document_keys). The
fields are those of kmm.sigs.x-k8s.io/v1beta1,
https://kmm.sigs.k8s.io/documentation/deploy_kmod/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cluster.cli.document_keys import DocumentPart
from cluster.cli.kmm_remarks import remarks_on_unread
from cluster.cli.kmm_workload import device_classes, stage_config_map, workloads_of
from nodeside.errors import SpecError
from nodeside.protocol.module_names import kernel_name
from nodeside.spec import patterns
from nodeside.spec.document import read_text
from nodeside.spec.mistakes import mistakes_error
from nodeside.spec.yamltext import read_yaml, write_yaml

_KIND = "Module"
_GROUPS = ("kmm.sigs.x-k8s.io", "kmm.sigs.k8s.io")  # the API's, and that of its web site
_EXPECTED = f"one {_KIND} of {_GROUPS[0]}/v1beta1"
_NAME = re.compile(r"[^a-z0-9-]+")
_NAME_LIMIT = 40
_FIRST_VERSION = "1.0.0"
_DOCKERFILE = ("dockerfileConfigMap", "name")


@dataclass
class _Field:
    """A field of the Driver's `spec`, below the comments about it."""

    name: str
    value: Any
    comments: Sequence[str] = ()


@dataclass(frozen=True)
class _KmmModule:
    """A Module, read to become a Driver."""

    document: DocumentPart
    image: str

    @property
    def spec(self) -> DocumentPart:
        return self.document.part("spec")

    @property
    def container(self) -> DocumentPart:
        return self.spec.part("moduleLoader", "container")

    @property
    def modprobe(self) -> DocumentPart:
        return self.container.part("modprobe")

    @cached_property
    def mappings(self) -> list[DocumentPart]:
        return self.container.part("kernelMappings").entries()

    @property
    def places(self) -> list[DocumentPart]:
        """The container, whose fields are for every kernel, and its kernel mappings."""
        return [self.container, *self.mappings]

    @cached_property
    def original_name(self) -> str:
        return self.document.part("metadata", "name").text()

    @property
    def name(self) -> str:
        name = _NAME.sub("-", self.original_name.lower()).strip("-")[:_NAME_LIMIT]
        return name.rstrip("-") or "driver"

    @cached_property
    def main_module(self) -> str:
        return self.modprobe.part("moduleName").text()

    @cached_property
    def module_names(self) -> list[str]:
        """In load order. KMM's own list is in reverse: it begins with the last one to load."""
        order = [*reversed(self.modprobe.part("modulesLoadingOrder").texts())]
        named = {kernel_name(each) for each in order}
        return (
            [*order, self.main_module]
            if self.main_module and kernel_name(self.main_module) not in named
            else order
        )

    def list_fields(self) -> Iterator[_Field]:
        yield self._version_field()
        yield self._image_field()
        yield self._hardware_field()
        yield from self._build_fields()
        yield self._modules_field()
        yield from self._conflict_fields()
        yield from self._firmware_fields()
        yield from self._signing_fields()
        yield from self._stage_fields()

    def _version_field(self) -> _Field:
        given = self.container.part("version").text()
        if given and patterns.VERSION.fits(given):
            return _Field("version", given)
        if given:
            return _Field(
                "version", _FIRST_VERSION, [f"not {given}: expected {patterns.VERSION.words}"]
            )
        return _Field(
            "version", _FIRST_VERSION, ["a Module has a version only if its upgrades are ordered"]
        )

    def _image_field(self) -> _Field:
        comments = ["the driver image: source and driver.yaml on nodeside's base image"]
        images = (place.part("containerImage").text() for place in self.places)
        comments += [
            f"not {image}: that has modules only" for image in dict.fromkeys(images) if image
        ]
        return _Field("image", self.image, comments)

    def _hardware_field(self) -> _Field:
        selector = {str(k): str(v) for k, v in self.spec.part("selector").mapping().items()}
        comments = ["better: pci, by the device that the driver is for"]
        return _Field("hardware", {"nodeSelector": selector}, comments)

    def _build_fields(self) -> Iterator[_Field]:
        """Yield the source: KMM builds by a Dockerfile, nodeside from a source with a Makefile."""
        if not self.container:
            return
        comments = ["the source below src/, with a Kbuild, a Makefile or a dkms.conf"]
        everywhere = self.container.part("build")
        if everywhere:
            comments += _build_comments(everywhere, "every kernel")
        for each in self.mappings:
            kernels = each.part("literal").text() or each.part("regexp").text() or "every kernel"
            if each.part("build"):
                comments += _build_comments(each.part("build"), kernels)
            elif everywhere:
                comments.append(f"{kernels}: built as every kernel is")
            else:
                comments.append(f"{kernels}: was built elsewhere; here by the node or by a Job")
        yield _Field("source", {"path": "src"}, comments)

    def _modules_field(self) -> _Field:
        modules: list[dict[str, Any]] = [{"name": name} for name in self.module_names]
        comments: list[str] = []
        for module in modules:
            if self.main_module and kernel_name(module["name"]) == kernel_name(self.main_module):
                values, comments = _split_parameters(self.modprobe.part("parameters").texts())
                if values:
                    module["parameters"] = values
        if modules:
            return _Field("modules", modules, comments)
        if self.container:
            return _Field("modules", modules, ["the Module names none: name them, in load order"])
        none = "none: the driver is the kernel's own, so `devices` have to be named"
        return _Field("modules", modules, [none])

    def _conflict_fields(self) -> Iterator[_Field]:
        names: dict[str, None] = {}
        for place in self.places:
            names |= dict.fromkeys(place.part("inTreeModulesToRemove").texts())
            names |= dict.fromkeys(filter(None, [place.part("inTreeModuleToRemove").text()]))
        ours = {kernel_name(name) for name in self.module_names}
        others = [name for name in names if kernel_name(name) not in ours]
        same = [name for name in names if kernel_name(name) in ours]
        comments = [f"{name}: a loaded module of that name is replaced anyway" for name in same]
        if names:
            yield _Field("conflicts", {"modules": others}, comments)

    def _firmware_fields(self) -> Iterator[_Field]:
        if path := self.modprobe.part("firmwarePath").text():
            yield _Field("firmware", {"path": path})

    def _signing_fields(self) -> Iterator[_Field]:
        signs = [place.part("sign") for place in self.places if place.part("sign")]
        if not signs:
            return
        secret = f"make one Secret {self.name}-signing in nodeside's namespace"
        comments = [
            f"{secret} of the Secrets {key} (key) and {certificate} (cert)"
            for key, certificate in dict.fromkeys(
                (each.part("keySecret", "name").text(), each.part("certSecret", "name").text())
                for each in signs
            )
        ]
        names = {"key": "/signing/key.pem", "certificate": "/signing/certificate.der"}
        yield _Field("signing", names, comments)

    def _stage_fields(self) -> Iterator[_Field]:
        stages, comments = [], []
        for each in workloads_of(self.spec):
            manifests = f"{self.name}-{each.stage}"
            comments += [
                f"its DaemonSet is in ConfigMap {manifests} below",
                "Secrets, ConfigMaps and a ServiceAccount of its pods: in nodeside's namespace",
                f"better: {each.instead}",
            ]
            stages.append({"name": each.stage, "manifests": manifests})
        if stages:
            yield _Field("stages", stages, comments)

    def further_documents(self) -> Iterator[dict[str, Any]]:
        """Yield the documents that follow the Driver."""
        for each in workloads_of(self.spec):
            yield stage_config_map(each, self.spec, f"{self.name}-{each.stage}")
        yield from device_classes(self.spec)

    def list_notes(self) -> Iterator[str]:
        """Yield notes about the whole, which have no field."""
        if secret := self.spec.part("imageRepoSecret", "name").text():
            yield (
                f"spec.imageRepoSecret: copy {secret} to nodeside's namespace, then "
                f"nodeside-cluster install --pull-secret {secret}"
            )


def _split_parameters(parameters: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the values of module parameters by name, and comments about what gets lost.

    The kernel sets a parameter as often as it is given, each time anew; a `-` and a `_` are the
    same to it (parse_args in kernel/params.c).
    """
    given: dict[str, dict[str, str]] = {}
    comments = []
    for each in parameters:
        key, equals, value = each.partition("=")
        earlier = given.setdefault(kernel_name(key), {})
        for name, old in earlier.items():
            comments.append(
                f"parameter {name}={old} is given again as {each}, and has the last value"
            )
        earlier.clear()
        earlier[key] = value if equals else "1"
    return {name: value for each in given.values() for name, value in each.items()}, comments


def _build_comments(build: DocumentPart, kernels: str) -> Iterator[str]:
    where = build.part(*_DOCKERFILE).text()
    file = f"the Dockerfile in ConfigMap {where}" if where else "a Dockerfile"
    yield f"{kernels}: do here what {file} does between FROM and `make`"
    for each in build.part("buildArgs").entries():
        name, value = each.part("name").text(), each.part("value").text()
        yield f"build argument {name}={value}: build.makeArguments or build.environment"
    for each in build.part("secrets").entries():
        yield f"Secret {each.part('name').text()} at build time: no counterpart"


def convert_module(text: str, where: str, image: str) -> str:
    """Return a Module as a Driver, in YAML with comments. `image` is that of the driver.

    Comments at the top say what is missing for a valid Driver. Raises SpecError if the text is not
    one Module.
    """
    module = _KmmModule(_parse_module(text, where), image)
    body = _write_document(module)
    further = [f"---\n{write_yaml(each)}" for each in module.further_documents()]
    head = [
        f"# Made from the Module {_one_line(module.original_name)} of Kernel Module Management.\n"
    ]
    head += [f"# {_one_line(note)}\n" for note in module.list_notes()]
    head += [f"# {_one_line(note)}\n" for note in remarks_on_unread(module.document.unread())]
    return "".join((*_mistake_comments(body), *head, body, *further))


def _parse_module(text: str, where: str) -> DocumentPart:
    document = read_yaml(text, where)
    if document.mistakes:  # such as a key that appears twice
        raise mistakes_error(document, document.mistakes)
    module = DocumentPart(document.data)
    kind, version = module.part("kind").text(), module.part("apiVersion").text()
    if kind != _KIND:
        raise SpecError(f"{where}: expected {_EXPECTED}, got {kind or 'a document without kind'}")
    if version.partition("/")[0] not in _GROUPS:
        raise SpecError(f"{where}: expected {_EXPECTED}, got apiVersion {version or 'nothing'}")
    return module


def _write_document(module: _KmmModule) -> str:
    lines = ["apiVersion: nodeside.io/v1alpha1", "kind: Driver", "metadata:"]
    lines += [f"  name: {module.name}", "spec:"]
    for each in module.list_fields():
        lines += [f"  # {_one_line(comment)}" for comment in each.comments]
        lines += [f"  {line}" for line in write_yaml({each.name: each.value}).splitlines()]
    return "\n".join(lines) + "\n"


def _mistake_comments(driver: str) -> list[str]:
    """Return comments on what a person has to mend before the result is a Driver."""
    try:
        read_text(driver, "Driver")
    except SpecError as error:
        return [f"# to mend: {_one_line(line)}\n" for line in str(error).splitlines()]
    return []


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
