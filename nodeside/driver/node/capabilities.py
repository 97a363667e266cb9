"""The capabilities of this process, so that an error can name the missing one."""

from __future__ import annotations

from enum import Enum

from nodeside.system import sysfs
from nodeside.system.host import Host


class Capability(Enum):
    """Bit numbers in the effective set, include/uapi/linux/capability.h."""

    DAC_READ_SEARCH = 2
    SYS_MODULE = 16
    SYS_PTRACE = 19
    SYSLOG = 34


def effective_capabilities(host: Host) -> frozenset[Capability]:
    """Return the effective capabilities of this process; all of them if unreadable."""
    for line in (sysfs.read(host.proc / "self" / "status") or "").splitlines():
        if line.startswith("CapEff:"):
            bits = int(line.split()[1], 16)
            return frozenset(item for item in Capability if bits >> item.value & 1)
    return frozenset(Capability)
