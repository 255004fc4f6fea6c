"""Who refers to an object. Only this module reads the interpreter's reference counts.

The objects that are asked about are in lists, tuples, dicts and attributes, and the caller says how many of these
references it knows. None of the caller's local variables may refer to such an object: whether local variables and
arguments count once or twice differs between versions of Python. For the same reason `map`, which runs in C, reads the
counts. `unused` has a local variable, and finds out at import how that counts.

A wrong count costs memory or time, never a value. If a count is too high, a node gets a value that nobody asks for, or
memory is not used again. If it is too low, values are computed again; memory is not overwritten, because donation is
off when the self-test below fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import chain, repeat
from operator import ne
from sys import getrefcount
from typing import TypeVar

Key = TypeVar("Key")
Owned = TypeVar("Owned")

_COUNTED = 2
"""How many references `map` itself adds to a count: its own, and that of the container it reads from."""


def held(known: Mapping[Key, int], others: int) -> list[Key]:
    """The keys of ``known`` to which something else refers: that have more references than the one of ``known``, as
    many as their value in ``known`` says, and ``others``."""
    others += _COUNTED
    keys = iter(known)
    found = []
    for count in map(getrefcount, known):
        key = next(keys)
        if count != known[key] + others:
            found.append(key)
    return found


COUNT_IF_ONCE = _COUNTED + 1
"""What `numbers_held` counts for an object in its list to which one other reference is known."""


def numbers_held(objects: Sequence[object], expected: list[int], first: int = 0) -> Sequence[int]:
    """The numbers of objects, from ``first`` on, to which something else refers: whose count is not as ``expected``,
    which is `COUNT_IF_ONCE` and one more for each further reference that is known."""
    counts = [*map(getrefcount, objects)]
    if counts[first:] == expected[first:]:  # the usual case
        return ()
    return [number for number in range(first, len(counts)) if counts[number] != expected[number]]


def only_known(objects: Sequence[object], known: Sequence[int]) -> bool:
    """Whether each object has no other references than the one in ``objects`` and as many more as its number in
    ``known``; always False if the self-test failed."""
    if _fault is not None:
        return False
    counts = map(getrefcount, objects)
    for number in known:  # noqa: SIM110  # faster than a generator
        if next(counts) != number + _COUNTED:
            return False
    return True


def all_have_more(objects: Set[object], known: int) -> bool:
    """Whether all objects have more references than the one in ``objects`` and ``known`` others."""
    return min(map(getrefcount, objects), default=0) > known + _COUNTED


def rows_only_known(columns: Sequence[Sequence[object]], known: Sequence[int]) -> list[bool]:
    """`only_known` for many lists of objects: row ``i`` has the ``i``-th object of each column, and ``known`` has one
    number for each column, besides the reference of the column itself."""
    if _fault is not None:
        return [False] * len(columns[0])
    expected = tuple([number + _COUNTED for number in known])
    return [counts == expected for counts in zip(*[map(getrefcount, column) for column in columns], strict=True)]


def others_refer(columns: Sequence[Sequence[object]], known: Sequence[int]) -> Iterator[bool]:
    """For one object after the other, column by column: whether it has other references than that of its column and as
    many as are ``known`` for this column. Read lazily, without running Python code."""
    if _fault is not None:
        return repeat(True, 1)
    expected = [number + _COUNTED for number in known]
    return chain.from_iterable(
        [map(ne, map(getrefcount, column), repeat(count)) for column, count in zip(columns, expected, strict=True)]
    )


def unused(objects: deque[Owned]) -> Owned | None:
    """One of the first two objects, if only ``objects`` refers to it; the caller refers to it from now on. The order of
    the objects changes, so that other ones are looked at next.

    If another thread looks at the same object at the same time, it refers to the object, so not both take it. No thread
    may remove an object from ``objects``, whose reference is one of those that are expected.
    """
    found = objects[0]
    objects.rotate(-1)
    if getrefcount(found) == _count_if_unused:
        return found
    found = objects[0]
    objects.rotate(-1)
    return found if getrefcount(found) == _count_if_unused else None


_NEVER = -1
_count_if_unused = _NEVER
"""What `unused` counts for an object to which only its argument refers; `_NEVER` if it cannot tell that."""


def count_if_unused() -> int:
    """The right `_count_if_unused`, found by asking `unused` about objects to which somebody refers or not."""
    global _count_if_unused
    before = _count_if_unused
    try:
        for _count_if_unused in range(1, 8):
            if _unused_is_right():
                return _count_if_unused
        return _NEVER
    finally:
        _count_if_unused = before


def _unused_is_right() -> bool:
    if _fault is not None:
        return False
    for hold in _HOLDERS.values():
        objects = [Probe()]
        holder, candidates = hold(objects), deque(objects)
        del objects
        if unused(candidates) is not None:
            return False
        del holder
        if unused(candidates) is None:
            return False
    return True


def donation() -> str:
    """Whether memory of arrays without references is used for results; if not, why."""
    return "on" if _fault is None else f"off: {_fault}"


class Probe:
    __slots__ = ("value",)

    def __init__(self, value: object = None) -> None:
        self.value = value


_HOLDERS: dict[str, Callable[[Sequence[object]], object]] = {
    "a variable": lambda objects: objects[0],
    "an attribute": lambda objects: Probe(objects[0]),
    "a list": lambda objects: [objects[0]],
    "a tuple": lambda objects: (objects[0],),
    "a dict": lambda objects: {objects[0]: objects[0]},
}


def _seen(holder: object, objects: Sequence[object], number: int) -> set[bool]:
    """What the functions say of an object to which ``holder`` and ``number`` known references refer."""
    lists = [[*objects] for _ in range(number)]
    by_others = not only_known(objects, [len(lists)])
    in_rows = rows_only_known([objects, [*objects]], [len(lists) + 1] * 2) == [False]
    by_number = bool(numbers_held(objects, [len(lists) - 1 + COUNT_IF_ONCE]))
    return {by_others, in_rows, by_number, bool(held(dict.fromkeys(objects, len(lists)), 1))}


def _found_fault() -> str | None:
    """What is wrong with the counts; None if they are as expected in each case that these functions rely on."""
    for number in range(3):
        objects = [Probe()]
        if _seen(None, objects, number) != {False}:
            return f"Python counts other references to an object than the {number + 1} that there are"
        for name, hold in _HOLDERS.items():
            if _seen(hold(objects), objects, number) != {True}:
                return f"Python does not count that {name} refers to an object"
    return None


def tested() -> str | None:
    fault = _found_fault()
    if fault is not None:
        import logging  # takes 2 ms

        logging.getLogger("weft").warning("No memory of arrays that ended is used for results: %s.", fault)
    return fault


_fault: str | None = None
_fault = tested()
_count_if_unused = count_if_unused()
