from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nodeside.driver.kernel.errors import InUse, LoadFailed, RebootRequired, UnloadFailed
from nodeside.driver.kernel.loader import parameter_line
from nodeside.driver.node.syscalls import DiedInKernel
from nodeside.errors import DeadlinePassed, ExitCode, SystemRefused
from nodeside.system.child import NoProcess
from tests.driver.fakes.kernel import FakeKernel, FakeModule, Refusal, write


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def refused(kernel: FakeKernel, error: int, *lines: str) -> LoadFailed:
    """The exception for a load of edu that the kernel refuses like this."""
    kernel.refuse_load["edu"] = [Refusal(error, lines)] * 3
    with pytest.raises(LoadFailed) as caught:
        kernel.loader.insert_module(kernel.module_file("edu"))
    assert caught.value.exit_code is ExitCode.LOAD_FAILED
    return caught.value


def test_a_module_is_loaded_with_its_parameters(kernel: FakeKernel) -> None:
    kernel.loader.insert_module(kernel.module_file("edu"), {"debug": "1", "label": "a b"})

    assert kernel.modules["edu"].parameters == 'debug=1 label="a b"'


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("1", "p=1"),
        ("", "p="),
        ("a=b,c", "p=a=b,c"),
        (" x", 'p=" x"'),
        ("tab\there", 'p="tab\there"'),
        ("à", 'p="à"'),  # its second byte is white space to the kernel
        ('say"a b"', 'p=say"a b"'),
        ('"x"', 'p=""x""'),
        ('a "b" c', 'p="a "b" c"'),
    ],
)
def test_values_are_quoted_as_the_kernel_reads_them(value: str, line: str) -> None:
    assert parameter_line("edu", {"p": value}) == line


@pytest.mark.parametrize(
    ("name", "value"), [("p", 'a"b'), ("p", 'say "a b"'), ("p", "a\0b"), ("p q", "1"), ("", "1")]
)
def test_a_parameter_that_cannot_be_quoted_is_refused(name: str, value: str) -> None:
    with pytest.raises(LoadFailed, match="cannot be passed to the kernel") as caught:
        parameter_line("edu", {name: value})

    assert caught.value.reason == "InvalidParameter"


def test_a_link_is_not_followed(kernel: FakeKernel, tmp_path: Path) -> None:
    path = tmp_path / "edu.ko"
    path.symlink_to(kernel.module_file("edu"))

    with pytest.raises(SystemRefused, match=r"cannot open the module .*/edu\.ko: a symbolic link"):
        kernel.loader.insert_module(path)
    assert kernel.calls == []


def test_a_directory_is_no_module(kernel: FakeKernel, tmp_path: Path) -> None:
    with pytest.raises(SystemRefused, match="expected a regular file"):
        kernel.loader.insert_module(tmp_path)


def test_a_file_whose_label_selinux_denies_is_loaded_from_memory(kernel: FakeKernel) -> None:
    kernel.init_denied = errno.EACCES

    kernel.loader.insert_module(kernel.module_file("edu"))

    assert kernel.calls == ["finit_module", "init_module"]
    assert "edu" in kernel.modules


def test_the_version_magic_is_explained_with_the_kernels_own_line(kernel: FakeKernel) -> None:
    kernel.say("an earlier line")
    error = refused(
        kernel,
        errno.ENOEXEC,
        "edu: version magic '6.1.0-1 SMP mod_unload ' should be '6.1.0-2 SMP mod_unload '",
    )

    assert error.reason == "VersionMagic"
    assert str(error) == (
        "cannot load edu: ENOEXEC (Exec format error): it was built for another kernel: its "
        "version magic is '6.1.0-1 SMP mod_unload ', this kernel's is '6.1.0-2 SMP mod_unload '\n"
        "  kernel: [    1.000000] edu: version magic '6.1.0-1 SMP mod_unload ' should be "
        "'6.1.0-2 SMP mod_unload '"
    )
    assert "nodeside driver build" in error.hint


