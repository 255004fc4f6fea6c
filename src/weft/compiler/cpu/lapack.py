"""Linear algebra as steps of a plan: LAPACK and BLAS, called for every matrix of a stack.

LAPACK stores matrices by columns, so it sees the transpose of each matrix. What is computed from that transpose is said
at each step. Where a routine reports that it failed, the results for that matrix are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.compiler.cpu.stacks import REAL_PART, REALS, Matrix, ScratchParts, Stacked, StackWriter
from weft.dtypes import Dtype
from weft.graph.node import Shape

_BLOCK = 64
"""The largest number of columns in LAPACK's blocks. Scratch memory is sized for it."""

_TRANSPOSED_QR = 128
"""If the smaller extent of a matrix is at least this, `_qr` saves more time than its transposes take."""

Shapes = Sequence[Shape]
Params = dict[str, Any]


def _routines(*names: str) -> Any:
    return lambda dtype: names


def _cholesky(w: StackWriter) -> None:
    """conj(A) = U^H U, and the memory of U by columns is U^T = L by rows."""
    (a,), (factor,) = w.operands, w.results
    upper = w.params["upper"]
    w.copy(a, factor.pointer)
    report = w.report()
    n = w.integer(a.rows)
    w.library("potrf", w.letter("L" if upper else "U"), n, factor.pointer, n, report)
    w.clear_beside(factor, upper)
    w.spoil_unless(w.went_well(report))


Stacked("cholesky", _cholesky, _routines(".potrf")).on(p.cholesky.routine)


def _lu(w: StackWriter) -> None:
    """The operand and the first result hold the matrix by columns."""
    (a,), (factors, pivots, order) = w.operands, w.results
    w.copy(a, factors.pointer)
    rows, columns = w.integer(a.columns), w.integer(a.rows)
    w.library("getrf", rows, columns, factors.pointer, rows, pivots.pointer, w.report())
    _count_pivots_from_zero(w, pivots)
    with w.e.loop("0", order.rows) as row:
        w.e.store("i32", w.e.assign(f"trunc i64 {row} to i32"), w.moved(order.pointer, row, "i32"))
    last = w.subtract(pivots.rows, 1)
    with w.e.loop("0", pivots.rows) as step:
        row = w.subtract(last, step)
        here = w.moved(order.pointer, row, "i32")
        there = w.moved(order.pointer, _pivot(w, pivots, row, order.rows), "i32")
        one, other = w.e.load("i32", here), w.e.load("i32", there)
        w.e.store("i32", other, here)
        w.e.store("i32", one, there)


def _count_pivots_from_zero(w: StackWriter, pivots: Matrix) -> None:
    with w.e.loop("0", pivots.rows) as step:
        address = w.moved(pivots.pointer, step, "i32")
        w.e.store("i32", w.e.assign(f"sub i32 {w.e.load('i32', address)}, 1"), address)


def _pivot(w: StackWriter, pivots: Matrix, step: str, rows: str) -> str:
    """The row that a pivot names. Pivots can come from a file: one beyond the end is replaced by the last row."""
    row = w.e.assign(f"zext i32 {w.e.load('i32', w.moved(pivots.pointer, step, 'i32'))} to i64")
    return w.smaller(row, w.subtract(rows, 1))


Stacked("lu", _lu, _routines(".getrf")).on(p.lu_factors.routine)


def _solve(w: StackWriter) -> None:
    """A^T = P L U, so A X = B is X^T P L U = B^T, and A^H X = B is X^T U^H L^H P^T = B^T."""
    (_, factors, pivots, b), (x,) = w.operands, w.results
    adjoint = w.params["adjoint"]
    w.copy(b, x.pointer)
    if adjoint:
        with w.e.loop("0", pivots.rows) as step:
            _swap_rows(w, x, step, _pivot(w, pivots, step, x.rows))
    for upper in (False, True) if adjoint else (True, False):
        _triangular(w, factors, x, upper, adjoint, unit=not upper)
    if not adjoint:
        last = w.subtract(pivots.rows, 1)
        with w.e.loop("0", pivots.rows) as step:
            row = w.subtract(last, step)
            _swap_rows(w, x, row, _pivot(w, pivots, row, x.rows))
    singular = w.has_zero_on_diagonal(factors)
    w.spoil_unless(w.e.assign(f"xor i1 {singular}, true"))


