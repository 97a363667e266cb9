"""A matrix of kernels: what goes wrong for one of them is its result, and no other's."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from nodeside.errors import DeadlinePassed, ExitCode, NodesideError, SpecError
from nodeside.trial import session
from nodeside.trial.architecture import ARM64
from nodeside.trial.errors import ArchiveError, MachineLost, TargetError
from nodeside.trial.pod import TrialRun
from nodeside.trial.progress import Progress
from nodeside.trial.session import TryOptions
from tests.trial.runs import run


@dataclass(frozen=True)
class FakeKernel:
    release: str


class FakeWorkshop:
    """Kernels by name, and nothing else."""

    archive = None

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def resolve(self, word: str) -> Any:
        return FakeKernel(word)


Outcomes = dict[str, TrialRun | BaseException | None]


class Trials:
    """What comes of the trial of each kernel: a good run, another, or an exception."""

    def __init__(self, outcomes: Outcomes) -> None:
        self.outcomes = outcomes

    def __call__(self, trial: Any, chosen: Sequence[Any]) -> tuple[TrialRun, ...]:
        release = chosen[0].release
        outcome = self.outcomes[release]
        if isinstance(outcome, BaseException):
            raise outcome
        trial.progress.print_step(f"this is {release}")
        return (outcome or run(kernel=release),)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(session, "Workshop", FakeWorkshop)
    monkeypatch.setattr("nodeside.trial.machine.qemu.require_qemu", lambda _: None)

    def tried(outcomes: Outcomes, runs: list[TrialRun] | None = None) -> tuple[TrialRun, ...]:
        trials = Trials(outcomes)
        monkeypatch.setattr(session._Session, "run", lambda *words: trials(*words))  # noqa: PLW0108  # bound
        options = TryOptions("edu", tuple(outcomes))
        return session.run_session(options, Progress(io.StringIO()), runs=runs)

    return tried


def test_each_kernel_has_its_own_log(tried: Any) -> None:
    one, two = tried({"6.1": None, "6.12": None})

    assert "this is 6.1" in one.log[-1]
    assert [line for line in two.log if "this is 6.1" in line and "6.12" not in line] == []


@pytest.mark.parametrize(
    "error",
    [
        MachineLost("it is gone"),
        DeadlinePassed("too slow"),
        NodesideError("the disk is full"),
        TargetError("dkms.conf ended the shell"),
    ],
)
def test_what_goes_wrong_for_one_kernel_is_its_result(tried: Any, error: NodesideError) -> None:
    good, bad, other = tried({"6.1": None, "6.6": error, "6.12": None})

    assert (good.exit_code, other.exit_code) == (0, 0)
    assert (bad.kernel, bad.exit_code) == ("6.6", error.exit_code)
    assert bad.report["message"] == str(error)


def test_a_kernel_that_the_driver_crashes_keeps_no_other_from_being_tried(tried: Any) -> None:
    crash = run(kernel="6.1", exit_code=int(ExitCode.LOAD_FAILED), crashed=True)

    crashed, good = tried({"6.1": crash, "6.12": None})

    assert (crashed.crashed, crashed.exit_code) == (True, ExitCode.LOAD_FAILED)
    assert (good.kernel, good.exit_code) == ("6.12", 0)


def test_a_mistake_that_all_kernels_would_meet_is_said_once(tried: Any) -> None:
    with pytest.raises(SpecError):
        tried({"6.1": SpecError("no"), "6.12": None})


def test_an_error_of_the_only_kernel_is_that_of_the_command(tried: Any) -> None:
    with pytest.raises(MachineLost):
        tried({"6.1": MachineLost("it is gone")})


def test_what_was_known_before_an_interruption_is_not_lost(tried: Any) -> None:
    runs: list[TrialRun] = []

    with pytest.raises(KeyboardInterrupt):
        tried({"6.1": None, "6.12": KeyboardInterrupt()}, runs)

    assert [each.kernel for each in runs] == ["6.1"]
    assert runs[0].exit_code == ExitCode.OK


def test_a_watch_of_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NodesideError, match="--watch watches a directory"):
        session.watch_session(TryOptions(str(tmp_path / "none"), ("6.1",)))


# --- what a Debian package depends on ---------------------------------------------------------


@dataclass
class Attempts:
    """A session whose builds fail until the toolkit has a package."""

    needs: str = "libxtables-dev"
    adding: BaseException | None = None
    toolkit_packages: tuple[str, ...] = ()
    count: int = 0

    def toolkit(self, _compiler: str) -> Path:
        return Path()

    def attempt(self, *_: object) -> tuple[TrialRun, ...]:
        self.count += 1
        if self.toolkit_packages and self.adding is not None:
            raise self.adding
        return (run(exit_code=0 if self.needs in self.toolkit_packages else 10),)


def again(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch, target: str = "ipt-netflow-dkms"
) -> tuple[TrialRun, ...]:
    """Try again what failed for want of a package."""
    monkeypatch.setattr(
        session._Session, "_try_kernels", lambda _, *words: attempts.attempt(*words)
    )
    monkeypatch.setattr(session._Session, "_build_on_host", lambda *_: ())
    monkeypatch.setattr(
        "nodeside.trial.target.dependencies.missing_dependencies", lambda *_: (attempts.needs,)
    )
    workshop: Any = SimpleNamespace(roots=attempts, archive=None)
    progress = Progress(io.StringIO())
    made = session._Session(TryOptions(target, ("6.1",)), workshop, Path(), progress)
    kernels: Any = (SimpleNamespace(compiler="gcc-12"),)
    target_: Any = None
    return made._try_with_dependencies(target_, kernels, (run(exit_code=10),))


def test_what_a_package_depends_on_is_added_to_the_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts()

    assert again(attempts, monkeypatch)[0].exit_code == 0
    assert attempts.toolkit_packages == ("libxtables-dev",)


def test_what_cannot_be_added_does_not_take_the_place_of_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = Attempts(adding=ArchiveError("it conflicts"))

    assert again(attempts, monkeypatch)[0].exit_code == 10
    assert attempts.toolkit_packages == (), "the next kernel has the toolkit of before"


def test_a_directory_that_is_called_like_a_package_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ipt-netflow-dkms").mkdir()
    attempts = Attempts()

    assert again(attempts, monkeypatch)[0].exit_code == 10
    assert not attempts.count


def test_the_shell_that_is_proposed_is_in_the_machine_that_failed() -> None:
    options = TryOptions(
        "a dir", ("6.1", "6.12"), devices=("edu",), append=("x=1",), toolkit_packages=("g++",)
    )
    stream = io.StringIO()
    made = session._Session(options, FakeWorkshop(), Path(), Progress(stream=stream))  # type: ignore[arg-type]

    made._print_advice(run(kernel="6.12.1", exit_code=int(ExitCode.VALIDATION_FAILED)))

    assert (
        "nodeside try 'a dir' --kernel 6.12.1 --device edu --append x=1 "
        "--toolkit-package g++ --keep" in stream.getvalue()
    )


def test_the_ordinary_kernel_that_is_proposed_is_of_the_same_architecture() -> None:
    options = TryOptions("warm", ("cloud-arm64",), architecture=ARM64, toolkit_packages=("g++",))
    stream = io.StringIO()
    made = session._Session(options, FakeWorkshop(), Path(), Progress(stream=stream))  # type: ignore[arg-type]

    made._print_advice(run(kernel="6.1.0-56-cloud-arm64", exit_code=int(ExitCode.EXCLUDED)))

    assert (
        "try the ordinary kernel: nodeside try warm --kernel arm64 --arch arm64 "
        "--toolkit-package g++" in " ".join(stream.getvalue().split())
    )


def test_the_package_that_is_proposed_is_for_the_same_kernel_and_beside_the_others() -> None:
    options = TryOptions("a dir", ("6.1", "6.12"), toolkit_packages=("g++",))
    stream = io.StringIO()
    made = session._Session(options, FakeWorkshop(), Path(), Progress(stream=stream))  # type: ignore[arg-type]
    report = {"hint": "install flex in the toolkit image"}

    made._print_advice(run(kernel="6.12.1", exit_code=int(ExitCode.BUILD_FAILED), report=report))

    assert (
        "in a trial: nodeside try 'a dir' --kernel 6.12.1 --toolkit-package g++ "
        "--toolkit-package PACKAGE; in an image" in " ".join(stream.getvalue().split())
    )
