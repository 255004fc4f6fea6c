"""A cache of bounded size: when it is full, the oldest item is dropped."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")


class BoundedCache(Generic[T]):
    """Holds at most ``most`` items, whose weights add up to at most ``heaviest``; a single item may weigh more. ``get``
    is `dict.get`."""

    def __init__(self, most: int, heaviest: int) -> None:
        self.most, self.heaviest = most, heaviest
        self._items: dict[Any, T] = {}
        self._weights: dict[Any, int] = {}
        self._weight = 0
        self.get = self._items.get

    def add(self, key: Any, item: T, weight: int) -> None:
        """Add or replace an item. Only one thread at a time may call this."""
        self._weight += weight - self._weights.get(key, 0)
        self._items[key], self._weights[key] = item, weight
        while len(self._items) > self.most or (self._weight > self.heaviest and len(self._items) > 1):
            oldest = next(iter(self._items))
            del self._items[oldest]
            self._weight -= self._weights.pop(oldest)

    def clear(self) -> None:
        self._items.clear()
        self._weights.clear()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._items)
