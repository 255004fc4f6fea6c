"""The arithmetic of small matrices.

Every element of a result is made by the same operations in the same order, which depend only on its indices and on the
extents. Products are subtracted one by one with fused multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import WIDTH, Code, read, write
from weft.compiler.cpu.small_matrices.tiles import Line, MatrixTile, numbered, vector_between


class Variable:
    """A vector that changes inside loops."""

    def __init__(self, code: Code, first: Value) -> None:
        self.code, self.dtype = code, first.dtype
        self.slot = code.e.slot(code.lanes.type_of(first.dtype))
        self.value = first

    @property
    def value(self) -> Value:
        L = self.code.lanes
        return Value(L, self.code.e.load(L.type_of(self.dtype), self.slot), self.dtype)

    @value.setter
    def value(self, value: Value) -> None:
        self.code.e.store(self.code.lanes.type_of(self.dtype), value.name, self.slot)


def no_lanes(code: Code) -> Variable:
    """A condition for each lane, at first false in all."""
    return Variable(code, code.lanes.constant(False, dtypes.bool_))


@contextmanager
def counting(code: Code, count: str, backwards: bool) -> Iterator[str]:
    """The numbers below ``count``, in order or ``backwards``."""
    with code.e.loop("0", count) as step:
        yield code.subtract(code.subtract(count, 1), step) if backwards else step


def factor(code: Code, a: MatrixTile, pivots: Line, rows: str, columns: str, steps: str) -> None:
    """``P L U`` in place, with partial pivoting. Of elements with the same magnitude the first one is the pivot. A
    column of zeros is left as it is."""
    e, L = code.e, code.lanes
    with e.loop("0", steps) as k:
        column, after = a.column(k), code.add(k, 1)
        largest, where = Variable(code, L.absolute(column.get(k))), Variable(code, numbered(code, k))
        with e.loop(after, rows) as i:
            size = L.absolute(column.get(i))
            larger = size > largest.value
            where.value = L.select(larger, numbered(code, i), where.value)
            largest.value = L.select(larger, size, largest.value)
        pivots.put(k, where.value)
        _exchange(code, a, k, where.value, rows, columns)
        pivot = column.get(k)
        divisor = L.select(L.equal(pivot, 0), L.constant(1, pivot.dtype), pivot)
        _divide(code, column, divisor, after, rows)
        if a.by_rows:
            own = a.row(k)
            with e.loop(after, rows) as i:
                _subtract(code, a.row(i), own, column.get(i), after, columns)
        else:
            with e.loop(after, columns) as j:
                other = a.column(j)
                _subtract(code, other, column, other.get(k), after, rows)


def _subtract(code: Code, x: Line, y: Line, scale: Value, start: str, stop: str) -> None:
    """``x -= y * scale`` from ``start`` to ``stop``."""
    minus = -scale

    def changed(L: Lanes, before: Value, other: Value) -> Value:
        return L.fma(other, L.splat(minus), before)

    _change(code, changed, start, stop, x, y)


def _divide(code: Code, x: Line, divisor: Value, start: str, stop: str) -> None:
    """``x /= divisor`` from ``start`` to ``stop``."""
    _change(code, lambda L, before: before / L.splat(divisor), start, stop, x)


def _change(code: Code, changed: Callable[..., Value], start: str, stop: str, x: Line, *others: Line) -> None:
    """Replace the elements of ``x`` by functions of them and of the elements of other lines.

    Neighbours are changed in whole vectors, always with the same boundaries: a vector that was just written can be read
    again without waiting for memory.
    """
    lines = (x, *others)
    if not all(line.has_neighbours for line in lines):
        with code.e.loop(start, stop) as i:
            x.put(i, changed(code.lanes, *[line.get(i) for line in lines]))
        return
    with code.e.loop(code.e.assign(f"and i64 {start}, {-WIDTH}"), stop, WIDTH) as i:
        L, inside = vector_between(code, i, start, stop)
        before = [read(L, line.dtype, line.pointer, i) for line in lines]
        write(L, L.select(inside, changed(L, *before), before[0]), x.pointer, i)


def _exchange(code: Code, a: MatrixTile, k: str, where: Value, rows: str, columns: str) -> None:
    """Exchange row ``k`` with the row after it whose number is in ``where``, in each lane."""
    e, L = code.e, code.lanes
    with e.loop(code.add(k, 1), rows) as i:
        chosen = L.equal(where, numbered(code, i))
        with e.when(L.any_lane(chosen)):
            here, there = a.row(k), a.row(i)
            with e.loop("0", columns) as j:
                x, y = here.get(j), there.get(j)
                here.put(j, L.select(chosen, y, x))
                there.put(j, L.select(chosen, x, y))


def exchange_all(code: Code, a: MatrixTile, pivots: Line, steps: str, rows: str, columns: str, backwards: bool) -> None:
    """Exchange rows as the pivots say, in order or ``backwards``."""
    with counting(code, steps, backwards) as k:
        _exchange(code, a, k, pivots.get(k), rows, columns)


def substitute(
    code: Code, triangle: MatrixTile, x: Line, n: str, upper: bool, unit: bool, nonzero: str | None = None
) -> None:
    """Replace ``x`` by the solution of ``T y = x``. If given, ``nonzero`` is the only element of x that is not zero."""
    start = nonzero if nonzero is not None and not upper else "0"
    stop = code.add(nonzero, 1) if nonzero is not None and upper else n
    with counting(code, code.subtract(stop, start), upper) as step:
        k = code.add(step, start)
        column, value = triangle.column(k), x.get(k)
        if not unit:
            value = value / column.get(k)
            x.put(k, value)
        _subtract(code, x, column, value, "0" if upper else code.add(k, 1), k if upper else n)


def substitute_rows(
    code: Code, triangle: MatrixTile, x: MatrixTile, n: str, columns: str, upper: bool, unit: bool
) -> None:
    """`substitute` for all columns of ``x``, whose rows are lines without gaps."""
    with counting(code, n, upper) as k:
        row = x.row(k)
        if not unit:
            _divide(code, row, triangle.row(k).get(k), "0", columns)
        with code.e.loop("0" if upper else code.add(k, 1), k if upper else n) as i:
            _subtract(code, x.row(i), row, triangle.row(i).get(k), "0", columns)


def cholesky(code: Code, a: MatrixTile, line: Line, n: str, upper: bool) -> Value:
    """Replace a triangle of a positive definite matrix by its Cholesky factor. Returns the lanes in which there is
    none."""
    e, L = code.e, code.lanes
    failed = no_lanes(code)
    with e.loop("0", n) as k:
        own, after = (a.row(k) if upper else a.column(k)), code.add(k, 1)
        square = own.get(k)
        failed.value = failed.value | ~(square > 0)
        root = L.sqrt(square)
        own.put(k, root)
        _divide(code, own, root, after, n)
        with e.loop(after, n) as i:
            line.put(i, own.get(i))
        with e.loop(after, n) as i:
            start, stop = (i, n) if upper else (after, code.add(i, 1))
            _subtract(code, a.row(i), line, line.get(i), start, stop)
    return failed.value


def reflect(code: Code, a: MatrixTile, scales: Line, line: Line, rows: str, columns: str, steps: str) -> None:
    """Replace ``a`` by the upper triangle R of ``H1 H2 ... R``, and below the diagonal by the vectors of the
    Householder reflections H, whose first elements, 1, are not stored; ``scales`` are their factors. A column that is
    zero below the diagonal needs no reflection."""
    e, L = code.e, code.lanes
    with e.loop("0", steps) as k:
        column, after = a.column(k), code.add(k, 1)
        largest = Variable(code, L.absolute(column.get(k)))
        with e.loop(after, rows) as i:
            size = L.absolute(column.get(i))
            largest.value = L.select(size > largest.value, size, largest.value)
        unit = L.select(L.equal(largest.value, 0), L.constant(1, a.dtype), largest.value)
        below = Variable(code, L.constant(0, a.dtype))
        _divide(code, column, unit, k, rows)
        with e.loop(after, rows) as i:
            value = column.get(i)
            below.value = L.fma(value, value, below.value)
        first, nothing = column.get(k), L.equal(below.value, 0)
        length = -L.copysign(L.sqrt(L.fma(first, first, below.value)), first)
        safe = L.select(nothing, L.constant(1, a.dtype), length)
        scales.put(k, L.select(nothing, L.constant(0, a.dtype), (length - first) / safe))
        _divide(code, column, L.select(nothing, L.constant(1, a.dtype), first - length), after, rows)
        column.put(k, L.select(nothing, first, length) * unit)
        _apply(code, a, column, scales.get(k), line, k, rows, after, columns)


def _apply(
    code: Code, x: MatrixTile, vector: Line, scale: Value, line: Line, k: str, rows: str, start: str, stop: str
) -> None:
    """Apply a reflection of the rows from ``k`` on to some columns. ``line`` is scratch memory for their sums."""
    e, own = code.e, x.row(k)
    with e.loop(start, stop) as j:
        line.put(j, own.get(j))
    with e.loop(code.add(k, 1), rows) as i:
        _subtract(code, line, x.row(i), -vector.get(i), start, stop)
    _subtract(code, own, line, scale, start, stop)
    with e.loop(code.add(k, 1), rows) as i:
        _subtract(code, x.row(i), line, vector.get(i) * scale, start, stop)


def orthonormal(code: Code, q: MatrixTile, a: MatrixTile, scales: Line, line: Line, rows: str, steps: str) -> None:
    """The first columns of the product of the reflections of `reflect`."""
    zero, one = (code.lanes.constant(number, q.dtype) for number in (0, 1))
    with code.e.loop("0", rows) as i:
        row = q.row(i)
        with code.e.loop("0", steps) as j:
            row.put(j, zero)
        with code.e.when(code.compare("slt", i, steps)):
            row.put(i, one)
    with counting(code, steps, backwards=True) as k:
        _apply(code, q, a.column(k), scales.get(k), line, k, rows, k, steps)


def clear_beside(code: Code, a: MatrixTile, rows: str, columns: str, upper: bool) -> None:
    """Write zeros below the diagonal of an upper triangle, or above that of a lower one."""
    zero = code.lanes.constant(0, a.dtype)
    with code.e.loop("0", rows) as i:
        row = a.row(i)
        start, stop = ("0", code.smaller(i, columns)) if upper else (code.add(i, 1), columns)
        with code.e.loop(start, stop) as j:
            row.put(j, zero)


def has_zero_on_diagonal(code: Code, a: MatrixTile, n: str) -> Value:
    found = no_lanes(code)
    with code.e.loop("0", n) as k:
        found.value = found.value | code.lanes.equal(a.row(k).get(k), 0)
    return found.value


def spoil(code: Code, x: Line, count: str, failed: Value) -> None:
    """Write NaN to the lanes that failed."""
    L = code.lanes
    with code.e.when(L.any_lane(failed)):
        nan = L.constant(float("nan"), x.dtype)
        with code.e.loop("0", count) as i:
            x.put(i, L.select(failed, nan, x.get(i)))
