"""`nodeside-cluster run`: wires the components together and shuts them down.

Health checks, metrics, the cluster cache and the election run side by side in every replica; the
elected replica also runs the controller. SIGTERM and SIGINT end the work, release the lease and
return. The next replica, whose cache is already warm, leads within a second.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.cache.cache import ClusterCache
from cluster.install import crd_check
from cluster.kube.client import Api
from cluster.kube.election import Election, LeaseTimings
from cluster.kube.wakeup import Wakeup
from cluster.manager.metrics import Metrics
from cluster.manager.metrics_auth import TokenReviewer
from cluster.manager.metrics_server import MetricsServer
from cluster.manager.probes import HealthServer, check_liveness, check_readiness
from cluster.manager.tls import ServingCertificate
from cluster.model.names import LEASE, METRICS
from cluster.model.snapshot import Settings
from cluster.reconcile.executor import PARALLEL, Executor
from cluster.reconcile.loop import Controller, Planner
from cluster.reconcile.timings import Heartbeat, LoopTimings
from nodeside import log

_ENDING = (signal.SIGTERM, signal.SIGINT)

# Net number of allocated objects between two runs of the cyclic garbage collector. Python's default
# of 700 is reached by a single watch event, which contains no cycles.
_GC_THRESHOLD = 20_000


@dataclass(frozen=True)
class Options:
    """The options of `run`. `identity` belongs to one process at a time: see election.py.

    `certificate` is a directory with a certificate for the metrics; the files may appear later.
    """

    settings: Settings
    identity: str
    health_port: int
    metrics_port: int
    certificate: Path | None = None
    lease: str = LEASE
    election: LeaseTimings | None = None
    pace: LoopTimings | None = None
    parallel: int = PARALLEL


def own_identity(environ: Mapping[str, str]) -> str:
    """Return the name of our pod; outside of a pod, a unique name."""
    return environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def run_controller(api: Api, options: Options, planner: Planner, stopping: threading.Event) -> None:
    """Run until `stopping` is set. Nothing is under way when it returns."""
    gc.set_threshold(_GC_THRESHOLD)
    wakes, pulse = Wakeup(), Heartbeat()
    with ExitStack() as stack:
        view = ClusterCache(api, options.settings, wakes.wake)
        checks = {
            "/healthz": lambda: check_liveness(pulse),
            "/readyz": lambda: check_readiness(view.health()),
        }
        server = stack.enter_context(HealthServer(options.health_port, checks))
        election = Election(
            api,
            namespace=options.settings.namespace,
            name=options.lease,
            identity=options.identity,
            stopping=stopping,
            pace=options.election,
            on_end=wakes.wake,
            wall=api.now,
        )
        metrics, port = stack.enter_context(_serve_metrics(api, options, election, view))
        log.fact(
            "started",
            api_server=api.url,
            health_port=server.port,
            metrics_port=port,
            identity=options.identity,
        )
        crd_check.warn_of_missing_fields(api)
        election.look_first()
        stack.enter_context(_wake_on_stop(stopping, wakes.wake))
        stack.enter_context(view)
        executor = stack.enter_context(
            Executor(api, instance=options.identity, parallel=options.parallel, wall=api.now)
        )
        controller = Controller(
            view,
            wakes,
            executor,
            planner,
            stopping=stopping,
            pulse=pulse,
            after=metrics.record_round,
            pace=options.pace,
            wall=api.now,
        )
        election.campaign(controller.work_as_leader)
    calls = " ".join(f"{verb}={count}" for verb, count in sorted(api.tally.counts_by_verb.items()))
    log.fact("stopped", identity=options.identity, api_calls=calls)


@contextmanager
def _serve_metrics(
    api: Api, options: Options, election: Election, view: ClusterCache
) -> Iterator[tuple[Metrics, int]]:
    """Serve the metrics; yields them and their port."""
    answers: Counter[int] = Counter()
    metrics = Metrics(
        tally=api.tally,
        leads=lambda: election.leadership.leads,
        kinds=view.health,
        answers=answers,
    )
    name = f"{METRICS}.{options.settings.namespace}.svc"
    with MetricsServer(
        options.metrics_port,
        serving=ServingCertificate(options.certificate, [name]),
        judge=TokenReviewer(api).judge_request,
        exposition=metrics.encode_samples,
        answers=answers,
    ) as server:
        yield metrics, server.port


@contextmanager
def ending_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM or SIGINT sets. Enter it before any thread is started.

    A signal handler may run at any point, with locks held. So the signals are blocked in all later
    threads, and one thread waits for them.
    """
    stopping = threading.Event()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

    def wait_for_signal() -> None:
        number = signal.sigwait(_ENDING)
        log.fact("ending", signal=signal.Signals(number).name)
        stopping.set()
        signal.sigwait(_ENDING)  # a second signal forces the exit
        os._exit(128 + number)

    threading.Thread(target=wait_for_signal, name="signals", daemon=True).start()
    try:
        yield stopping
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _wake_on_stop(stopping: threading.Event, wake: Callable[[], None]) -> Iterator[None]:
    """Wake the loop when it must stop."""

    def wake_when_stopping() -> None:
        stopping.wait()
        wake()

    threading.Thread(target=wake_when_stopping, name="stop", daemon=True).start()
    yield