def _swap_rows(w: StackWriter, x: Matrix, row: str, other: str) -> None:
    with w.e.when(w.e.assign(f"icmp ne i64 {row}, {other}")):
        type_, parts = REALS[x.dtype], 2 if x.dtype.is_complex else 1
        width = w.multiply(x.columns, parts)
        here, there = w.multiply(row, width), w.multiply(other, width)
        with w.e.loop("0", width) as column:
            left = w.moved(x.pointer, w.add(here, column), type_)
            right = w.moved(x.pointer, w.add(there, column), type_)
            one, two = w.e.load(type_, left), w.e.load(type_, right)
            w.e.store(type_, two, left)
            w.e.store(type_, one, right)


def _triangular(w: StackWriter, factors: Matrix, x: Matrix, upper: bool, adjoint: bool, unit: bool) -> None:
    """Replace X^T by the solution Y of Y T = X^T (or Y T^H = X^T), where T is a triangle of the stored matrix.

    For a single column y a routine for vectors is called: T^T y = x, or conj(T) y = x, which BLAS has for real numbers.
    """
    n, count = w.integer(factors.rows), w.integer(x.columns)
    triangle, diagonal = w.letter("U" if upper else "L"), w.letter("U" if unit else "N")
    if adjoint and x.dtype.is_complex:
        vector = "false"
    else:
        vector = w.e.assign(f"icmp eq i64 {x.columns}, 1")
        with w.e.when(vector):
            turn = w.letter("N" if adjoint else "T")
            w.library("trsv", triangle, turn, diagonal, n, factors.pointer, n, x.pointer, count)
    with w.e.when(w.e.assign(f"xor i1 {vector}, true")):
        turn = w.letter("C" if adjoint else "N")
        one = w.scalar(1.0)
        w.library("trsm", w.letter("R"), triangle, turn, diagonal, count, n, one, factors.pointer, n, x.pointer, count)


Stacked("solve", _solve, _routines("trsm", "trsv")).on(p.solve_factored.routine)


def _solve_triangular(w: StackWriter) -> None:
    """A X = B is X^T A^T = B^T, and A^H X = B is X^T conj(A) = B^T."""
    (a, b), (x,) = w.operands, w.results
    upper, adjoint, unit = w.params["upper"], w.params["adjoint"], w.params["unit"]
    w.copy(b, x.pointer)
    _triangular(w, a, x, not upper, adjoint, unit)
    if not unit:
        singular = w.has_zero_on_diagonal(a)
        w.spoil_unless(w.e.assign(f"xor i1 {singular}, true"))


Stacked("solve_triangular", _solve_triangular, _routines("trsm", "trsv")).on(p.solve_triangular.routine)


def _inverse(w: StackWriter) -> None:
    """The inverse of the transpose is the transpose of the inverse."""
    (a,), (x,) = w.operands, w.results
    w.copy(a, x.pointer)
    n, report, pivots = w.integer(a.rows), w.report(), w.scratch("pivots")
    w.library("getrf", n, n, x.pointer, n, pivots, report)
    with w.e.when(w.went_well(report)):
        w.library("getri", n, x.pointer, n, pivots, w.scratch("work"), w.capacity("work"), report)
    w.spoil_unless(w.went_well(report))


def _inverse_parts(shapes: Shapes, dtype: Dtype, params: Params) -> ScratchParts:
    n = shapes[0][-1]
    return {"pivots": (n, dtypes.int32), "work": (_BLOCK * n, dtype)}


Stacked("inverse", _inverse, _routines(".getrf", ".getri"), _inverse_parts).on(p.inverse_matrix.routine)


