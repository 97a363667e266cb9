"""Install a bundle: check, unload, load, record; on failure, restore the previous state.

The steps are ordered so that a refusal disturbs as little as possible. Checks that do not involve
the kernel come first, together with everything that reads a file of the user's. Then the old
modules are unloaded; if they are in use, nothing has been touched yet. Firmware and conflicting
drivers follow, then the load and its hooks. A failure, or a bug, after the first old module was
unloaded restores them, and the conflicting drivers too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from nodeside import log
from nodeside.driver.bringup.attempt import Attempt
from nodeside.driver.bringup.deaths import marked_load
from nodeside.driver.bringup.hooks import run_hooks
from nodeside.driver.bringup.journal import Journal
from nodeside.driver.bringup.neighbours import require_predecessors
from nodeside.driver.bringup.restore import find_kept_away
from nodeside.driver.bringup.teardown import unload_driver
from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.bundle.manifest import BundleError
from nodeside.driver.bundle.trust import trust_mark
from nodeside.driver.kernel import conflicts, unload
from nodeside.driver.kernel.boot_parameters import boot_notes
from nodeside.driver.kernel.checks import Refusal, check_before_load, check_build_ids
from nodeside.driver.kernel.dependencies import (
    depends_notes,
    doubtful_symbols,
    in_tree_needs,
    soft_needs,
)
from nodeside.driver.kernel.errors import RebootRequired
from nodeside.driver.kernel.firmware import FirmwareDirectory
from nodeside.driver.kernel.in_tree_effects import in_tree_notes, shut_out_notes
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.kernel.sequence import (
    Insertion,
    RollBack,
    SequenceFailed,
    load_sequence,
    roll_back,
)
from nodeside.driver.ladder import plan
from nodeside.driver.ladder.exported_symbols import write_symbols
from nodeside.driver.ladder.task import Task
from nodeside.driver.ladder.usable import verify_signatures
from nodeside.driver.module.load_order import in_load_order
from nodeside.driver.module.modulefile import ModuleFile, read_modules
from nodeside.driver.module.symvers import parse_symvers, read_kernel_symbols
from nodeside.driver.node.devices import device_numbers
from nodeside.driver.node.exports import NO_EXPORTS_READ, read_exports
from nodeside.driver.node.facts import read_facts
from nodeside.driver.node.kernel_log import Mark
from nodeside.driver.node.loaded_record import Cleared, HooksRun, LoadedModule, LoadedRecord
from nodeside.driver.node.run_directory import clear_loaded, read_loaded, write_loaded
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.module_names import kernel_name
from nodeside.protocol.node_status import Rung, State
from nodeside.spec.model import UnloadPolicy, Upgrade
from nodeside.system.pci import pci_devices
from nodeside.values import frozen


class RefusedBeforeLoad(NodesideError):
    """Refusal of a module by a check before the load; the kernel never saw the module."""

    exit_code = ExitCode.REFUSED
    reason = "RefusedBeforeLoad"


@frozen
class CheckedModules:
    """The desired modules of a bundle in load order, and every reason not to load them.

    `needs` are the modules of the kernel's tree that each of them needs, by name. `task` is the
    task without those parameters of the command line that these modules cannot be given. `notes`
    are what a person should know of a load that is not refused.
    """

    task: Task
    files: tuple[ModuleFile, ...]
    refusals: tuple[Refusal, ...]
    needs: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()


def check_bundle(task: Task, bundle: Bundle) -> CheckedModules:
    """Check the desired modules of a bundle against this kernel.

    Raises SigningError: if a key is configured, a module that it did not sign is never loaded.
    """
    given = read_modules([bundle.module_path(name) for name in task.wanted.names])
    files = in_load_order(given)
    task = replace(task, command_line=task.command_line.for_modules(files))
    certificate = None
    if task.signing is not None:
        from nodeside.driver.module.signing import read_certificate

        verify_signatures(task, [file.path for file in files])
        certificate = read_certificate(task.path(task.signing.certificate))
    facts = read_facts(task.host)
    symbols = read_kernel_symbols(task.host, task.kernel.release, task.config.shared)
    exported = parse_symvers(task.symbols.text)
    doubtful = doubtful_symbols(files, facts, symbols, exported)
    running = (
        read_exports(task.host, doubtful, _names_to_unload(task)) if doubtful else NO_EXPORTS_READ
    )
    refusals = check_before_load(
        files,
        task.driver.spec.modules,
        facts,
        symbols,
        exported=exported,
        running=running,
        certificate=certificate,
        boot=task.wanted.boot,
    )
    needs = {file.name: in_tree_needs(file, files, facts, running) for file in files}
    notes = (
        *boot_notes(task.driver.spec.modules, task.command_line, files),
        *depends_notes(files, facts),
        *in_tree_notes(task.host, files, needs),
        *shut_out_notes(task.host, files, facts),
    )
    return CheckedModules(task, files, (*refusals, *check_build_ids(files)), needs, notes)


def _names_to_unload(task: Task) -> frozenset[str]:
    """Return the modules that are unloaded before the load, so that their symbols do not count."""
    record = read_loaded(task.host, task.name, task.boot_id)
    loaded = [module.name for module in record.modules] if record else []
    return frozenset((*task.wanted.names, *loaded, *conflicting_names(task)))


def wanted_modules(task: Task, proof: plan.Proof) -> tuple[LoadedModule, ...]:
    """Return the modules with these build-ids as they must be in the kernel, in load order."""
    build_ids = {module.name: module.build_id for module in proof.modules}
    parameters = task.parameters
    names = dict.fromkeys((*(n for n in build_ids if n in parameters), *parameters))
    return tuple(
        LoadedModule(name, build_ids.get(name, ""), dict(parameters[name])) for name in names
    )


def record_of(
    task: Task, proof: plan.Proof, source: Rung, devices: Sequence[str] = ()
) -> LoadedRecord:
    """Return the loaded.json record of these modules."""
    return LoadedRecord(
        driver=task.name,
        version=task.version,
        key=proof.key,
        boot_id=task.boot_id,
        source=source,
        modules=wanted_modules(task, proof),
        devices=tuple(sorted(devices)),
        trust=trust_mark(task.trust),
        after=task.driver.spec.after,
        stays=stays_until_reboot(task),
        conflicts=conflicting_names(task),
    )


def conflicting_names(task: Task) -> tuple[str, ...]:
    """Return the modules of driver.yaml's `conflicts`, as the kernel names them."""
    return tuple(kernel_name(name) for name in task.driver.spec.conflicts.modules)


