"""The matrix of operations and transformations: what the table of operations, and the tests that use it, say of each
cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import weft.core as mx
from tests.ops.row import Row, flat, is_inexact, to_array
from tests.ops.table import ROWS
from tests.ops.test_derivatives import DOUBLE, FLOATING, SINGLE, precise_dtype
from tests.ops.test_transformed import WITH_ARGUMENTS

TRANSFORMATIONS: dict[str, Sequence[Row]] = {
    "jvp": FLOATING,
    "vjp": FLOATING,
    "second order": [*DOUBLE, *SINGLE],
    "vmap": WITH_ARGUMENTS,
    "compile": ROWS,
    "shapeless": WITH_ARGUMENTS,
    "export": ROWS,
}
"""The rows that the tests of each transformation run over."""

DERIVATIVES = ("jvp", "vjp", "second order")
NO_ARRAYS = "takes no arrays"
NOT_FLOATING = "is not from floating or complex numbers to such numbers"
MEANINGLESS = (NO_ARRAYS, NOT_FLOATING)
"""Reasons that mean that a transformation makes no sense."""


@dataclass
class Cell:
    """One transformation of one operation: the number of its rows for which it works, and the reasons for the other
    rows."""

    holding: int = 0
    meaningless: set[str] = field(default_factory=set)
    holes: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.holes:
            return "part" if self.holding else "no"
        return "yes" if self.holding else "."


Matrix = dict[str, dict[str, Cell]]


def reason_against(row: Row, transformation: str) -> str | None:
    """Why a transformation of a row is not tested ("" if none is given), or must fail; None if it works."""
    if not row.domains and transformation in ("vmap", "shapeless", *DERIVATIVES):
        return NO_ARRAYS
    if transformation in DERIVATIVES and not is_differentiable(row):
        return NOT_FLOATING
    reason = row.without.get(transformation, row.fails.get(transformation))
    if reason is None and not any(row is one for one in TRANSFORMATIONS[transformation]):
        return ""
    return reason


def is_differentiable(row: Row) -> bool:
    """Whether a row has a floating or complex argument and such a result: the same condition as in the tests."""
    dtype = precise_dtype(row)
    if dtype is None:
        return False
    arguments = row.sample(0, dtype)
    if not any(is_inexact(x) for x in arguments):
        return False
    results = flat(row.function(mx, *[to_array(x) for x in arguments]))
    return any(isinstance(y, mx.array) and mx.issubdtype(y.dtype, mx.inexact) for y in results)


def matrix_of(rows: Iterable[Row]) -> Matrix:
    """One line for each operation, with a cell for each transformation."""
    matrix: Matrix = {}
    for row in rows:
        line = matrix.setdefault(row.name, {name: Cell() for name in TRANSFORMATIONS})
        for name, cell in line.items():
            reason = reason_against(row, name)
            if reason is None:
                cell.holding += 1
            elif reason in MEANINGLESS:
                cell.meaningless.add(reason)
            else:
                cell.holes.setdefault(reason, []).append(row.id)
    return dict(sorted(matrix.items()))


def holes_of(matrix: Matrix) -> Iterator[tuple[str, str, str, list[str]]]:
    """Operation, transformation, reason and rows of each hole in the matrix."""
    for operation, line in matrix.items():
        for transformation, cell in line.items():
            for reason, rows in cell.holes.items():
                yield operation, transformation, reason, rows
