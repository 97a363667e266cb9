"""The section of driver.yaml about the pods that the controller makes; a node ignores it.

See model.py. It is in no revision: a change replaces pods, and touches no module.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from fractions import Fraction
from typing import Any, Final

from nodeside.spec import patterns
from nodeside.spec.schema import item, section

DEFAULT_PRIORITY: Final = "system-node-critical"

_UNITS: Final = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000) ** (n + 1) for n, unit in enumerate("kMGT")},
    **{unit: Fraction(1024) ** (n + 1) for n, unit in enumerate(("Ki", "Mi", "Gi", "Ti"))},
}


def amount_of(quantity: str) -> Fraction:
    """Return the number that a quantity of this section stands for."""
    number = quantity.rstrip("".join(_UNITS))
    return Fraction(number) * _UNITS[quantity.removeprefix(number)]


class PullPolicy(Enum):
    """When the kubelet pulls an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class TolerationOperator(Enum):
    """How a toleration compares the value of a taint."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(Enum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@section
class Toleration:
    """Taints that are tolerated, as in a pod."""

    key: str = item(
        "Key of the taint.", default="", default_words="every key", pattern=patterns.LABEL_KEY
    )
    operator: TolerationOperator = item(
        "`Equal`: the taint has this `value`; `Exists`: it has any.",
        default=TolerationOperator.EQUAL,
    )
    value: str = item("Value of the taint.", default="", pattern=patterns.LABEL_VALUE)
    effect: TaintEffect | None = item(
        "Effect of the taint.", default=None, default_words="every effect"
    )


def _quantities(description: str) -> Any:
    return item(
        description,
        default_factory=dict,
        key_pattern=patterns.POD_RESOURCE,
        pattern=patterns.QUANTITY,
        max_length=20,
        max_items=3,
    )


@section
class Resources:
    """What a container requests, and its limits: cpu, memory and ephemeral-storage. Those that are
    not named keep the values that nodeside sets."""

    requests: Mapping[str, str] = _quantities("What the scheduler reserves: `cpu: 100m`.")
    limits: Mapping[str, str] = _quantities("What the container may use at most.")


@section
class PodResources:
    """Resources of each container. Memory that a compiler may use is `build.memoryLimitMib`."""

    driver: Resources = item(
        "Of each container of the driver image, in driver pods, build Jobs and pods of stages.",
        default_factory=Resources,
    )
    toolkit: Resources = item(
        "Of the toolkit container of a driver pod.", default_factory=Resources
    )
    build: Resources = item(
        "Of the toolkit containers of a build Job, which run one after another. A build gets at "
        "most one job per CPU of its limit.",
        default_factory=Resources,
    )
    device_agent: Resources = item("Of the device agent.", default_factory=Resources)


@section
class BuildJobs:
    """Where build Jobs run, those of `preflight` included."""

    tolerations: tuple[Toleration, ...] | None = item(
        "Taints that they tolerate; none: `[]`.",
        default=None,
        default_words="the taints of the nodes that the driver selects",
        max_items=32,
    )
    node_selector: Mapping[str, str] = item(
        "Labels that their nodes have, besides the architecture of the kernel.",
        default_factory=dict,
        key_pattern=patterns.LABEL_KEY,
        pattern=patterns.LABEL_VALUE,
    )
    priority_class_name: str = item(
        "Their PriorityClass.",
        default="",
        default_words="the cluster's default",
        pattern=patterns.OBJECT_NAME,
        max_length=253,
    )


@section
class Pods:
    """What an administrator's policy asks of the pods that the controller makes. A change replaces
    them, a tenth of the nodes at a time, and touches no module."""

    labels: Mapping[str, str] = item(
        "Labels of the pods, and of the DaemonSets and Jobs that make them.",
        default_factory=dict,
        key_pattern=patterns.FREE_LABEL,
        pattern=patterns.LABEL_VALUE,
    )
    annotations: Mapping[str, str] = item(
        "Annotations of the pods.",
        default_factory=dict,
        key_pattern=patterns.FREE_ANNOTATION,
        max_length=4096,
    )
    priority_class_name: str = item(
        "PriorityClass of the pods on nodes: of the driver, the device agent, and those that "
        "unload.",
        default=DEFAULT_PRIORITY,
        pattern=patterns.OBJECT_NAME,
        max_length=253,
    )
    image_pull_policy: PullPolicy | None = item(
        "When images are pulled.",
        default=None,
        default_words="`Always` for the tag `latest` or none, else `IfNotPresent`",
    )
    resources: PodResources = item("Resources of the containers.", default_factory=PodResources)
    build_jobs: BuildJobs = item("Where build Jobs run.", default_factory=BuildJobs)
