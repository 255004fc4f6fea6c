"""The operation table is complete: functions and primitives that are not in it are listed with a reason."""

from __future__ import annotations

import inspect
import operator

import pytest

import weft.core as mx
import weft.primitives as p
from tests.ops.matrix import TRANSFORMATIONS, holes_of, matrix_of
from tests.ops.row import ANY, CHECKS, EVERY, KINDS, Row, flat, to_array
from tests.ops.table import INTERNAL, NO_ROW, ROWS, SAME_FUNCTION
from weft import ops
from weft.graph.node import reachable
from weft.primitives import Primitive

MODULES = ("fast", "fft", "linalg")
"""Modules whose rows are named after the module and the function."""


def public_functions() -> set[str]:
    names = {name for name, value in vars(ops).items() if inspect.isfunction(value)}
    return names | {f"{module}.{name}" for module in MODULES for name in getattr(mx, module).__all__}


def test_every_public_function_has_a_row() -> None:
    in_table = {row.name for row in ROWS}
    missing = public_functions() - in_table - set(SAME_FUNCTION) - set(NO_ROW)
    assert not missing, f"functions without a row in tests/ops: {sorted(missing)}"


def test_every_row_is_a_public_function_or_a_method() -> None:
    names = {row.name for row in ROWS}
    methods = {name.removeprefix("array.") for name in names if name.startswith("array.")}
    functions = public_functions()
    assert {name for name in names if not name.startswith("array.")} <= functions
    assert all(hasattr(mx.array, name) for name in methods)


def test_names_are_public_once() -> None:
    """Every function of `ops` is the one of that name in `mx`; ``import *`` imports all public names but ``bool``."""
    everything: dict[str, object] = {}
    exec("from weft.core import *", everything)
    del everything["__builtins__"]
    public = {name: value for name, value in vars(mx).items() if not name.startswith("_")}
    assert everything == {name: value for name, value in public.items() if name != "bool"}
    assert all(getattr(mx, name) is getattr(ops, name) for name in public_functions() if "." not in name)
    modules = {name for name, value in everything.items() if inspect.ismodule(value)}
    assert modules == {"cuda", "distributed", "metal", "random", *MODULES}


@pytest.mark.parametrize("name", SAME_FUNCTION)
def test_second_names(name: str) -> None:
    assert operator.attrgetter(name)(mx) is operator.attrgetter(SAME_FUNCTION[name])(mx)


def test_reasons_for_having_no_row_are_not_outdated() -> None:
    assert set(NO_ROW) <= public_functions() - {row.name for row in ROWS}


def test_rows_have_different_names() -> None:
    ids = [row.id for row in ROWS]
    assert len(set(ids)) == len(ids), sorted({one for one in ids if ids.count(one) > 1})


def reached(row: Row, seed: int) -> set[Primitive]:
    """The primitives in the graphs of a row, in each of its dtypes."""
    found: set[Primitive] = set()
    for dtype in row.dtypes:
        outputs = flat(row.function(mx, *[to_array(x) for x in row.sample(seed, dtype)]))
        found |= {node.primitive for node in reachable([x.node for x in outputs]) if node.primitive is not None}
    return found


def test_every_primitive_is_reached_by_a_row_or_is_internal(seed: int) -> None:
    primitives = {name: value for name, value in vars(p).items() if isinstance(value, Primitive)}
    in_rows: set[Primitive] = set()
    for row in ROWS:
        in_rows |= reached(row, seed)
    missing = {name for name, primitive in primitives.items() if primitive not in in_rows}
    assert missing - set(INTERNAL) == set(), "primitives that no row reaches"
    assert set(INTERNAL) - missing == set(), "outdated: a row reaches these primitives, or they are gone"


def test_every_dtype_is_of_one_kind() -> None:
    assert sorted(dtype for kind in KINDS for dtype in kind) == sorted(EVERY)


def test_reasons_are_sentences() -> None:
    for row in ROWS:
        for check, reason in (*row.without.items(), *row.fails.items()):
            assert check in CHECKS
            assert len(reason.split()) >= 3, f"{row.id}: {check}"
    assert all(len(reason.split()) >= 3 for reason in (*INTERNAL.values(), *NO_ROW.values()))


def test_every_hole_in_the_matrix_has_a_reason() -> None:
    """A transformation of an operation is tested, or makes no sense, or is left out with a reason."""
    matrix = matrix_of(ROWS)
    assert [hole for hole in holes_of(matrix) if len(hole[2].split()) < 3] == []
    assert all(
        cell.holding + len(cell.meaningless) > 0 or cell.holes for line in matrix.values() for cell in line.values()
    )
    untested = Row("untested", lambda mx, x: mx.abs(x), abs, (ANY,))
    found = [(transformation, reason) for _, transformation, reason, _ in holes_of(matrix_of([untested]))]
    assert found == [(transformation, "") for transformation in TRANSFORMATIONS]
