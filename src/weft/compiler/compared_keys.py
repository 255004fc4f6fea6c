"""Dictionaries whose keys may contain open numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

from weft.compiler.open_numbers import OpenNumber, OpenNumberError


class ComparedKeys(MutableMapping[Any, Any]):
    """A dictionary for keys with open numbers. A key is compared with all keys that differ from it in numbers only, so
    that the comparisons of open numbers are recorded. Nothing can be removed."""

    def __init__(self) -> None:
        self._items: list[tuple[Any, Any]] = []
        self._positions: dict[Any, int] = {}
        """Positions in ``_items`` of keys without open numbers."""
        self._alike: dict[Any, list[int]] = {}
        """Positions in ``_items`` of keys that differ in numbers only, for the first ``_sorted`` items."""
        self._sorted = 0
        self._has_open = False

    @classmethod
    def fromkeys(cls, keys: Iterable[Any]) -> ComparedKeys:
        found = cls()
        for key in keys:
            found[key] = None
        return found

    def _position(self, key: Any) -> int | None:
        """The position of the item with an equal key."""
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
    """A key with its integers left out: equal for keys that differ in integers only."""
    if type(key) is OpenNumber or type(key) is int:
        return None
    return tuple(map(without_numbers, key)) if isinstance(key, tuple) else key


Lookup = type[dict[Any, Any]] | type[ComparedKeys]
"""The class of dictionaries to look keys up in: `ComparedKeys` while a plan is made with open numbers."""
