"""The top-level planner: turns everything observed into a list of actions. Pure.

Planning is idempotent: once the actions of a plan are carried out, the next plan at most updates
the status, and the one after it is empty. No decision is remembered here, and an action that is no
longer needed is not planned again. Only draining a node takes several plans, see drain.py.
plan_cache.py knows what a Driver's plan reads of other Drivers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

from cluster.driver.events import set_status
from cluster.model.actions import Action, Plan, SetStatus, merge_plans
from cluster.model.problems import problem_of
from cluster.model.snapshot import EMPTY, DriverObject, Snapshot
from cluster.plan.context.context import Contexts, Memory
from cluster.plan.leftovers import delete_orphans, end_cordons
from cluster.plan.plan_cache import PlanCache
from cluster.plan.plan_driver import plan_driver


class Planner:
    """A repeated planner that reuses earlier results, see plan_cache.py and `NodeCache`."""

    def __init__(self) -> None:
        self._memories: dict[str, Memory] = {}
        self._cache = PlanCache()

    def __call__(self, snapshot: Snapshot, now: float) -> Plan:
        """Return the plan; a bug that one Driver brings out stops no other."""
        earlier, errors = self._memories, dict[str, Exception]()
        self._memories = {key: earlier.get(key) or Memory() for key in snapshot.drivers}
        try:
            self._cache.drop_outdated(snapshot, now)
        except Exception as error:
            self._cache, errors[""] = PlanCache(), error
        return plan(snapshot, now, self._memories, self._cache, errors)


def plan(
    snapshot: Snapshot,
    now: float,
    memories: Mapping[str, Memory] = EMPTY,
    cache: PlanCache | None = None,
    errors: dict[str, Exception] | None = None,
) -> Plan:
    """Return the actions for every Driver, and the cleanup after Drivers that are gone.

    `now` is the wall clock, used for condition times and deadlines. `memories` is keyed by Driver.
    `memories` and `cache` only affect how long this takes, not the result. With `errors`, an
    exception goes there, and the rest is planned: see `Plan.errors`.
    """
    snapshot = replace(snapshot, now=now)
    plans: list[Plan] = []
    contexts = Contexts(snapshot, memories)
    for key in sorted(snapshot.drivers):
        found = snapshot.drivers[key]
        try:
            of_driver = cache.plan_of(key) if cache else None
            if of_driver is None:
                of_driver = plan_driver(snapshot, found, now, contexts)
                of_driver = _with_problems(snapshot, found, of_driver)
                if cache:
                    cache.keep_if_idle(key, of_driver)
        except Exception as error:
            if errors is None:
                raise
            errors[key] = error
            bug = problem_of(error, f"plan driver {key}")
            of_driver = Plan()
            with suppress(Exception):  # the bug may be in what makes a status
                of_driver = Plan(tuple(set_status(snapshot, found, found.status, bug)))
        plans.append(of_driver)
    orphans: tuple[Action, ...] = ()
    with _keep_error_in(errors):
        orphans = tuple(delete_orphans(snapshot))
    merged = merge_plans(plans, *orphans)
    with _keep_error_in(errors):
        cordons = tuple(end_cordons(snapshot, merged.actions))
        merged = replace(merged, actions=(*merged.actions, *cordons))
    return replace(merged, errors=errors or {})


@contextmanager
def _keep_error_in(errors: dict[str, Exception] | None) -> Iterator[None]:
    """Put an exception from a part of the plan that is for no Driver into `errors`."""
    try:
        yield
    except Exception as error:
        if errors is None:
            raise
        errors[""] = error


def report_problems(snapshot: Snapshot, now: float) -> Plan:
    """Return a plan that only reports the problems of Drivers."""
    snapshot = replace(snapshot, now=now)
    drivers = snapshot.drivers.values()
    return merge_plans([_with_problems(snapshot, each, Plan()) for each in drivers])


def _with_problems(snapshot: Snapshot, found: DriverObject, plan: Plan) -> Plan:
    """Return the plan with a status that reports the Driver's problems, also if it sets none."""
    is_set = any(isinstance(action, SetStatus) for action in plan.actions)
    if is_set or not snapshot.problems.get(found.name):
        return plan
    report = set_status(snapshot, found, found.status)
    return replace(plan, actions=(*plan.actions, *report))
