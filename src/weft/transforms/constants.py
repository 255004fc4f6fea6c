"""What is not an array in a call of a compiled function: which values are constants, and their keys."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any, final

from weft.dtypes import Dtype
from weft.graph.shown import Extent
from weft.runtime.devices import Device, Stream, ThreadLocalStream

# Equal values of these types are the same in every respect; for floats, -0.0 == 0.0 and nan != nan.
_BY_VALUE = frozenset({bool, int, str, bytes, type(None), Dtype, Device, Stream, ThreadLocalStream})
_PLAIN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (float, float.hex),
    (complex, lambda number: (float.hex(number.real), float.hex(number.imag))),
    (int, int.__int__),
    (str, str.__str__),
    (bytes, bytes.__bytes__),
)


def constant_key(value: Any) -> Any:
    """A key that is equal for equal constants only, or None if the value is no constant.

    >>> constant_key(0.0) == constant_key(0), constant_key(0.0) == constant_key(-0.0)
    (False, False)
    >>> constant_key(object()) is None
    True
    """
    kind = type(value)
    if kind in _BY_VALUE:
        return kind, value
    if kind is Extent:
        return kind, _Identity(value.symbolic)
    if isinstance(value, enum.Enum):
        return kind, id(value)
    for base, plain in _PLAIN:
        # An object with attributes is no constant: they may change.
        if isinstance(value, base) and not getattr(value, "__dict__", None):
            return kind, plain(value)
    return None


@final
class _Identity:
    """Stands for an object that may change inside: equal to itself alone. It does not keep the object alive."""

    __slots__ = ("_hash", "_object")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        try:
            self._object: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._object = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Identity):
            return NotImplemented
        mine = self._object()
        return mine is not None and mine is other._object()


def attribute_key(value: Any) -> Any:
    """A key for any object: constants and sets of them are compared by value, other objects by identity."""
    if isinstance(value, (set, frozenset)):
        members = frozenset([constant_key(member) for member in value])
        return _Identity(value) if None in members else (type(value), members)
    key = constant_key(value)
    return _Identity(value) if key is None else key


def object_keys(containers: Sequence[Any]) -> tuple[Any, ...]:
    """Keys for containers of subclasses of dict and list: their types and attributes, without their entries."""
    parts: list[Any] = []
    for container in containers:
        attributes = getattr(container, "__dict__", {})
        parts.append(type(container))
        parts += attributes
        parts += [value if value is True or value is False else attribute_key(value) for value in attributes.values()]
    return tuple(parts)


_dict_of: Callable[[Any], dict[str, Any]] = attrgetter("__dict__")
_flat = chain.from_iterable


@final
class Attributes:
    """The attributes of containers, to be compared again by a few native calls.

    They are `unchanged` only where `object_keys` would give the same, types aside. Attributes that are equal, but other
    objects than before, count as changed. Only constants, sets and members of sets are kept alive.
    """

    def __init__(self, containers: Sequence[Any]) -> None:
        """``containers`` have a ``__dict__``."""
        dicts = list(map(_dict_of, containers))
        self._lengths = list(map(len, dicts))
        self._names = list(_flat(dicts))
        self._values: list[Any] = list(_flat(map(dict.values, dicts)))
        sets = [value for value in self._values if isinstance(value, (set, frozenset))]
        self._empty = [value for value in sets if not value]
        self._sets = [value for value in sets if value]
        self._sizes = list(map(len, self._sets))
        self._members = list(_flat(self._sets))
        self._others: list[tuple[int, weakref.ref[Any]]] = []
        """Positions of values that may change inside. They are not in the list, which would keep them alive."""
        for position, value in enumerate(self._values):
            if constant_key(value) is None and not isinstance(value, (set, frozenset)):
                try:
                    self._others.append((position, weakref.ref(value)))
                except TypeError:
                    continue
                self._values[position] = None

    def unchanged(self, containers: Sequence[Any]) -> bool:
        """Whether containers, which have a ``__dict__``, have the same attributes as the first ones, in their order."""
        values = self._values
        if self._others:
            values = values.copy()
            for position, reference in self._others:
                value = reference()
                if value is None:
                    return False
                values[position] = value
        dicts = list(map(_dict_of, containers))
        try:
            return (
                list(map(len, dicts)) == self._lengths
                and list(_flat(dicts)) == self._names
                and all(map(is_, _flat(map(dict.values, dicts)), values))
                and not any(self._empty)
                and list(map(len, self._sets)) == self._sizes
                and all(map(is_, _flat(self._sets), self._members))
            )
        except RuntimeError:  # another thread changes one at this moment
            return False
