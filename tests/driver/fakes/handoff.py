"""The sidecar's half of the hand-off, played by hand: requests, answers, and a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nodeside.driver.handoff.listener import Listener, Patience
from nodeside.driver.handoff.result import await_result
from nodeside.protocol.build_records import BuildRequest, BuildResult, BuiltModule, FailureKind
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.protocol.shared_directory import SharedDir, request_id
from nodeside.system.host import Kernel

BOOT = "boot-now"
KEY = "ab" * 32
KERNEL = Kernel("6.1.0-test", "#1 SMP", "x86_64")


def wish(key: str = KEY, boot_id: str = BOOT, timeout: float = 10.0) -> BuildRequest:
    settings = BuildSettings(BuildKind.KBUILD, ("straw",))
    return BuildRequest(
        request_id(key, 1), "straw", "1.0", KERNEL, boot_id, "s" * 64, settings, timeout
    )


def succeeded(request: BuildRequest, *modules: BuiltModule) -> BuildResult:
    return BuildResult(request.id, request.boot_id, True, modules=modules)


def failed(
    request: BuildRequest, kind: FailureKind = FailureKind.COMPILE, **more: object
) -> BuildResult:
    return replace(
        BuildResult(request.id, request.boot_id, False, failure=kind, message="it failed"),
        **more,  # type: ignore[arg-type]
    )


class Clock:
    """Every look takes `step` seconds; `then` is called at each of them."""

    def __init__(self, step: float = 1.0, then: Callable[[int], None] = lambda _: None) -> None:
        self.now, self.step, self.looks, self.then = 0.0, step, 0, then

    def __call__(self) -> float:
        self.looks += 1
        self.then(self.looks)
        self.now += self.step
        return self.now


def wait(
    shared: SharedDir,
    request: BuildRequest,
    *,
    clock: Callable[[], float] | None = None,
    patience: Patience | None = None,
    listener: Listener | None = None,
) -> BuildResult:
    listener = replace(
        listener or Listener(), patience=patience or Patience(appear=100, come_back=30)
    )
    return await_result(shared, request, listener, clock=clock or Clock())
