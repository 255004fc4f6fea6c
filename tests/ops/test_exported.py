"""Rows of the operation table, written to a file as programs and read again."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import weft.core as mx
from tests.ops.row import Row, bits, checked, flat, to_array, to_numpy
from tests.ops.table import ROWS
from tests.ops.test_transformed import WITH_ARGUMENTS, gradient_of
from tests.sampling import Cases

DRAWN = 40
"""How many rows the gate runs."""


def exported(function: Callable[..., Any], arrays: Sequence[mx.array], shapeless: bool = False) -> Callable[..., Any]:
    """The function after it was written to a file and read again."""
    file = io.BytesIO()
    mx.export_function(file, function, *arrays, shapeless=shapeless)
    file.seek(0)
    return mx.import_function(file)


def compared(got: Sequence[mx.array], wanted: Sequence[mx.array]) -> None:
    for one, want in zip(got, wanted, strict=True):
        assert (one.shape, one.dtype) == (want.shape, want.dtype)
        assert bits(to_numpy(one)) == bits(to_numpy(want))


def rows_of(*checks: str, rows: Sequence[Row] = ROWS) -> dict[str, Row]:
    """The rows that must pass all of some checks, by name."""
    passing = [{one.id: row for one in checked(check, rows) for row in one.values if not one.marks} for check in checks]
    return {name: row for name, row in passing[0].items() if all(name in one for one in passing)}


def test_rows(cases: Cases, seed: int) -> None:
    rows = rows_of("export")
    for name in cases.some(DRAWN, list(rows)):
        row = rows[name]
        arrays = [to_array(x) for x in row.sample(seed, row.dtypes[0])]
        function = exported(lambda *arrays, row=row: flat(row.function(mx, *arrays)), arrays)
        compared(function(*arrays), flat(row.function(mx, *arrays)))


def test_gradients(cases: Cases, seed: int) -> None:
    rows = rows_of("export", "vjp", rows=WITH_ARGUMENTS)
    for name in cases.some(DRAWN // 2, list(rows)):
        row = rows[name]
        arguments = row.sample(seed, row.dtypes[0])
        arrays = [to_array(x) for x in arguments]
        try:
            gradient = gradient_of(row, arguments)
        except pytest.skip.Exception:
            continue
        compared(exported(gradient, arrays)(*arrays), gradient(*arrays))


def test_other_shapes(cases: Cases, seed: int) -> None:
    rows = rows_of("export", "shapeless", rows=WITH_ARGUMENTS)
    for name in cases.some(DRAWN // 2, list(rows)):
        row = rows[name]
        function: Any = None
        for by in (0, 1, 3):
            rng = row.random(seed, f"grown by {by}")
            arrays = [to_array(x) for x in row.grown(by, rng)]
            if function is None:
                function = exported(lambda *arrays, row=row: flat(row.function(mx, *arrays)), arrays, shapeless=True)
            compared(function(*arrays), flat(row.function(mx, *arrays)))
