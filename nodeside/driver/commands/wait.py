"""`nodeside driver wait`: wait until a driver is ready on this node.

Runs in the init container of a workload that needs the driver. It does not read driver.yaml and
needs no privilege: it reads only the host's /run/nodeside, mounted read-only. A node label may be
from an earlier boot; the ready file cannot be. In a stage that follows another one, it also waits
for the controller's word that the other one is ready in this boot.
"""

from __future__ import annotations

from pathlib import Path

from nodeside import log
from nodeside.errors import DeadlinePassed, UsageError
from nodeside.protocol.ready_file import ReadyRecord, read_ready, ready_path
from nodeside.spec.patterns import DRIVER_NAME
from nodeside.system.clock import Clock
from nodeside.system.host import Host

_POLL_INTERVAL = 0.25  # seconds between two polls: one open(2) each
_ADMISSION_TIMEOUT = 120.0  # seconds; if the controller is down, the ready driver is enough
_READ_LIMIT = 64  # bytes; a boot id has 36 characters


def await_ready(
    host: Host, driver: str, boot_id: str, *, timeout: float, clock: Clock | None = None
) -> ReadyRecord:
    """Return the ready file of this boot as soon as it exists.

    Raises DeadlinePassed after `timeout` seconds; 0 looks once. Raises UsageError for a bad name.
    """
    if not DRIVER_NAME.fits(driver):
        raise UsageError(f"{driver!r} is not a driver name: expected {DRIVER_NAME.words}")
    clock = clock or Clock()
    ends, waited = clock.now() + timeout, False
    while (record := read_ready(host, driver, boot_id)) is None:
        if not waited:
            log.fact("waiting for the driver", driver=driver, file=ready_path(host, driver))
        waited = True
        if clock.now() >= ends:
            raise _deadline_error(host, driver, timeout)
        clock.sleep(_POLL_INTERVAL)
    log.fact("the driver is ready", driver=driver, version=record.version, kernel=record.kernel)
    return record


def await_admission(
    file: Path, boot_id: str, *, timeout: float = _ADMISSION_TIMEOUT, clock: Clock | None = None
) -> bool:
    """Wait until a file holds the id of this boot; return whether it did before the `timeout`.

    The file is an annotation of this pod: the kubelet writes it anew when the annotation changes.
    """
    clock = clock or Clock()
    ends, waited = clock.now() + timeout, False
    while _read_text(file) != boot_id:
        if not waited:
            log.fact("waiting for the stage before to be ready in this boot")
        waited = True
        if clock.now() >= ends:
            log.warning(
                f"the controller did not say in {timeout:g} s that the stage before is ready in "
                "this boot; going on without it",
                hint="see whether it runs: nodeside-cluster status",
            )
            return False
        clock.sleep(_POLL_INTERVAL)
    log.fact("the stage before is ready")
    return True


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(_READ_LIMIT).decode(errors="replace").strip()
    except OSError:
        return ""


def _deadline_error(host: Host, driver: str, timeout: float) -> DeadlinePassed:
    path = ready_path(host, driver)
    state = "is from another boot" if path.exists() else "does not exist"
    return DeadlinePassed(
        f"driver {driver} is not ready on this node: {path} {state}"
        + (f"; waited {timeout:g} s" if timeout else ""),
        hint="see why: kubectl get nodedrivers, or the log of the driver container",
    )