def _triangular_inverse(w: StackWriter) -> None:
    """As `_inverse`; the other triangle is set to zero."""
    (a,), (x,) = w.operands, w.results
    upper = w.params["upper"]
    w.copy(a, x.pointer)
    w.clear_beside(x, upper)
    n, report = w.integer(a.rows), w.report()
    w.library("trtri", w.letter("L" if upper else "U"), w.letter("N"), n, x.pointer, n, report)
    w.spoil_unless(w.went_well(report))


Stacked("triangular_inverse", _triangular_inverse, _routines(".trtri")).on(p.triangular_inverse.routine)


def _qr(w: StackWriter) -> None:
    """LAPACK's QR takes a fifth less time than its LQ, but needs three transposes."""
    (_,), (q, _) = w.operands, w.results
    report = w.report()
    small = w.e.assign(f"icmp slt i64 {q.columns}, {_TRANSPOSED_QR}")
    with w.e.when(small):
        _qr_by_rows(w, report)
    with w.e.when(w.e.assign(f"xor i1 {small}, true")):
        _qr_by_columns(w, report)
    w.spoil_unless(w.went_well(report))


def _qr_by_columns(w: StackWriter, report: str) -> None:
    """The memory of a copy of A by columns becomes R and the reflectors that Q is made of, and then Q."""
    (a,), (q, r) = w.operands, w.results
    copy, scales = w.scratch("copy"), w.scratch("scales")
    m, n, k = w.integer(a.rows), w.integer(a.columns), w.integer(q.columns)
    work, count = w.scratch("work"), w.capacity("work")
    w.transpose((a.pointer, a.columns), a.rows, a.columns, (copy, a.rows))
    w.library("geqrf", m, n, copy, m, scales, work, count, report)
    w.transpose((copy, a.rows), a.columns, r.rows, (r.pointer, r.columns))
    w.clear_beside(r, upper=True)
    generate = "ungqr" if a.dtype.is_complex else "orgqr"
    w.library(generate, m, k, k, copy, m, scales, work, count, report)
    w.transpose((copy, a.rows), q.columns, q.rows, (q.pointer, q.columns))


def _qr_by_rows(w: StackWriter, report: str) -> None:
    """A^T = L Q with L = R^T. The memory of L by columns is R by rows, and that of this Q is its transpose, the Q of
    A."""
    (a,), (q, r) = w.operands, w.results
    size = a.dtype.size
    copy, scales = w.scratch("copy"), w.scratch("scales")
    w.copy(a, copy)
    m, n, k = w.integer(a.rows), w.leading(a.columns), w.integer(q.columns)
    work, count = w.scratch("work"), w.capacity("work")
    w.library("gelqf", w.integer(a.columns), m, copy, n, scales, work, count, report)
    w.copy_bytes(copy, r.pointer, w.multiply(w.size_of(r), size))
    w.clear_beside(r, upper=True)
    width = w.multiply(q.columns, size)
    with w.e.loop("0", a.rows) as row:
        source = w.moved(copy, w.multiply(row, w.multiply(a.columns, size)))
        w.copy_bytes(source, w.moved(q.pointer, w.multiply(row, width)), width)
    generate = "unglq" if a.dtype.is_complex else "orglq"
    w.library(generate, k, m, k, q.pointer, w.leading(q.columns), scales, work, count, report)


def _qr_parts(shapes: Shapes, dtype: Dtype, params: Params) -> ScratchParts:
    m, n = shapes[0][-2:]
    return {
        "copy": (m * n, dtype),
        "scales": (max(min(m, n), 1), dtype),
        "work": (_BLOCK * max(m, n, 1), dtype),
    }


Stacked(
    "qr",
    _qr,
    lambda dtype: (".geqrf", ".gelqf", *((".ungqr", ".unglq") if dtype.is_complex else (".orgqr", ".orglq"))),
    _qr_parts,
).on(p.qr.routine)


