"""The section of driver.yaml about files of the driver image for the host and for pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodeside.spec import patterns
from nodeside.spec.devices import Device, Mount
from nodeside.spec.schema import item, section

DIRECTORY = "/var/lib/nodeside/userspace"  # of the host: <driver>/<digest> and <driver>/current


@section
class Userspace:
    """Libraries and tools of the driver image that belong to the version of the modules. Each
    version is a directory of the host, below /var/lib/nodeside/userspace/<driver>; `current` there
    points to that of the version that works."""

    paths: tuple[str, ...] = item(
        "Files and directories of the driver image.",
        min_items=1,
        max_items=32,
        pattern=patterns.ABSOLUTE_PATH,
    )
    environment: Mapping[str, str] = item(
        "Environment variables of containers that get it, such as LD_LIBRARY_PATH.",
        default_factory=dict,
        key_pattern=patterns.VARIABLE_NAME,
        pattern=patterns.PLAIN_TEXT,
    )
    privileged_files: bool = item(
        "Whether a file may be setuid or setgid, or have capabilities. Else it is refused.",
        default=False,
    )


def devices_with_userspace(
    driver: str, devices: tuple[Device, ...], userspace: Userspace | None
) -> tuple[Device, ...]:
    """Return devices that give their containers the files too, where `give.userspace` says so.

    The paths go through `current`, which the container runtime resolves when it starts a container.
    """
    if userspace is None:
        return devices
    mounts = tuple(
        Mount(host_path=f"{DIRECTORY}/{driver}/current{path}", container_path=path)
        for path in userspace.paths
    )
    return tuple(
        replace(
            device,
            give=replace(
                device.give,
                mounts=(*mounts, *device.give.mounts),
                environment={**userspace.environment, **device.give.environment},
            ),
        )
        if device.give.userspace
        else device
        for device in devices
    )
