"""The driver container's main process: connects a run to the log, the node and the cluster.

In a pod, the status is sent to the API server. Elsewhere nothing is sent, and `announced` in the
JSON output shows what would have been.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from nodeside.driver.agent.run import DriverLoop, PodLock, stop_services_at_exit
from nodeside.driver.agent.watch import Wakeups, Why
from nodeside.driver.announce.announcer import make_announcer
from nodeside.driver.commands.outcome import CommandOutput
from nodeside.driver.commands.report import announcement_document, as_outcome
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.ladder.task import Config
from nodeside.driver.services.services import ServiceFailed, Services


def run_once(config: Config, expected_kernel: str, listener: Listener) -> CommandOutput:
    """Bring the driver up, announce the result, and return it."""
    with make_announcer(config.host) as announcer:
        run = DriverLoop(config, listener, announcer.report_state, expected_kernel)
        journal, report = run.run_once()
        run.clear_load_mark()
    return as_outcome(report, announcement_document(journal))


def run_once_with_services(
    config: Config, expected_kernel: str, listener: Listener, show: Callable[[CommandOutput], None]
) -> None:
    """Bring the driver up and start its services; keep them running until a stop signal.

    A lock keeps other pods and processes of the driver off the node, as in a pod. `show` gets the
    result; if it raises SystemExit because the driver is not ready, the services are stopped at
    once. Raises ServiceFailed if a service ends.
    """
    services = Services()
    with (
        ExitStack() as stack,
        Wakeups((), uevents=lambda: None, ended=services.find_ends) as watch,
        make_announcer(config.host) as announcer,
        stop_services_at_exit(services, config.host),
    ):
        listener = replace(listener, stopping=lambda: watch.stopping is not None)
        run = DriverLoop(
            config, listener, announcer.report_state, expected_kernel,
            pod_lock=PodLock(stack), services=services,
        )  # fmt: skip
        journal, report = run.run_once()
        run.clear_load_mark()
        show(as_outcome(report, announcement_document(journal)))
        while (reason := watch.wait_for_reason().why) is not Why.STOP:
            if reason is Why.SERVICE:
                raise ServiceFailed(
                    "; ".join(
                        f"service {s.name} {s.message}" for s in services.status if not s.ready
                    )
                )


def run_for_ever(config: Config, expected_kernel: str, listener: Listener) -> None:
    """Keep the driver up until SIGTERM or SIGINT."""
    with make_announcer(config.host) as announcer:
        DriverLoop(config, listener, announcer.report_state, expected_kernel).run_for_ever()
