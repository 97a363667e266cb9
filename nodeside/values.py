"""Frozen values: `@frozen` is `@dataclass(frozen=True)` at a fraction of its cost at import.

`dataclasses` compiles six functions for each class whenever a program starts. Of these, `@frozen`
keeps `__init__`; the others are the same for all classes. Nearly every start of nodeside defines
more than a hundred such classes.

Stdlib only: the toolkit sidecar has this module too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, Final, TypeVar, dataclass_transform

C = TypeVar("C", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: C) -> C:
    """Make a class a frozen dataclass: equal and hashed by its fields, and shown with them."""
    own = frozenset(vars(kind))
    made: Any = dataclass(repr=False, eq=False)(kind)
    compared = [each.name for each in fields(made) if each.compare]
    made._compared = attrgetter(*compared) if compared else _nothing
    for name, function in _SHARED.items():
        if name not in own:
            setattr(made, name, function)
    return kind


def _nothing(_: object) -> None:
    return None


def _set_once(self: Any, name: str, content: object) -> None:
    """`__init__` sets each field once; `cached_property` writes past this."""
    if name in self.__dict__ or name not in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    self.__dict__[name] = content


def _never_delete(self: object, name: str) -> None:
    del self
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    get = type(self)._compared
    return get(self) == get(other)


def _hash(self: Any) -> int:
    return hash(type(self)._compared(self))


_SHARED: Final[Mapping[str, Callable[..., Any]]] = {
    "__setattr__": _set_once,
    "__delattr__": _never_delete,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
}
