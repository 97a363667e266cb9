"""The rules for a driver.yaml beyond the type of each field, in one table.

Each rule has two forms: a predicate for the parser, and a CEL expression for the API server, which
evaluates it when a Driver is applied. `self` is the section of the rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from nodeside.protocol.bundle_key import BuildKind
from nodeside.protocol.module_names import kernel_name
from nodeside.spec import expressions
from nodeside.spec.devices import (
    LABEL_LIMIT,
    OWN_LABELS,
    Attribute,
    Device,
    DeviceHealth,
    DeviceNodes,
    Discover,
    Metric,
    MetricType,
    label_names,
)
from nodeside.spec.fleet import DEVICES_STAGE, Preflight, Read, Stage, Toolkit, WaitFor
from nodeside.spec.model import (
    Build,
    DriverSpec,
    Kernels,
    Module,
    Prebuilt,
    PrebuiltSource,
    Source,
    SysfsCheck,
    merge_variant,
)
from nodeside.spec.patterns import PLACEHOLDERS
from nodeside.spec.pods import PodResources, Resources, Toleration, TolerationOperator, amount_of
from nodeside.spec.services import Hooks, ServiceReady
from nodeside.values import frozen

S = TypeVar("S")

_HOOKS = ("afterLoad", "beforeUnload", "afterUnload")
_LISTS = ("pci", "sysfs", "nodes")  # kinds of `discover` that are lists
# Limits of resource.k8s.io/v1, and the names that the device agent uses itself.
DRA_VALUE_LIMIT, DRA_NAME_LIMIT = 64, 32  # characters of an attribute of a ResourceSlice
DRA_OWN = ("device", "resource", "vendor")


@frozen
class Rule(Generic[S]):
    """One rule. The predicate reads `fields`; if there is only one, the mistake is reported there.

    `detail` adds the offending values. `cel` is empty if CEL cannot express the rule.
    """

    section: type[S]
    fields: tuple[str, ...]
    message: str
    holds: Callable[[S], bool]
    cel: str = ""
    detail: Callable[[S], str] = lambda _: ""

    def find_mistake(self, values: S) -> str:
        """Return what is wrong with a section, or an empty text."""
        if self.holds(values):
            return ""
        detail = self.detail(values)
        return f"{self.message}: {detail}" if detail else self.message


def _metric_names(device: Device) -> list[str]:
    return [each.metric.name for each in device.attributes if each.metric]


_NO_DRA = "!has(self.expose) || self.expose != 'dra'"


def _duplicate_names(modules: tuple[Module, ...]) -> list[str]:
    names = [kernel_name(module.name) for module in modules]
    return sorted({name for name in names if names.count(name) > 1})


def _modules_in_conflicts(spec: DriverSpec) -> list[str]:
    modules = {kernel_name(module.name) for module in spec.modules}
    return sorted(modules & {kernel_name(name) for name in spec.conflicts.modules})


# If case is ignored, Python checks each character of a range separately, up to a million for one.
_IGNORES_CASE = re.compile(r"\(\?[aLmsux]*i")
_FAR_RANGE = re.compile(r"-(?:\\[uUN]|[^\x00-\x7f])")


def _regex_error(pattern: str) -> str:
    if _IGNORES_CASE.search(pattern) and _FAR_RANGE.search(pattern):
        return "where (?i) is used, a range must end with an ASCII character"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as exc:
        return str(exc) or type(exc).__name__
    return ""


def _log_error(pattern: str) -> str:
    return _regex_error(pattern) or expressions.beyond_re2(pattern)


def _builds_of_variants(build: Build) -> list[Build]:
    """Return the build as each of its variants has it."""
    return [merge_variant(build, variant) for variant in build.variants]


def _cel_of_variant(name: str, absent: str) -> str:
    """Return the CEL expression for a field of a variant v, or else of the build."""
    return f"(has(v.{name}) ? v.{name} : has(self.{name}) ? self.{name} : {absent})"


_KIND_OF_VARIANT = _cel_of_variant("kind", "''")


def _cel_of_exactly_one(*names: str) -> str:
    """Return the CEL expression that is true if exactly one of these texts is set."""
    return " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in names) + " == 1"


def _cel_of_same_name(one: str, other: str) -> str:
    return f"{one}.replace('-', '_') == {other}.replace('-', '_')"


def _over_limit(resources: Resources) -> list[str]:
    """Return the requests that are larger than their limits."""
    limits = resources.limits
    return [
        f"{name} {request} > {limits[name]}"
        for name, request in resources.requests.items()
        if name in limits and amount_of(request) > amount_of(limits[name])
    ]


def _over_build_memory(spec: DriverSpec) -> list[str]:
    """Return the memory that toolkit containers request beyond what they may use."""
    resources, limit = spec.pods.resources, spec.build.memory_limit_mib
    requests = (each.requests.get("memory", "0") for each in (resources.toolkit, resources.build))
    return [each for each in requests if amount_of(each) > amount_of(f"{limit}Mi")]


_TOOLKITS = ("toolkit", "build")  # containers whose memory limit is that of the build
_MEMORY_LIMIT = (  # bytes; a quantity made of the number is dearer than a whole schema may be
    "double(has(self.build) && has(self.build.memoryLimitMib) "
    f"? self.build.memoryLimitMib : {Build().memory_limit_mib}) * 1048576.0"
)


def _cel_of_memory_request(container: str) -> str:
    """Return the CEL expression that limits a container's memory request to that of a build."""
    there, path = "!has(self.pods) || !has(self.pods.resources)", "self.pods.resources"
    for name in (container, "requests"):
        path += f".{name}"
        there += f" || !has({path})"
    request = f"quantity({path}['memory'])"
    fits = f"{request}.asApproximateFloat() <= {_MEMORY_LIMIT}"
    return f"({there} || !('memory' in {path}) || {fits})"


