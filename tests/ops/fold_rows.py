"""Rows of reductions and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from tests.ops.row import (
    ANY,
    APART,
    COMPLEX,
    EVERY,
    FLOATS,
    INTEGERS,
    REAL,
    Domain,
    Row,
)


def _counted(x: np.ndarray) -> Any:
    """The dtype of the sums of an array; NumPy's would be wider."""
    if x.dtype.kind in "fc" or x.dtype.itemsize >= 4:
        return x.dtype
    return np.uint32 if x.dtype.kind == "u" else np.int32


def folded(name: str, oracle: Callable[..., Any], domain: Domain, dtypes: Any, **more: Any) -> list[Row]:
    """Rows of a reduction over all axes, the last one, an inner one, and several with keepdims."""
    ways: list[tuple[str, dict[str, Any]]] = [
        ("all", {}),
        ("last", {"axis": -1}),
        ("middle", {"axis": 1}),
        ("two, keepdims", {"axis": (0, 2), "keepdims": True}),
    ]
    return [_folded(name, oracle, domain, dtypes, way, keywords, more) for way, keywords in ways]


def _folded(
    name: str, oracle: Callable[..., Any], domain: Domain, dtypes: Any, way: str, keywords: Any, more: Any
) -> Row:
    return Row(
        name,
        lambda mx, x: getattr(mx, name)(x, **keywords),
        lambda x: oracle(x, **keywords),
        (domain,),
        dtypes,
        variant=way,
        **{"ulp": 4, **more},
    )


def _logsumexp(x: np.ndarray, axis: Any = None, keepdims: bool = False) -> Any:
    return scipy.special.logsumexp(
        x.astype(np.complex128 if x.dtype.kind == "c" else np.float64), axis, keepdims=keepdims
    )


def _softmax(x: np.ndarray, axis: Any = None) -> Any:
    return scipy.special.softmax(x.astype(np.float64), axis)


def _mean(x: np.ndarray, **keywords: Any) -> Any:
    return np.mean(x, **keywords)


NEAR_ONE = Domain(0.5, 1.5)

REDUCTION_ROWS = [
    *folded("sum", lambda x, **k: np.sum(x, dtype=_counted(x), **k), ANY, EVERY),
    *folded("prod", lambda x, **k: np.prod(x, dtype=_counted(x), **k), NEAR_ONE, EVERY, ulp=16, ulp_half=16),
    *folded("mean", _mean, ANY, EVERY),
    *folded("var", np.var, ANY, EVERY, ulp=8),
    *folded("std", np.std, ANY, REAL, ulp=8),
    *folded("max", np.max, APART, EVERY),
    *folded("min", np.min, APART, EVERY),
    *folded("all", np.all, NEAR_ONE, EVERY),
    *folded("any", np.any, ANY, EVERY),
    *folded("logsumexp", _logsumexp, ANY, REAL + COMPLEX, ulp=8),
    *folded(
        "count_nonzero",
        lambda x, **k: np.count_nonzero(x, **k).astype(np.int32) if k else np.array(np.count_nonzero(x), np.int32),
        ANY,
        EVERY,
    ),
    *folded("minmax", lambda x, **k: (np.min(x, **k), np.max(x, **k)), APART, EVERY),
    *[
        Row(
            name,
            lambda mx, x, name=name, k=keywords: getattr(mx, name)(x, **k),
            lambda x, name=name, k=keywords: np.asarray(getattr(np, name)(x, **k)).astype(np.uint32),
            (APART,),
            EVERY,
            variant=way,
        )
        for name in ("argmax", "argmin")
        for way, keywords in (("all", {}), ("middle", {"axis": 1, "keepdims": True}))
    ],
    *[
        Row(
            "softmax",
            lambda mx, x, axis=axis: mx.softmax(x, axis=axis),
            lambda x, axis=axis: _softmax(x, axis),
            (ANY,),
            dtypes,
            variant=way,
            ulp=8,
            ulp_half=1,
        )
        # If there is more than one axis, MLX gives integers for integers.
        for way, axis, dtypes in (("all", None, FLOATS), ("last", -1, REAL), ("two", (0, 2), FLOATS))
    ],
    Row(
        "softmax",
        lambda mx, x: mx.softmax(x, axis=-1, precise=True),
        lambda x: _softmax(x, -1),
        (ANY,),
        FLOATS,
        variant="precise",
        ulp=4,
        ulp_half=1,
    ),
    Row(
        "var",
        lambda mx, x: mx.var(x, axis=1, ddof=1),
        lambda x: np.var(x, axis=1, ddof=1),
        (ANY,),
        FLOATS,
        variant="sample",
        ulp=8,
    ),
    Row("sum", lambda mx, x: mx.sum(x, axis=()), lambda x: x, (ANY,), ("float32",), variant="no axes", ulp=0),
    Row(
        "sum",
        lambda mx, x: mx.sum(x, axis=1),
        lambda x: np.sum(x, axis=1),
        variant="empty",
        shape=(2, 0, 3),
        ulp=0,
        without={"mlx": "MLX sometimes does not return from a sum over no elements"},
    ),
    Row(
        "allclose",
        lambda mx, x: mx.allclose(x, x * 1.000001),
        lambda x: np.array(True),
        (ANY,),
        ("float32", "float64"),
    ),
    Row("array_equal", lambda mx, x, y: mx.array_equal(x, y), np.array_equal, (ANY, ANY), EVERY[:-1]),
    Row(
        "array_equal",
        lambda mx, x: mx.array_equal(x, mx.abs(x), equal_nan=True),
        lambda x: np.array(True),
        (Domain(0.1, 2),),
        FLOATS,
        variant="nan",
    ),
]

