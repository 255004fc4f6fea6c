"""Kernels that the libraries need beside them: lists of addresses, and the order of rows that pivots give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod

from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.kernels import RoutineCode
from weft.primitives.routine import Operand, RoutineCall, RoutineStep
from weft.runtime.cuda.solvers.writing import ALIGNMENT, POINTER, rounded_up
from weft.runtime.steps import Place

_THREADS = 128
_COUNT = 0
_PIVOTS, _ORDER, _STEPS, _ROWS = 1, 3, 5, 6


def list_steps(count: int, matrices: Sequence[tuple[Operand, int]], scratch: Place) -> list[RoutineStep]:
    """The step that writes lists of the addresses of ``count`` matrices to the beginning of scratch memory; none if
    there are no lists. For each list (at most two), ``matrices`` has the operand that holds them, and the bytes of a
    matrix."""
    if not matrices:
        return []
    total = count * len(matrices)
    numbers = [total, count, rounded_up(POINTER * count), *scratch]
    for x, size in (matrices[0], matrices[-1]):
        numbers += [x.slot, x.offset, size]
    return [RoutineStep(_addresses(), numbers, -(-total // _THREADS), work=total)]


@cache
def _addresses() -> RoutineCode:
    return RoutineCode("addresses of matrices", write_addresses, _THREADS, "addresses of matrices")


def write_addresses(name: str) -> str:
    """The LLVM IR of the kernel: a thread writes one address."""
    code = BlockCode(_THREADS)
    e, (total, count, before) = code.e, map(code.number, (_COUNT, 1, 2))
    lists, first, second = [e.assign(f"ptrtoint ptr {code.memory(position)} to i64") for position in (3, 5, 8)]
    sizes = code.number(7), code.number(10)
    lists = code.rounded_up(lists, ALIGNMENT)
    with _numbers(code, total) as number:
        is_second = code.compare("sge", number, count)
        index = code.either(is_second, code.subtract(number, count), number)
        address = code.add(
            code.either(is_second, second, first), code.multiply(index, code.either(is_second, sizes[1], sizes[0]))
        )
        pointer = e.assign(f"inttoptr i64 {code.add(lists, code.either(is_second, before, 0))} to ptr")
        e.store("i64", address, code.moved(pointer, index, "i64"))
    return code.finished(name)


@contextmanager
def _numbers(code: BlockCode, count: str) -> Iterator[str]:
    """The numbers below ``count``, each in one thread."""
    with code.units(code.divide(code.add(count, _THREADS - 1), _THREADS)) as unit:
        number = code.add(code.multiply(unit, _THREADS), code.wide(code.thread))
        with code.e.when(code.compare("slt", number, count)):
            yield number


def order_step(call: RoutineCall) -> RoutineStep:
    """The step that computes, for each matrix, the order of rows that undoes the exchanges of its pivots (counted from
    zero)."""
    (pivots,), (order,) = call.operands, call.results
    steps, rows = pivots.shape[-1], order.shape[-1]
    count = prod(order.shape[:-1])
    numbers = [count, pivots.slot, pivots.offset, order.slot, order.offset, steps, rows]
    return RoutineStep(_order(), numbers, -(-count // _THREADS), work=count * rows)


@cache
def _order() -> RoutineCode:
    return RoutineCode("order of rows", write_order, _THREADS, "order of rows")


def write_order(name: str) -> str:
    """The LLVM IR of the kernel: each thread follows the pivots of one matrix."""
    code = BlockCode(_THREADS)
    e, count, steps, rows = code.e, code.number(_COUNT), code.number(_STEPS), code.number(_ROWS)
    all_pivots, all_orders = code.global_memory(_PIVOTS), code.global_memory(_ORDER)
    with _numbers(code, count) as number:
        pivots = code.moved(all_pivots, code.multiply(number, steps), "i32")
        order = code.moved(all_orders, code.multiply(number, rows), "i32")
        with e.loop("0", rows) as row:
            e.store("i32", code.narrow(row), code.moved(order, row, "i32"))
        last = code.subtract(steps, 1)
        with e.loop("0", steps) as step:
            row = code.subtract(last, step)
            pivot = code.wide(e.load("i32", code.moved(pivots, row, "i32")))
            here, there = code.moved(order, row, "i32"), code.moved(order, pivot, "i32")
            one, other = e.load("i32", here), e.load("i32", there)
            e.store("i32", other, here)
            e.store("i32", one, there)
    return code.finished(name)


def exchange_step(call: RoutineCall) -> RoutineStep:
    """The step that exchanges the rows of matrices as pivots (counted from zero) say, in order or backwards."""
    (x, pivots), (out,) = call.operands, call.results
    steps, (rows, columns) = pivots.shape[-1], x.shape[-2:]
    count = prod(x.shape[:-2]) * columns
    numbers = [count, x.slot, x.offset, out.slot, out.offset, pivots.slot, pivots.offset, steps, rows, columns]
    return RoutineStep(_exchange(x.dtype.size, call.params["work"]), numbers, -(-count // _THREADS), work=count * rows)


@cache
def _exchange(size: int, backwards: bool) -> RoutineCode:
    source = f"rows of {size} bytes exchanged {'backwards' if backwards else 'forwards'}"
    return RoutineCode(source, lambda name: write_exchange(size, backwards, name), _THREADS, "exchange of rows")


def write_exchange(size: int, backwards: bool, name: str) -> str:
    """The LLVM IR of the kernel: each thread has a column of a matrix."""
    code = BlockCode(_THREADS)
    e, type_ = code.e, f"i{8 * size}"
    count, (all_x, all_results, all_pivots) = code.number(_COUNT), map(code.global_memory, (1, 3, 5))
    steps, rows, columns = (code.number(position) for position in (7, 8, 9))
    with _numbers(code, count) as number:
        matrix = code.divide(number, columns)
        column = code.subtract(number, code.multiply(matrix, columns))
        first = code.add(code.multiply(code.multiply(matrix, rows), columns), column)
        x, result = (code.moved(memory, first, type_) for memory in (all_x, all_results))
        pivots = code.moved(all_pivots, code.multiply(matrix, steps), "i32")
        with e.loop("0", rows) as row:
            index = code.multiply(row, columns)
            e.store(type_, e.load(type_, code.moved(x, index, type_)), code.moved(result, index, type_))
        last = code.subtract(steps, 1)
        with e.loop("0", steps) as step:
            row = code.subtract(last, step) if backwards else step
            pivot = code.smaller(code.wide(e.load("i32", code.moved(pivots, row, "i32"))), code.subtract(rows, 1))
            here, there = (code.moved(result, code.multiply(one, columns), type_) for one in (row, pivot))
            one, other = e.load(type_, here), e.load(type_, there)
            e.store(type_, other, here)
            e.store(type_, one, there)
    return code.finished(name)