@pytest.mark.parametrize(
    ("error", "line", "reason", "words"),
    [
        (
            errno.ENOEXEC,
            "edu: disagrees about version of symbol module_layout",
            "SymbolVersion",
            "the CRC of module_layout differs",
        ),
        (
            errno.EINVAL,
            "edu: Unknown symbol video_call (err -22)",
            "SymbolVersion",
            "video_call, exported by a module it depends on, has another CRC",
        ),
        (
            errno.ENOENT,
            "edu: Unknown symbol video_call (err -2)",
            "UnknownSymbol",
            "nothing in the kernel exports video_call",
        ),
        (errno.ENOENT, "", "InitRefused", "its init function did not find something"),
        (
            errno.ENOENT,
            "edu 0000:00:04.0: Direct firmware load for edu/fw.bin failed with error -2",
            "FirmwareMissing",
            "did not find its firmware edu/fw.bin",
        ),
        (
            errno.EINVAL,
            "edu: `abc' invalid for parameter `debug'",
            "InvalidParameter",
            "the value abc is not valid for the parameter debug",
        ),
        (
            errno.ENOSPC,
            "edu: `aaaa' too large for parameter `label'",
            "InvalidParameter",
            "the value aaaa is not valid for the parameter label",
        ),
        (
            errno.EINVAL,
            "module edu uses symbol dma_buf_get from namespace DMA_BUF, but does not import it.",
            "MissingNamespace",
            "dma_buf_get of the symbol namespace DMA_BUF",
        ),
        (errno.EINVAL, "", "InitRefused", "a parameter it needs is missing or wrong"),
        (
            errno.ENOEXEC,
            "edu: exports duplicate symbol edu_call (owned by edu_old)",
            "DuplicateSymbol",
            "it exports edu_call, which edu_old exports already",
        ),
        (errno.ENOEXEC, "", "BadFormat", "truncated, compressed, or of another architecture"),
        (errno.EEXIST, "", "Exists", "tried to register a name that is already taken"),
        (errno.ENODEV, "", "DeviceRefused", "the module itself is sound"),
        (errno.EIO, "", "DeviceRefused", "the module itself is sound"),
        (errno.EBUSY, "", "DeviceRefused", "something that another driver holds"),
        (errno.EKEYREJECTED, "", "KeyRejected", "not signed by a key it trusts"),
        (errno.ENOKEY, "", "KeyRejected", "not signed by a key it trusts"),
        (errno.EBADMSG, "", "KeyRejected", "the signature at the end of the module cannot be read"),
        (
            errno.EPERM,
            "Lockdown: python3: unsigned module loading is restricted; see man kernel_lockdown.7",
            "Lockdown",
            "the kernel is locked down",
        ),
        (errno.EPERM, "", "NoPermission", "a security module, or the module's own init function"),
        (errno.EACCES, "", "NoPermission", "most likely SELinux"),
        (errno.ENOMEM, "", "OutOfMemory", "could not allocate memory"),
        (errno.ERANGE, "", "InitRefused", "its init function refused: Numerical result"),
    ],
)
def test_each_answer_of_the_kernel_is_put_into_words(
    kernel: FakeKernel, error: int, line: str, reason: str, words: str
) -> None:
    failure = refused(kernel, error, *([line] if line else []))

    assert failure.reason == reason
    assert words in str(failure)
    assert errno.errorcode[error] in str(failure)
    assert not line or line in str(failure)


AVC = (
    "audit: type=1400 audit(1764312312.512:404): avc:  denied  { integrity } for  pid=4107 "
    'comm="python3" lockdown_reason="unsigned module loading" '
    "scontext=system_u:system_r:spc_t:s0 tcontext=system_u:system_r:spc_t:s0 "
    "tclass=lockdown permissive=0"
)


