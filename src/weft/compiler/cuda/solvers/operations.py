"""Nodes for problems of linear algebra in planned graphs, and what surrounds them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from weft import dtypes
from weft.compiler.cuda.library_operations import LibraryOperation
from weft.compiler.cuda.solvers.kernels import exchange_step, list_steps, order_step
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array
from weft.primitives.routine import RoutineCall, RoutineStep
from weft.runtime.cuda.solvers import calls, problems
from weft.runtime.cuda.solvers.calls import SolverCall
from weft.runtime.cuda.solvers.libraries import Number
from weft.runtime.cuda.solvers.problems import Problem

_NUMBERS = {
    dtypes.float32: Number.FLOAT32,
    dtypes.float64: Number.FLOAT64,
    dtypes.complex64: Number.COMPLEX64,
}


def _step(call: RoutineCall) -> list[RoutineStep]:
    problem: Problem = call.params["work"]
    memory = (*call.operands, *call.results)
    places = (*[(one.slot, one.offset) for one in memory], call.scratch)
    title = _OF_PROBLEMS[type(problem)].name
    lists = [(memory[position], size) for position, size in problem.lists]
    code = SolverCall(title, places, problem, problem.is_captured)
    step = RoutineStep(code, work=call.params["arithmetic"], way="cuSOLVER")
    return [*list_steps(problem.count, lists, call.scratch), step]


_NAMES = ("matrix routine", "matrix routines")
_OF_PROBLEMS = {
    problem: LibraryOperation(name, _NAMES, _step)
    for problem, name in {
        problems.Cholesky: "cholesky",
        problems.Factors: "lu_factor",
        problems.Solutions: "solve",
        problems.Triangular: "solve_triangular",
        problems.Orthonormal: "qr",
        problems.Reflections: "reflections",
        problems.Eigenvalues: "eigh",
        problems.SingularValues: "svd",
        problems.SmallSingularValues: "svd",
    }.items()
}
ORDER = LibraryOperation("order_of_rows", _NAMES, order_step)
EXCHANGE = LibraryOperation("exchanged_rows", _NAMES, exchange_step)
OPERATIONS = (*_OF_PROBLEMS.values(), ORDER, EXCHANGE)


def is_solved(machine: Any, *operands: Node) -> bool:
    """Whether the libraries can compute a problem of these matrices on a machine."""
    return machine is not None and not calls.missing() and all(one.size for one in operands)


def declined(node: Node) -> str:
    """Why a problem of linear algebra is left to the CPU."""
    return calls.missing() or "cuSOLVER has nothing faster"


def never(call: RoutineCall) -> RoutineStep:
    raise AssertionError("what cuSOLVER does not compute is left to the CPU")


def number_of(x: Node) -> Number:
    return _NUMBERS[x.dtype]


def solved(
    machine: Any, problem: Problem, inputs: Sequence[Array], results: Sequence[tuple[Shape, Dtype]], operations: int
) -> list[Array]:
    """The results that the libraries compute from inputs in row-major order, and for each matrix 0 or the code of a
    failure.

    ``operations`` is how many multiplications a matrix takes.
    """
    nodes = _OF_PROBLEMS[type(problem)].of(
        [x.node for x in inputs],
        [*results, ((problem.count,), dtypes.int32)],
        work=problem,
        scratch=calls.solvers_of(machine).scratch(problem),
        arithmetic=problem.count * operations,
    )
    return [wrap(node) for node in nodes]


def order_of_rows(pivots: Array, rows: int) -> Array:
    """For each row of a matrix, the row of the product of its factors that equals it, by pivots counted from zero."""
    shape = (*pivots.node.shape[:-1], rows)
    (found,) = ORDER.of([pivots.node], [(shape, dtypes.uint32)], work=None, scratch=0, arithmetic=prod(shape))
    return wrap(found)


def exchanged(x: Array, pivots: Array, backwards: bool) -> Array:
    """Rows exchanged as pivots (counted from zero) say, in order or backwards."""
    node = x.node
    inputs = [node, pivots.node]
    (found,) = EXCHANGE.of(inputs, [(node.shape, node.dtype)], work=backwards, scratch=0, arithmetic=node.size)
    return wrap(found)
