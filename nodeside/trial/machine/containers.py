"""The containers of a node's pod: what they see and may do. Data for `guest/container.py`.

The driver container has the defaults of a container in an ordinary pod, and the four capabilities
of docs/architecture.md. As in a pod that is not privileged, it cannot open device nodes of the
host. The toolkit container has nothing: an ordinary user, no capability, no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from nodeside.values import frozen

TOOLKIT_UID = 65532

# The default capabilities of a container in containerd (oci/spec_opts.go, defaultUnixCaps). CRI-O
# gives fewer.
_DEFAULT_CAPABILITIES = (
    "chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid", "setuid", "setfcap",
    "setpcap", "net_bind_service", "sys_chroot", "kill", "audit_write",
)  # fmt: skip
_DRIVER_CAPABILITIES = ("sys_module", "syslog", "sys_ptrace", "dac_read_search")

SHARED_ON_NODE = "/var/lib/pod/shared"
IMAGE_ON_NODE = "/payload/driver-image"
EDITED_IMAGE = "/var/lib/pod/driver-image"  # a copy of it that can be edited
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@frozen
class ContainerSpec:
    """One kind of container.

    `layers` are directories of the node, topmost first. `binds` are (path on the node, path in the
    container, options). `capabilities` None keeps all. `limits` are files of the cgroup, such as
    {"cpu.max": "50000 100000"}. `privileged` gives the node's devices and a writable /sys,
    `host_pids` the node's processes.
    """

    layers: tuple[str, ...]
    binds: tuple[tuple[str, str, str], ...] = ()
    capabilities: tuple[str, ...] | None = ()
    uid: int = 0
    network: bool = False
    no_new_privileges: bool = False
    privileged: bool = False
    host_pids: bool = False
    limits: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


_POD_ENV = {"PATH": _PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}

_DRIVER_BINDS = (
    ("/sys", "/host/sys", ""),
    ("/proc", "/host/proc", ""),
    ("/dev", "/host/dev", "nodev"),
    ("/kernel/usr/lib/modules", "/host/lib/modules", "ro"),
    ("/run/nodeside", "/host/run/nodeside", ""),
    ("/run/nodeside-locks", "/host/run/nodeside-locks", ""),
    ("/var/lib/nodeside", "/host/var/lib/nodeside", ""),
    (SHARED_ON_NODE, "/shared", ""),
    (IMAGE_ON_NODE, "/driver-image", "ro"),
    ("/payload/python", "/opt/nodeside", "ro"),
    ("/payload/toolkit", "/usr/lib/nodeside", "ro"),
    ("/payload/bin", "/usr/local/bin", "ro"),
)

DRIVER = ContainerSpec(
    layers=("/driver",),
    binds=_DRIVER_BINDS,
    capabilities=_DEFAULT_CAPABILITIES + _DRIVER_CAPABILITIES,
    network=True,
    env=_POD_ENV
    | {
        "NODESIDE_HOST": "/host",
        "NODESIDE_SHARED": "/shared",
        "NODESIDE_DRIVER": "/driver-image/driver.yaml",
        "NODE_NAME": "trial",
    },
)

PRIVILEGED_DRIVER = ContainerSpec(
    layers=DRIVER.layers,
    binds=tuple((a, b, options.replace("nodev", "")) for a, b, options in DRIVER.binds),
    capabilities=None,
    network=True,
    privileged=True,
    env=DRIVER.env,
)

# A consumer of the driver, with the driver's tools and the node's devices.
CONSUMER = PRIVILEGED_DRIVER


def with_image(spec: ContainerSpec, image: str, *, writable: bool = False) -> ContainerSpec:
    """Return a container that has another directory of the node as its driver image."""
    ours = (image, "/driver-image", "" if writable else "ro")
    return replace(
        spec, binds=tuple(ours if bind[0] == IMAGE_ON_NODE else bind for bind in spec.binds)
    )


# The shell of `--keep`. The process IDs that nodeside names are those of the shell, and the source
# can be edited. What the driver's root file system lacks, such as vi, comes from busybox.
_EDITABLE = with_image(PRIVILEGED_DRIVER, EDITED_IMAGE, writable=True)
SHELL = replace(
    _EDITABLE,
    binds=(*_EDITABLE.binds, ("/bin", "/opt/busybox", "ro")),
    host_pids=True,
    env={**DRIVER.env, "PATH": f"{_PATH}:/opt/busybox"},
)

# The kernel's headers and kbuild tools are the top layer, because they are the last layer of a
# toolkit image.
TOOLKIT = ContainerSpec(
    layers=("/kernel", "/toolkit"),
    binds=((SHARED_ON_NODE, "/shared", ""),),
    uid=TOOLKIT_UID,
    no_new_privileges=True,
    env=_POD_ENV | {"HOME": "/", "NODESIDE_SHARED": "/shared"},
)

KINDS: Mapping[str, ContainerSpec | None] = {
    "driver": DRIVER,
    "privileged-driver": PRIVILEGED_DRIVER,
    "consumer": CONSUMER,
    "toolkit": TOOLKIT,
    "node": None,
}
NODE_ENV: Mapping[str, str] = {"PATH": "/bin:/sbin", "HOME": "/root"}
