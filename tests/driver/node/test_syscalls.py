"""The system calls themselves are proven on real kernels (tier vm); here: what surrounds them."""

from __future__ import annotations

import ast
import os
import signal
from pathlib import Path

import pytest

from nodeside.driver.node import syscalls
from nodeside.driver.node.syscalls import DiedInKernel, KernelSyscalls, call_kernel_in_child
from nodeside.errors import DeadlinePassed, SystemRefused
from nodeside.system.child import ChildRaised

_PACKAGE = Path(syscalls.__file__).parent


def test_a_call_runs_in_another_process(tmp_path: Path) -> None:
    call_kernel_in_child(lambda: (tmp_path / "pid").write_text(str(os.getpid())), 10)

    assert (tmp_path / "pid").read_text() != str(os.getpid())


def test_an_errno_comes_back() -> None:
    def call() -> None:
        raise OSError(16, "busy")

    with pytest.raises(OSError, match=r"\[Errno 16\] Device or resource busy"):
        call_kernel_in_child(call, 10)


def test_a_call_that_hangs_in_the_kernel_is_left_behind() -> None:
    reader, writer = os.pipe()

    with pytest.raises(DeadlinePassed, match=r"the kernel has not returned after 0\.01 s"):
        call_kernel_in_child(lambda: os.read(reader, 1), 0.01, keep=(reader,))
    os.close(writer)  # and the child's read ends
    os.close(reader)


def test_a_process_that_the_kernel_kills_is_noticed_at_once() -> None:
    with pytest.raises(DiedInKernel, match="killed inside the kernel"):
        call_kernel_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL), 10)


def test_a_call_is_not_interrupted_by_ctrl_c(tmp_path: Path) -> None:
    def call() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        (tmp_path / "end").touch()

    call_kernel_in_child(call, 10)

    assert (tmp_path / "end").exists()


def test_an_exception_that_is_no_errno_is_no_success() -> None:
    def call() -> None:
        raise OSError("without a number")

    with pytest.raises(ChildRaised, match="without a number"):
        call_kernel_in_child(call, 10)


def test_what_is_left_behind_holds_none_of_our_files(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        with pytest.raises(OSError, match="Bad file descriptor"):
            call_kernel_in_child(lambda: os.fstat(lock.fileno()), 10)
        call_kernel_in_child(lambda: os.fstat(lock.fileno()), 10, keep=(lock.fileno(),))


def test_signal_mask_and_open_files_are_as_before() -> None:
    before = state_of_this_process()

    call_kernel_in_child(lambda: None, 10)

    assert state_of_this_process() == before


def state_of_this_process() -> tuple[set[int], list[str]]:
    files = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, [])), files


def test_nothing_else_of_the_driver_uses_ctypes() -> None:
    users = {
        path.name
        for path in _PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(name.name == "ctypes" for name in node.names)
    }

    assert users == {"syscalls.py"}


def test_an_architecture_whose_numbers_are_unknown_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "n", "6", "v", "sparc64")))

    with pytest.raises(SystemRefused, match="modules cannot be loaded on sparc64: expected one of"):
        KernelSyscalls()


def test_the_errno_of_a_real_system_call_comes_out() -> None:
    """A closed file descriptor is refused by any kernel before anything else is looked at."""
    with pytest.raises(OSError, match=r"\[Errno \d+\]") as caught:
        KernelSyscalls().finit_module(-1, "", 10)

    assert caught.value.errno