@pytest.mark.parametrize(
    ("error", "line", "reason", "said"),
    [
        (
            errno.EINVAL,
            "failed to validate module [edu] BTF: -22",
            "TypeInformation",
            (
                "its type information (BTF) does not fit that of this kernel",
                "objcopy --remove-section .BTF edu.ko",
            ),
        ),
        (
            errno.ENOEXEC,
            "edu: no symbol version for module_layout",
            "SymbolVersion",
            (
                "built with headers that lack a Module.symvers",
                "build it with headers that have one",
            ),
        ),
        (
            errno.ENOEXEC,
            "x86/modules: Skipping invalid relocation target, existing value is nonzero for type 1",
            "Relocation",
            ("its relocations were applied already", "build.environment: {STRIP: no}"),
        ),
        (
            errno.ENOEXEC,
            "x86/modules: Invalid relocation target, existing value is nonzero for sec 7, idx 8",
            "Relocation",
            ("its relocations were applied already", "without strip"),
        ),
        (
            errno.ENOEXEC,
            "module edu: .gnu.linkonce.this_module section size must match the kernel's built one",
            "KernelLayout",
            (
                "another configuration of the kernel, under the same release",
                "build it against the headers of exactly this kernel",
            ),
        ),
        (
            errno.ENOEXEC,
            "`edu' likely not compiled with -mcmodel=kernel",
            "Relocation",
            ("not compiled with the kernel's own flags", "build it with kbuild"),
        ),
        (
            errno.ENOEXEC,
            "edu: module PLT section(s) missing",
            "Relocation",
            ("not linked with the linker script of this kernel", "nodeside driver build"),
        ),
        (
            errno.ENOEXEC,
            "edu: No module found in object",
            "BadFormat",
            ("an object file, not a module", "name the .ko"),
        ),
        (
            errno.EACCES,
            AVC,
            "Lockdown",
            ("SELinux forbids it by its class lockdown (integrity)", "audit2allow"),
        ),
    ],
)
def test_words_that_only_the_kernels_log_has_are_the_cause(
    kernel: FakeKernel, error: int, line: str, reason: str, said: tuple[str, str]
) -> None:
    failure = refused(kernel, error, "edu: loading out-of-tree module taints kernel.", line)

    assert failure.reason == reason
    assert said[0] in str(failure)
    assert said[1] in failure.hint
    assert "spc_t" not in failure.hint


@pytest.mark.parametrize(
    "line",
    [
        "failed to validate module [radio] BTF: -22",
        "radio: no symbol version for module_layout",
        "radio: module PLT section(s) missing",
    ],
)
def test_words_about_a_module_that_is_loaded_at_the_same_time_are_no_cause(
    kernel: FakeKernel, line: str
) -> None:
    assert refused(kernel, errno.EINVAL, line).reason == "InitRefused"
    assert refused(kernel, errno.ENOEXEC, line).reason == "BadFormat"


def test_an_unreadable_log_leaves_open_what_was_not_found(kernel: FakeKernel) -> None:
    kernel.log_error = errno.EPERM

    failure = refused(kernel, errno.ENOENT)

    assert failure.reason == "UnknownSymbol"
    assert "either no loaded module exports a symbol it needs, or" in str(failure)


def test_all_unknown_symbols_are_named(kernel: FakeKernel) -> None:
    lines = [f"edu: Unknown symbol call_{n} (err -2)" for n in range(8)]

    message = str(refused(kernel, errno.ENOENT, *lines))

    assert "exports call_0, call_1, call_2, call_3, call_4, call_5 and 2 more:" in message


def test_a_name_that_is_taken_is_told_from_an_init_that_says_so(kernel: FakeKernel) -> None:
    kernel.add("edu")

    assert "a module named edu is loaded already" in str(refused(kernel, errno.EEXIST))


def test_disabled_modules_are_the_reason_of_eperm(kernel: FakeKernel) -> None:
    write(kernel.host.proc / "sys/kernel/modules_disabled", "1\n")

    assert refused(kernel, errno.EPERM).reason == "ModulesDisabled"


