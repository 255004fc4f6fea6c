"""Dictionaries whose keys may have open numbers in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

from weft.compiler.open_numbers import OpenNumber, OpenNumberError


class ComparedKeys(MutableMapping[Any, Any]):
    """A dictionary in which keys with open numbers are compared with those that differ from them in numbers alone, so
    that it is noted which of them are equal. Nothing is removed from it."""

    def __init__(self) -> None:
        self._items: list[tuple[Any, Any]] = []
        self._positions: dict[Any, int] = {}
        """Where keys without open numbers are."""
        self._alike: dict[Any, list[int]] = {}
        """Where keys are by what they have besides numbers: the first ``_sorted`` ones."""
        self._sorted = 0
        self._has_open = False

    @classmethod
    def fromkeys(cls, keys: Iterable[Any]) -> ComparedKeys:
        found = cls()
        for key in keys:
            found[key] = None
        return found

    def _position(self, key: Any) -> int | None:
        """Where an equal key is."""
        try:
            position = self._positions.get(key)
            if position is not None or not self._has_open:
                return position
        except OpenNumberError:
            pass
        for number in range(self._sorted, len(self._items)):
            self._alike.setdefault(without_numbers(self._items[number][0]), []).append(number)
        self._sorted = len(self._items)
        alike = self._alike.get(without_numbers(key), ())
        return next((number for number in alike if self._items[number][0] == key), None)

    def __contains__(self, key: Any) -> bool:
        return self._position(key) is not None

    def __getitem__(self, key: Any) -> Any:
        position = self._position(key)
        if position is None:
            raise KeyError(key)
        return self._items[position][1]

    def get(self, key: Any, default: Any = None) -> Any:
        position = self._position(key)
        return default if position is None else self._items[position][1]

    def __setitem__(self, key: Any, value: Any) -> None:
        position = self._position(key)
        if position is not None:
            self._items[position] = self._items[position][0], value
            return
        try:
            self._positions[key] = len(self._items)
        except OpenNumberError:
            self._has_open = True
        self._items.append((key, value))

    def __delitem__(self, key: Any) -> None:
        raise NotImplementedError("nothing is removed while a plan is made")

    def __iter__(self) -> Iterator[Any]:
        return iter([key for key, _ in self._items])

    def __len__(self) -> int:
        return len(self._items)


def without_numbers(key: Any) -> Any:
    """What keys have in common that differ in integers alone."""
    if type(key) is OpenNumber or type(key) is int:
        return None
    return tuple(map(without_numbers, key)) if isinstance(key, tuple) else key


Lookup = type[dict[Any, Any]] | type[ComparedKeys]
"""Where keys are looked up: the latter while a plan is made with open numbers."""
