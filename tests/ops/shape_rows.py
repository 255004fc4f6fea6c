"""Rows of functions that create, reshape, cut, join and look up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ops.row import (
    ANY,
    BOOLEAN,
    COMPLEX,
    EVERY,
    INTEGERS,
    Domain,
    Row,
    numpy_dtype,
    whole,
    widened,
)

FEW = ("float32", "int8", "complex64", "bool_", "bfloat16")
"""Dtypes for functions that only move elements: one dtype of each size and kind is enough."""

OWN_SHAPE = {"shapeless": "the extents in the call are numbers"}
OWN_EXTENT = {"shapeless": "the number of results depends on an extent"}


def moved(
    name: str, call: Callable[..., Any], oracle: Callable[..., Any], *domains: Domain, dtypes: Any = FEW, **more: Any
) -> Row:
    """A row of a function whose results are elements of its arguments."""
    return Row(name, call, oracle, domains or (ANY,), dtypes, ulp=0, elementwise=True, **more)


SHAPING_ROWS = [
    moved("reshape", lambda mx, x: mx.reshape(x, (4, -1)), lambda x: x.reshape(4, -1), grows=((1, 1, 4),)),
    moved("flatten", lambda mx, x: mx.flatten(x), np.ravel),
    moved("flatten", lambda mx, x: mx.flatten(x, 0, 1), lambda x: x.reshape(-1, x.shape[-1]), variant="two"),
    moved(
        "unflatten",
        lambda mx, x: mx.unflatten(x, -1, (2, -1)),
        lambda x: x.reshape(2, 3, 2, 2),
        grows=((1, 1, 2),),
    ),
    moved("transpose", lambda mx, x: mx.transpose(x), np.transpose),
    moved(
        "transpose",
        lambda mx, x: mx.transpose(x, (1, -1, 0)),
        lambda x: np.transpose(x, (1, 2, 0)),
        variant="axes",
    ),
    moved("matrix_transpose", lambda mx, x: mx.matrix_transpose(x), lambda x: np.swapaxes(x, -1, -2)),
    moved("swapaxes", lambda mx, x: mx.swapaxes(x, 0, -1), lambda x: np.swapaxes(x, 0, -1)),
    moved("moveaxis", lambda mx, x: mx.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1)),
    moved("squeeze", lambda mx, x: mx.squeeze(x), np.squeeze, shape=(1, 3, 1, 2)),
    moved("squeeze", lambda mx, x: mx.squeeze(x, (0, -2)), lambda x: x[0, :, 0], shape=(1, 3, 1, 2), variant="axes"),
    moved("expand_dims", lambda mx, x: mx.expand_dims(x, (0, -1)), lambda x: x[None, ..., None]),
    moved(
        "broadcast_to",
        lambda mx, x: mx.broadcast_to(x, (2, 3, 4)),
        lambda x: np.broadcast_to(x, (2, 3, 4)),
        shape=(3, 1),
        fails=OWN_SHAPE,
    ),
    moved(
        "broadcast_arrays",
        lambda mx, x, y: mx.broadcast_arrays(x, y),
        lambda x, y: np.broadcast_arrays(x, y),
        Domain(shape=(3, 1)),
        Domain(shape=(2, 1, 4)),
    ),
    moved("atleast_1d", lambda mx, x: mx.atleast_1d(x), np.atleast_1d, shape=()),
    moved("atleast_2d", lambda mx, x: mx.atleast_2d(x), np.atleast_2d, shape=(3,)),
    moved("atleast_3d", lambda mx, x: mx.atleast_3d(x), np.atleast_3d, shape=(3,)),
    moved("contiguous", lambda mx, x: mx.contiguous(x), lambda x: x),
    moved(
        "stop_gradient",
        lambda mx, x: mx.stop_gradient(x),
        lambda x: x,
        fails={"jvp": "by definition it is a constant of differentiation"},
    ),
]

JOINING_ROWS = [
    moved(
        "concatenate",
        lambda mx, x, y: mx.concatenate([x, y], axis=1),
        lambda x, y: np.concatenate([x, y], axis=1),
        ANY,
        Domain(shape=(2, 5, 4)),
    ),
    moved(
        "concatenate",
        lambda mx, x, y: mx.concatenate([x, y], axis=None),
        lambda x, y: np.concatenate([x, y], axis=None),
        ANY,
        Domain(shape=(5,)),
        variant="flat",
    ),
    moved("stack", lambda mx, x, y: mx.stack([x, y], axis=-1), lambda x, y: np.stack([x, y], axis=-1), ANY, ANY),
    moved("split", lambda mx, x: mx.split(x, 2, axis=2), lambda x: np.split(x, 2, axis=2), grows=((1, 1, 2),)),
    moved("split", lambda mx, x: mx.split(x, [1, 3], axis=2), lambda x: np.split(x, [1, 3], 2), variant="indices"),
    moved("unstack", lambda mx, x: mx.unstack(x, axis=1), lambda x: list(np.moveaxis(x, 1, 0)), grows=((1, 0, 1),)),
    moved("repeat", lambda mx, x: mx.repeat(x, 3, axis=1), lambda x: np.repeat(x, 3, axis=1)),
    moved("repeat", lambda mx, x: mx.repeat(x, 2), lambda x: np.repeat(x, 2), variant="flat"),
    moved("tile", lambda mx, x: mx.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    moved("tile", lambda mx, x: mx.tile(x, (2, 2)), lambda x: np.tile(x, (2, 2)), shape=(3,), variant="axes"),
    moved("roll", lambda mx, x: mx.roll(x, (1, -2), (0, 2)), lambda x: np.roll(x, (1, -2), (0, 2))),
    moved("roll", lambda mx, x: mx.roll(x, 5), lambda x: np.roll(x, 5), variant="flat"),
    moved("flip", lambda mx, x: mx.flip(x, (0, -1)), lambda x: np.flip(x, (0, -1))),
    moved("flip", lambda mx, x: mx.flip(x), np.flip, variant="all"),
    Row("diff", lambda mx, x: mx.diff(x, 2), lambda x: np.diff(x, 2), dtypes=("float32", "int32"), ulp=4),
    moved(
        "pad",
        lambda mx, x: mx.pad(x, ((1, 2), (0, 0), (0, 1))),
        lambda x: np.pad(x, ((1, 2), (0, 0), (0, 1))),
    ),
    moved(
        "pad",
        lambda mx, x, value: mx.pad(x, 1, constant_values=value),
        lambda x, value: np.pad(x, 1, constant_values=value),
        ANY,
        Domain(shape=()),
        variant="value",
        without={"mlx": "MLX pads some dtypes with a value of another"},
    ),
    moved("pad", lambda mx, x: mx.pad(x, 2, "edge"), lambda x: np.pad(x, 2, "edge"), variant="edge"),
    moved("pad", lambda mx, x: mx.pad(x, 3, "reflect"), lambda x: np.pad(x, 3, "reflect"), variant="reflect"),
    moved("pad", lambda mx, x: mx.pad(x, 3, "symmetric"), lambda x: np.pad(x, 3, "symmetric"), variant="symmetric"),
]

DIAGONAL_ROWS = [
    moved("tril", lambda mx, x: mx.tril(x, 1), lambda x: np.tril(x, 1)),
    moved("triu", lambda mx, x: mx.triu(x, -1), lambda x: np.triu(x, -1)),
    moved("diagonal", lambda mx, x: mx.diagonal(x, 1, 0, 2), lambda x: np.diagonal(x, 1, 0, 2)),
    moved("diagonal", lambda mx, x: mx.diagonal(x, -1, 2, 1), lambda x: np.diagonal(x, -1, 2, 1), variant="below"),
    moved("diag", lambda mx, x: mx.diag(x, -1), lambda x: np.diag(x, -1), shape=(3,)),
    moved("diag", lambda mx, x: mx.diag(x, 1), lambda x: np.diag(x, 1), shape=(3, 5), variant="of a matrix"),
    Row(
        "trace",
        lambda mx, x: mx.trace(x, 0, 1, 2),
        lambda x: np.trace(x, 0, 1, 2, dtype=np.int32 if x.dtype.kind in "ib" else None),
        dtypes=("float32", "int8", "bool_", "complex64"),
    ),
]


def _filled_like(name: str, value: int) -> Row:
    return moved(name, lambda mx, x: getattr(mx, name)(x), lambda x: np.full(x.shape, value, x.dtype), dtypes=EVERY)


def made(name: str, call: Callable[..., Any], oracle: Callable[[], Any], **more: Any) -> Row:
    """A row of a function without array arguments."""
    without = dict.fromkeys(("jvp", "vjp", "second order", "vmap", "shapeless", "layout", "special"), "has no arrays")
    return Row(name, call, oracle, (), ("float32",), without={**without, **more.pop("without", {})}, **more)


CREATION_ROWS = [
    _filled_like("zeros_like", 0),
    _filled_like("ones_like", 1),
    _filled_like("empty_like", 0),
    moved("full_like", lambda mx, x: mx.full_like(x, 1), np.ones_like, dtypes=EVERY),
    made("zeros", lambda mx: mx.zeros((2, 3)), lambda: np.zeros((2, 3))),
    made("zeros", lambda mx: mx.zeros(3, mx.int8), lambda: np.zeros(3, np.int8), variant="dtype"),
    made("ones", lambda mx: mx.ones((2, 0)), lambda: np.ones((2, 0))),
    made("empty", lambda mx: mx.empty((2, 3)) * 0, lambda: np.zeros((2, 3))),
    made("full", lambda mx: mx.full((2, 2), 3), lambda: np.full((2, 2), 3, np.int32)),
    moved(
        "full",
        lambda mx, x: mx.full((3, 2), x),
        lambda x: np.broadcast_to(x, (3, 2)),
        shape=(3, 1),
        variant="of an array",
        fails=OWN_SHAPE,
    ),
    made("arange", lambda mx: mx.arange(2, 11, 3), lambda: np.arange(2, 11, 3, dtype=np.int32)),
    made("arange", lambda mx: mx.arange(5.0, 0.0, -0.7), lambda: np.arange(5.0, 0.0, -0.7), variant="floating"),
    made("arange", lambda mx: mx.arange(0, 2**32, 2**31), lambda: np.array([0, 2**31]), variant="long"),
    made("linspace", lambda mx: mx.linspace(-1, 2, 7), lambda: np.linspace(-1, 2, 7)),
    made(
        "linspace",
        lambda mx: mx.linspace(-1, 2, 7, endpoint=False),
        lambda: np.linspace(-1, 2, 7, endpoint=False),
        variant="open",
    ),
    made(
        "linspace",
        lambda mx: mx.linspace(1 + 2j, -3, 6),
        lambda: np.linspace(1 + 2j, -3, 6),
        variant="complex",
        without={"mlx": "MLX refuses complex numbers"},
    ),
    made("eye", lambda mx: mx.eye(3, 4, -1), lambda: np.eye(3, 4, -1)),
    made("identity", lambda mx: mx.identity(3), lambda: np.identity(3)),
    made("tri", lambda mx: mx.tri(3, 4, 1), lambda: np.tri(3, 4, 1)),
    moved(
        "meshgrid",
        lambda mx, x, y: mx.meshgrid(x, y),
        lambda x, y: np.meshgrid(x, y),
        Domain(shape=(3,)),
        Domain(shape=(4,)),
    ),
    moved(
        "meshgrid",
        lambda mx, x, y: mx.meshgrid(x, y, sparse=True, indexing="ij"),
        lambda x, y: np.meshgrid(x, y, sparse=True, indexing="ij"),
        Domain(shape=(3,)),
        Domain(shape=(4,)),
        variant="sparse",
    ),
    made("hanning", lambda mx: mx.hanning(7), lambda: np.hanning(7), ulp=4),
    made("hamming", lambda mx: mx.hamming(7), lambda: np.hamming(7)),
    made("blackman", lambda mx: mx.blackman(7), lambda: np.blackman(7)),
    made("bartlett", lambda mx: mx.bartlett(7), lambda: np.bartlett(7)),
]


def _wide(target: str) -> Any:
    return np.complex128 if target in COMPLEX else np.float64


def cast_row(source: str, target: str) -> Row:
    """A row of a conversion of numbers that both dtypes represent exactly."""
    return Row(
        "astype",
        lambda mx, x: mx.astype(x, getattr(mx, target)),
        lambda x: widened(x.astype(numpy_dtype(target) if target in BOOLEAN + INTEGERS else _wide(target))),
        (Domain(0, 9),),
        (source,),
        variant=f"{source} to {target}",
        ulp=1,
        elementwise=True,
        without={"special": "no integer is like infinity: see test_special.py"},
    )


CAST_ROWS = [
    cast_row(source, target)
    for source in ("float32", "float16", "bfloat16", "int8", "uint64", "bool_")
    for target in ("float64", "float16", "bfloat16", "int32", "uint8", "bool_", "complex64")
]

INDEX = whole(2, (5, 2), low=-3)

LOOKUP_ROWS = [
    moved(
        "take",
        lambda mx, x, i: mx.take(x, i, axis=1),
        lambda x, i: np.take(x, i, axis=1),
        ANY,
        INDEX,
    ),
    moved("take", lambda mx, x, i: mx.take(x, i), np.take, ANY, INDEX, variant="flat"),
    moved(
        "take_along_axis",
        lambda mx, x, i: mx.take_along_axis(x, i, axis=2),
        lambda x, i: np.take_along_axis(x, i, axis=2),
        ANY,
        whole(3, (2, 3, 5)),
    ),
    moved(
        "put_along_axis",
        lambda mx, x, i, v: mx.put_along_axis(x, i, v, axis=2),
        lambda x, i, v: _put(x, i, v),
        ANY,
        whole(3, (2, 3, 1)),
        Domain(shape=(2, 3, 1)),
    ),
    moved(
        "slice",
        lambda mx, x, start: mx.slice(x, start, (0, 2), (1, 3, 2)),
        lambda x, start: x[start[0] : start[0] + 1, :, start[1] : start[1] + 2],
        ANY,
        whole(1, (2,)),
        grows=((1, 1, 1), (0,)),
    ),
    moved(
        "slice_update",
        lambda mx, x, update, start: mx.slice_update(x, update, start, (0, 2)),
        lambda x, update, start: _updated(x, update, start),
        ANY,
        Domain(shape=(1, 3, 2)),
        whole(1, (2,)),
        grows=((1, 1, 1), (0, 1, 0), (0,)),
    ),
]


def _put(x: np.ndarray, i: np.ndarray, v: np.ndarray) -> np.ndarray:
    result = x.copy()
    np.put_along_axis(result, i, v, axis=2)
    return result


def _updated(x: np.ndarray, update: np.ndarray, start: np.ndarray) -> np.ndarray:
    result = x.copy()
    result[start[0] : start[0] + 1, :, start[1] : start[1] + 2] = update
    return result


def _with(mx: Any, x: Any, index: Any, value: Any) -> Any:
    """A copy of ``x`` after an assignment."""
    result = mx.array(x)
    result[index] = value
    return result


def _numpy_with(x: np.ndarray, index: Any, value: np.ndarray) -> np.ndarray:
    result = x.copy()
    result[index] = value
    return result


METHOD_ROWS = [
    moved(
        "array.__getitem__",
        lambda mx, x: x[1, ::-2, None, 1:],
        lambda x: x[1, ::-2, None, 1:],
        variant="slices",
    ),
    moved("array.__getitem__", lambda mx, x: x[:, 1], lambda x: x[:, 1], variant="int"),
    moved("array.__getitem__", lambda mx, x: x[:, -1, 0], lambda x: x[:, -1, 0], variant="ints"),
    moved("array.__getitem__", lambda mx, x: x[..., 1:3], lambda x: x[..., 1:3], variant="neighbours"),
    moved("array.__getitem__", lambda mx, x, i: x[:, i], lambda x, i: x[:, i], ANY, INDEX, variant="array"),
    moved(
        "array.__setitem__",
        lambda mx, x, v: _with(mx, x, (slice(None), slice(0, None, 2)), v),
        lambda x, v: _numpy_with(x, (slice(None), slice(0, None, 2)), v),
        ANY,
        Domain(shape=(2, 1, 4)),
        variant="slices",
    ),
    moved(
        "array.__setitem__",
        lambda mx, x, i, v: _with(mx, x, i, v),
        _numpy_with,
        ANY,
        whole(1, (1,)),
        Domain(shape=(3, 4)),
        variant="array",
    ),
    Row(
        "array.at",
        lambda mx, x, i, v: x.at[:, i].add(v),
        lambda x, i, v: _added(x, i, v),
        (ANY, INDEX, Domain(shape=(5, 2, 4))),
        ("float32", "float64", "int32"),
        ulp=4,
    ),
]


def _added(x: np.ndarray, i: np.ndarray, v: np.ndarray) -> np.ndarray:
    result = x.copy()
    for n, target in np.ndenumerate(i):
        result[:, target] += v[n]
    return result


ROWS = METHOD_ROWS + SHAPING_ROWS + JOINING_ROWS + DIAGONAL_ROWS + CREATION_ROWS + CAST_ROWS + LOOKUP_ROWS
