"""`@frozen` against `@dataclass(frozen=True)`: whatever a value can do, both do alike."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeside.values import frozen


@dataclass(frozen=True)
class _Usual:
    name: str
    number: float = 0.5
    items: tuple[int, ...] = field(default=(), repr=False)
    note: str = field(default="", compare=False)
    more: list[int] = field(default_factory=list, compare=False)

    @cached_property
    def length(self) -> int:
        return len(self.items)


@frozen
class _Ours:
    name: str
    number: float = 0.5
    items: tuple[int, ...] = field(default=(), repr=False)
    note: str = field(default="", compare=False)
    more: list[int] = field(default_factory=list, compare=False)

    @cached_property
    def length(self) -> int:
        return len(self.items)


@frozen
class _Nothing:
    pass


@frozen
class _Longer(_Ours):
    last: int = 1

    def __post_init__(self) -> None:
        if self.last < 0:
            raise ValueError("negative")


@frozen
class _Shown:
    name: str

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shown) and self.name.lower() == other.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())


_ARGUMENTS = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b"])},
    optional={
        "number": st.sampled_from([0.5, 1.0, float("inf")]),
        "items": st.sampled_from([(), (1,), (1, 2)]),
        "note": st.sampled_from(["", "x"]),
        "more": st.sampled_from([[], [3]]),
    },
)


@given(_ARGUMENTS, _ARGUMENTS)
def test_two_values_are_equal_shown_and_hashed_as_those_of_a_dataclass(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    usual, ours = (_Usual(**one), _Usual(**other)), (_Ours(**one), _Ours(**other))

    assert (ours[0] == ours[1]) == (usual[0] == usual[1])
    assert (ours[0] != ours[1]) == (usual[0] != usual[1])
    assert (hash(ours[0]) == hash(ours[1])) == (hash(usual[0]) == hash(usual[1]))
    assert len(set(ours)) == len(set(usual))
    assert repr(ours[0]).replace("_Ours", "_Usual") == repr(usual[0])
    assert dataclasses.asdict(ours[0]) == dataclasses.asdict(usual[0])
    assert replace(ours[0], name="c") == _Ours(**{**one, "name": "c"})


@pytest.mark.parametrize("kind", [_Usual, _Ours])
def test_a_value_cannot_be_changed(kind: type[Any]) -> None:
    made = kind("a", items=(1, 2))
    for name in ("name", "note", "unknown", "length"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, name, "b")
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.name
    assert (made.name, made.length, made.length) == ("a", 2, 2)
    with pytest.raises(TypeError):
        kind()


@pytest.mark.parametrize("kind", [_Usual, _Ours])
def test_a_value_is_copied_and_pickled(kind: type[Any]) -> None:
    made = kind("a", more=[1])
    for twin in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert twin == made
        assert twin.more == [1]
    assert copy.deepcopy(made).more is not made.more


def test_another_kind_is_another_value() -> None:
    assert _Ours("a") != _Longer("a")
    assert _Ours("a") != object()
    assert _Nothing() == _Nothing()
    assert len({_Nothing(), _Nothing()}) == 1


def test_a_class_may_extend_another_and_check_itself() -> None:
    assert repr(_Longer("a", last=2)) == "_Longer(name='a', number=0.5, note='', more=[], last=2)"
    assert _Longer("a", last=2) != _Longer("a", last=3)
    with pytest.raises(ValueError, match="negative"):
        replace(_Longer("a"), last=-1)


def test_what_a_class_defines_itself_stays() -> None:
    assert repr(_Shown("a")) == "<a>"
    assert _Shown("a") == _Shown("A")
    assert hash(_Shown("a")) == hash(_Shown("A"))
