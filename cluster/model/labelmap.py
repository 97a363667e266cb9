"""Node labels as a memory-efficient mapping.

Node Feature Discovery sets a hundred labels and more on each node. Which ones a Driver selects by
is not known in advance, so all are kept, but nodes with the same keys share one copy of them. Our
own labels come and go, up to a hundred per node with fifty Drivers. They are stored separately:
otherwise each change of one would need a new copy of all keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from sys import intern
from typing import Any, Final, TypeVar, overload
from weakref import WeakValueDictionary

from cluster.model.pci_labels import DeviceKeys, device_keys
from nodeside.protocol.labels import API_GROUP

T = TypeVar("T")

_OWN: Final = f"{API_GROUP}/"


class _Keys(dict[str, int]):
    """The index of each key in the tuple of values. Supports weak references."""

    __slots__ = ("__weakref__", "devices")

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__((intern(name), position) for position, name in enumerate(names))
        self.devices = device_keys(self)


_KNOWN: WeakValueDictionary[tuple[str, ...], _Keys] = WeakValueDictionary()


class Labels(Mapping[str, str]):
    """An immutable mapping of labels."""

    __slots__ = ("_keys", "_own_keys", "_own_values", "_values")

    def __init__(
        self, keys: _Keys, values: tuple[str, ...], own_keys: _Keys, own_values: tuple[str, ...]
    ) -> None:
        self._keys = keys
        self._values = values
        self._own_keys = own_keys
        self._own_values = own_values

    def __getitem__(self, key: str) -> str:
        position = self._own_keys.get(key)
        return self._values[self._keys[key]] if position is None else self._own_values[position]

    def __contains__(self, key: object) -> bool:
        return key in self._own_keys or key in self._keys

    def __iter__(self) -> Iterator[str]:
        yield from self._keys
        yield from self._own_keys

    def __len__(self) -> int:
        return len(self._values) + len(self._own_values)

    def __eq__(self, other: object) -> bool:
        if (
            isinstance(other, Labels)
            and self._keys is other._keys
            and self._own_keys is other._own_keys
        ):
            return self._values == other._values and self._own_values == other._own_values
        return Mapping.__eq__(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Labels({dict(self)!r})"

    @overload
    def get(self, key: str, /) -> str | None: ...
    @overload
    def get(self, key: str, default: str | T, /) -> str | T: ...
    def get(self, key: str, default: Any = None, /) -> Any:
        """Return the value or `default`; unlike Mapping.get, without an internal exception."""
        position = self._own_keys.get(key)
        if position is not None:
            return self._own_values[position]
        position = self._keys.get(key)
        return default if position is None else self._values[position]

    @property
    def devices(self) -> DeviceKeys:
        return self._keys.devices

    def with_own(self, changes: Mapping[str, str | None]) -> Labels:
        """Return a copy with changes to our own labels; None removes a label."""
        own = dict(zip(self._own_keys, self._own_values, strict=True))
        return Labels(self._keys, self._values, *_share_keys(_merge_changes(own, changes)))


def labels_of(labels: Mapping[str, str]) -> Labels:
    """Return the labels of an API object as Labels."""
    own = {key: value for key, value in labels.items() if key.startswith(_OWN)}
    rest = {key: value for key, value in labels.items() if key not in own} if own else labels
    return Labels(*_share_keys(rest), *_share_keys(own))


def _share_keys(labels: Mapping[str, str]) -> tuple[_Keys, tuple[str, ...]]:
    """Return the shared keys and the values in the order of the keys."""
    names = tuple(sorted(labels))
    keys = _KNOWN.get(names)
    if keys is None:
        keys = _Keys(names)
        keys = _KNOWN.setdefault(tuple(keys), keys)
    return keys, tuple([intern(labels[name]) for name in names])


def devices_of(labels: Mapping[str, str]) -> DeviceKeys:
    """Return the labels about PCI devices; nodes with the same keys share the result."""
    return labels.devices if isinstance(labels, Labels) else device_keys(labels)


def with_changes(labels: Mapping[str, str], changes: Mapping[str, str | None]) -> Mapping[str, str]:
    """Return a node's labels with `changes` made; None removes a label."""
    if isinstance(labels, Labels) and all(key.startswith(_OWN) for key in changes):
        return labels.with_own(changes)
    return _merge_changes(labels, changes)


def _merge_changes(labels: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = dict(labels)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged
