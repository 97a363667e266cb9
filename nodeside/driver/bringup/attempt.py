"""One attempt to bring a driver up or to unload it: the task, and what it is done with."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from nodeside.driver.bringup.earlier_attempts import EarlierAttempts
from nodeside.driver.bringup.journal import Journal
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.ladder.task import Task
from nodeside.values import frozen

if TYPE_CHECKING:
    from nodeside.driver.services.services import Services


@frozen
class Attempt:
    """The parts of an attempt. Whoever runs one holds the lock of this driver on this node.

    `loader` makes the module system calls. `earlier` is what earlier attempts of this process
    found; it is kept up to date. Without `services`, none is started. `by_person` loads even a
    bundle in whose load the kernel of an earlier boot ended.
    """

    task: Task
    journal: Journal
    loader: Loader
    listener: Listener = field(default_factory=Listener)
    services: Services | None = None
    earlier: EarlierAttempts = field(default_factory=EarlierAttempts)
    by_person: bool = False
