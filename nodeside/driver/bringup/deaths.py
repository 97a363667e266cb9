"""A load in which the kernel died is not repeated automatically: the node would die each time.

A person repeats it on the node, or orders that in the cluster by the policy file, see
`nodeside/spec/policy.py`. An order counts once: only one that is newer than the newest that was
known at the load. Both are times of the API server, since the clock of a node may be wrong.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nodeside import log
from nodeside.driver.bringup.attempt import Attempt
from nodeside.driver.bundle.manifest import BundleManifest
from nodeside.driver.ladder.task import Task
from nodeside.driver.node.last_words import read_last_words
from nodeside.driver.node.load_mark import LoadMark, clear_mark, read_mark, write_mark
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.timestamps import rfc3339
from nodeside.spec.policy import retry_time


class KernelDied(NodesideError):
    """Refusal of a bundle in whose load the kernel of an earlier boot ended."""

    exit_code = ExitCode.REFUSED
    reason = "KernelDied"


def find_death(task: Task, manifest: BundleManifest) -> KernelDied | None:
    """Return the error if the kernel of an earlier boot ended in the load of the same bundle."""
    mark = read_mark(task.host, task.name)
    if (
        mark is None
        or mark.boot_id == task.boot_id
        or not mark.is_same_load(_make_mark(task, manifest))
    ):
        return None
    if (ordered := _retry_time(task)) > mark.ordered:
        log.fact(
            "the kernel died in this load; it is repeated by order",
            driver=task.name,
            ordered=rfc3339(ordered),
        )
        return None
    words = read_last_words(task.host, mark.began)
    said = f"; the kernel's last words: {words}" if words else ""
    look = "" if words else "what that kernel said last: journalctl -k -b -1, on the node; "
    return KernelDied(
        f"an earlier boot of this node ended after the load of {', '.join(task.wanted.names)} had "
        f"begun ({rfc3339(mark.began)}), before the validation had passed: a crash of the kernel, "
        f"a reset or a power cut; so the same bundle is not loaded again automatically{said}",
        hint=f"{look}to try it again on this node: nodeside driver load -f "
        f"{shlex.quote(str(task.config.driver_file))}{_cluster_retry_clause(task)}; a changed "
        "driver is tried automatically",
    )


def _cluster_retry_clause(task: Task) -> str:
    """Return the end of a hint: how to order the load in the cluster; "" without a controller."""
    if task.config.policy_file is None or not task.config.node:
        return ""
    return f", or: nodeside-cluster retry {task.name} {task.config.node}"


def _retry_time(task: Task) -> float:
    policy = task.config.policy_file
    return retry_time(policy, task.config.node) if policy else 0.0


@contextmanager
def marked_load(attempt: Attempt, manifest: BundleManifest) -> Iterator[None]:
    """Mark the load on the node's disk while the block runs, and until the validation passes.

    If the block raises an exception, the kernel has survived the load, and the mark is removed.
    """
    task = attempt.task
    try:
        write_mark(task.host, _make_mark(task, manifest))
    except NodesideError as error:  # a full disk must not keep a driver from being loaded
        attempt.journal.add_note(
            f"if the kernel dies in this load, that will not be known: {error}"
        )
    try:
        yield
    except Exception:
        clear_mark(task.host, task.name)
        raise


def _make_mark(task: Task, manifest: BundleManifest) -> LoadMark:
    return LoadMark(
        driver=task.name,
        version=task.version,
        key=manifest.key,
        revision=task.config.revision,
        boot_id=task.boot_id,
        kernel=task.kernel.release,
        began=time.time(),
        parameters=task.parameters,
        ordered=_retry_time(task),
    )
