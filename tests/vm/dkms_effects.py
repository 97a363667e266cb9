"""What some of Debian's dkms packages do on a machine that has none of their hardware.

Only what is known of a package stands here; the packages themselves are found in the archive, and
one that is not named here must still end in one of the honest ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeside.errors import ExitCode


@dataclass(frozen=True)
class Effect:
    """`command` is a line of shell, run beside the loaded driver; `shows` must match its output.

    With another `code` than 0, `shows` must match the message of the failure. `parameters` are per
    module. `left_out` are modules that a vendor would not list, and a driver that `stays` is not
    unloaded again; `why` says what mistake of the driver is the reason.
    """

    shows: str
    command: str = ""
    code: ExitCode = ExitCode.OK
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    stays: bool = False
    why: str = ""


EFFECTS: Mapping[str, Effect] = {
    "acpi-call-dkms": Effect("not called", "cat /proc/acpi/call"),
    "adv-17v35x-dkms": Effect("ADVserial", "ls /sys/bus/pci/drivers"),
    "apfs-dkms": Effect("apfs", "cat /proc/filesystems"),
    "bbswitch-dkms": Effect("ENODEV.*(?s:.*)No discrete VGA", code=ExitCode.LOAD_FAILED),
    "ddcci-dkms": Effect("ddcci-backlight", "ls /sys/bus/ddcci/drivers"),
    "digimend-dkms": Effect("uclogic", "ls /sys/bus/hid/drivers"),
    "dm-writeboost-dkms": Effect("dm_writeboost", "ls /sys/module/dm_mod/holders"),
    "dpdk-kmods-dkms": Effect("igb_uio", "ls /sys/bus/pci/drivers"),
    "evdi-dkms": Effect(
        "^1$",
        "test -c /dev/dri/card0; cat /sys/devices/evdi/count",
        parameters={"evdi": {"initial_device_count": "1"}},
        stays=True,
        why="with a card of its own, evdi crashes the kernel when it is unloaded",
    ),
    "falcosecurity-scap-dkms": Effect("/dev/scap0", "ls /dev/scap0"),
    "gost-crypto-dkms": Effect("streebog256", "cat /proc/crypto"),
    "iptables-netflow-dkms": Effect("Can not find iptables version", code=ExitCode.BUILD_FAILED),
    "jool-dkms": Effect("(?s)jool.*jool_siit", "ls /sys/module/jool_common/holders"),
    "langford-dkms": Effect("langford", "ls /sys/bus/pci/drivers"),
    "librem-ec-acpi-dkms": Effect(r"first error: \S*librem_ec_acpi\.c", code=ExitCode.BUILD_FAILED),
    "lime-forensics-dkms": Effect("EINVAL.*a parameter it needs", code=ExitCode.LOAD_FAILED),
    "nat-rtsp-dkms": Effect("nf_nat_rtsp", "ls /sys/module/nf_conntrack_rtsp/holders"),
    "openvpn-dco-dkms": Effect(
        "tunnel0", "ip link add tunnel0 type ovpn-dco; ip link show; ip link delete tunnel0"
    ),
    "rapiddisk-dkms": Effect(
        "^[1-9]",
        "test -b /dev/rd0; cat /sys/block/rd0/size",
        parameters={"rapiddisk": {"rd_nr": "1", "rd_size": "16"}},
    ),
    "rtpengine-kernel-dkms": Effect("control", "ls /proc/rtpengine"),
    "tp-smapi-dkms": Effect("ENODEV(?s:.*)no ThinkPad", code=ExitCode.LOAD_FAILED),
    "v4l2loopback-dkms": Effect(
        "Dummy video device", "test -c /dev/video0; cat /sys/class/video4linux/video0/name"
    ),
    "vpoll-dkms": Effect("/dev/vpoll", "ls /dev/vpoll"),
    "xtables-addons-dkms": Effect(
        "compat_xtables",
        "ls /sys/module",
        left_out=("xt_DNETMAP", "xt_CHAOS"),
        why="xt_DNETMAP refuses a kernel whose NAT is a module, and xt_CHAOS crashes the kernel "
        "when it is unloaded before xt_TARPIT and xt_DELUDE were there",
    ),
    "xtrx-dkms": Effect(
        "xtrx",
        "ls /sys/bus/pci/drivers",
        stays=True,
        why="xtrx puts down a reference twice when it is unloaded, and the kernel warns",
    ),
}

# What must be refused on a kernel without video, I2C and USB, and the rule that says so.
EXCLUDED: Mapping[str, str] = {
    "v4l2loopback-dkms": "CONFIG_VIDEO_DEV",
    "evdi-dkms": "CONFIG_I2C",
    "digimend-dkms": "CONFIG_USB_HID",
    "ddcci-dkms": "BUILD_EXCLUSIVE_ARCH",
}
