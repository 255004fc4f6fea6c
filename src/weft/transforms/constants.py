"""Arguments of compiled functions that are not arrays: which values are constants, and their keys."""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, compress
from operator import attrgetter, is_
from typing import Any, final

from weft.dtypes import Dtype
from weft.graph.shown import Extent
from weft.runtime.devices import Device, Stream, ThreadLocalStream
from weft.runtime.dict_reader import dict_reader
from weft.tree import END

# Values of these types do not differ in any way if they are equal. Floats may: -0.0 == 0.0, and nan != nan.
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
    """A key for an object whose content may change. It equals only a key for the same object. It keeps the object alive
    only if there can be no weak references to it."""

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
    """A key for any object: constants and sets of constants are compared by value, other objects by identity."""
    if isinstance(value, (set, frozenset)):
        members = frozenset([constant_key(member) for member in value])
        return _Identity(value) if None in members else (type(value), members)
    key = constant_key(value)
    return _Identity(value) if key is None else key


Slot = types.MemberDescriptorType
_slots: weakref.WeakKeyDictionary[type, Mapping[str, Slot]] = weakref.WeakKeyDictionary()


def _slots_of(kind: type) -> Mapping[str, Slot]:
    """The descriptors of a class and its bases for their ``__slots__``, by name."""
    found = _slots.get(kind)
    if found is None:
        own = [vars(base).items() for base in reversed(kind.__mro__)]
        found = _slots[kind] = {name: one for items in own for name, one in items if type(one) is Slot}
    return found


def attributes_of(container: Any) -> dict[str, Any]:
    """The attributes of an object by name: first those of its slots that have a value, then those in its
    ``__dict__``."""
    found: dict[str, Any] = {}
    for name, slot in _slots_of(type(container)).items():
        with suppress(AttributeError):
            found[name] = slot.__get__(container)
    found.update(getattr(container, "__dict__", ()))
    return found


def object_keys(containers: Sequence[Any]) -> tuple[Any, ...]:
    """Keys for containers that are instances of subclasses of dict and list: types and attributes, but not entries."""
    parts: list[Any] = []
    for container in containers:
        attributes = attributes_of(container)
        parts.append(type(container))
        parts += attributes
        parts += [value if value is True or value is False else attribute_key(value) for value in attributes.values()]
    return tuple(parts)


def has_attributes(container: Any) -> bool:
    """Whether an object may have attributes."""
    return hasattr(container, "__dict__") or bool(_slots_of(type(container)))


_dict_of: Callable[[Any], dict[str, Any]] = attrgetter("__dict__")
_flat = chain.from_iterable


@final
class Attributes:
    """The attributes of containers at one call, which later calls compare by a few native calls.

    They are `unchanged` only if `object_keys` would return the same, apart from types. Attributes that are equal to the
    former ones but other objects count as changed, and so do slots without a value. Only constants, sets, members of
    sets, and objects that cannot have weak references are kept alive.
    """

    def __init__(self, containers: Sequence[Any]) -> None:
        """Store the attributes of ``containers``, for which `has_attributes` is true."""
        self._with_dict = _chooser([hasattr(container, "__dict__") for container in containers])
        dicts = list(map(_dict_of, self._with_dict(containers)))
        self._dict_types = list(map(type, dicts))
        self._names = [name for attributes in dicts for name in (*attributes, END)]
        kinds = dict.fromkeys(map(type, containers))
        self._slots = [
            (slot.__get__, _chooser([slot in _slots_of(type(container)).values() for container in containers]))
            for slot in dict.fromkeys([slot for kind in kinds for slot in _slots_of(kind).values()])
        ]
        """For each slot, the function that reads it, and one that chooses the containers that have it."""
        self._values: list[Any] = []
        try:
            self._values = self._read(containers) or []
            self._has_all = True
            """Whether all slots had values."""
        except AttributeError:
            self._has_all = False
        sets = [value for value in self._values if isinstance(value, (set, frozenset))]
        self._empty = [value for value in sets if not value]
        self._sets = [value for value in sets if value]
        self._sizes = list(map(len, self._sets))
        self._members = list(_flat(self._sets))
        self._others: list[tuple[int, weakref.ref[Any]]] = []
        """Positions of values whose content may change, with weak references. `_values` has None there."""
        for position, value in enumerate(self._values):
            if constant_key(value) is None and not isinstance(value, (set, frozenset)):
                try:
                    self._others.append((position, weakref.ref(value)))
                except TypeError:
                    continue
                self._values[position] = None

    def _read(self, containers: Sequence[Any]) -> list[Any] | None:
        """The values in the dicts of the containers, and then those in their slots; None if the dicts have other
        names."""
        dicts = [*map(_dict_of, self._with_dict(containers))]
        values = dict_reader()(dicts, self._dict_types, self._names)
        if values is not None:
            for read, having in self._slots:
                values += map(read, having(containers))
        return values

    def unchanged(self, containers: Sequence[Any]) -> bool:
        """Whether containers have the same attributes as the first ones, in their order. They must have the same
        classes."""
        values = self._values
        if self._others:
            values = values.copy()
            for position, reference in self._others:
                value = reference()
                if value is None:
                    return False
                values[position] = value
        try:
            found = self._read(containers)
        except AttributeError:  # a slot has no value
            return False
        return (
            self._has_all
            and found is not None
            and all(map(is_, found, values))
            and not any(self._empty)
            and [*map(len, self._sets)] == self._sizes
            and self._has_members()
        )

    def _has_members(self) -> bool:
        """Whether the sets have the members that they had."""
        try:
            return all(map(is_, _flat(self._sets), self._members))
        except RuntimeError:  # another thread is changing a set
            return False


def _chooser(flags: Sequence[bool]) -> Callable[[Sequence[Any]], Iterable[Any]]:
    """A function that chooses the items of a sequence with a true flag."""
    return _all_of if all(flags) else lambda items: compress(items, flags)


def _all_of(items: Sequence[Any]) -> Sequence[Any]:
    return items
