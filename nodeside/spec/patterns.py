"""The regular expressions of the model, each with a description for people.

Python, Go and editors must read them alike. So they have plain classes and repeats, no look-around,
and no `\\s`, which matches any Unicode space in Python but only ASCII spaces in Go.
"""

from __future__ import annotations

from nodeside.spec.image_names import PLAIN, Grammar
from nodeside.spec.image_names import REMEDIES as IMAGE_REMEDIES
from nodeside.spec.schema import Pattern

# A path segment that is not `..`; `.` alone is allowed.
_SEGMENT = r"([^/.\x00-\x1f][^/\x00-\x1f]*|\.([^/.\x00-\x1f][^/\x00-\x1f]*)?|\.\.[^/\x00-\x1f]+)"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"

DRIVER_NAME = Pattern(
    r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$",
    "a DNS label: lower-case letters, digits and - inside, at most 40 characters",
)
VERSION = Pattern(
    r"^[A-Za-z0-9][A-Za-z0-9_.+~-]{0,39}$",
    "a version: letters, digits and _.+~- after the first, at most 40 characters",
)
HEX4 = Pattern(r"^[0-9a-f]{4}$", "four lower-case hex digits")
MODULE_NAME_LIMIT = 55  # characters; the kernel's MODULE_NAME_LEN, without the final NUL
MODULE_NAME = Pattern(
    r"^[A-Za-z0-9_-]{1,55}$",
    "a module name: letters, digits, _ and -, without .ko, at most 55 characters",
)
PARAMETER_NAME = Pattern(
    r"^[A-Za-z0-9_-]{1,64}$", "a parameter name: letters, digits, _ and -, at most 64 characters"
)
PARAMETER_VALUE = Pattern(r'^[^"\x00]*$', "a value without double quotes and NUL")
VARIABLE_NAME = Pattern(
    r"^[A-Za-z_][A-Za-z0-9_]{0,127}$", "a variable name: letters, digits and _, no digit first"
)
RELATIVE_PATH = Pattern(rf"^{_SEGMENT}(/+{_SEGMENT})*/?$", "a relative path without ..")
ABSOLUTE_PATH = Pattern(rf"^(/{_SEGMENT})+$", "an absolute path without ..")
DEVICE_NODE = Pattern(rf"^/dev(/{_SEGMENT})+$", "a path below /dev, such as /dev/edu0, without ..")
SYSFS_PATH = Pattern(
    rf"^{_SEGMENT}(/{_SEGMENT})*$",
    "a path relative to /sys, such as bus/pci/drivers/edu/*/factorial, without a leading / and ..",
)
FILE_IN_SYSFS = Pattern(
    SYSFS_PATH.regex, "a path such as hwmon/hwmon*/temp1_input, without a leading / and .."
)
SYSFS_NAME = Pattern(r"^[^/.\x00-\x1f][^/\x00-\x1f]{0,254}$", "the name of a directory in sysfs")
ATTRIBUTE_LIMIT = 63  # characters
ATTRIBUTE_NAME = Pattern(
    r"^[a-z]([a-z0-9_]{0,61}[a-z0-9])?$",
    "a name: lower-case letters, digits and _ inside, at most 63 characters",
)
METRIC_NAME = Pattern(
    r"^[a-z][a-z0-9]*(_[a-z0-9]+)+$",
    "the name of a metric: words of lower-case letters and digits, joined by _",
)
DRIVER_IN_SYSFS = Pattern(r"^[^/ \x00-\x1f]+$", "the name of a driver in /sys/bus/pci/drivers")
REPOSITORY = Pattern(
    rf"^{PLAIN.host}/{PLAIN.path}$",
    "an OCI repository without scheme, tag and digest: registry.example.com/team/edu",
    IMAGE_REMEDIES,
)
HTTP_URL = Pattern(
    r"^https?://[^ \x00-\x1f?#/@\\]+(/[^ \x00-\x1f?#\\]*)?$",
    "a URL that begins with http:// or https://, without ?, #, backslashes and a user or password",
)
PLAIN_TEXT = Pattern(r"^[^{}\x00-\x1f\x7f]*$", "a text without braces and control characters")
DEVICE_VARIABLE = Pattern(
    r"^([^{}\x00-\x1f\x7f]|\{(ids|bdf|nodes)\})*$",
    "a value in which {ids}, {bdf} and {nodes} are the only braces",
)
KERNEL_VERSION = Pattern(
    r"^[0-9]{1,5}(\.[0-9]{1,5}){1,3}$", "the version of a kernel, such as 6.8 or 5.14.0"
)
SHA256 = Pattern(r"^sha256:[0-9a-f]{64}$", "sha256: and 64 lower-case hex digits")
PULL_SPEC = Pattern(
    PLAIN.pull_spec, "a pull spec such as registry.example.com/team/image:tag", IMAGE_REMEDIES
)
PLACEHOLDERS = ("{kernel}", "{osVersion}", "{arch}")  # that differ from kernel to kernel
TOOLKIT_TEMPLATE = Pattern(
    Grammar(PLACEHOLDERS).pull_spec,
    "a pull spec such as registry.example.com/toolkit:{kernel}, where {kernel}, {osVersion} and "
    "{arch} are the only braces",
    IMAGE_REMEDIES,
)
PREBUILT_TEMPLATE = Pattern(
    Grammar((*PLACEHOLDERS, "{version}")).pull_spec,
    "a pull spec such as registry.example.com/team/image:{version}-{kernel}, where {kernel}, "
    "{version}, {osVersion} and {arch} are the only braces",
    IMAGE_REMEDIES,
)
IMAGE_STREAM = Pattern(
    r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?$",
    "namespace/name of an image stream",
)
LABEL_KEY = Pattern(
    rf"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?{_LABEL}$", "a label key, such as example.com/zone"
)
LABEL_VALUE = Pattern(
    rf"^({_LABEL})?$",
    "a label value: at most 63 letters, digits and _.-, a letter or digit at both ends",
)
RESOURCE_NAME = Pattern(
    rf"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/{_LABEL}$",
    "the name of an extended resource, such as example.com/device",
)
NAMESPACE = Pattern(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "the name of a namespace")
KERNEL_RELEASE = Pattern(r"^[^/ \x00-\x1f]+$", "a kernel release as uname -r prints it")
OS_VERSION = Pattern(
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
    "an OS version such as 418.94.202501221327-0, as a tag is named",
)
AMOUNT = Pattern(
    r"^([0-9]{1,6}|(100|[1-9]?[0-9])%)$", "a number such as 3, or a percentage up to 100%"
)
STAGE_NAME = Pattern(
    r"^[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?$",
    "a DNS label: lower-case letters, digits and - inside, at most 22 characters",
)
SERVICE_NAME = Pattern(
    r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$",
    "a DNS label: lower-case letters, digits and - inside, at most 32 characters",
)
OBJECT_NAME = Pattern(
    r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$",
    "the name of a Kubernetes object: lower-case letters, digits, - and . inside",
)
CONTAINER_NAME = Pattern(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "the name of a container")
POD_RESOURCE = Pattern(r"^(cpu|memory|ephemeral-storage)$", "cpu, memory or ephemeral-storage")
QUANTITY = Pattern(
    r"^([0-9]{1,6}(\.[0-9]{1,3})?|[0-9]{1,6}(m|k|M|G|T|Ki|Mi|Gi|Ti)|[0-9]{7,15})$",
    "a quantity such as 100m, 0.5 or 512Mi",
)
# Labels and annotations that nodeside or Kubernetes sets itself.
_OWN_LABELS = (
    r"^(([a-z0-9.-]+\.)?nodeside\.io/.*|app\.kubernetes\.io/managed-by|batch\.kubernetes\.io/.*"
    r"|controller-uid|job-name|controller-revision-hash|pod-template-generation"
    r"|pod-template-hash|statefulset\.kubernetes\.io/.*|apps\.kubernetes\.io/.*"
    r"|app\.kubernetes\.io/name)$"
)
_OWN_ANNOTATIONS = (
    r"^(([a-z0-9.-]+\.)?nodeside\.io/.*|kubernetes\.io/config\..*|openshift\.io/required-scc"
    r"|kubectl\.kubernetes\.io/default-container"
    r"|container\.apparmor\.security\.beta\.kubernetes\.io/.*)$"
)
FREE_LABEL = Pattern(
    LABEL_KEY.regex,
    LABEL_KEY.words,
    ((_OWN_LABELS, "nodeside or Kubernetes sets this label itself"),),
)
FREE_ANNOTATION = Pattern(
    LABEL_KEY.regex,
    LABEL_KEY.words,
    ((_OWN_ANNOTATIONS, "nodeside or Kubernetes sets this annotation itself"),),
)