def _svd(w: StackWriter) -> None:
    """A^T = W S Z: the memory of W by columns is the V^T of A by rows, and that of Z is the U of A."""
    (a,) = w.operands
    u, s, vt = w.results if w.params["vectors"] else (None, w.results[0], None)
    copy, report = w.scratch("copy"), w.report()
    if u is not None and vt is not None:
        # LAPACK writes nothing if there are no rows or no columns.
        for result in (u, vt):
            with w.e.when(w.e.assign(f"icmp eq i64 {s.rows}, 0")):
                w.identity(result)
    finite = w.is_finite(a)
    w.e.store("i32", w.e.assign(f"select i1 {finite}, i32 0, i32 1"), report)
    with w.e.when(finite):
        w.copy(a, copy)
        job = "N" if u is None else "A" if w.params["full"] else "S"
        one = w.integer("1")
        left = (copy, one) if vt is None else (vt.pointer, w.leading(vt.columns))
        right = (copy, one) if u is None else (u.pointer, w.leading(u.columns))
        rest = [w.scratch("real_work")] if a.dtype.is_complex else []
        w.library(
            "gesdd",
            w.letter(job),
            w.integer(a.columns),
            w.integer(a.rows),
            copy,
            w.leading(a.columns),
            s.pointer,
            *left,
            *right,
            w.scratch("work"),
            w.capacity("work"),
            *rest,
            w.scratch("integers"),
            report,
        )
    w.spoil_unless(w.went_well(report))


def _svd_parts(shapes: Shapes, dtype: Dtype, params: Params) -> ScratchParts:
    m, n = shapes[0][-2:]
    small, large = max(min(m, n), 1), max(m, n, 1)
    blocks = _BLOCK * (small + large)
    square = small * small if params["vectors"] else 0
    parts: ScratchParts = {"copy": (max(m * n, 1), dtype), "integers": (8 * small, dtypes.int32)}
    if not dtype.is_complex:
        return {**parts, "work": (4 * square + 10 * small + large + blocks, dtype)}
    real = 7 * small + (max(5 * square, 2 * large * small + 2 * square) if params["vectors"] else 0)
    return {
        **parts,
        "work": (2 * square + 4 * small + large + blocks, dtype),
        "real_work": (real, REAL_PART[dtype]),
    }


Stacked("svd", _svd, _routines(".gesdd"), _svd_parts).on(p.svd.routine)


def _eigh(w: StackWriter) -> None:
    """conj(A) = W diag(w) W^H: the memory of W = conj(V) by columns is V^H by rows."""
    (a,) = w.operands
    values, report = w.results[0], w.report()
    vectors = w.results[1].pointer if w.params["vectors"] else w.scratch("copy")
    finite = w.is_finite(a)
    w.e.store("i32", w.e.assign(f"select i1 {finite}, i32 0, i32 1"), report)
    with w.e.when(finite):
        w.copy(a, vectors)
        n = w.integer(a.rows)
        job, triangle = w.letter("V" if w.params["vectors"] else "N"), w.letter("L" if w.params["upper"] else "U")
        work = [w.scratch("work"), w.capacity("work")]
        if a.dtype.is_complex:
            work += [w.scratch("real_work"), w.capacity("real_work")]
        work += [w.scratch("integers"), w.capacity("integers")]
        routine = "heevd" if a.dtype.is_complex else "syevd"
        w.library(routine, job, triangle, n, vectors, n, values.pointer, *work, report)
    w.spoil_unless(w.went_well(report))


