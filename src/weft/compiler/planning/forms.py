"""The form of a program: its entries without their integers, which are extents, strides and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from weft.compiler.program import Entry

Form = tuple[Entry, ...]
FormNumbers = list[tuple[int, ...]]
"""The integers of each entry of a program."""


class _Number:
    """Marks the place of an integer in a form."""


_NUMBER = _Number()


def form_of(entries: Sequence[Entry]) -> tuple[Form, FormNumbers]:
    """The form of a program, and the integers that were taken out."""
    form: list[Entry] = []
    found: FormNumbers = []
    known: dict[Any, tuple[Any, Any, tuple[int, ...]]] = {}
    """Results of `_split`: many entries of a program have the same parameters and shape."""
    for entry in entries:
        primitive = entry[0]
        if primitive is not None and primitive.is_constant:
            form.append(entry)
            found.append(())
            continue
        _, first, shape, dtype, last = entry
        pair = (shape, last) if primitive is None else (first, shape)
        split = known.get((primitive, pair))
        if split is None:
            numbers: list[int] = []
            split = known[primitive, pair] = _split(pair[0], numbers), _split(pair[1], numbers), tuple(numbers)
        one, other, given = split
        form.append((None, first, one, dtype, other) if primitive is None else (primitive, one, other, dtype, last))
        found.append(given)
    return tuple(form), found


def entries_of(form: Form, numbers: Sequence[Sequence[Any]]) -> list[Entry]:
    """The entries of a program of this form, with these integers."""
    entries: list[Entry] = []
    for entry, given in zip(form, numbers, strict=True):
        primitive, following = entry[0], iter(given)
        if primitive is None:
            _, number, shape, dtype, strides = entry
            entries.append((None, number, _joined(shape, following), dtype, _joined(strides, following)))
        elif primitive.is_constant:
            entries.append(entry)
        else:
            _, params, shape, dtype, positions = entry
            entries.append((primitive, _joined(params, following), _joined(shape, following), dtype, positions))
    return entries


def _split(value: Any, numbers: list[int]) -> Any:
    """A shape or parameters without their integers, which are added to ``numbers``."""
    if type(value) is int:
        numbers.append(value)
        return _NUMBER
    return tuple([_split(part, numbers) for part in value]) if type(value) is tuple else value


def _joined(value: Any, numbers: Iterator[Any]) -> Any:
    """The inverse of `_split`."""
    if value is _NUMBER:
        return next(numbers)
    return tuple([_joined(part, numbers) for part in value]) if type(value) is tuple else value
