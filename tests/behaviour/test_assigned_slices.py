"""Assigning to slices of arrays that are also read, as finite differences do: the bits are NumPy's, and only the slices
are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.sampling import examples
from weft.compiler.fusion import updates
from weft.runtime import recording

NAMES = ("u", "v", "w")

Values = dict[str, Any]
Region = tuple[slice, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Read:
    """A region of an array, possibly in reverse order of rows."""

    name: str
    at: Region
    turned: bool

    def of(self, values: Values) -> Any:
        found = values[self.name][self.at]
        return found[::-1] if self.turned else found


@dataclass(frozen=True)
class Statement:
    """The array ``name`` is replaced, in one of the ways in `KINDS`. The assigned value has the shape ``sizes``."""

    kind: str
    name: str
    at: Region
    rows: tuple[int, ...]
    sizes: Shape
    factor: int
    reads: tuple[Read, ...]

    def value(self, xp: Any, values: Values) -> Any:
        """A number, an array, or a sum of several."""
        if not self.reads:
            return xp.full(self.sizes, self.factor, dtype=xp.int32)
        total = self.reads[0].of(values)
        for read in self.reads[1:]:
            total = total + read.of(values) * self.factor
        return total

    def run(self, xp: Any, values: Values) -> None:
        values[self.name] = KINDS[self.kind](self, xp, values)


def assigned(statement: Statement, xp: Any, values: Values) -> Any:
    result = xp.array(values[statement.name])
    result[statement.at] = statement.value(xp, values)
    return result


def added(statement: Statement, xp: Any, values: Values) -> Any:
    old, new = values[statement.name], statement.value(xp, values)
    if xp is mx:
        return old.at[statement.at].add(new)
    result = old.copy()
    result[statement.at] += new
    return result


def added_to_rows(statement: Statement, xp: Any, values: Values) -> Any:
    old, new = values[statement.name], statement.value(xp, values)
    if xp is mx:
        return old.at[mx.array(statement.rows)].add(new)
    result = old.copy()
    np.add.at(result, list(statement.rows), new)
    return result


KINDS: dict[str, Callable[[Statement, Any, Values], Any]] = {
    "assigned": assigned,
    "added": added,
    "added to rows": added_to_rows,
    "replaced": lambda statement, xp, values: values[statement.name] * 2 + statement.value(xp, values),
    "sums": lambda statement, xp, values: values[statement.name].sum(axis=0) + statement.value(xp, values),
    "another name": lambda statement, xp, values: values[statement.reads[0].name],
}


def regions(draw: st.DrawFn, shape: Shape, sizes: Shape) -> Region:
    """A region with ``sizes`` elements along the axes, which are neighbours or every other element."""
    parts = []
    for extent, size in zip(shape, sizes, strict=True):
        step = draw(st.sampled_from([1, 1, 1, 2])) if 2 * (size - 1) < extent else 1
        length = (size - 1) * step + 1
        start = draw(st.integers(0, extent - length))
        parts.append(slice(start, start + length, step))
    return tuple(parts)


@st.composite
def statements(draw: st.DrawFn, shape: Shape) -> Statement:
    kind = draw(st.sampled_from(["assigned", "assigned", *KINDS]))
    names = st.sampled_from(NAMES)
    sizes = shape
    if kind in ("assigned", "added"):
        sizes = tuple(draw(st.integers(1, extent)) for extent in shape)
    elif kind == "added to rows":
        sizes = (draw(st.integers(1, shape[0])), *shape[1:])
    rows = draw(st.tuples(*[st.integers(0, shape[0] - 1)] * sizes[0]))
    at = regions(draw, shape, sizes)
    reads = []
    for _ in range(draw(st.integers(kind == "another name", 2))):
        where = at if draw(st.booleans()) else regions(draw, shape, sizes)
        reads.append(Read(draw(names), where, draw(st.integers(0, 5)) == 0))
    return Statement(kind, draw(names), at, rows, sizes, draw(st.integers(-3, 3)), tuple(reads))


@st.composite
def programs(draw: st.DrawFn) -> tuple[Shape, list[Statement]]:
    shape = tuple(draw(st.lists(st.integers(2, 5), min_size=1, max_size=2)))
    return shape, draw(st.lists(statements(shape), min_size=2, max_size=8))


def start(xp: Any, shape: Shape) -> Values:
    numbers = np.random.default_rng(1).integers(-9, 9, size=(len(NAMES), *shape)).astype(np.int32)
    return {name: xp.array(values) for name, values in zip(NAMES, numbers, strict=True)}


def run(xp: Any, program: Sequence[Statement], values: Values, after: Callable[[Values], Any] | None = None) -> Values:
    for statement in program:
        statement.run(xp, values)
        if after is not None:
            after(values)
    return values


def check(found: Values, wanted: Values) -> None:
    for name in NAMES:
        np.testing.assert_array_equal(np.array(found[name]), wanted[name])


@pytest.fixture
def cut_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for small arrays, copies leave out what is assigned."""
    monkeypatch.setattr(updates, "STEP_ELEMENTS", 0)


