"""Documents that break one rule each."""

from __future__ import annotations

from typing import Any

SYSFS = "bus/pci/drivers/edu/uevent"
SERVICE = {"name": "monitor", "command": ["edu-monitor"]}
EDU = {"resource": "example.com/edu", "discover": {"pci": [{"vendor": "1234"}]}}

OF_ATTRIBUTES = (
    "$.spec.devices[0]: names of attributes have at most 32 characters with expose: dra, and "
    "device, resource and vendor are the device agent's"
)


def labels(*names: str) -> dict[str, Any]:
    """Attributes that are labels."""
    return {"attributes": [{"name": name, "path": name, "label": True} for name in names]}


def metrics(*metrics: dict[str, Any]) -> dict[str, Any]:
    """Attributes with these metrics."""
    each = enumerate(metrics)
    return {"attributes": [{"name": f"a{n}", "path": f"a{n}", "metric": m} for n, m in each]}


_SCHEME = "write it without https:// or another scheme"
_LOWER = "repository names are lower case"
_LONG = "the name before the tag has at most 255 characters"
# Names that no container runtime would pull, with the remedy.
WRONG_IMAGES: list[tuple[dict[str, Any], str]] = [
    ({"image": "https://registry.example.com/edu:1.0.0"}, _SCHEME),
    ({"image": "docker://registry.example.com/edu:1.0.0"}, _SCHEME),
    ({"image": "registry.example.com/Drivers/edu:1.0.0"}, _LOWER),
    ({"image": "EDU:1.0.0"}, _LOWER),
    ({"image": "[::1]:5000/Edu"}, _LOWER),
    ({"image": f"registry.example.com:5000/{'a' * 256}:1.0.0"}, _LONG),
    ({"image": "registry.example.com/edu:1.0.0 "}, ""),
    ({"image": "registry.example.com/edu:{version}"}, ""),
    ({"image": "registry.example.com/edu:"}, ""),
    ({"image": "registry.example.com/edu@sha256:94"}, ""),
    ({"image": "registry.example.com//edu"}, ""),
    ({"image": "registry.example.com/edu:" + "t" * 129}, ""),
    ({"prebuilt": {"image": "http://registry.example.com/edu:{kernel}"}}, _SCHEME),
    ({"prebuilt": {"image": "registry.example.com/Edu:{osVersion}-{kernel}"}}, _LOWER),
    ({"prebuilt": {"image": "registry.example.com/edu:{kernel}-{kernal}"}}, ""),
    ({"prebuilt": {"sources": [{"oci": "oci://registry.example.com/team/edu"}]}}, _SCHEME),
    ({"prebuilt": {"sources": [{"oci": "registry.example.com/Team/edu"}]}}, _LOWER),
    ({"toolkit": {"imageTemplate": "https://registry.example.com/toolkit:{kernel}"}}, _SCHEME),
    ({"toolkit": {"imageTemplate": "registry.example.com/toolkit:${KERNEL_FULL_VERSION}"}}, ""),
    ({"toolkit": {"images": {"6.1.0": "https://registry.example.com/toolkit"}}}, _SCHEME),
    ({"toolkit": {"images": {"6.1.0": "registry.example.com/Toolkit:6.1.0"}}}, _LOWER),
    ({"preflight": [{"toolkit": "https://registry.example.com/toolkit:6.1.0"}]}, _SCHEME),
]

BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"modules": []}, "$.spec: expected modules, devices or both"),
    (
        {"modules": [], "devices": [EDU], "prebuilt": {"image": "x/y:{version}-{kernel}"}},
        "$.spec: prebuilt, signing and preflight are for modules, and there are none",
    ),
    (
        {"modules": [{"name": "dm-edu"}, {"name": "edu"}, {"name": "dm_edu"}]},
        "$.spec.modules: the names of the modules must differ (- and _ are the same): dm_edu",
    ),
    (
        {"modules": [{"name": "dm-edu"}], "conflicts": {"modules": ["dm_edu"]}},
        "$.spec: a module cannot be in conflicts.modules and in modules: dm_edu",
    ),
    (
        {"modules": [], "devices": [EDU], "hooks": {"afterLoad": [{"command": ["true"]}]}},
        "$.spec: hooks are for modules, and there are none",
    ),
    (
        {"stages": [{"name": "a", "manifests": "a", "reads": [{"secret": "b", "service": "c"}]}]},
        "$.spec.stages[0].reads[0]: expected exactly one of configMap, secret and service",
    ),
    (
        {"after": ["core", "core"]},
        "$.spec.after: the names in after must differ",
    ),
    (
        {"devices": [EDU | {"give": {"userspace": True}}]},
        "$.spec: give.userspace takes userspace, which is missing",
    ),
    (
        {"services": [SERVICE, SERVICE]},
        "$.spec.services: the names of the services must differ",
    ),
    (
        {"services": [SERVICE | {"ready": {"file": "/run/a", "socket": "/run/b"}}]},
        "$.spec.services[0].ready: expected exactly one of socket, file and log",
    ),
    (
        {"services": [SERVICE | {"ready": {"log": "a("}}]},
        (
            "$.spec.services[0].ready.log: expected a Python regular expression: missing ), "
            "unterminated subpattern at position 1"
        ),
    ),
    (
        {"stages": [{"name": "a", "manifests": "x"}, {"name": "a", "manifests": "y"}]},
        "$.spec.stages: the names of the stages must differ",
    ),
    (
        {"stages": [{"name": "devices"}]},
        "$.spec: the stage devices is for `spec.devices`, which has no entry",
    ),
    (
        {"stages": [{"name": "a"}]},
        "$.spec.stages[0]: manifests is missing; only the stage devices has none",
    ),
    (
        {"devices": [EDU], "stages": [{"name": "devices", "manifests": "x"}]},
        "$.spec.stages[0]: the stage devices has no manifests: the controller makes its objects",
    ),
    (
        {"stages": [{"name": "a", "manifests": "x", "waitFor": {"log": "a("}}]},
        (
            "$.spec.stages[0].waitFor.log: expected a regular expression in RE2 syntax, without "
            "look-around and backreferences: missing ), unterminated subpattern at position 1"
        ),
    ),
    (
        {"stages": [{"name": "a", "manifests": "x", "waitFor": {"timeoutSeconds": 5}}]},
        "$.spec.stages[0].waitFor: expected log, resource or both",
    ),
    (
        {"devices": [EDU, EDU]},
        "$.spec.devices: the resources of the devices must differ",
    ),
    (
        {"devices": [EDU | {"discover": {}}]},
        "$.spec.devices[0].discover: expected exactly one of pci, sysfs, nodes and count",
    ),
    (
        {"devices": [EDU | {"discover": {"count": 2, "nodes": ["/dev/edu*"]}}]},
        "$.spec.devices[0].discover: expected exactly one of pci, sysfs, nodes and count",
    ),
    (
        {"devices": [EDU | {"give": {"nodes": {"class": "misc", "path": "/dev/edu0"}}}]},
        "$.spec.devices[0].give.nodes: expected exactly one of class and path",
    ),
    (
        {"devices": [EDU | {"give": {"nodes": {"path": "/dev/edu*"}}}]},
        (
            "$.spec.devices[0].give.nodes.path: a device node that all devices share has no * in "
            "its name; use class, or discover.nodes"
        ),
    ),
    (
        {"devices": [EDU | {"discover": {"count": 2}, "give": {"nodes": {"class": "misc"}}}]},
        (
            "$.spec.devices[0]: units that are only counted have no class of device nodes, no "
            "attributes and no health"
        ),
    ),
    (
        {"devices": [EDU | {"resource": f"{'x' * 60}.com/a", "expose": "dra"}]},
        ("$.spec.devices[0]: the resource's name has at most 64 characters with expose: dra"),
    ),
    (
        {"devices": [EDU | {"expose": "dra", "attributes": [{"name": "a" * 33, "path": "x"}]}]},
        OF_ATTRIBUTES,
    ),
    (
        {"devices": [EDU | {"expose": "dra", "attributes": [{"name": "vendor", "path": "x"}]}]},
        OF_ATTRIBUTES,
    ),
    (
        {"devices": [EDU | {"expose": "dra", "shares": 2, "discover": {"count": 2}}]},
        (
            "$.spec.devices[0]: units that are only counted have no shares with expose: dra; "
            "count more of them"
        ),
    ),
    (
        {"devices": [EDU | {"attributes": [{"name": "a", "path": p} for p in "xy"]}]},
        "$.spec.devices[0].attributes: the names of the attributes must differ",
    ),
    (
        {"devices": [EDU | metrics({"name": "edu_heat"}, {"name": "edu_heat"})]},
        "$.spec.devices[0].attributes: the names of the metrics must differ",
    ),
    (
        {"devices": [EDU | metrics({"name": "edu_interrupts", "type": "counter"})]},
        (
            "$.spec.devices[0].attributes[0].metric: the name of a counter ends in _total, and no "
            "other"
        ),
    ),
    (
        {"devices": [EDU | labels("a" * 23)]},
        (
            "$.spec.devices[0].attributes[0]: the name of an attribute that is a label has at most "
            "22 characters"
        ),
    ),
    (
        {"devices": [EDU | labels("count")]},
        (
            "$.spec.devices[0].attributes[0]: the labels version and count are those of the device "
            "agent itself"
        ),
    ),
    (
        {"devices": [EDU | labels("a"), EDU | labels("b", "a") | {"resource": "example.com/x"}]},
        "$.spec.devices: attributes that are labels have different names in all entries",
    ),
    (
        {"devices": [EDU | metrics({"name": "nodeside_heat"})]},
        (
            "$.spec.devices[0].attributes[0].metric.name: names that begin with nodeside_ are "
            "those of the device agent itself"
        ),
    ),
    (
        {"source": {"exclude": ["*.log", "!keep.log"]}},
        (
            "$.spec.source.exclude: ** and a leading ! are not supported; a name without / matches "
            "in every directory"
        ),
    ),
    (
        {"build": {"kind": "command"}},
        "$.spec.build: kind command requires the field command, and vice versa",
    ),
    (
        {"build": {"command": ["./build"]}},
        "$.spec.build: kind command requires the field command, and vice versa",
    ),
    (
        {"build": {"kind": "command", "command": ["./build"], "makeArguments": ["V=1"]}},
        "$.spec.build: makeArguments have no effect with kind command; put them into the command",
    ),
    (
        {"build": {"variants": [{"when": {}}]}},
        "$.spec.build.variants[0].when: expected kernel, atLeast or below",
    ),
    (
        {"build": {"variants": [{"when": {"kernel": "a("}}]}},
        (
            "$.spec.build.variants[0].when.kernel: expected a Python regular expression: "
            "missing ), unterminated subpattern at position 1"
        ),
    ),
    (
        {"build": {"variants": [{"when": {"below": "6.0"}, "kind": "command"}]}},
        (
            "$.spec.build: a variant of kind command requires the field command, there or in the "
            "build, and vice versa"
        ),
    ),
    (
        {
            "build": {
                "makeArguments": ["V=1"],
                "variants": [{"when": {"below": "6.0"}, "kind": "command", "command": ["./b"]}],
            }
        },
        (
            "$.spec.build: makeArguments have no effect in a variant of kind command; "
            "write makeArguments: [] there"
        ),
    ),
    (
        {"prebuilt": {"sources": [{"oci": "registry.example.com/edu", "http": "http://x/y"}]}},
        "$.spec.prebuilt.sources[0]: expected exactly one of oci, http and directory",
    ),
    (
        {"prebuilt": {"sources": [{}]}},
        "$.spec.prebuilt.sources[0]: expected exactly one of oci, http and directory",
    ),
    (
        {"prebuilt": {"sources": [{"http": "https://x/y", "insecure": True}]}},
        "$.spec.prebuilt.sources[0]: insecure is for oci; write http:// for a plain HTTP directory",
    ),
    (
        {"prebuilt": {"sources": [{"http": "https://x/y", "publish": True}]}},
        "$.spec.prebuilt.sources[0]: publish is for oci: bundles are pushed to a registry",
    ),
    (
        {"prebuilt": {"sources": [{"oci": f"r.example.com/{n}", "publish": True} for n in "ab"]}},
        "$.spec.prebuilt.sources: at most one source has publish: true",
    ),
    (
        {"preflight": [{"osVersion": "9.4", "toolkit": "r.example.com/toolkit:9.4"}]},
        "$.spec.preflight[0]: expected exactly one of osVersion, kernel and toolkit",
    ),
    (
        {"rollout": {"evict": {"timeoutSeconds": 60}}},
        "$.spec: rollout.evict of a driver that declares no devices expects resources or selector",
    ),
    (
        {"validate": {"sysfs": [{"path": SYSFS}]}},
        (
            "$.spec.validate.sysfs[0]: expected exactly one of value and matches (an empty "
            'attribute: matches: "^$")'
        ),
    ),
    (
        {"validate": {"sysfs": [{"path": SYSFS, "matches": "a("}]}},
        (
            "$.spec.validate.sysfs[0].matches: expected a Python regular expression: missing ), "
            "unterminated subpattern at position 1"
        ),
    ),
    (
        {"validate": {"sysfs": [{"path": SYSFS, "matches": "(?i)[a-\U0010ffff]"}]}},
        (
            "$.spec.validate.sysfs[0].matches: expected a Python regular expression: where (?i) is "
            "used, a range must end with an ASCII character"
        ),
    ),
    (
        {"devices": [EDU | {"health": {"path": "liveness"}}]},
        (
            "$.spec.devices[0].health: expected exactly one of value and matches (an empty "
            'attribute: matches: "^$")'
        ),
    ),
    (
        {"devices": [EDU | {"health": {"path": "x", "value": "ok", "matches": "ok"}}]},
        (
            "$.spec.devices[0].health: expected exactly one of value and matches (an empty "
            'attribute: matches: "^$")'
        ),
    ),
    (
        {"devices": [EDU | {"health": {"path": "x", "matches": "a("}}]},
        (
            "$.spec.devices[0].health.matches: expected a Python regular expression: missing ), "
            "unterminated subpattern at position 1"
        ),
    ),
    (
        {"stages": [{"name": "a", "manifests": "x", "waitFor": {"log": "(?si:[a-\\U0010ffff])"}}]},
        (
            "$.spec.stages[0].waitFor.log: expected a regular expression in RE2 syntax, without "
            "look-around and backreferences: where (?i) is used, a range must end with an ASCII "
            "character"
        ),
    ),
    (
        {"prebuilt": {"image": "registry.example.com/edu:latest"}},
        (
            "$.spec.prebuilt.image: expected {kernel} in the pull spec, since each image is for "
            "one kernel"
        ),
    ),
    (
        {"toolkit": {"imageTemplate": "registry.example.com/toolkit:latest"}},
        (
            "$.spec.toolkit.imageTemplate: expected one of {kernel}, {osVersion}, {arch} in the "
            "pull spec"
        ),
    ),
    (
        {"pods": {"buildJobs": {"tolerations": [{"effect": "NoSchedule"}]}}},
        ("$.spec.pods.buildJobs.tolerations[0]: a toleration without a key needs operator: Exists"),
    ),
    (
        {
            "pods": {
                "buildJobs": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}
            }
        },
        "$.spec.pods.buildJobs.tolerations[0]: a value is for operator: Equal",
    ),
    (
        {
            "pods": {
                "resources": {"driver": {"requests": {"cpu": "1.5"}, "limits": {"cpu": "1400m"}}}
            }
        },
        "$.spec.pods.resources.driver: a request is at most its limit: cpu 1.5 > 1400m",
    ),
    (
        {"pods": {"resources": {"build": {"limits": {"memory": "4Gi"}}}}},
        ("$.spec.pods.resources: the memory limit of toolkit and build is build.memoryLimitMib"),
    ),
    (
        {
            "build": {"memoryLimitMib": 1024},
            "pods": {"resources": {"toolkit": {"requests": {"memory": "1025Mi"}}}},
        },
        (
            "$.spec: pods.resources.toolkit and .build request at most the memory of "
            "build.memoryLimitMib: 1025Mi"
        ),
    ),
]
