"""Discrete Fourier transforms along an axis: linear operations that a routine computes."""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import AnyExtent, agree, value_of
from weft.graph.node import Node, Shape, describe
from weft.primitives.base import Array, Linear
from weft.primitives.fourier_lengths import split_of, work_length
from weft.primitives.routine import Routine
from weft.primitives.untrusted import check_axis, check_inputs, check_number, require

__all__ = ["Fourier", "fft", "irfft", "rfft"]

LANES = 16
"""A routine computes at most this many transforms side by side, if they are columns or short rows."""

LARGE_UNITS = 8
"""Transforms that need scratch memory are cut into this many units; each unit has scratch memory of its own."""

STACK = 17 << 14
"""The most bytes of a transform's buffers on the stack."""

LONGEST_COLUMN = 4096
"""Axes longer than this that are not the last one are transformed in a transposed copy."""

PADDING = 48
"""How many complex numbers are left free between and after the buffers of a transform."""


def transform_bytes(length: int, lanes: int) -> int:
    """The bytes of both buffers of a complex transform."""
    return 2 * 8 * (work_length(length) + PADDING) * lanes


def between_bytes(split: tuple[int, int]) -> int:
    """The bytes between the two halves of a long transform."""
    first, second = split
    return 8 * LANES * (first * -(-second // LANES) + LANES)


def row_bytes(length: int) -> int:
    """The bytes of a row that a long transform stores between its passes and the steps before and after them."""
    return 8 * (length + PADDING)


def inner_length(node: Node) -> int:
    """The length of the complex transform that computes a transform."""
    length = (
        node.shape[node.keywords["axis"]] if node.primitive is irfft else node.inputs[0].shape[node.keywords["axis"]]
    )
    return max(length if node.primitive is fft else length // 2, 1)


def _scratch(node: Node) -> int:
    axis, source = node.keywords["axis"], node.inputs[0]
    last, length = axis == node.ndim - 1, inner_length(node)
    transforms = source.size // source.shape[axis]
    whole = work_length(length) if node.primitive is fft else length
    split = split_of(whole)
    if split is not None:
        size = transform_bytes(split[0], LANES)
        rows = 1 if node.primitive is not fft else 2 if whole != length else 0
        buffers = 0 if size <= STACK else LARGE_UNITS * size
        return transforms * (between_bytes(split) + rows * row_bytes(whole)) + buffers
    lanes = 1 if last and transform_bytes(length, LANES) > STACK else LANES
    size = transform_bytes(length, lanes)
    return 0 if size <= STACK else min(transforms, LARGE_UNITS) * size


def _accepts(node: Node, position: int, strides: Shape) -> bool:
    """Whether neighbours along the transform's axis or another axis are neighbours in memory."""
    shape, axis = node.inputs[0].shape, node.keywords["axis"]
    last = node.ndim - 1
    if strides[axis] == 1 or shape[axis] == 1:
        return True
    if axis != last:
        return strides[last] == 1 and shape[last] > 1
    fits = transform_bytes(inner_length(node), LANES) <= STACK
    return fits and any(stride == 1 for stride, extent in zip(strides, shape, strict=True) if extent > 1)


def _operations(node: Node) -> int:
    length = inner_length(node)
    return 5 * node.size * max(length - 1, 1).bit_length()


class Fourier(Linear):
    """One of the Fourier transforms. The result is divided by the square root of the length to the power of ``roots``:
    0, 1 or 2."""

    routine: Routine

    def __init__(self, name: str, parameters: tuple[str, ...], infer: Any, transpose: Any, lowered: Any) -> None:
        super().__init__(name, parameters, infer, transpose, self._batch)
        self._lowered = lowered
        self.routine = Routine(
            accepts=_accepts,
            scratch=_scratch,
            arithmetic=_operations,
            names=("Fourier transform", "Fourier transforms"),
        )

    def _batch(self, x: Array, batch: int, *, axis: int, **params: Any) -> tuple[Array, int]:
        return self(x, axis=axis + (batch <= axis), **params), batch

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 1)
        check_axis(params["axis"], inputs[0].ndim)
        require(type(params["roots"]) is int and 0 <= params["roots"] <= 2, f"{params['roots']!r} is no power")
        require(type(params.get("inverse", False)) is bool, "its direction is not clear")
        check_number(params.get("length", 1), lowest=1)

    def lowered(self, node: Node) -> Node | None:
        return self._on_last_axis(node) or self._lowered(node)

    def _on_last_axis(self, node: Node) -> Node | None:
        """A transform of a long axis that is not the last one, computed along the last axis of a transposed copy."""
        axis, last = node.keywords["axis"], node.ndim - 1
        if axis == last or inner_length(node) <= LONGEST_COLUMN:
            return None
        order = list(range(node.ndim))
        order[axis], order[last] = last, axis
        transposed = _node(p.transpose, node.inputs[0], _permuted(node.inputs[0].shape, order), axes=tuple(order))
        params = {**node.keywords, "axis": last}
        result = _node(self, transposed, _permuted(node.shape, order), node.dtype, **params)
        return _node(p.transpose, self._lowered(result) or result, node.shape, axes=tuple(order))


def _permuted(shape: Shape, order: list[int]) -> Shape:
    return tuple([shape[axis] for axis in order])


def _node(primitive: Any, x: Node, shape: Shape, result: Dtype | None = None, **params: Any) -> Node:
    """A node of ``shape`` and of the dtype of ``x``, or of dtype ``result``."""
    values = tuple([params[name] for name in primitive.parameters])
    return Node(primitive, (x,), values, shape, result or x.dtype, None)


def _checked(name: str, x: Node, axis: int, dtype: Dtype) -> None:
    if x.dtype is not dtype or not 0 <= axis < x.ndim or agree(x.shape[axis], 0):
        raise ValueError(f"[{name}] There is no transform of {describe(x.shape, x.dtype)} along axis {axis}.")


def _with_extent(shape: Shape, axis: int, extent: AnyExtent) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _infer_fft(x: Node, *, axis: int, inverse: bool, roots: int) -> tuple[Shape, Dtype]:
    _checked("fft", x, axis, dtypes.complex64)
    return x.shape, x.dtype


def _infer_rfft(x: Node, *, axis: int, roots: int) -> tuple[Shape, Dtype]:
    _checked("rfft", x, axis, dtypes.float32)
    return _with_extent(x.shape, axis, x.shape[axis] // 2 + 1), dtypes.complex64


def _infer_irfft(x: Node, *, axis: int, length: AnyExtent, roots: int) -> tuple[Shape, Dtype]:
    _checked("irfft", x, axis, dtypes.complex64)
    if value_of(length) < 1 or not agree(x.shape[axis], length // 2 + 1):
        raise ValueError(f"[irfft] {x.shape[axis]} numbers are not the first half of a transform of {length}.")
    return _with_extent(x.shape, axis, length), dtypes.float32


def _shared(x: Array, axis: int, length: int, alone: float, both: float) -> Array:
    """The first half of a transform, times ``alone`` where an element is its own conjugate partner, and times ``both``
    where it also stands for its partner."""
    shape = x.node.shape
    position = p.iota(shape=(shape[axis],), axis=0, dtype=dtypes.int64)
    twice = p.remainder(position + position, p.wrap(p.constant.make(length, dtypes.int64)))
    weights = p.select(
        p.equal(twice, 0), p.full((shape[axis],), alone, x.node.dtype), p.full((shape[axis],), both, x.node.dtype)
    )
    others = tuple([number for number in range(x.node.ndim) if number != axis])
    return p.multiply(x, p.broadcast(p.expand(weights, axes=others), shape=shape))


def _transpose_rfft(ct: Array, x: Array, axis: int, roots: int) -> Array:
    length = x.node.shape[axis]
    return irfft(_shared(ct, axis, length, 1.0, 0.5), axis=axis, length=length, roots=roots)


def _transpose_irfft(ct: Array, x: Array, axis: int, length: int, roots: int) -> Array:
    return _shared(rfft(ct, axis=axis, roots=roots), axis, length, 1.0, 2.0)


def _lowered_fft(node: Node) -> Node | None:
    return node.inputs[0] if node.shape[node.keywords["axis"]] == 1 else None


def _lowered_rfft(node: Node) -> Node | None:
    """Odd lengths are computed by a complex transform."""
    axis, roots = node.keywords["axis"], node.keywords["roots"]
    x = node.inputs[0]
    length = x.shape[axis]
    if length % 2 == 0 and length > 2:
        return None
    wide = _node(p.cast, x, x.shape, dtypes.complex64, dtype=dtypes.complex64)
    whole = _node(fft, wide, x.shape, axis=axis, inverse=False, roots=roots)
    return _part(_lowered_fft(whole) or whole, axis, 0, node.shape[axis])


def _lowered_irfft(node: Node) -> Node | None:
    """Odd lengths are computed by a complex transform, with conjugates as the second half of its input."""
    axis, length, roots = (node.keywords[name] for name in ("axis", "length", "roots"))
    x = node.inputs[0]
    if length % 2 == 0 and length > 2:
        return None
    whole = x
    others = (length - 1) // 2
    if others:
        part = _part(x, axis, others, others, -1)
        second = _node(p.conjugate, part, part.shape)
        shape = _with_extent(x.shape, axis, length)
        whole = Node(p.concatenate, (x, second), (axis,), shape, x.dtype, None)
    result = _node(fft, whole, whole.shape, axis=axis, inverse=True, roots=roots)
    return _node(p.real, _lowered_fft(result) or result, node.shape, dtypes.float32)


def _part(x: Node, axis: int, start: int, size: int, step: int = 1) -> Node:
    """Some elements along an axis."""
    shape = _with_extent(x.shape, axis, size)
    starts = tuple([start if number == axis else 0 for number in range(x.ndim)])
    steps = tuple([step if number == axis else 1 for number in range(x.ndim)])
    return _node(p.slice_, x, shape, starts=starts, sizes=shape, steps=steps)


fft: Fourier = Fourier(
    "fft",
    ("axis", "inverse", "roots"),
    _infer_fft,
    lambda ct, x, axis, inverse, roots: fft(ct, axis=axis, inverse=not inverse, roots=roots),
    _lowered_fft,
)
rfft: Fourier = Fourier("rfft", ("axis", "roots"), _infer_rfft, _transpose_rfft, _lowered_rfft)
irfft: Fourier = Fourier("irfft", ("axis", "length", "roots"), _infer_irfft, _transpose_irfft, _lowered_irfft)