def stays_until_reboot(task: Task) -> bool:
    """Return whether only a reboot may remove the loaded modules, even for another driver."""
    spec = task.driver.spec
    return spec.unload.policy is UnloadPolicy.NEVER or spec.upgrade is Upgrade.ON_REBOOT


@frozen
class Installation:
    """The installation of one bundle. `observed` is the observation made before it."""

    attempt: Attempt
    observed: plan.Observed
    bundle: Bundle
    rung: Rung

    @property
    def task(self) -> Task:
        return self.attempt.task

    @property
    def journal(self) -> Journal:
        return self.attempt.journal

    @property
    def loader(self) -> Loader:
        return self.attempt.loader

    def run(self) -> tuple[LoadedRecord, Mark]:
        """Load the modules. Return their record, and the kernel log's mark from before the load.

        Raises RefusedBeforeLoad, RebootRequired, InUse, SequenceFailed, and SystemRefused.
        """
        with self.journal.time_stage("check"):
            checked = check_bundle(self.task, self.bundle)
            if checked.refusals:
                raise _refused_error(checked.refusals)
            for note in checked.notes:
                self.journal.add_note(note)
            insertions = self._make_insertions(checked)
            record = self._make_record(checked.task)
            self._check_firmware()
        decision = _permitted_replacement(self.task, self.observed)
        devices = tuple(item.address for item in pci_devices(self.task.host))
        replacement = (self.bundle.digest, insertions, devices)  # with another card, it may succeed
        if decision is plan.Replacement.REPLACE and not self.attempt.listener.repeat_failed:
            self.attempt.earlier.refuse_repetition(replacement)
        self.journal.announce_state(State.LOADING)
        with self.journal.time_stage("load"):
            mark = self.loader.kernel_log.mark_end()
            before = device_numbers(self.task.host)
            record = replace(record, mark=None if mark.unreadable else mark.lines)
            previous: tuple[Insertion, ...] = ()
            if decision is plan.Replacement.REPLACE:
                previous = self._previous_insertions()
                record = self._unload_previous(previous, record)
            try:
                with marked_load(self.attempt, self.bundle.manifest):
                    record = self._load_modules(insertions, previous, record)
            except SequenceFailed as error:
                raise self.attempt.earlier.remember_failure(replacement, error) from error.cause
            self.attempt.earlier.forget_failure()
            appeared = device_numbers(self.task.host) - before
        has_hooks = bool(self.task.driver.spec.hooks.after_load)
        hooks = HooksRun.AFTER_LOAD if has_hooks else HooksRun.NONE
        record = replace(record, devices=tuple(sorted(appeared)), hooks=hooks)
        write_symbols(self.task.host, self.bundle.manifest)
        write_loaded(self.task.host, record)
        return record, mark

    def _make_record(self, task: Task) -> LoadedRecord:
        """Return the record of the modules about to be loaded, as later processes must judge them.

        The kernel reports some splats only once per boot. So an earlier splat still counts for the
        same builds. It is dropped if any of them differs, since that one may be the fix.
        """
        fresh = record_of(task, self.bundle.manifest, self.rung)
        before = self.observed.record
        splat = before.splat if before is not None and before.has_all_of(fresh.modules) else ""
        return replace(fresh, splat=splat, cleared=self._cleared_before)

    def _check_firmware(self) -> None:
        """Raise FirmwareRefused if the firmware cannot be installed."""
        firmware = self.task.driver.spec.firmware
        if firmware is not None:
            FirmwareDirectory(self.task.host).check_files(
                self.task.path(firmware.path), self.task.name
            )

    def _unload_previous(self, previous: Sequence[Insertion], coming: LoadedRecord) -> LoadedRecord:
        """Unload all loaded modules of this driver, or none of them.

        If one of them turns out to be held after others were unloaded, these are loaded again from
        `previous`. The record is still that of the loaded version. Returns the record `coming`,
        with the modules of the tree that had the names of ours.
        """
        self.journal.announce_state(State.UNLOADING, "replacing the loaded version")
        observed = self.observed
        record = observed.record
        try:
            leaving = self._modules_to_unload()
            order = unload.plan_unload(leaving, self.loader.modules.rows()).order
            of_tree = [
                n for n in order if n in observed.in_kernel and observed.in_kernel[n].in_tree
            ]
            if of_tree:  # before the unload: if this process is killed, the next one needs it
                clearing = conflicts.foresee_removed(of_tree, self.loader)
                coming = replace(coming, cleared=coming.cleared.followed_by(clearing))
                record = replace(record or coming.of_cleared_only, cleared=coming.cleared)
                write_loaded(self.task.host, record)
            unload_driver(self.attempt, leaving, record)
            self.journal.announce_state(State.LOADING)
            return coming
        except Exception as error:
            names = dict.fromkeys((*observed.in_kernel, *getattr(error, "removed", ())))
            gone = [name for name in names if self.loader.modules.state(name) is None]
            if not gone:
                raise
            rolled = self._reload_previous(gone, previous)
            self._start_services_again(rolled)
            if isinstance(error, NodesideError):
                raise SequenceFailed(error, rolled) from error
            raise

    def _modules_to_unload(self) -> unload.ModulesToUnload:
        observed = self.observed
        return unload.modules_to_unload(self.task.wanted.names, observed.record, observed.in_kernel)

    def _reload_previous(self, gone: Sequence[str], previous: Sequence[Insertion]) -> RollBack:
        """Load the modules `gone` again. A module that has no file in `previous` is a problem."""
        rolled = roll_back((), [item for item in previous if item.name in gone], self.loader)
        files = {item.name for item in previous}
        lost = ", ".join(name for name in gone if name not in files)
        if lost:
            problem = f"{lost} stays unloaded: no verified file of the loaded version is there"
            rolled = replace(rolled, problems=(*rolled.problems, problem))
        return rolled

    def _load_modules(
        self, wanted: Sequence[Insertion], previous: Sequence[Insertion], record: LoadedRecord
    ) -> LoadedRecord:
        """Install firmware, clear conflicts and load the modules; on failure, restore the node.

        Returns the record, with what was cleared.
        """
        spec = self.task.driver.spec
        cleared, begun = Cleared(), False

        def note_displaced(names: tuple[str, ...]) -> None:
            nonlocal cleared, record
            clearing = conflicts.foresee_removed(names, self.loader)
            cleared = cleared.followed_by(clearing)
            record = replace(record, cleared=record.cleared.followed_by(clearing))
            write_loaded(self.task.host, record)

        try:
            if spec.firmware is not None:
                source = self.task.path(spec.firmware.path)
                FirmwareDirectory(self.task.host).install_files(source, self.task.name)
            ours = self.task.wanted.names
            clearing = conflicts.foresee_cleared(spec.conflicts, self.loader, ours=ours)
            record = replace(record, cleared=record.cleared.followed_by(clearing))
            # Before the load: if this process is killed during it, the next one needs the
            # parameters, and what was cleared. A record counts only for modules that have its
            # build-ids.
            write_loaded(self.task.host, record)
            cleared = conflicts.clear_conflicts(spec.conflicts, self.loader, ours=ours)
            for words in cleared.done_in_words:
                self.journal.add_note(words)
            require_predecessors(self.task)  # a predecessor may have begun to leave meanwhile
            begun = True
            load_sequence(wanted, self.loader, previous=previous, on_displaced=note_displaced)
            # A record that cannot be written takes no module out again that has been loaded.
            hooks = spec.hooks.after_load
            run_hooks(self.task.host, record, "afterLoad", hooks, only_recorded=False)
            return record
        except SequenceFailed as error:
            self._put_back(error.rolled_back, cleared)
            raise
        except Exception as error:  # not even a bug may leave the node without a driver
            # Before the load, a module of that name is not ours: it appeared during a build.
            inserted = [item.name for item in wanted] if begun else []
            rolled = roll_back(inserted, previous, self.loader)
            self._put_back(rolled, cleared)
            if previous and isinstance(error, NodesideError):
                raise SequenceFailed(error, rolled) from error
            raise

    @property
    def _cleared_before(self) -> Cleared:
        """What earlier loads of this boot have cleared, and no unload has brought back."""
        return self.observed.record.cleared if self.observed.record is not None else Cleared()

    def _start_services_again(self, rolled: RollBack) -> None:
        """Start the services that the unload stopped, if the modules are those of before."""
        if self.attempt.services is not None and rolled.restored and not rolled.problems:
            self.attempt.services.start_again()

    def _put_back(self, rolled: RollBack, cleared: Cleared) -> None:
        """After a roll-back, restore the conflicting drivers and correct the record."""
        missing = self._restore_conflicts(rolled, cleared)
        self._start_services_again(rolled)
        host, record = self.task.host, self.observed.record
        try:
            if rolled.restored and record is not None:
                # No hook has run since the roll-back loaded them.
                known = record.cleared.followed_by(missing)
                write_loaded(host, replace(record, hooks=HooksRun.NONE, hook="", cleared=known))
            elif rolled.problems:
                pass  # the record is that of the modules that cannot go
            elif not missing.is_empty:
                left = record_of(self.task, self.bundle.manifest, self.rung)
                write_loaded(host, replace(left, cleared=missing).of_cleared_only)
            else:
                clear_loaded(host, self.task.name)
        except NodesideError as problem:  # a full disk, perhaps; what failed first is raised
            self.journal.add_note(
                f"the record of the loaded modules could not be corrected: {problem}"
            )

    def _restore_conflicts(self, rolled: RollBack, cleared: Cleared) -> Cleared:
        """Bring back what was cleared. Returns that if a part of it is still missing."""
        if not rolled.restored:  # also what an earlier load, of a killed process, has cleared
            cleared = self._cleared_before.followed_by(cleared)
        # Another driver may have been loaded since this load cleared the way for both.
        away = find_kept_away(self.task, cleared, self.loader)
        named = conflicts.named_in(cleared, self.task.driver.spec).without(away)
        if rolled.problems or named.is_empty:
            return cleared
        problems = conflicts.restore_cleared(named, self.loader)
        names = ", ".join((*named.removed, *(device.address for device in named.unbound)))
        for problem in problems:
            self.journal.add_note(f"could not be put back: {problem}")
        if not problems:
            self.journal.add_note(f"put back after the failed load: {names}")
        return cleared if problems or named != cleared else Cleared()

    def _previous_insertions(self) -> tuple[Insertion, ...]:
        """Return the loaded modules that are loaded again if the new ones fail, in load order.

        These are ours, and those of the kernel's own tree: a network may depend on them.
        """
        again = {item.name: item for item in self._own_insertions()}
        if plan.find_occupant(self.observed) is not plan.Occupant.FOREIGN:
            return tuple(again.values())
        for state in self.observed.in_kernel.values():
            if state.in_tree:
                again.setdefault(state.name, Insertion(None, state.name))
        leaf_first = unload.plan_unload(self._modules_to_unload(), self.loader.modules.rows()).order
        return tuple(again[name] for name in reversed(leaf_first) if name in again)

    def _own_insertions(self) -> Sequence[Insertion]:
        """Return our loaded modules as verified files.

        The current trust is not applied: these modules ran until now, and a trust that pins only
        the digests of the new version would leave the node without any driver.
        """
        record, loaded = self.observed.record, self.observed.in_kernel
        modules = [
            module
            for module in (record.modules if record else ())
            if module.name in loaded and loaded[module.name].build_id == module.build_id
        ]
        if record is None or not modules:
            return ()
        for bundle in self._cached_bundles(record.key):
            try:
                return [
                    Insertion(bundle.module_path(module.name), module.name, module.parameters)
                    for module in modules
                ]
            except BundleError as problem:
                log.warning("a bundle cannot serve for a roll-back", why=problem)
        log.warning("no bundle of the loaded version in the cache: no roll-back", key=record.key)
        return ()

    def _cached_bundles(self, key: str) -> Iterator[Bundle]:
        """Yield the intact bundles with this key in the cache."""
        cache, driver = self.task.cache, self.task.name
        for tag in [
            cached.tag for cached in cache.list_manifests(driver) if cached.manifest.key == key
        ]:
            try:
                bundle = cache.peek_bundle(tag, key, driver)
            except BundleError as problem:
                log.warning("a bundle cannot serve for a roll-back", why=problem)
            else:
                if bundle is not None:
                    yield bundle

    def _make_insertions(self, checked: CheckedModules) -> tuple[Insertion, ...]:
        parameters = checked.task.parameters
        wanted, names = self.task.wanted, [file.name for file in checked.files]
        decision, _ = plan.decide_replacement(
            plan.Occupant.FOREIGN, wanted.upgrade, wanted.unload, wanted.foreign
        )
        conflicting = conflicting_names(self.task)
        may_displace = decision is plan.Replacement.REPLACE
        return tuple(
            Insertion(
                file.path,
                file.name,
                parameters.get(file.name, {}),
                needs=checked.needs[file.name],
                soft=soft_needs(file, checked.files),
                displaces=(*names[number:], *conflicting) if may_displace else (),
            )
            for number, file in enumerate(checked.files)
        )