def test_a_module_that_the_command_line_forbids_is_the_reason_of_eperm(kernel: FakeKernel) -> None:
    """Also where the kernel's own line, `Module edu is blacklisted`, cannot be read."""
    kernel.log_error = errno.EPERM
    write(kernel.host.proc / "cmdline", "ro quiet module_blacklist=pcspkr,edu\n")

    failure = refused(kernel, errno.EPERM)

    assert failure.reason == "Blacklisted"
    assert "module_blacklist= on the kernel's command line forbids it" in str(failure)
    assert failure.hint.startswith("remove it from module_blacklist= on the kernel's command line")


def test_a_missing_capability_is_the_reason_of_eperm(kernel: FakeKernel) -> None:
    write(kernel.host.proc / "self/status", "Name:\tpython3\nCapEff:\t0000000000000000\n")

    failure = refused(kernel, errno.EPERM)

    assert "this process lacks the capability SYS_MODULE" in str(failure)
    assert failure.hint == "run as root, or give the container CAP_SYS_MODULE"


def test_lockdown_is_the_reason_of_eperm_even_if_the_log_cannot_be_read(kernel: FakeKernel) -> None:
    kernel.log_error = errno.EPERM
    write(kernel.host.sys / "kernel/security/lockdown", "none [integrity] confidentiality\n")

    failure = refused(kernel, errno.EPERM)

    assert "the kernel is locked down (integrity)" in str(failure)
    assert "(kernel log not readable: " in str(failure)


def test_a_load_waits_for_an_older_one_of_the_name_to_go(kernel: FakeKernel) -> None:
    kernel.add("edu", FakeModule(state="Unloading"))

    def leave(seconds: float) -> None:
        kernel.seconds += seconds
        if kernel.seconds > 1:
            kernel.modules.pop("edu", None)
            kernel.show()

    kernel.sleep = leave  # type: ignore[method-assign]
    kernel.loader.insert_module(kernel.module_file("edu"))

    assert kernel.modules["edu"].state == "Live"


def test_one_of_the_name_that_never_goes_ends_the_wait(kernel: FakeKernel) -> None:
    kernel.add("edu", FakeModule(state="Loading"))

    with pytest.raises(LoadFailed, match="name has been coming for 10 s") as caught:
        kernel.loader.insert_module(kernel.module_file("edu"))

    assert caught.value.reason == "Busy"
    assert caught.value.retryable
    assert sum(kernel.sleeps) == pytest.approx(10, abs=0.1)
    assert kernel.calls == []


def test_a_busy_answer_in_between_is_tried_again(kernel: FakeKernel) -> None:
    kernel.refuse_load["edu"] = [Refusal(errno.EBUSY)]

    kernel.loader.insert_module(kernel.module_file("edu"))

    assert kernel.calls == ["finit_module", "finit_module"]


def test_an_init_that_hangs_is_reported(kernel: FakeKernel) -> None:
    kernel.never_returns = DeadlinePassed("the kernel has not returned after 300 s")

    with pytest.raises(LoadFailed, match="init function does not return: the kernel has") as caught:
        kernel.loader.insert_module(kernel.module_file("edu"))

    assert caught.value.reason == "InitHangs"


def test_an_init_that_crashes_is_reported_with_the_oops(kernel: FakeKernel) -> None:
    def crash(fd: int, parameters: str, timeout: float) -> None:
        kernel.say("edu: hello")
        kernel.say("BUG: kernel NULL pointer dereference, address: 0000000000000008")
        for number in range(30):
            kernel.say(f"R{number}: 0")
        raise DiedInKernel("the process was killed inside the kernel")

    kernel.finit_module = crash  # type: ignore[method-assign]

    with pytest.raises(LoadFailed, match="its init function crashed") as caught:
        kernel.loader.insert_module(kernel.module_file("edu"))

    assert caught.value.reason == "InitCrashed"
    assert (
        str(caught.value)
        .splitlines()[1]
        .endswith("] BUG: kernel NULL pointer dereference, address: 0000000000000008")
    )


# --- unload ---


