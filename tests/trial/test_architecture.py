"""What a machine's architecture is called."""

from __future__ import annotations

import platform

import pytest

from nodeside.errors import ExitCode, UsageError
from nodeside.trial.architecture import AMD64, ARCHITECTURES, ARM64, architecture_named


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("amd64", AMD64), ("x86_64", AMD64), ("arm64", ARM64), ("aarch64", ARM64)],
)
def test_debians_name_and_that_of_uname_mean_the_same(name: str, architecture: object) -> None:
    assert architecture_named(name) is architecture


def test_an_unknown_one_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="no architecture named 'riscv64' can be tried") as caught:
        architecture_named("riscv64")

    assert caught.value.hint == "expected one of amd64, arm64"
    assert caught.value.exit_code == ExitCode.USAGE


def test_all_but_that_of_the_host_are_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")

    assert [a.name for a in ARCHITECTURES.values() if a.is_foreign] == ["amd64"]