def _permitted_replacement(task: Task, observed: plan.Observed) -> plan.Replacement:
    """Decide whether the loaded modules may be replaced.

    Raises RebootRequired, RefusedBeforeLoad.
    """
    wanted = task.wanted
    who = plan.find_occupant(observed)
    decision, why = plan.decide_replacement(who, wanted.upgrade, wanted.unload, wanted.foreign)
    match decision:
        case plan.Replacement.LOAD | plan.Replacement.REPLACE:
            return decision
        case plan.Replacement.AFTER_REBOOT:
            raise RebootRequired(
                f"another {', '.join(observed.in_kernel)} is loaded, and {why}",
                hint="reboot the node: the next boot loads the wanted modules",
            )
        case plan.Replacement.REFUSE:
            raise RefusedBeforeLoad(
                f"{', '.join(observed.in_kernel)}: {why}",
                hint=f"unload it yourself (rmmod {' '.join(observed.in_kernel)}), or allow it with "
                "unload.foreign: replace",
            )
    assert_never(decision)


def _refused_error(refusals: Sequence[Refusal]) -> RefusedBeforeLoad:
    text = "\n".join(f"{refusal.module}: {refusal.message}" for refusal in refusals)
    return RefusedBeforeLoad(text, hint=next((r.hint for r in refusals if r.hint), ""))
