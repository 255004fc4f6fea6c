"""A plan's description of its steps: operations, loops, bytes, and the arrays that are written. It describes the steps
that run."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

import weft.core as mx
from tests.programs import Program, programs
from weft.compiler.planning.plan import Plan
from weft.compiler.planning.records import Region, StepRecord, bytes_of
from weft.compiler.program import Program as Key
from weft.compiler.running import evaluate
from weft.graph.node import Placeholder

ROW = mx.random.normal((100,), key=mx.random.key(0))
MATRIX = mx.random.normal((20, 30), key=mx.random.key(1))
TABLE = mx.random.normal((10, 4), key=mx.random.key(2))
THREE = mx.array([1, 5, 1])
THOUSAND = mx.zeros((1000,), dtype=mx.int32)


def plan_of(function: Callable[..., Any], *arguments: mx.array) -> Plan:
    mx.eval(arguments)
    results = function(*arguments)
    nodes = [result.node for result in (results if isinstance(results, tuple | list) else (results,))]
    program = Key()
    program.add(nodes)
    return evaluate.plan_of(program, [program.position(node) for node in nodes])


def records_of(function: Callable[..., Any], *arguments: mx.array) -> list[StepRecord]:
    return plan_of(function, *arguments).describe().records


def record_of(function: Callable[..., Any], *arguments: mx.array) -> StepRecord:
    (record,) = records_of(function, *arguments)
    return record


@pytest.mark.parametrize(
    ("function", "arguments", "read", "written"),
    [
        (lambda x: x + 1, [ROW], 400, 400),
        (lambda x: x + x, [ROW], 400, 400),
        (lambda x, y: x + y, [MATRIX, ROW[:30]], 2400 + 120, 2400),
        (lambda x: x[:50] * 2, [ROW], 200, 200),
        (lambda x: x[::4] * 2, [ROW], 100, 100),
        (lambda x: x[::-1] * 2, [ROW], 400, 400),
        (lambda x: x[1:] - x[:-1], [ROW], 400, 396),
        (lambda x: x[:50] - x[50:], [ROW], 400, 200),
        (lambda x: x[::2] - x[1::2], [ROW], 400, 200),
        (lambda x: x.T + 0, [MATRIX], 2400, 2400),
        (lambda x: x.T + x.T, [MATRIX], 2400, 2400),
        (lambda x: mx.softmax(x, axis=-1), [MATRIX], 2400, 2400),
        (lambda x: x.sum(axis=0), [MATRIX], 2400, 120),
        (lambda x: x.astype(mx.float16), [ROW], 400, 200),
        (lambda x: mx.broadcast_to(x[:1], (50,)) + 0, [ROW], 4, 200),
        (lambda t, i: t[i], [TABLE, THREE], 3 * 16 + 12, 48),
        (lambda t, i: t[i], [TABLE, THOUSAND], 160 + 4000, 16000),
        (lambda x, y: x @ y, [MATRIX, MATRIX.T], 2400 + 2400, 1600),
        (lambda x: x @ x.T, [MATRIX], 2400, 1600),
        (lambda: mx.zeros((5, 5)), [], 0, 100),
    ],
)
def test_bytes(function: Callable[..., Any], arguments: list[mx.array], read: int, written: int) -> None:
    record = record_of(function, *arguments)
    assert (record.bytes_read, record.bytes_written) == (read, written)


def test_there_are_no_loops_over_nothing() -> None:
    nothing = mx.zeros((5, 0))
    for function in (mx.sum, mx.prod, mx.all, mx.any, lambda x: mx.sum(x, axis=1), lambda x: x @ x.T):
        (filling,) = records_of(function, nothing)
        assert filling.folded == ()
        assert filling.work <= 5
    assert records_of(lambda x: mx.cumsum(x + 1, axis=1), nothing) == []


def test_what_updates_write() -> None:
    """They write the copy of the base, and then the part that changes; a scatter that adds also reads the elements that
    it adds to."""
    copy, part = records_of(lambda x, y: mx.slice_update(x, y, mx.array([10]), [0]), ROW, ROW[:5] + 1)
    assert (copy.bytes_written, part.bytes_written) == (400, 20)
    left, right = records_of(lambda x, y: mx.concatenate([x, y]), ROW, ROW[:5] + 1)
    assert (left.bytes_written, right.bytes_written) == (400, 20)
    _, added = records_of(lambda t, i: t.at[i].add(mx.ones((3, 4))), TABLE, THREE)
    assert added.bytes_written == 48
    assert added.bytes_read == 48 + 12
    assert "scatter" in added.operations


def test_regions_of_one_operand_are_counted_once() -> None:
    here, there = Placeholder(None, (10,), mx.float32), Placeholder(None, (10,), mx.float32)
    assert bytes_of([]) == 0
    assert bytes_of([Region(here, 0, 40, 40), Region(here, 0, 40, 40)]) == 40
    assert bytes_of([Region(here, 0, 40, 40), Region(there, 0, 40, 40)]) == 80
    assert bytes_of([Region(here, 0, 20, 20), Region(here, 20, 40, 20)]) == 40
    assert bytes_of([Region(here, 0, 36, 20), Region(here, 4, 40, 20)]) == 40
    assert bytes_of([Region(here, 0, 30, 30), Region(here, 10, 40, 30)]) == 40


@pytest.mark.parametrize(
    ("function", "arguments", "name", "loops"),
    [
        (lambda x: mx.exp(x) * 2 + x * 3, [ROW], "exp, multiply (2), add", "100"),
        (lambda x: mx.softmax(x * 2, axis=-1), [MATRIX], "multiply, max, subtract, exp, sum, divide", "20x[30]"),
        (lambda x: x.sum(axis=0), [MATRIX], "sum", "30x[20]"),
        (lambda x: x.sum(), [MATRIX], "sum", "[20]x[30]"),
        (lambda x: x[0] + 1, [ROW], "add", "1"),
        (lambda x, y: x @ y, [MATRIX, MATRIX.T], "matmul", "20x20x[30]"),
        (lambda: mx.zeros((5, 5)), [], "broadcast", "25"),
    ],
)
def test_names_and_loops(function: Callable[..., Any], arguments: list[mx.array], name: str, loops: str) -> None:
    record = record_of(function, *arguments)
    assert (record.name, record.loops) == (name, loops)


@pytest.mark.parametrize(
    ("function", "arguments", "arithmetic"),
    [
        (lambda x: x + 1, [ROW], 100),
        (lambda x, y: mx.sin(x) + y, [MATRIX, ROW[:30]], 2 * 600),
        (lambda x: x.sum(axis=-1), [MATRIX], 600),
        (lambda x: mx.softmax(x, axis=-1), [MATRIX], 600 * 5),  # maximum, difference, exp, sum, quotient
        (lambda x, y: x @ y, [MATRIX, MATRIX.T], 2 * 20 * 20 * 30),
        (lambda x: x @ x.T, [MATRIX.astype(mx.complex64)], 8 * 20 * 20 * 30),
    ],
)
def test_arithmetic(function: Callable[..., Any], arguments: list[mx.array], arithmetic: int) -> None:
    assert record_of(function, *arguments).arithmetic == arithmetic


def test_what_is_written() -> None:
    def two_units(x: mx.array, w: mx.array) -> tuple[mx.array, mx.array]:
        hidden = mx.maximum((mx.exp(x) @ w)[::-1], 0)
        return hidden, hidden - mx.mean(hidden, axis=1, keepdims=True)

    before, product, after = records_of(two_units, MATRIX, MATRIX.T)
    assert [str(one) for one in before.written] == ["temporary float32[20,30]"]
    assert [str(one) for one in product.written] == ["temporary float32[20,20]"]
    assert sorted(str(one) for one in after.written) == ["result 0 float32[20,20]", "result 1 float32[20,20]"]
    assert [record.kind for record in (before, product, after)] == ["kernel", "call", "kernel"]


@given(programs())
def test_a_description_is_that_of_the_plan(program: Program) -> None:
    """The plan is made again, with a check that its steps are the same; every result is written by a step."""
    plan = plan_of(program.__call__, *program.arrays())
    description = plan.describe()
    records = description.records
    assert len(records) == plan.steps.count
    assert all(record.name and record.units > 0 and record.text for record in records)
    results = [record for record in records if any(one.result is not None for one in record.written)]
    assert sum(record.bytes_written for record in results) >= sum(plan.sizes)
    temporaries = description.temporaries
    assert sum(one.size for one in temporaries) >= plan.arena - 64 * len(temporaries)
    assert all(0 <= one.first <= one.last < len(records) for one in temporaries)
    assert all(one.offset >= 0 and one.offset + one.size <= plan.arena for one in temporaries)


def test_temporaries_without_elements_are_left_out() -> None:
    empty = mx.zeros((0,))
    description = plan_of(lambda x: mx.sin(mx.concatenate([x, x])), empty).describe()
    assert description.temporaries == []


def test_the_parts_of_a_call_are_counted_one_by_one() -> None:
    """A sum of a long row has two steps, and its totals are alive in both of them."""
    row = mx.zeros((1 << 20,))
    description = plan_of(lambda x: mx.cumsum(mx.sort(x)) * 2, row).describe()
    last = len(description.records) - 1
    assert max(one.last for one in description.temporaries) == last


def test_a_description_of_another_plan_is_refused() -> None:
    plan, other = plan_of(lambda x: x + 1, ROW), plan_of(lambda x: x + 1, MATRIX)
    with pytest.raises(AssertionError, match="another plan"):
        replace(plan, entries=other.entries, wanted=other.wanted).describe()


def test_a_plan_holds_no_nodes() -> None:
    plan = plan_of(lambda x: mx.exp(x) @ x.T, MATRIX)
    references = [weakref.ref(node) for node in plan.describe().outputs]
    gc.collect()
    assert [reference() for reference in references] == [None]