def _content_rules(section: type[Any]) -> tuple[Rule[Any], ...]:
    """Return the rules of a section that says what a file of sysfs must contain."""
    return (
        Rule(
            section,
            ("value", "matches"),
            'expected exactly one of value and matches (an empty attribute: matches: "^$")',
            lambda check: bool(check.value) != bool(check.matches),
            _cel_of_exactly_one("value", "matches"),
        ),
        Rule(
            section,
            ("matches",),
            "expected a Python regular expression",
            lambda check: not _regex_error(check.matches),
            detail=lambda check: _regex_error(check.matches),
        ),
    )


RULES: tuple[Rule[Any], ...] = (
    Rule(
        DriverSpec,
        ("modules", "devices"),
        "expected modules, devices or both",
        lambda spec: bool(spec.modules or spec.devices),
        "size(self.modules) > 0 || (has(self.devices) && size(self.devices) > 0)",
    ),
    Rule(
        DriverSpec,
        ("modules", "prebuilt", "signing", "preflight"),
        "prebuilt, signing and preflight are for modules, and there are none",
        lambda spec: bool(
            spec.modules
            or not (spec.prebuilt.sources or spec.prebuilt.image or spec.signing or spec.preflight)
        ),
        "size(self.modules) > 0 || (!has(self.signing) "
        "&& (!has(self.preflight) || size(self.preflight) == 0) && (!has(self.prebuilt) || "
        "(!has(self.prebuilt.image) "
        "&& (!has(self.prebuilt.sources) || size(self.prebuilt.sources) == 0))))",
    ),
    Rule(
        DriverSpec,
        ("modules",),
        "the names of the modules must differ (- and _ are the same)",
        lambda spec: not _duplicate_names(spec.modules),
        f"self.modules.all(a, self.modules.exists_one(b, {_cel_of_same_name('a.name', 'b.name')}))",
        lambda spec: ", ".join(_duplicate_names(spec.modules)),
    ),
    Rule(
        DriverSpec,
        ("modules", "conflicts"),
        "a module cannot be in conflicts.modules and in modules",
        lambda spec: not _modules_in_conflicts(spec),
        "!has(self.conflicts) || !has(self.conflicts.modules) || self.modules.all(a, "
        f"!self.conflicts.modules.exists(b, {_cel_of_same_name('a.name', 'b')}))",
        lambda spec: ", ".join(_modules_in_conflicts(spec)),
    ),
    Rule(
        DriverSpec,
        ("modules", "hooks"),
        "hooks are for modules, and there are none",
        lambda spec: bool(spec.modules) or spec.hooks == Hooks(),
        "size(self.modules) > 0 || !has(self.hooks) || ("
        + " && ".join(
            f"(!has(self.hooks.{name}) || size(self.hooks.{name}) == 0)" for name in _HOOKS
        )
        + ")",
    ),
    Rule(
        DriverSpec,
        ("devices", "userspace"),
        "give.userspace takes userspace, which is missing",
        lambda spec: bool(spec.userspace) or not any(each.give.userspace for each in spec.devices),
        "has(self.userspace) || !has(self.devices) || !self.devices.exists(d, has(d.give) && "
        "has(d.give.userspace) && d.give.userspace)",
    ),
    Rule(
        DriverSpec,
        ("services",),
        "the names of the services must differ",
        lambda spec: len({each.name for each in spec.services}) == len(spec.services),
        "!has(self.services) || "
        "self.services.all(a, self.services.exists_one(b, a.name == b.name))",
    ),
    Rule(
        ServiceReady,
        ("socket", "file", "log"),
        "expected exactly one of socket, file and log",
        lambda ready: [bool(ready.socket), bool(ready.file), bool(ready.log)].count(True) == 1,
        _cel_of_exactly_one("socket", "file", "log"),
    ),
    Rule(
        ServiceReady,
        ("log",),
        "expected a Python regular expression",
        lambda ready: not _regex_error(ready.log),
        detail=lambda ready: _regex_error(ready.log),
    ),
    Rule(
        DriverSpec,
        ("stages",),
        "the names of the stages must differ",
        lambda spec: len({stage.name for stage in spec.stages}) == len(spec.stages),
        "!has(self.stages) || self.stages.all(a, self.stages.exists_one(b, a.name == b.name))",
    ),
    Rule(
        DriverSpec,
        ("stages", "devices"),
        "the stage devices is for `spec.devices`, which has no entry",
        lambda spec: (
            bool(spec.devices) or all(stage.name != DEVICES_STAGE for stage in spec.stages)
        ),
        f"!has(self.stages) || !self.stages.exists(a, a.name == '{DEVICES_STAGE}') || "
        "(has(self.devices) && size(self.devices) > 0)",
    ),
    Rule(
        Stage,
        ("name", "manifests"),
        "manifests is missing; only the stage devices has none",
        lambda stage: stage.name == DEVICES_STAGE or bool(stage.manifests),
        f"self.name == '{DEVICES_STAGE}' || has(self.manifests)",
    ),
    Rule(
        Stage,
        ("name", "manifests"),
        "the stage devices has no manifests: the controller makes its objects",
        lambda stage: stage.name != DEVICES_STAGE or not stage.manifests,
        f"self.name != '{DEVICES_STAGE}' || !has(self.manifests)",
    ),
    Rule(
        DriverSpec,
        ("devices",),
        "the resources of the devices must differ",
        lambda spec: len({device.resource for device in spec.devices}) == len(spec.devices),
        "!has(self.devices) || "
        "self.devices.all(a, self.devices.exists_one(b, a.resource == b.resource))",
    ),
    Rule(
        Discover,
        ("pci", "sysfs", "nodes", "count"),
        "expected exactly one of pci, sysfs, nodes and count",
        lambda discover: (
            [
                bool(discover.pci),
                bool(discover.sysfs),
                bool(discover.nodes),
                bool(discover.count),
            ].count(True)
            == 1
        ),
        " + ".join(
            [
                *(f"(has(self.{name}) && size(self.{name}) > 0 ? 1 : 0)" for name in _LISTS),
                "(has(self.count) && self.count > 0 ? 1 : 0)",
            ]
        )
        + " == 1",
    ),
    Rule(
        DeviceNodes,
        ("class_", "path"),
        "expected exactly one of class and path",
        lambda nodes: bool(nodes.class_) != bool(nodes.path),
        _cel_of_exactly_one("class", "path"),
    ),
    Rule(
        DeviceNodes,
        ("path",),
        "a device node that all devices share has no * in its name; use class, or discover.nodes",
        lambda nodes: "*" not in nodes.path,
        "!has(self.path) || !self.path.contains('*')",
    ),
    Rule(
        Device,
        ("discover", "give", "attributes", "health"),
        "units that are only counted have no class of device nodes, no attributes and no health",
        lambda device: (
            not device.discover.count
            or not (
                device.attributes
                or device.health
                or (device.give.nodes and device.give.nodes.class_)
            )
        ),
        "!has(self.discover.count) || self.discover.count == 0 || "
        "((!has(self.attributes) || size(self.attributes) == 0) && !has(self.health) && "
        "(!has(self.give) || !has(self.give.nodes) || !has(self.give.nodes.class)))",
    ),
    Rule(
        Metric,
        ("name", "type"),
        "the name of a counter ends in _total, and no other",
        lambda metric: metric.name.endswith("_total") == (metric.type is MetricType.COUNTER),
        "self.name.endsWith('_total') == (has(self.type) && self.type == 'counter')",
    ),
    Rule(
        Metric,
        ("name",),
        "names that begin with nodeside_ are those of the device agent itself",
        lambda metric: not metric.name.startswith("nodeside_"),
        "!self.name.startsWith('nodeside_')",
    ),
    Rule(
        Device,
        ("attributes",),
        "the names of the metrics must differ",
        lambda device: len(names := _metric_names(device)) == len(set(names)),
        "!has(self.attributes) || self.attributes.all(a, !has(a.metric) || "
        "self.attributes.exists_one(b, has(b.metric) && a.metric.name == b.metric.name))",
    ),
    Rule(
        Device,
        ("attributes",),
        "the names of the attributes must differ",
        lambda device: len({each.name for each in device.attributes}) == len(device.attributes),
        "!has(self.attributes) || "
        "self.attributes.all(a, self.attributes.exists_one(b, a.name == b.name))",
    ),
    Rule(
        Device,
        ("resource", "expose"),
        f"the resource's name has at most {DRA_VALUE_LIMIT} characters with expose: dra",
        lambda device: not device.is_dra or len(device.resource) <= DRA_VALUE_LIMIT,
        f"{_NO_DRA} || size(self.resource) <= {DRA_VALUE_LIMIT}",
    ),
    Rule(
        Device,
        ("attributes", "expose"),
        f"names of attributes have at most {DRA_NAME_LIMIT} characters with expose: dra, and "
        f"{', '.join(DRA_OWN[:-1])} and {DRA_OWN[-1]} are the device agent's",
        lambda device: (
            not device.is_dra
            or all(
                len(each.name) <= DRA_NAME_LIMIT and each.name not in DRA_OWN
                for each in device.attributes
            )
        ),
        f"{_NO_DRA} || !has(self.attributes) || self.attributes.all(a, "
        f"size(a.name) <= {DRA_NAME_LIMIT} && !(a.name in {list(DRA_OWN)}))",
    ),
    Rule(
        Device,
        ("discover", "shares", "expose"),
        "units that are only counted have no shares with expose: dra; count more of them",
        lambda device: not device.is_dra or not device.discover.count or device.shares == 1,
        f"{_NO_DRA} || !has(self.discover.count) || self.discover.count == 0 || "
        "!has(self.shares) || self.shares == 1",
    ),
    Rule(
        Attribute,
        ("name", "label"),
        f"the name of an attribute that is a label has at most {LABEL_LIMIT} characters",
        lambda attribute: not attribute.label or len(attribute.name) <= LABEL_LIMIT,
        f"!has(self.label) || !self.label || size(self.name) <= {LABEL_LIMIT}",
    ),
    Rule(
        Attribute,
        ("name", "label"),
        f"the labels {' and '.join(OWN_LABELS)} are those of the device agent itself",
        lambda attribute: not attribute.label or attribute.name not in OWN_LABELS,
        f"!has(self.label) || !self.label || !(self.name in {list(OWN_LABELS)})",
    ),
    Rule(
        DriverSpec,
        ("devices",),
        "attributes that are labels have different names in all entries",
        lambda spec: len(names := label_names(spec.devices)) == len(set(names)),
        "!has(self.devices) || self.devices.all(d, !has(d.attributes) || d.attributes.all(a, "
        "!has(a.label) || !a.label || self.devices.exists_one(e, has(e.attributes) && "
        "e.attributes.exists(b, has(b.label) && b.label && a.name == b.name))))",
    ),
    Rule(
        DriverSpec,
        ("after",),
        "the names in after must differ",
        lambda spec: len(set(spec.after)) == len(spec.after),
        "!has(self.after) || self.after.all(a, self.after.exists_one(b, a == b))",
    ),
    Rule(
        Source,
        ("exclude",),
        "** and a leading ! are not supported; a name without / matches in every directory",
        lambda source: not any("**" in p or p.startswith("!") for p in source.exclude),
        "!has(self.exclude) || self.exclude.all(p, !p.contains('**') && !p.startsWith('!'))",
    ),
    Rule(
        Build,
        ("kind", "command"),
        "kind command requires the field command, and vice versa",
        lambda build: (build.kind is BuildKind.COMMAND) == bool(build.command),
        "(has(self.kind) && self.kind == 'command') == "
        "(has(self.command) && size(self.command) > 0)",
    ),
    Rule(
        Build,
        ("kind", "make_arguments"),
        "makeArguments have no effect with kind command; put them into the command",
        lambda build: build.kind is not BuildKind.COMMAND or not build.make_arguments,
        "!has(self.kind) || self.kind != 'command' || !has(self.makeArguments) "
        "|| size(self.makeArguments) == 0",
    ),
    Rule(
        Build,
        ("kind", "command", "variants"),
        "a variant of kind command requires the field command, there or in the build, and vice "
        "versa",
        lambda build: all(
            (each.kind is BuildKind.COMMAND) == bool(each.command)
            for each in _builds_of_variants(build)
        ),
        "!has(self.variants) || self.variants.all(v, "
        f"({_KIND_OF_VARIANT} == 'command') == "
        f"(size({_cel_of_variant('command', '[]')}) > 0))",
    ),
    Rule(
        Build,
        ("kind", "make_arguments", "variants"),
        "makeArguments have no effect in a variant of kind command; write makeArguments: [] there",
        lambda build: (
            not any(
                each.kind is BuildKind.COMMAND and each.make_arguments
                for each in _builds_of_variants(build)
            )
        ),
        "!has(self.variants) || self.variants.all(v, "
        f"{_KIND_OF_VARIANT} != 'command' || "
        f"size({_cel_of_variant('makeArguments', '[]')}) == 0)",
    ),
    Rule(
        Kernels,
        ("kernel", "at_least", "below"),
        "expected kernel, atLeast or below",
        lambda when: bool(when.kernel or when.at_least or when.below),
        "has(self.kernel) || has(self.atLeast) || has(self.below)",
    ),
    Rule(
        Kernels,
        ("kernel",),
        "expected a Python regular expression",
        lambda when: not _regex_error(when.kernel),
        detail=lambda when: _regex_error(when.kernel),
    ),
    Rule(
        PrebuiltSource,
        ("oci", "http", "directory"),
        "expected exactly one of oci, http and directory",
        lambda source: (
            [bool(source.oci), bool(source.http), bool(source.directory)].count(True) == 1
        ),
        _cel_of_exactly_one("oci", "http", "directory"),
    ),
    Rule(
        PrebuiltSource,
        ("oci", "insecure"),
        "insecure is for oci; write http:// for a plain HTTP directory",
        lambda source: bool(source.oci) or not source.insecure,
        "has(self.oci) || !has(self.insecure) || !self.insecure",
    ),
    Rule(
        PrebuiltSource,
        ("oci", "publish"),
        "publish is for oci: bundles are pushed to a registry",
        lambda source: bool(source.oci) or not source.publish,
        "has(self.oci) || !has(self.publish) || !self.publish",
    ),
    Rule(
        Prebuilt,
        ("sources",),
        "at most one source has publish: true",
        lambda prebuilt: sum(source.publish for source in prebuilt.sources) <= 1,
        "!has(self.sources) || self.sources.filter(s, has(s.publish) && s.publish).size() <= 1",
    ),
    Rule(
        Preflight,
        ("os_version", "kernel", "toolkit"),
        "expected exactly one of osVersion, kernel and toolkit",
        lambda place: (
            [bool(place.os_version), bool(place.kernel), bool(place.toolkit)].count(True) == 1
        ),
        _cel_of_exactly_one("osVersion", "kernel", "toolkit"),
    ),
    *_content_rules(SysfsCheck),
    *_content_rules(DeviceHealth),
    Rule(
        Read,
        ("config_map", "secret", "service"),
        "expected exactly one of configMap, secret and service",
        lambda read: sum(map(bool, (read.config_map, read.secret, read.service))) == 1,
        "[has(self.configMap), has(self.secret), has(self.service)].exists_one(each, each)",
    ),
    Rule(
        WaitFor,
        ("log", "resource"),
        "expected log, resource or both",
        lambda wait: bool(wait.log or wait.resource),
        "(has(self.log) && self.log != '') || has(self.resource)",
    ),
    Rule(
        WaitFor,
        ("log",),
        expressions.EXPECTED,
        lambda wait: not _log_error(wait.log),
        detail=lambda wait: _log_error(wait.log),
    ),
    Rule(
        DriverSpec,
        ("rollout", "devices"),
        "rollout.evict of a driver that declares no devices expects resources or selector",
        lambda spec: bool(
            not spec.rollout.evict
            or spec.rollout.evict.resources
            or spec.rollout.evict.selector
            or spec.devices
        ),
        "!has(self.rollout) || !has(self.rollout.evict) "
        "|| (has(self.rollout.evict.resources) && size(self.rollout.evict.resources) > 0) "
        "|| (has(self.rollout.evict.selector) && size(self.rollout.evict.selector) > 0) "
        "|| (has(self.devices) && size(self.devices) > 0)",
    ),
    Rule(
        Toleration,
        ("key", "operator"),
        "a toleration without a key needs operator: Exists",
        lambda toleration: bool(toleration.key) or toleration.operator is TolerationOperator.EXISTS,
        "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
    ),
    Rule(
        Toleration,
        ("operator", "value"),
        "a value is for operator: Equal",
        lambda toleration: not toleration.value or toleration.operator is TolerationOperator.EQUAL,
        "!has(self.value) || self.value == '' || !has(self.operator) || self.operator == 'Equal'",
    ),
    Rule(
        Resources,
        ("requests", "limits"),
        "a request is at most its limit",
        lambda resources: not _over_limit(resources),
        "!has(self.requests) || !has(self.limits) || self.requests.all(name, "
        "!(name in self.limits) "
        "|| quantity(self.requests[name]).compareTo(quantity(self.limits[name])) <= 0)",
        lambda resources: ", ".join(_over_limit(resources)),
    ),
    Rule(
        PodResources,
        _TOOLKITS,
        "the memory limit of toolkit and build is build.memoryLimitMib",
        lambda resources: (
            "memory" not in resources.toolkit.limits and "memory" not in resources.build.limits
        ),
        " && ".join(
            f"(!has(self.{each}) || !has(self.{each}.limits) || !('memory' in self.{each}.limits))"
            for each in _TOOLKITS
        ),
    ),
    Rule(
        DriverSpec,
        ("pods", "build"),
        "pods.resources.toolkit and .build request at most the memory of build.memoryLimitMib",
        lambda spec: not _over_build_memory(spec),
        " && ".join(_cel_of_memory_request(each) for each in _TOOLKITS),
        lambda spec: ", ".join(_over_build_memory(spec)),
    ),
    Rule(
        Prebuilt,
        ("image",),
        "expected {kernel} in the pull spec, since each image is for one kernel",
        lambda prebuilt: not prebuilt.image or "{kernel}" in prebuilt.image,
        "!has(self.image) || self.image.contains('{kernel}')",
    ),
    Rule(
        Toolkit,
        ("image_template",),
        f"expected one of {', '.join(PLACEHOLDERS)} in the pull spec",
        lambda toolkit: (
            not toolkit.image_template
            or any(word in toolkit.image_template for word in PLACEHOLDERS)
        ),
        "!has(self.imageTemplate) || "
        + " || ".join(f"self.imageTemplate.contains('{word}')" for word in PLACEHOLDERS),
    ),
)


@frozen
class ClusterRule:
    """A rule that only the API server checks: a file on a laptop need not follow it."""

    section: type[Any]
    message: str
    cel: str


CLUSTER_RULES = (
    ClusterRule(DriverSpec, "a cluster needs the pull spec of the driver image", "has(self.image)"),
)


def rules_of(section: type[Any]) -> tuple[Rule[Any], ...]:
    """Return the rules of one section."""
    return tuple(rule for rule in RULES if rule.section is section)