MATRIX = ("float32", "float64", "float16", "bfloat16", "complex64")


def product(name: str, call: Callable[..., Any], oracle: Callable[..., Any], *shapes: Any, **more: Any) -> Row:
    domains = [Domain(shape=shape) for shape in shapes]
    return Row(name, call, oracle, domains, **{"dtypes": MATRIX, "ulp": 8, "ulp_half": 8, **more})


def _matmul(variant: str, *shapes: Any) -> Row:
    return product("matmul", lambda mx, a, b: mx.matmul(a, b), np.matmul, *shapes, variant=variant)


PRODUCT_ROWS = [
    _matmul("matrices", (3, 5), (5, 4)),
    _matmul("matrix vector", (3, 5), (5,)),
    _matmul("vector matrix", (5,), (5, 4)),
    _matmul("vectors", (5,), (5,)),
    _matmul("stack times matrix", (2, 3, 5), (5, 4)),
    _matmul("broadcast stacks", (2, 1, 3, 5), (6, 5, 4)),
    _matmul("matrix times stack", (3, 5), (2, 5, 4)),
    *[
        Row(
            "matmul",
            lambda mx, a, b: mx.matmul(a, b),
            np.matmul,
            [Domain(-100, 100, shape=shape) for shape in shapes],
            INTEGERS,
            variant=f"integers, {variant}",
            without={"mlx": "MLX refuses integers"},
        )
        for variant, shapes in (("matrices", ((2, 1, 3, 5), (6, 5, 4))), ("vector", ((3, 5), (5,))))
    ],
    product(
        "addmm",
        lambda mx, c, a, b: mx.addmm(c, a, b, alpha=0.5, beta=2.0),
        lambda c, a, b: 2.0 * c + 0.5 * (a @ b),
        (4,),
        (3, 5),
        (5, 4),
    ),
    product(
        "addmm",
        lambda mx, c, a, b: mx.addmm(c, a, b),
        lambda c, a, b: c + a @ b,
        (3, 4),
        (3, 5),
        (5, 4),
        variant="plain",
    ),
    product(
        "tensordot", lambda mx, a, b: mx.tensordot(a, b, 2), lambda a, b: np.tensordot(a, b, 2), (2, 3, 5), (3, 5, 4)
    ),
    product(
        "tensordot",
        lambda mx, a, b: mx.tensordot(a, b, ([0, -1], [2, 0])),
        lambda a, b: np.tensordot(a, b, ([0, 2], [2, 0])),
        (2, 3, 5),
        (5, 4, 2),
        variant="axes",
    ),
    product("inner", lambda mx, a, b: mx.inner(a, b), np.inner, (2, 5), (3, 5)),
    product("outer", lambda mx, a, b: mx.outer(a, b), np.outer, (2, 3), (4,), dtypes=EVERY),
    product(
        "vecdot",
        lambda mx, a, b: mx.vecdot(a, b),
        lambda a, b: np.sum(np.conj(a) * b, -1),
        (2, 3, 5),
        (2, 3, 5),
    ),
    product(
        "vecdot",
        lambda mx, a, b: mx.vecdot(a, b, axis=1),
        lambda a, b: np.sum(np.conj(a) * b, 1),
        (2, 3, 1),
        (1, 3, 5),
        variant="broadcast",
    ),
    product("kron", lambda mx, a, b: mx.kron(a, b), np.kron, (2, 3), (4, 2), dtypes=EVERY[:-2] + EVERY[-1:]),
    *[
        product(
            "einsum",
            lambda mx, *arrays, subscripts=subscripts: mx.einsum(subscripts, *arrays),
            lambda *arrays, subscripts=subscripts: np.einsum(subscripts, *arrays),
            *shapes,
            variant=subscripts,
            dtypes=("float32", "float64", "complex64"),
        )
        for subscripts, shapes in (
            ("ij,jk->ik", ((2, 3), (3, 4))),
            ("bij,bkj->bik", ((2, 3, 4), (2, 5, 4))),
            ("ij,jk,kl", ((2, 3), (3, 4), (4, 5))),
            ("bqd,bkd,bkv->bqv", ((2, 3, 4), (2, 5, 4), (2, 5, 6))),
            ("i,ij,kj->k", ((1,), (3, 4), (2, 4))),
            ("...i,i,jk->...k", ((2, 3), (3,), (4, 5))),
            ("ii->i", ((3, 3),)),
            ("ijk->k", ((2, 3, 4),)),
            ("i,j->ji", ((2,), (3,))),
            ("...ij,jk->...ik", ((2, 3, 4), (4, 5))),
            ("ij,ij", ((2, 3), (2, 3))),
        )
    ],
]

ROWS = REDUCTION_ROWS + PRODUCT_ROWS