def test_a_module_is_removed_and_seen_to_be_gone(kernel: FakeKernel) -> None:
    kernel.add("nat_rtsp")

    assert kernel.loader.remove_module("nat-rtsp")
    assert kernel.modules == {}
    assert kernel.calls == ["delete_module nat_rtsp"]


def test_a_module_that_is_not_there_need_not_be_removed(kernel: FakeKernel) -> None:
    assert not kernel.loader.remove_module("edu")
    assert kernel.calls == []


def test_a_module_that_another_uses_is_kept_and_the_user_named(kernel: FakeKernel) -> None:
    kernel.add("videodev")
    kernel.add("uvcvideo", uses=("videodev",))

    with pytest.raises(InUse, match="videodev is held by the module uvcvideo") as caught:
        kernel.loader.remove_module("videodev")

    assert caught.value.exit_code is ExitCode.IN_USE


def test_a_reference_held_for_a_moment_is_waited_for(kernel: FakeKernel) -> None:
    kernel.add("edu")
    kernel.refuse_unload["edu"] = [errno.EAGAIN, errno.EAGAIN]

    assert kernel.loader.remove_module("edu")


def test_a_node_without_a_free_process_is_no_holder_of_a_module(kernel: FakeKernel) -> None:
    kernel.add("edu")
    kernel.never_returns = NoProcess("no process is left", hint="see pids.max")

    with pytest.raises(UnloadFailed, match="cannot unload edu: no process is left") as caught:
        kernel.loader.remove_module("edu")

    assert (caught.value.exit_code, caught.value.hint) == (ExitCode.SYSTEM, "see pids.max")
    assert caught.value.retryable


def test_a_permanent_module_takes_a_reboot(kernel: FakeKernel) -> None:
    kernel.add("edu", FakeModule(permanent=True))

    with pytest.raises(RebootRequired, match="it is permanent, that is, it has no exit function"):
        kernel.loader.remove_module("edu")


def test_a_module_stuck_while_unloading_takes_a_reboot(kernel: FakeKernel) -> None:
    kernel.add("edu", FakeModule(state="Unloading"))
    kernel.refuse_unload["edu"] = [errno.EBUSY] * 1000

    with pytest.raises(RebootRequired, match="cannot unload edu: it is stuck while unloading"):
        kernel.loader.remove_module("edu")


def test_a_module_that_the_kernel_calls_busy_and_shows_as_live_takes_a_reboot(
    kernel: FakeKernel,
) -> None:
    kernel.add("edu")
    kernel.refuse_unload["edu"] = [errno.EBUSY] * 1000

    with pytest.raises(RebootRequired, match="it was being loaded or unloaded a moment ago"):
        kernel.loader.remove_module("edu")


def test_a_module_that_is_still_there_after_its_unload_takes_a_reboot(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.add("edu")
    monkeypatch.setattr(kernel, "delete_module", lambda *_: None)

    with pytest.raises(RebootRequired, match="still in the kernel although the unload succeeded"):
        kernel.loader.remove_module("edu")


def test_an_exit_that_never_returns_takes_a_reboot(kernel: FakeKernel) -> None:
    kernel.add("edu")
    kernel.never_returns = DeadlinePassed("the kernel has not returned after 120 s")

    with pytest.raises(RebootRequired, match="cannot unload edu: its exit function never returned"):
        kernel.loader.remove_module("edu")


def test_without_the_capability_nothing_is_unloaded(kernel: FakeKernel) -> None:
    kernel.add("edu")
    kernel.refuse_unload["edu"] = [errno.EPERM]

    with pytest.raises(UnloadFailed, match=r"cannot unload edu: EPERM \(Operation not permitted\)"):
        kernel.loader.remove_module("edu")


def test_disabled_modules_take_a_reboot_to_unload(kernel: FakeKernel) -> None:
    kernel.add("edu")
    write(kernel.host.proc / "sys/kernel/modules_disabled", "1\n")
    kernel.refuse_unload["edu"] = [errno.EPERM]

    with pytest.raises(RebootRequired, match="modules_disabled is 1 until the next boot"):
        kernel.loader.remove_module("edu")
