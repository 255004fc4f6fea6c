"""Functions of shapes for `compile(shapeless=True)`, with the reasons why some refuse other shapes than the first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft.core as mx

Shapes = Sequence[tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Program:
    """A function, the shapes of its arguments, and the reason why it may refuse some of them; "" if it must not."""

    name: str
    function: Callable[..., Any]
    shapes: Shapes
    refuses: str = ""


def alone(*shapes: tuple[int, ...]) -> Shapes:
    return [(shape,) for shape in shapes]


VECTORS = alone((5,), (2,), (8,), (1,), (0,), (3,))
MATRICES = alone((3, 4), (4, 3), (8, 2), (1, 4), (3, 1), (1, 1), (0, 4), (3, 0))
CUBES = alone((2, 3, 4), (3, 2, 5), (1, 3, 1), (2, 1, 6), (0, 3, 2), (2, 4, 0))
SQUARES = alone((3, 3), (1, 1), (6, 6), (3, 4), (0, 0))
PAIRS: Shapes = [
    ((3, 4), (3, 4)),
    ((1, 4), (3, 1)),
    ((5, 2), (1, 2)),
    ((1, 1), (1, 1)),
    ((3, 4), (3, 1)),
    ((0, 4), (1, 4)),
]
VECTOR_PAIRS: Shapes = [((4,), (3,)), ((2,), (2,)), ((1,), (6,)), ((5,), (1,)), ((0,), (3,))]
PRODUCTS: Shapes = [
    ((3, 4), (4, 5)),
    ((2, 2), (2, 2)),
    ((1, 3), (3, 1)),
    ((4, 1), (1, 4)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
]

TABLE = mx.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 10.0, 11.0, 12.0]])
KEY = mx.random.key(3)
ANGLES: dict[str, Any] = {"traditional": False, "base": None, "scale": 1.0, "offset": 0}

MEAN = mx.compile(lambda x: x.mean(axis=0))
SCALED = mx.compile(lambda x: x / x.shape[0] + x[:2].sum(), shapeless=True)
MEAN(mx.ones((3, 4)))
SCALED(mx.ones((5, 2)))

EMPTY = "what is folded must have elements, or none at all, as in the first call"
ONES = "which axes are dropped depends on which extents are 1"
COUNT = "the number of results depends on an extent"
READ = "an extent that the function reads is an argument of an operation"
SAME = "whether shapes are equal is decided once"
ROWS = "one row is drawn from in another way than many"


def indexed(text: str, shapes: Shapes, refuses: str = "") -> Program:
    """``x[...]`` as a user writes it."""
    return Program(f"x{text}", eval(f"lambda x: x{text}"), shapes, refuses)


def assigned(text: str, shapes: Shapes, refuses: str = "") -> Program:
    """An assignment to a part of a copy of ``x``."""

    def function(x: mx.array, *others: mx.array) -> mx.array:
        names: dict[str, Any] = {"x": x, "y": others[0] if others else None, "mx": mx}
        names["a"] = x + 0
        exec(f"a{text}", names)
        result: mx.array = names["a"]
        return result

    return Program(f"a{text}", function, shapes, refuses)


SLICES = [
    indexed(text, VECTORS)
    for text in [
        "[-3:]", "[:3]", "[1:3]", "[5:]", "[:-3]", "[3::-1]", "[:]", "[::-1]", "[1:]", "[:-1]", "[1:-1]", "[-3:-1]",
        "[-4:2]", "[2:-2]", "[::2]", "[1::2]", "[:4:3]", "[-1::-2]", "[:-3:-1]", "[2:0:-1]", "[-2::-1]", "[10:2:-3]",
        "[:0]", "[4:2]", "[-2:-5]", "[100:]", "[:100]", "[-100:3]", "[None, 1:]", "[..., :2]", "[0:1]", "[-1:]",
        "[2]", "[-3]", "[mx.array([0, -1, 2])]", "[mx.array([[3], [-7]])]", "[[0, 1]]",
    ]
] + [
    indexed(text, MATRICES)
    for text in [
        "[1:3]", "[:, 1:3]", "[-2:, :2]", "[::-1, ::-1]", "[..., -1]", "[:, None, 1:]", "[0]", "[-1]", "[:, 0]",
        "[:, -3]", "[1:, mx.array([0, 1])]", "[mx.array([0, 1]), mx.array([1, 0])]", "[mx.array([0, 2]), 1:]",
        "[:, ::-2]", "[1:] - x[:-1]", "[1:, 1:] * x[:-1, :-1]", "[:2].sum()", "[:2].mean(axis=0)",
    ]
]  # fmt: skip

ASSIGNMENTS = [
    assigned("[1:3] = 7", VECTORS),
    assigned("[-3:] = 7", VECTORS),
    assigned("[5:] *= 2", VECTORS),
    assigned("[::-2] = 1", VECTORS),
    assigned("[0] = 5", VECTORS),
    assigned("[-2] = 5", VECTORS),
    assigned("[:] = 3", VECTORS),
    assigned("[1:] = x[:-1]", VECTORS),
    assigned("[::-1] = x", VECTORS),
    assigned("[mx.array([0, 1])] = 9", VECTORS),
    assigned("[x > 0] = 0", MATRICES),
    assigned("[:, 1:] = x[:, :1]", MATRICES),
    assigned("[0, :2] += 1", MATRICES),
    assigned("[y > 0] = 0", PAIRS),
    assigned("[1:] = y[:1]", PAIRS),
    assigned("[...] = y", PAIRS),
    Program("at add", lambda x: x.at[1:4].add(2.0), VECTORS),
    Program("at maximum", lambda x: x.at[mx.array([0, 0, 2])].maximum(2.0), VECTORS),
    Program("at divide", lambda x: x.at[-2:].divide(2.0), VECTORS),
    Program("rows where a mask holds", lambda x: _rows_where(x), MATRICES),
]


def _rows_where(x: mx.array) -> mx.array:
    result = x + 0
    result[x > 100] = mx.zeros((1,))
    result[x > -100] = x.flatten()
    return result


SHAPING = [
    Program("reshape to a row", lambda x: x.reshape(1, -1), MATRICES),
    Program("reshape to numbers", lambda x: mx.reshape(x, (2, -1)), MATRICES),
    Program("reshape to the shape read", lambda x: x.reshape(x.shape[1], x.shape[0]), MATRICES, READ),
    Program("reshape to a fixed shape", lambda x: mx.reshape(x, (3, 4)), MATRICES),
    Program("flatten", lambda x: x.flatten(), CUBES),
    Program("flatten two", lambda x: mx.flatten(x, 1, 2), CUBES),
    Program("unflatten", lambda x: mx.unflatten(x, 1, (-1, 2)), MATRICES),
    Program("unflatten fixed", lambda x: mx.unflatten(x, 0, (2, 2)), alone((4, 3), (4, 1), (3, 4), (4, 0), (3, 0))),
    Program("transpose", lambda x: x.T, CUBES),
    Program("transpose axes", lambda x: mx.permute_dims(x, (1, 2, 0)), CUBES),
    Program("matrix_transpose", lambda x: mx.matrix_transpose(x), CUBES),
    Program("swapaxes", lambda x: mx.swapaxes(x, 0, 2), CUBES),
    Program("moveaxis", lambda x: mx.moveaxis(x, 0, -1), CUBES),
    Program("squeeze", lambda x: mx.squeeze(x), MATRICES, ONES),
    Program("squeeze an axis", lambda x: mx.squeeze(x, 0), MATRICES),
    Program("expand_dims", lambda x: mx.expand_dims(x, (0, 2)), MATRICES),
    Program("broadcast_to", lambda x: mx.broadcast_to(x, (3, 4)), MATRICES),
    Program("broadcast_to more", lambda x: mx.broadcast_to(x, (2, 3, 4)), MATRICES),
    Program("broadcast_to the shape read", lambda x, y: mx.broadcast_to(x, y.shape), PAIRS, READ),
    Program("broadcast_arrays", lambda x, y: mx.broadcast_arrays(x, y), PAIRS),
    Program("broadcast_shapes", lambda x, y: mx.zeros(mx.broadcast_shapes(x.shape, y.shape)), PAIRS, READ),
    Program(
        "atleast_1d, atleast_2d and atleast_3d",
        lambda x: [mx.atleast_1d(x), mx.atleast_2d(x), mx.atleast_3d(x)],
        VECTORS,
    ),
    Program("contiguous", lambda x: mx.contiguous(x.T) * 2, MATRICES),
]

JOINING = [
    Program("concatenate", lambda x, y: mx.concatenate([x, y, x]), VECTOR_PAIRS),
    Program("concatenate the other axis", lambda x, y: mx.concatenate([x, y], axis=1), PAIRS),
    Program("concatenate flat", lambda x, y: mx.concatenate([x, y], axis=None), PAIRS),
    Program("concatenate rows of a matrix", lambda x: mx.concatenate(x), MATRICES, COUNT),
    Program("stack", lambda x, y: mx.stack([x, y], axis=1), PAIRS),
    Program("split in two", lambda x: mx.split(x, 2), VECTORS),
    Program("split in three along 1", lambda x: mx.split(x, 3, axis=1), CUBES),
    Program("split at", lambda x: mx.split(x, [2, 4]), VECTORS),
    Program("split at negative", lambda x: mx.split(x, [1, -2]), VECTORS),
    Program("split at unordered", lambda x: mx.split(x, [4, 1, -1]), VECTORS),
    Program("unstack", lambda x: mx.unstack(x), MATRICES, COUNT),
    Program("unpacking", lambda x: [row * 2 for row in x], MATRICES, COUNT),
    Program("repeat", lambda x: mx.repeat(x, 3), MATRICES),
    Program("repeat rows", lambda x: mx.repeat(x, 2, axis=0), MATRICES),
    Program("repeat none", lambda x: mx.repeat(x, 0, axis=1), MATRICES),
    Program("tile", lambda x: mx.tile(x, (2, 3)), MATRICES),
    Program("tile more", lambda x: mx.tile(x, (2, 1, 2)), MATRICES),
    Program("roll", lambda x: mx.roll(x, 2), MATRICES),
    Program("roll back", lambda x: mx.roll(x, -7, axis=1), MATRICES),
    Program("roll both", lambda x: mx.roll(x, (1, 5), axis=(0, 1)), MATRICES),
    Program("flip", lambda x: mx.flip(x), MATRICES),
    Program("flip rows", lambda x: mx.flip(x, 0), MATRICES),
    Program("diff", lambda x: mx.diff(x), MATRICES),
    Program("diff of diff", lambda x: mx.diff(x, n=3, axis=0), MATRICES),
]

DIAGONALS = [
    *[
        Program(f"{name} {k}", lambda x, name=name, k=k: getattr(mx, name)(x, k), MATRICES)
        for name in ("diagonal", "diag", "trace", "tril", "triu")
        for k in (0, 1, -2)
    ],
    Program("diagonal of cubes", lambda x: mx.diagonal(x, 1, 2, 0), CUBES),
    Program("trace of cubes", lambda x: mx.trace(x, 0, 1, 2), CUBES),
    Program("diag of a vector", lambda x: mx.diag(x, -1), VECTORS),
    Program("eye", lambda x: x + mx.eye(x.shape[0]), SQUARES, READ),
    Program("identity", lambda x: x @ mx.identity(3), alone((2, 3), (5, 3), (1, 3), (0, 3), (3, 4))),
    Program("tri", lambda x: x + mx.tri(3, 4), MATRICES),
    Program("gradient of diagonal", mx.grad(lambda x: (mx.diagonal(x) ** 2).sum()), MATRICES),
]

PADDING = [
    Program(f"pad {mode}", lambda x, mode=mode: mx.pad(x, ((2, 1), (0, 3)), mode=mode), MATRICES)
    for mode in ("constant", "edge", "reflect", "symmetric")
] + [
    Program("pad with a number of elements", lambda x: mx.pad(x, 1, constant_values=x.size), MATRICES),
    Program("gradient of reflect", mx.grad(lambda x: (mx.pad(x, 2, mode="reflect") ** 2).sum()), MATRICES),
]

CREATION = [
    Program(
        "zeros_like, ones_like and empty_like",
        lambda x: mx.zeros_like(x) + mx.ones_like(x) + mx.empty_like(x) * 0,
        MATRICES,
    ),
    Program("full_like", lambda x: mx.full_like(x, 3.5), MATRICES),
    Program("full_like of an array", lambda x, y: mx.full_like(x, y), PAIRS),
    Program("full", lambda x: mx.full((3, 4), x), MATRICES),
    Program("ones of the shape read", lambda x: mx.ones(x.shape) + x, MATRICES, READ),
    Program("zeros of an extent read", lambda x: mx.zeros((x.shape[0],)), MATRICES, READ),
    Program("empty of the shape read", lambda x: mx.empty(x.shape) * 0, MATRICES, READ),
    Program("arange", lambda x: mx.arange(x.shape[0]) * 2, MATRICES),
    Program("arange from", lambda x: mx.arange(x.shape[0], 3 * x.shape[1], 2), MATRICES),
    Program("linspace", lambda x: mx.linspace(0, 1, x.shape[0]), MATRICES, READ),
    Program("linspace to", lambda x: mx.linspace(0, x.shape[0], 5), MATRICES, READ),
    Program("meshgrid", lambda x, y: mx.meshgrid(x, y), VECTOR_PAIRS),
    Program("meshgrid sparse", lambda x, y: mx.meshgrid(x, y, sparse=True, indexing="ij"), VECTOR_PAIRS),
    *[
        Program(name, lambda x, name=name: getattr(mx, name)(x.shape[0]), VECTORS, READ)
        for name in ("bartlett", "blackman", "hamming", "hanning")
    ],
]

FOLDS = [
    *[
        Program(f"{name} {keywords}", lambda x, name=name, k=keywords: getattr(mx, name)(x, **k), MATRICES)
        for name in ("sum", "prod", "mean", "var", "std", "max", "min", "all", "any", "count_nonzero", "minmax")
        for keywords in ({}, {"axis": 0}, {"axis": 1, "keepdims": True})
    ],
    *[
        Program(f"{name} {keywords}", lambda x, name=name, k=keywords: getattr(mx, name)(x, **k), MATRICES)
        for name in ("argmax", "argmin")
        for keywords in ({}, {"keepdims": True}, {"axis": 1})
    ],
    *[
        Program(f"{name} {axis}", lambda x, name=name, axis=axis: getattr(mx, name)(x, axis), MATRICES, EMPTY)
        for name in ("logsumexp", "softmax")
        for axis in (None, 0, 1)
    ],
    Program("var with ddof", lambda x: [mx.var(x, ddof=2), mx.std(x, axis=0, ddof=1)], MATRICES),
    Program("mean of integers", lambda x: mx.mean((x * 3).astype(mx.int32), axis=0), MATRICES),
    Program("mean of halves", lambda x: mx.mean(x.astype(mx.float16), axis=1), MATRICES),
]

LOOKUP = [
    Program("take", lambda x: mx.take(x, mx.array([0, 2, -1, 9]), axis=1), MATRICES),
    Program("take flat", lambda x: mx.take(x, mx.array([[0, 5], [-2, 3]])), MATRICES),
    Program("take one", lambda x: mx.take(x, 2, axis=0), MATRICES),
    Program("take from the end", lambda x: mx.take(x, -3), MATRICES),
    Program("take_along_axis", lambda x: mx.take_along_axis(x, mx.argmax(x, 1, keepdims=True), axis=1), MATRICES),
    Program("take_along_axis broadcast", lambda x: mx.take_along_axis(x, mx.array([[0, 1]]), axis=1), MATRICES),
    Program("put_along_axis", lambda x: mx.put_along_axis(x, mx.array([[0], [1], [0]]), 7.0, axis=1), MATRICES),
    Program("put_along_axis flat", lambda x: mx.put_along_axis(x, mx.array([0, 3]), mx.array([1.0, 2.0])), MATRICES),
    Program("slice", lambda x: mx.slice(x, mx.array([1, 0]), (0, 1), (2, 3)), MATRICES),
    Program("slice_update", lambda x: mx.slice_update(x, mx.ones((2, 1)), mx.array([2]), (1,)), MATRICES),
    Program("slice_update repeated", lambda x: mx.slice_update(x, mx.ones((1,)), mx.array([0]), (1,)), MATRICES),
    Program(
        "slice at an argument", lambda x, y: _at(x, y), [((4, 5), (2,)), ((3, 2), (2,)), ((6, 6), (1,)), ((2, 8), (2,))]
    ),
]


def _at(x: mx.array, y: mx.array) -> mx.array:
    return mx.slice(x, (y * 0 + 1).astype(mx.int32), (0, 1), (2, 2))


CONTRACTIONS = [
    Program("matmul", lambda x, y: x @ y, PRODUCTS),
    Program("matmul of a stack", lambda x: x @ x[0].T, CUBES),
    Program("matmul broadcast", lambda x: x @ x[:1].swapaxes(1, 2), CUBES),
    Program("matmul of vectors", lambda x: x @ x, VECTORS),
    Program("addmm", lambda x, y: mx.addmm(x[:, :1], x, y, 2.0, 0.5), PRODUCTS),
    Program("tensordot 1", lambda x, y: mx.tensordot(x, y, 1), PRODUCTS),
    Program(
        "tensordot 2",
        lambda x, y: mx.tensordot(x, y, 2),
        [((2, 3), (2, 3)), ((2, 3), (3, 2)), ((1, 4), (1, 4)), ((6, 1), (6, 1)), ((6, 1), (1, 6)), ((0, 3), (0, 3))],
    ),
    Program("tensordot axes", lambda x, y: mx.tensordot(x, y, [[1], [0]]), PRODUCTS),
    Program("inner", lambda x: mx.inner(x, x[:2]), MATRICES),
    Program("outer", lambda x, y: mx.outer(x, y), PAIRS),
    Program("vecdot", lambda x, y: mx.vecdot(x, y), PAIRS),
    Program("kron", lambda x, y: mx.kron(x, y), PAIRS),
    Program("kron of unlike", lambda x, y: mx.kron(x, y[0]), PAIRS),
    Program("einsum ij,jk->ik", lambda x, y: mx.einsum("ij,jk->ik", x, y), PRODUCTS),
    Program("einsum ij,kj->ik", lambda x: mx.einsum("ij,kj->ik", x, x[:2]), MATRICES),
    Program("einsum ii->i", lambda x: mx.einsum("ii->i", x), SQUARES),
    Program("einsum ii", lambda x: mx.einsum("ii", x), SQUARES),
    Program("einsum ij,ij->", lambda x, y: mx.einsum("ij,ij->", x, y), PAIRS),
    Program("einsum ij,ij->ij", lambda x, y: mx.einsum("ij,ij->ij", x, y), PAIRS),
    Program("einsum ...j->...", lambda x: mx.einsum("...j->...", x), CUBES),
    Program("einsum of three", lambda x, y: mx.einsum("ij,jk,lk->il", x, y, y), PRODUCTS),
    Program("einsum of four", lambda x, y: mx.einsum("ij,jk,lk,im->lm", x, y, y, x), PRODUCTS),
    Program(
        "einsum_path of two",
        lambda x, y: x * mx.einsum_path("ij,jk", x, y)[0][0][1],
        PRODUCTS,
        "its text tells the numbers of operations",
    ),
]

CHOICES = [
    Program("where", lambda x, y: mx.where(x > 0, x, y), PAIRS),
    Program("clip", lambda x, y: mx.clip(x, y, 1.0), PAIRS),
    Program("array_equal", lambda x, y: mx.array_equal(x * 0, y * 0), PAIRS, SAME),
    Program("allclose", lambda x, y: mx.allclose(x * 0, y * 0), PAIRS),
    Program("isclose", lambda x, y: mx.isclose(x, y), PAIRS),
    Program("adding what is captured", lambda x: x + TABLE, MATRICES),
    Program("adding to a slice of what is captured", lambda x: x[:, :2] + TABLE[0, :2], MATRICES),
    Program("divmod", lambda x, y: mx.divmod(x, y), PAIRS),
]

RANDOM = [
    Program("bernoulli", lambda x: mx.random.bernoulli(mx.full_like(x, 0.5), key=KEY), MATRICES),
    Program("uniform of the shape read", lambda x: mx.random.uniform(shape=x.shape, key=KEY), MATRICES, READ),
    Program("truncated_normal", lambda x: mx.random.truncated_normal(x - 1, x + 1, key=KEY), MATRICES),
    Program("categorical", lambda x: mx.random.categorical(x, key=KEY), MATRICES, ROWS),
    Program("categorical, some", lambda x: mx.random.categorical(x, num_samples=3, key=KEY), MATRICES, ROWS),
    Program("categorical, shape", lambda x: mx.random.categorical(x, shape=(3,), key=KEY), MATRICES, ROWS),
    Program("permutation", lambda x: mx.random.permutation(x, key=KEY), MATRICES),
    Program("a key", lambda x: mx.random.normal((3,), key=(x * 10).astype(mx.uint32)), alone((2,), (3,), (2,))),
]

GRADIENTS = [
    Program("gradient of prod", mx.grad(lambda x: (mx.prod(x, axis=0) ** 2).sum()), MATRICES),
    Program("gradient of prod of all", mx.grad(lambda x: mx.prod(x)), MATRICES),
    Program("second gradient of prod", mx.grad(lambda x: mx.grad(lambda a: mx.prod(a))(x).square().sum()), VECTORS),
    Program("gradient of slices", mx.grad(lambda x: (x[1:] * x[:-1]).sum()), VECTORS),
    Program("gradient of a stepped slice", mx.grad(lambda x: (x[::-2] ** 2).sum()), VECTORS),
    Program("gradient of a clipped slice", mx.grad(lambda x: (x[-3:] ** 3).mean()), VECTORS),
    Program("gradient of broadcasting", mx.grad(lambda x, y: (x * y).sum(), argnums=(0, 1)), PAIRS),
    Program("gradient of var", mx.grad(lambda x: mx.var(x, ddof=1)), VECTORS),
    Program("gradient of max", mx.grad(lambda x: x.max(axis=0).sum()), MATRICES),
    Program("gradient of roll", mx.grad(lambda x: (mx.roll(x, 2) * x).sum()), MATRICES),
    Program("gradient of take", mx.grad(lambda x: (mx.take(x, mx.array([0, 1, 0]), axis=0) ** 2).sum()), MATRICES),
    Program("gradient of concatenate", mx.grad(lambda x: (mx.concatenate([x, x[:2]]) ** 2).sum()), VECTORS),
    Program("gradient of pad", mx.grad(lambda x: (mx.pad(x, 1) ** 2).sum()), MATRICES),
    Program("gradient of einsum", mx.grad(lambda x, y: mx.einsum("ij,jk->", x, y), argnums=(0, 1)), PRODUCTS),
    Program("gradient of an assignment", mx.grad(lambda x: (_assigned(x) ** 2).sum()), VECTORS),
    Program("jvp", lambda x: mx.jvp(lambda a: a[1:] * a[:-1], [x], [mx.cos(x)])[1][0], VECTORS),
    Program("vjp", lambda x, y: mx.vjp(lambda a: a * 2, [x], [y])[1][0], PAIRS),
    Program("vmap", mx.vmap(lambda row: row[:2] * row.sum()), MATRICES),
    Program("vmap over columns", mx.vmap(lambda column: mx.roll(column, 1), in_axes=1, out_axes=1), MATRICES),
    Program("vmap of two", mx.vmap(lambda x, y: [x, y]), PAIRS),
    Program("vmap of grad", mx.vmap(mx.grad(lambda row: mx.prod(row))), MATRICES),
    Program("checkpoint", mx.grad(lambda x: mx.checkpoint(lambda a: mx.sin(a[1:]).sum())(x * 2)), VECTORS),
    Program("captured by checkpoint", mx.grad(lambda x: mx.checkpoint(lambda a: (a[0] * x[:2]).sum())(x * 2)), VECTORS),
]


def _assigned(x: mx.array) -> mx.array:
    result = x * 2
    result[1:3] = x[0]
    return result


READING = [
    Program("times an extent", lambda x: x * x.shape[0] + x.size, MATRICES),
    Program("divided by an extent", lambda x: x.sum() / x.shape[1], MATRICES),
    Program("an extent as an array", lambda x: mx.array(x.shape[0]) + x, MATRICES),
    Program("a shape as an array", lambda x: mx.array(x.shape), MATRICES),
    Program("a list of extents as an array", lambda x: mx.array([x.shape[0], 2.5, x.sum()]), MATRICES),
    Program("numbers made of extents", lambda x: x + (x.shape[0] * 3 - x.shape[1]) // 2 % 5, MATRICES),
    Program("bits of extents", lambda x: x + ((x.shape[0] << 2 | 1) ^ (x.shape[1] & 3)) + (x.size >> 1), MATRICES),
    Program("divmod of extents", lambda x: x + sum(divmod(x.shape[0], 3)) + abs(-x.shape[1]), MATRICES),
    Program("a power of an extent", lambda x: x + x.shape[0] ** 2, MATRICES),
    Program("a root of an extent", lambda x: x * x.shape[0] ** 0.5, MATRICES, READ),
    Program("to the power of an extent", lambda x: x ** x.shape[0], VECTORS, "a square is computed in its own way"),
    Program("random numbers below an extent", lambda x: mx.random.randint(0, x.size + 2, (9,), key=KEY), MATRICES),
    Program("uniform below an extent", lambda x: mx.random.uniform(-1, x.shape[0], (9,), key=KEY), MATRICES),
    Program("addmm with an extent", lambda x: mx.addmm(x[:1, :1], x, x.T, alpha=x.shape[0]), MATRICES),
    Program("a number of NumPy", lambda x: x * np.sqrt(x.shape[1]) + np.float32(x.shape[0]), MATRICES, READ),
    Program("a whole root", lambda x: x + math.isqrt(x.shape[0]), MATRICES, READ),
    Program("roundings", lambda x: x + round(x.shape[0]) + math.floor(x.shape[1]) + math.prod(x.shape), MATRICES),
    Program("a comparison", lambda x: x * 2 if x.shape[0] > 2 else x, MATRICES, "the function branches on an extent"),
    Program("truth", lambda x: x * 2 if x.shape[1] else x, MATRICES, "the function branches on an extent"),
    Program("smallest", lambda x: x * min(x.shape), MATRICES, "the function branches on extents"),
    Program("equal shapes", lambda x, y: x if x.shape == y.shape else x + y, PAIRS, SAME),
    Program("halves", lambda x: x[:, x.shape[1] // 2 :].sum() - x[:, : x.shape[1] // 2].sum(), MATRICES),
    Program("an index of extents", lambda x: x[x.shape[0] // 2] + x[x.shape[0] - 1, -x.shape[1]], MATRICES),
    Program("take at an extent", lambda x: mx.take(x, x.shape[0] - 2, axis=0), MATRICES),
    Program("take behind the end", lambda x: mx.take(x, x.shape[1], axis=0), MATRICES),
    Program("a step of extents", lambda x: x[:: x.shape[0] + 1], MATRICES, READ),
    Program(
        "a diagonal of extents", lambda x: [mx.diagonal(x, x.shape[0] - 2), mx.triu(x, x.shape[0])], MATRICES, READ
    ),
    Program("a loop", lambda x: sum((x[i] for i in range(x.shape[0])), mx.zeros(4)), MATRICES, READ),
    Program("the shape returned", lambda x: (x * 2, x.shape), MATRICES),
    Program(
        "an extent returned", lambda x: {"sum": x.sum(), "count": [x.shape[0] * x.shape[1], len(x.shape)]}, MATRICES
    ),
    Program("a compiled function", lambda x: MEAN(x) + x, MATRICES),
    Program("a shapeless function", lambda x, y: SCALED(y) + x, PAIRS),
    Program("a shapeless function of a part", lambda x: SCALED(x[1:]), MATRICES),
]

# Functions whose arguments depend on shapes, while their results do not.
CHECKED = [
    Program("det", mx.linalg.det, SQUARES),
    Program("slogdet", lambda x: list(mx.linalg.slogdet(x)), SQUARES),
    Program("matrix_power", lambda x: [mx.linalg.matrix_power(x, 0), mx.linalg.matrix_power(x, 1)], SQUARES),
    Program("rms_norm", lambda x, y: mx.fast.rms_norm(x, y[0], 0.1), PAIRS),
    Program("layer_norm", lambda x, y: mx.fast.layer_norm(x, None, y[0], 0.1), PAIRS),
    Program("rope", lambda x: mx.fast.rope(TABLE[None], 4, **ANGLES, freqs=x), alone((2,), (1,), (3,), (2,))),
    Program("stft", lambda x: mx.fft.stft(mx.ones(20), 4, window=x), VECTORS),
    Program("convolve, valid", lambda x: mx.convolve(mx.ones(9), x, "valid"), VECTORS),
    Program("partition", lambda x: [mx.partition(x, 2, axis=0), mx.argpartition(x, -3, axis=0)], MATRICES),
    Program("frequencies of an extent", lambda x: mx.fft.fftfreq(5, x.shape[0]), alone((2,), (0,), (3,))),
]

PROGRAMS = [
    *SLICES, *ASSIGNMENTS, *SHAPING, *JOINING, *DIAGONALS, *PADDING, *CREATION, *FOLDS, *LOOKUP, *CONTRACTIONS,
    *CHOICES, *RANDOM, *GRADIENTS, *READING, *CHECKED,
]  # fmt: skip
