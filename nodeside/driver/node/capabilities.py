"""The capabilities of this process, so that an error can name the missing one."""

from __future__ import annotations

from enum import Enum

from nodeside.host import Host


class Capability(Enum):
    """Bit numbers in the effective set, include/uapi/linux/capability.h."""

    DAC_READ_SEARCH = 2
    SYS_MODULE = 16
    SYS_PTRACE = 19
    SYSLOG = 34


def effective(host: Host) -> frozenset[Capability]:
    """Return the effective capabilities of this process; all of them if unreadable."""
    try:
        status = (host.proc / "self" / "status").read_text()
    except OSError:
        return frozenset(Capability)
    return parse_status(status)


def parse_status(text: str) -> frozenset[Capability]:
    """Parse the CapEff line of /proc/PID/status; return all capabilities if there is none."""
    for line in text.splitlines():
        if line.startswith("CapEff:"):
            bits = int(line.split()[1], 16)
            return frozenset(item for item in Capability if bits >> item.value & 1)
    return frozenset(Capability)
