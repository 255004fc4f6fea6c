"""Steps for stacks of small real matrices. A unit is as many matrices as a vector has lanes, or a single matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import module
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu import squares
from weft.compiler.cpu.code import STEP, WIDTH, Code
from weft.compiler.cpu.small_matrices import arithmetic
from weft.compiler.cpu.small_matrices.tiles import COLUMNS, LARGEST, Line, MatrixTile, Room, Stack, numbered
from weft.dtypes import Dtype
from weft.graph.node import Shape
from weft.primitives.routine import RoutineCall, RoutineStep

_WORK_PER_GRAIN = 1 << 15
_ENOUGH = 4
"""From this many matrices on, each is computed in a lane; fewer are computed one by one."""

_SHARED = 2048
_MATRICES, _LINES, _FIRST_OPERAND, _OPERAND_FIELDS = 0, 1, 4, 4


def is_small(shape: Shape, dtype: Dtype) -> bool:
    """Whether the matrices of a stack are small enough for this code."""
    return dtype in (dtypes.float32, dtypes.float64) and max(shape[-2:]) <= LARGEST


class Matrices:
    """The matrices of an operand, which are read into a tile."""

    def __init__(self, w: SmallMatricesWriter, position: int) -> None:
        code = w.code
        self.w = w
        self.rows, self.columns = w.extents[position]
        self._lines, self.length, self._distance = [code.number(_LINES + field) for field in range(3)]
        self._room = w.room(LARGEST * (LARGEST + 1))
        self._move(w.stacks[position].read)

    def _move(self, move: Callable[[Room, str, str, str], None]) -> None:
        code = self.w.code
        with code.e.loop("0", self._lines) as line:
            move(self._room, code.multiply(line, self.length), self.length, code.multiply(line, self._distance))

    @property
    def tile(self) -> MatrixTile:
        return self._room.tile(self._distance)

    def write(self, position: int, failed: Value | None = None) -> None:
        """Write them as a result, with NaN in the lanes that failed."""
        if failed is not None:
            count = self.w.code.multiply(self.rows, self._distance)
            arithmetic.spoil(self.w.code, self._room.line(), count, failed)
        self._move(self.w.stacks[position].write)

    def write_rows(self, position: int, rows: str) -> None:
        """Write their first rows as a result."""
        code, write = self.w.code, self.w.stacks[position].write
        together = code.compare("ne", self.length, self.columns)
        with code.e.when(together):
            write(self._room, "0", code.multiply(rows, self.columns))
        with code.e.when(code.negated(together)), code.e.loop("0", rows) as line:
            write(self._room, code.multiply(line, self.length), self.length, code.multiply(line, self._distance))


class Columns(NamedTuple):
    """Some columns of matrices: a tile, the first column and how many there are; and all elements of the tile as a
    line, with their number."""

    tile: MatrixTile
    first: str
    width: str
    line: Line
    size: str


class SmallMatricesWriter:
    """Writes the step of a routine. ``stacks`` and ``extents`` are those of operands and results. ``width`` matrices
    are computed at once, each in a lane."""

    stacks: list[Stack]

    def __init__(self, call: RoutineCall, width: int) -> None:
        self.code = Code()
        self.code.lanes = Lanes(self.code.e, width)
        self.width = width
        self.params = call.params
        self.dtype = call.operands[0].dtype
        self._dtypes = [x.dtype for x in (*call.operands, *call.results)]
        self.extents = [
            (self.code.number(index + 2), self.code.number(index + 3))
            for index in map(self._first_number, range(len(self._dtypes)))
        ]

    def _first_number(self, position: int) -> int:
        return _FIRST_OPERAND + _OPERAND_FIELDS * position

    def module(self, name: str, write: Callable[[SmallMatricesWriter], None]) -> str:
        code = self.code
        matrices = code.number(_MATRICES)
        bases = [code.memory(self._first_number(position)) for position in range(len(self._dtypes))]
        strides = [
            code.multiply(code.multiply(*extents), dtype.size)
            for extents, dtype in zip(self.extents, self._dtypes, strict=True)
        ]
        with code.e.loop("%begin", "%end") as unit:
            first = code.multiply(unit, self.width)
            present = code.smaller(code.subtract(matrices, first), self.width)
            self.stacks = [
                Stack(code, code.moved(base, code.multiply(first, stride)), stride, present, dtype)
                for base, stride, dtype in zip(bases, strides, self._dtypes, strict=True)
            ]
            write(self)
        emitter, text = code.finished(name, STEP, "")
        declared = squares.declarations(*_sizes(self._dtypes)) if self.width > 1 else []
        return module([emitter], [*declared, text])

    def room(self, count: int, dtype: Dtype | None = None) -> Room:
        return Room(self.code, self.dtype if dtype is None else dtype, count)

    @contextmanager
    def columns_of(self, target: Stack, n: str, count: str, source: Stack | None = None) -> Iterator[Columns]:
        """The columns of a result, some at a time. They are read from ``source`` if there is one, and written when the
        block ends."""
        code = self.code
        room = self.room(LARGEST * COLUMNS)
        whole = code.compare("sle", count, COLUMNS)
        with code.e.loop("0", count, COLUMNS) as first:
            number = code.smaller(code.subtract(count, first), COLUMNS)
            size = code.multiply(n, number)

            def move(way: Callable[..., None]) -> None:
                with code.e.when(whole):
                    way(room, "0", size)
                with code.e.when(code.negated(whole)), code.e.loop("0", n) as row:
                    way(room, code.add(code.multiply(row, count), first), number, code.multiply(row, number))

            if source is not None:
                move(source.read)
            yield Columns(room.tile(number), first, number, room.line(), size)
            move(target.write)

    def substitute(self, triangle: MatrixTile, x: Columns, n: str, upper: bool, unit: bool) -> None:
        """Solve for some columns: one by one or, for a single matrix, all at once."""
        code = self.code
        one = code.compare("eq", x.width, 1) if self.width == 1 else "true"
        with code.e.when(one), code.e.loop("0", x.width) as column:
            arithmetic.substitute(code, triangle, x.tile.column(column), n, upper, unit)
        if self.width == 1:
            with code.e.when(code.negated(one)):
                arithmetic.substitute_rows(code, triangle, x.tile, n, x.width, upper, unit)


def _sizes(dtypes_: Sequence[Dtype]) -> list[int]:
    return sorted({dtype.size for dtype in dtypes_})


def _cholesky(w: SmallMatricesWriter) -> None:
    code, (n, _), upper = w.code, w.extents[0], w.params["upper"]
    a = Matrices(w, 0)
    failed = arithmetic.cholesky(code, a.tile, w.room(LARGEST).line(), n, upper)
    arithmetic.clear_beside(code, a.tile, n, n, upper)
    a.write(1, failed)


def _lu(w: SmallMatricesWriter) -> None:
    """The operand and the first result hold the matrix by columns."""
    code, (columns, rows) = w.code, w.extents[0]
    a = Matrices(w, 0)
    steps = code.smaller(rows, columns)
    pivots, order = w.room(LARGEST, dtypes.uint32), w.room(LARGEST, dtypes.uint32)
    arithmetic.factor(code, a.tile.transposed, pivots.line(), rows, columns, steps)
    _count(w, order.line(), rows)
    arithmetic.exchange_all(code, order.tile(1), pivots.line(), steps, rows, "1", backwards=True)
    a.write(1)
    w.stacks[2].write(pivots, "0", steps)
    w.stacks[3].write(order, "0", rows)


def _count(w: SmallMatricesWriter, line: Line, count: str) -> None:
    with w.code.e.loop("0", count) as i:
        line.put(i, numbered(w.code, i))


def _solve(w: SmallMatricesWriter) -> None:
    """The factors are those of the transpose, ``A^T = P L U``. So on and below the diagonal is the transpose of U."""
    code, (n, _), (_, count) = w.code, w.extents[1], w.extents[3]
    _, _, pivots, b, x = w.stacks
    factors = Matrices(w, 1).tile
    exchanges = w.room(LARGEST, dtypes.uint32)
    pivots.read(exchanges, "0", n)
    singular = arithmetic.has_zero_on_diagonal(code, factors, n)
    with w.columns_of(x, n, count, b) as columns:
        if w.params["adjoint"]:
            arithmetic.exchange_all(code, columns.tile, exchanges.line(), n, n, columns.width, backwards=False)
            factors = factors.transposed
        for upper in (False, True):
            w.substitute(factors, columns, n, upper, unit=upper is not w.params["adjoint"])
        if not w.params["adjoint"]:
            arithmetic.exchange_all(code, columns.tile, exchanges.line(), n, n, columns.width, backwards=True)
        arithmetic.spoil(code, columns.line, columns.size, singular)


def _solve_triangular(w: SmallMatricesWriter) -> None:
    code, (n, _), (_, count) = w.code, w.extents[0], w.extents[1]
    upper, adjoint, unit = w.params["upper"], w.params["adjoint"], w.params["unit"]
    _, b, x = w.stacks
    triangle = Matrices(w, 0).tile
    if adjoint:
        triangle = triangle.transposed
    singular = None if unit else arithmetic.has_zero_on_diagonal(code, triangle, n)
    with w.columns_of(x, n, count, b) as columns:
        w.substitute(triangle, columns, n, upper is not adjoint, unit)
        if singular is not None:
            arithmetic.spoil(code, columns.line, columns.size, singular)


def _inverse(w: SmallMatricesWriter) -> None:
    """``(P L U)^-1``, from the columns of the transpose of P."""
    code, (n, _) = w.code, w.extents[0]
    a = Matrices(w, 0).tile
    pivots, order = w.room(LARGEST, dtypes.uint32).line(), w.room(LARGEST, dtypes.uint32)
    arithmetic.factor(code, a, pivots, n, n, n)
    _count(w, order.line(), n)
    arithmetic.exchange_all(code, order.tile(1), pivots, n, n, "1", backwards=False)
    singular = arithmetic.has_zero_on_diagonal(code, a, n)
    with w.columns_of(w.stacks[1], n, n) as columns:
        with code.e.loop("0", n) as i, code.e.loop("0", columns.width) as column:
            found = code.lanes.equal(order.line().get(i), numbered(code, code.add(columns.first, column)))
            columns.tile.row(i).put(column, code.lanes.convert(found, w.dtype))
        w.substitute(a, columns, n, upper=False, unit=True)
        w.substitute(a, columns, n, upper=True, unit=False)
        arithmetic.spoil(code, columns.line, columns.size, singular)


def _triangular_inverse(w: SmallMatricesWriter) -> None:
    """Rows of the inverse are columns of the inverse of the transpose. The other triangle is zero."""
    code, (n, _), upper = w.code, w.extents[0], w.params["upper"]
    triangle = Matrices(w, 0).tile.transposed
    zero, one = (code.lanes.constant(number, w.dtype) for number in (0, 1))
    singular = arithmetic.has_zero_on_diagonal(code, triangle, n)
    room = w.room(LARGEST * COLUMNS)
    with code.e.loop("0", n, COLUMNS) as first:
        rows = code.smaller(code.subtract(n, first), COLUMNS)
        size = code.multiply(rows, n)
        with code.e.loop("0", rows) as row:
            line, number = room.tile(n).row(row), code.add(first, row)
            with code.e.loop("0", n) as i:
                line.put(i, zero)
            line.put(number, one)
            arithmetic.substitute(code, triangle, line, n, not upper, unit=False, nonzero=number)
        arithmetic.spoil(code, room.line(), size, singular)
        w.stacks[1].write(room, code.multiply(first, n), size)


def _qr(w: SmallMatricesWriter) -> None:
    code, (rows, columns) = w.code, w.extents[0]
    steps = code.smaller(rows, columns)
    a, q = Matrices(w, 0), w.room(LARGEST * LARGEST)
    scales, line = w.room(LARGEST).line(), w.room(LARGEST).line()
    arithmetic.reflect(code, a.tile, scales, line, rows, columns, steps)
    arithmetic.orthonormal(code, q.tile(steps), a.tile, scales, line, rows, steps)
    w.stacks[1].write(q, "0", code.multiply(rows, steps))
    arithmetic.clear_beside(code, a.tile, steps, columns, upper=True)
    a.write_rows(2, steps)


WRITERS: dict[str, Callable[[SmallMatricesWriter], None]] = {
    "cholesky": _cholesky,
    "inverse": _inverse,
    "lu": _lu,
    "qr": _qr,
    "solve": _solve,
    "solve_triangular": _solve_triangular,
    "triangular_inverse": _triangular_inverse,
}

_addresses: dict[Any, int] = {}


def step(name: str, call: RoutineCall) -> RoutineStep:
    """The step of a routine, for a stack that `is_small`."""
    operands = [*call.operands, *call.results]
    first = operands[0]
    batch = len(first.shape) - 2
    matrices = prod(first.shape[:batch])
    width = WIDTH if matrices >= _ENOUGH else 1
    rows, columns = first.shape[batch:]
    numbers = [matrices, *_lines(rows, columns, width * first.dtype.size)]
    for operand in operands:
        numbers += [operand.slot, operand.offset, *(*operand.shape[batch:], 1)[:2]]
    elements = max([prod(x.shape[batch:]) for x in operands])
    work = (rows * columns + elements) * min(rows, columns) + WIDTH
    units = -(-matrices // width)
    return RoutineStep(_address(name, call, width), numbers, units, max(1, _WORK_PER_GRAIN // work), work * units)


def _lines(rows: int, columns: int, size: int) -> tuple[int, int, int]:
    """In how many parts the elements of a matrix are read, how many elements a part has, and how far parts are apart.

    Rows whose distance makes them share few sets of a cache are stored with a gap of one element.
    """
    if columns * size % _SHARED == 0:
        return rows, columns, columns + 1
    return 1, rows * columns, columns


def _address(name: str, call: RoutineCall, width: int) -> int:
    found_dtypes = [x.dtype for x in (*call.operands, *call.results)]
    key = (name, found_dtypes[0], width, tuple(call.params.items()))
    if key not in _addresses:
        function = f"small_{name}"
        provided = squares.provided(*_sizes(found_dtypes)) if width > 1 else {}
        source = f"{function} {found_dtypes[0].name} {width} {call.params}"

        def generate() -> str:
            return SmallMatricesWriter(call, width).module(function, WRITERS[name])

        _addresses[key] = loading.load(source, generate, (function,), provided)[function]
    return _addresses[key]