def _eigh_parts(shapes: Shapes, dtype: Dtype, params: Params) -> ScratchParts:
    n, vectors = shapes[0][-1], params["vectors"]
    square = 2 * n * n if vectors else 0
    parts: ScratchParts = {} if vectors else {"copy": (n * n, dtype)}
    parts["integers"] = (5 * n + 3, dtypes.int32)
    if not dtype.is_complex:
        return {**parts, "work": (square + (_BLOCK + 6) * n + 1, dtype)}
    parts["real_work"] = (square + 5 * n + 1, REAL_PART[dtype])
    return {**parts, "work": (square // 2 + (_BLOCK + 2) * n + 1, dtype)}


Stacked(
    "eigh",
    _eigh,
    lambda dtype: (".heevd" if dtype.is_complex else ".syevd",),
    _eigh_parts,
).on(p.eigh.routine)


def _eig(w: StackWriter) -> None:
    """The operand and the result hold matrices by columns: the rows of the result's memory are eigenvectors."""
    (a,) = w.operands
    values, report = w.results[0], w.report()
    wanted, is_complex = w.params["vectors"], a.dtype.is_complex
    copy = w.scratch("copy")
    finite = w.is_finite(a)
    w.e.store("i32", w.e.assign(f"select i1 {finite}, i32 0, i32 1"), report)
    with w.e.when(finite):
        w.copy(a, copy)
        n, one = w.integer(a.rows), w.integer("1")
        found = [values.pointer] if is_complex else [w.scratch("real_parts"), w.scratch("imaginary_parts")]
        vectors = copy if not wanted else w.results[1].pointer if is_complex else w.scratch("vectors")
        rest = [w.scratch("real_work")] if is_complex else []
        w.library(
            "geev",
            w.letter("N"),
            w.letter("V" if wanted else "N"),
            n,
            copy,
            n,
            *found,
            copy,
            one,
            vectors,
            n,
            w.scratch("work"),
            w.capacity("work"),
            *rest,
            report,
        )
        if not is_complex:
            _complex_eigenvalues(w, values, *found)
            if wanted:
                _complex_eigenvectors(w, w.results[1], vectors, found[1])
    w.spoil_unless(w.went_well(report))


def _complex_eigenvalues(w: StackWriter, values: Matrix, real: str, imaginary: str) -> None:
    type_ = REALS[values.dtype]
    with w.e.loop("0", values.rows) as row:
        for part, source in enumerate((real, imaginary)):
            value = w.e.load(type_, w.moved(source, row, type_))
            w.e.store(type_, value, w.moved(values.pointer, w.add(w.multiply(row, 2), part), type_))


def _complex_eigenvectors(w: StackWriter, result: Matrix, vectors: str, imaginary: str) -> None:
    """For a pair of conjugate eigenvectors, LAPACK stores the real parts, then the imaginary parts of the first one."""
    type_, n = REALS[result.dtype], result.rows
    last = w.subtract(n, 1)
    with w.e.loop("0", n) as row:
        part = w.e.load(type_, w.moved(imaginary, row, type_))
        second = w.e.assign(f"zext i1 {w.e.assign(f'fcmp olt {type_} {part}, 0.0')} to i64")
        first = w.subtract(row, second)
        paired = w.e.assign(f"fcmp une {type_} {part}, 0.0")
        after = w.smaller(w.add(first, 1), last)
        is_second = w.e.assign(f"icmp eq i64 {second}, 1")
        with w.e.loop("0", n) as column:
            real = w.e.load(type_, w.moved(vectors, w.add(w.multiply(first, n), column), type_))
            rest = w.e.load(type_, w.moved(vectors, w.add(w.multiply(after, n), column), type_))
            turned = w.e.assign(f"fneg {type_} {rest}")
            signed = w.e.assign(f"select i1 {is_second}, {type_} {turned}, {type_} {rest}")
            imag = w.e.assign(f"select i1 {paired}, {type_} {signed}, {type_} 0.0")
            index = w.multiply(w.add(w.multiply(row, n), column), 2)
            w.e.store(type_, real, w.moved(result.pointer, index, type_))
            w.e.store(type_, imag, w.moved(result.pointer, w.add(index, 1), type_))


def _eig_parts(shapes: Shapes, dtype: Dtype, params: Params) -> ScratchParts:
    n = shapes[0][-1]
    parts: ScratchParts = {"copy": (n * n, dtype), "work": ((_BLOCK + 4) * n, dtype)}
    if dtype.is_complex:
        return {**parts, "real_work": (2 * n, REAL_PART[dtype])}
    parts |= {"real_parts": (n, dtype), "imaginary_parts": (n, dtype)}
    return {**parts, "vectors": (n * n, dtype)} if params["vectors"] else parts


Stacked("eig", _eig, _routines(".geev"), _eig_parts).on(p.eig.routine)
