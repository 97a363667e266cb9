"""What this process may do, so that a refusal can say which capability is missing."""

from __future__ import annotations

from enum import Enum

from nodeside.host import Host


class Capability(Enum):
    """Bits of the effective set, include/uapi/linux/capability.h."""

    DAC_READ_SEARCH = 2
    SYS_MODULE = 16
    SYS_PTRACE = 19
    SYSLOG = 34


def effective(host: Host) -> frozenset[Capability]:
    """The effective capabilities of this process; all of them if that cannot be read."""
    try:
        status = (host.proc / "self" / "status").read_text()
    except OSError:
        return frozenset(Capability)
    return parse_status(status)


def parse_status(text: str) -> frozenset[Capability]:
    """The capabilities in the CapEff line of /proc/PID/status."""
    for line in text.splitlines():
        if line.startswith("CapEff:"):
            bits = int(line.split()[1], 16)
            return frozenset(item for item in Capability if bits >> item.value & 1)
    return frozenset(Capability)