@pytest.mark.usefixtures("cut_copies")
@given(programs())
@examples(25)
def test_programs_that_assign_to_slices(drawn: tuple[Shape, list[Statement]]) -> None:
    shape, program = drawn
    wanted = run(np, program, start(np, shape))
    check(run(mx, program, start(mx, shape)), wanted)
    check(run(mx, program, start(mx, shape), mx.eval), wanted)
    arguments = start(mx, shape)
    check(mx.compile(lambda values: run(mx, program, dict(values)))(arguments), wanted)
    check(arguments, start(np, shape))


def replaced(xp: Any, old: Any, at: Any, value: Any) -> Any:
    result = xp.array(old)
    result[at] = value
    return result


def copied_over(xp: Any, u: Any, v: Any) -> Any:
    old = u * 2 + u[::-1]
    new = replaced(xp, old, slice(2, 6), v[2:6])
    return old[::-1] + new


def twice_in_place(xp: Any, u: Any, v: Any) -> Any:
    first = replaced(xp, u * 2 + u[::-1], slice(0, 3), v[:3] + 1)
    second = replaced(xp, first, slice(4, 7), v[:3] + 2)
    return first[::-1] + second


def what_was_updated_before(xp: Any, u: Any, v: Any) -> Any:
    old = u * 2 + u[::-1]
    first = replaced(xp, old, slice(0, 3), old[5:8] + 1)
    second = replaced(xp, first, slice(4, 7), v[:3] + 2)
    return replaced(xp, second, slice(3, 6), first[4:7] + second[:3])


@pytest.mark.parametrize("program", [copied_over, twice_in_place, what_was_updated_before])
def test_old_values_are_read_later(program: Callable[..., Any]) -> None:
    u, v = np.random.default_rng(0).integers(-99, 99, size=(2, 8)).astype(np.int32)
    found = mx.compile(lambda u, v: program(mx, u, v))(mx.array(u), mx.array(v))
    np.testing.assert_array_equal(np.array(found), program(np, u, v))


def elements_written(function: Callable[[], Any]) -> int:
    """Over how many elements the steps of an evaluation loop."""
    with recording.recorded() as recorder:
        mx.eval(function())
    (found,) = recorder.runs
    return sum(record.work for record in found.plan.describe().records)


ROWS, COLUMNS = 200, 168
INSIDE = (slice(1, -1), slice(1, -1))
BORDER = 2 * (ROWS + COLUMNS) - 4


def smoothed(u: mx.array) -> mx.array:
    return (u[1:-1, :-2] + u[1:-1, 2:] + u[:-2, 1:-1] + u[2:, 1:-1]) / 4


def with_border(u: mx.array) -> mx.array:
    u[0] = u[-2]
    u[-1] = u[1]
    u[:, 0] = u[:, -2]
    u[:, -1] = u[:, 1]
    return u


def test_a_step_of_finite_differences_writes_the_array_once() -> None:
    u = mx.ones((ROWS, COLUMNS))
    mx.eval(u)
    compiled = mx.compile(lambda u: with_border(u.at[INSIDE].add(smoothed(u))))
    assert elements_written(lambda: compiled(u)) <= ROWS * COLUMNS + 2 * BORDER


def put(u: mx.array, at: Any, value: Any) -> mx.array:
    u[at] = value
    return u


def address(x: mx.array) -> int:
    mx.eval(x)
    return int(np.array(x, copy=False).__array_interface__["data"][0])


IN_PLACE: dict[str, Callable[[mx.array], mx.array]] = {
    "a number": lambda u: put(u, (3, 4), 1),
    "of the same elements": lambda u: u.at[2:40, ::2].add(u[2:40, ::2] * 2),
    "of other rows": lambda u: u.at[2:10].add(u[20:28]),
    "of the other columns": lambda u: put(u, (slice(None), slice(None, None, 2)), u[:, 1::2] * 3),
    "rows": lambda u: u.at[mx.array([1, 5, 1])].add(1),
    "the border": with_border,
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_array_that_nobody_else_holds_is_updated_in_place(name: str) -> None:
    wanted = np.array(IN_PLACE[name](mx.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS)))
    u = mx.array(np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS))
    before = address(u)
    u = IN_PLACE[name](u)
    assert address(u) == before
    np.testing.assert_array_equal(np.array(u), wanted)


NOT_IN_PLACE: dict[str, Callable[[mx.array], mx.array]] = {
    "of their neighbours": lambda u: put(u, slice(2, 40), u[1:39] * 3),
    "of rows from the end": lambda u: put(u, slice(2, 40), u[2:40][::-1] * 3),
    "a sum of what is replaced": lambda u: put(u, 0, u.sum(axis=0)),
    "rows of other rows": lambda u: u.at[mx.array([1, 5])].add(u[mx.array([5, 1])]),
}


@pytest.mark.parametrize("name", NOT_IN_PLACE)
def test_an_array_that_is_read_elsewhere_is_not(name: str) -> None:
    numbers = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    u = mx.array(numbers)
    wanted = np.array(NOT_IN_PLACE[name](mx.array(numbers)))
    before = address(u)
    u = NOT_IN_PLACE[name](u)
    assert address(u) != before
    np.testing.assert_array_equal(np.array(u), wanted)
