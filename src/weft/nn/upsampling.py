"""Interpolation that changes the size of images and other arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from typing import Any, Literal

import weft.core as mx
from weft.checks import one_of
from weft.nn.checks import array_input, positive_number_of
from weft.nn.module import Module

__all__ = ["Upsample"]

Kernel = Callable[[mx.array], mx.array]
"""The weight of an element at each of some distances."""

Tap = tuple[mx.array, mx.array]
"""For each element of the result, an index in the input, which may be out of range, and a weight."""


class Upsample(Module):
    """Changes the number of elements along all axes but the first and the last by interpolation.

    Without ``align_corners``, the centre of the result is that of the input, and its elements are ``1 / scale_factor``
    apart. Elements outside of the input are those of its border.

    Args:
        scale_factor: above 0, one for all axes, or one for each; an axis of size ``L`` gets ``floor(L * scale_factor)``
            elements.
        mode: ``"nearest"`` takes the nearest element; ``"linear"`` and ``"cubic"`` interpolate between two or four
            elements along each axis. Cubic: Keys, "Cubic convolution interpolation" (1981), with ``a = -0.75``.
        align_corners: whether the corner elements of result and input coincide; not with ``"nearest"``.
        antialias: whether an element is the mean of all elements within a distance of ``1 / scale_factor`` (twice that
            if cubic, where ``a`` is -0.5), so that none is skipped if the result is smaller; neither with ``"nearest"``
            nor with ``align_corners``.

    Called with ``(N, ..., C)``. The result of ``"linear"`` and ``"cubic"`` is at least float32.

    >>> x = mx.array([0.0, 4.0]).reshape(1, 2, 1)
    >>> nn.Upsample(2)(x).flatten(), nn.Upsample(2, mode="linear")(x).flatten()
    (array([0, 0, 4, 4], dtype=float32), array([0, 1, 3, 4], dtype=float32))
    """

    def __init__(
        self,
        scale_factor: float | tuple[float, ...],
        mode: Literal["nearest", "linear", "cubic"] = "nearest",
        align_corners: bool = False,
        antialias: bool = False,
    ) -> None:
        super().__init__()
        self.mode = one_of("Upsample", "mode", mode, ("nearest", "linear", "cubic"))
        if isinstance(scale_factor, (list, tuple)):
            self.scale_factor: Any = tuple([_scale(factor) for factor in scale_factor])
        else:
            self.scale_factor = _scale(scale_factor)
        if antialias and (align_corners or mode == "nearest"):
            other = "align_corners" if align_corners else 'mode="nearest"'
            raise ValueError(f"[Upsample] antialias goes neither with align_corners nor with nearest; got {other}.")
        self.align_corners = align_corners
        self.antialias = antialias

    def _extra_repr(self) -> str:
        antialias = ", antialias=True" if self.antialias else ""
        return f"scale_factor={self.scale_factor}, mode={self.mode!r}, align_corners={self.align_corners}{antialias}"

    def __call__(self, x: mx.array) -> mx.array:
        x = array_input(self, x)
        rank = x.ndim - 2
        scales = self.scale_factor if isinstance(self.scale_factor, tuple) else (self.scale_factor,) * rank
        if rank < 1 or len(scales) != rank:
            raise ValueError(
                f"[{self!r}] the input must have axes between the first and the last, one for each factor if there "
                f"are several; got shape {x.shape}."
            )
        for axis, scale in enumerate(scales, 1):
            size = int(x.shape[axis] * scale)
            if size == 0 and x.shape[axis]:
                raise ValueError(f"[{self!r}] no element is left of axis {axis} of an input of shape {x.shape}.")
            x = self._along(x, axis, size, scale)
        return x

    def _along(self, x: mx.array, axis: int, size: int, scale: float) -> mx.array:
        """The input interpolated to another number of elements along an axis."""
        extent = x.shape[axis]
        if self.mode == "nearest":
            return _nearest(x, axis, size, scale)
        if extent == 0:
            return x.astype(mx.result_type(x.dtype, mx.float32))
        positions = _positions(extent, size, scale, self.align_corners)
        kernel: Kernel
        if self.mode == "cubic":
            kernel, reach = partial(_cubic, a=-0.5 if self.antialias else -0.75), 2
        else:
            kernel, reach = _triangle, 1
        if not self.antialias:
            return _weighted(x, axis, _around(positions, kernel, reach))
        stretch = max(1 / scale, 1.0)
        return _weighted(x, axis, _nearer(positions, extent, lambda d: kernel(d / stretch), reach * stretch))


def _scale(value: Any) -> float:
    scale = float(positive_number_of("Upsample", "scale_factor", value))
    if math.isinf(scale):
        raise ValueError("[Upsample] scale_factor must be finite; got inf.")
    return scale


def _positions(extent: int, size: int, scale: float, align_corners: bool) -> mx.array:
    """The positions of the result's elements in the input, as indices with fractions."""
    step = 1 / scale
    first = ((extent - 1) - (size - 1) * step) / 2
    if align_corners:
        step, first = ((extent - 1) / (size - 1) if size > 1 else 0.0), 0.0
    return mx.arange(size).astype(mx.float32) * step + first


def _nearest(x: mx.array, axis: int, size: int, scale: float) -> mx.array:
    extent = x.shape[axis]
    if size == extent * int(scale):
        return mx.repeat(x, int(scale), axis=axis)
    positions = mx.arange(size).astype(mx.float32)
    step = extent / size if size else 1.0
    index = mx.round((positions + 0.5) * step - 0.5) if scale > 1 else mx.floor(positions * step)
    return mx.take(x, mx.clip(index, 0, extent - 1).astype(mx.int32), axis=axis)


def _around(positions: mx.array, kernel: Kernel, reach: int) -> Iterator[Tap]:
    """The elements around each position, weighted by the kernel. Outside of the input they are those of its border."""
    below = mx.floor(positions)
    for distance in range(1 - reach, reach + 1):
        index = below + distance
        yield index, kernel(positions - index)


def _nearer(positions: mx.array, extent: int, kernel: Kernel, reach: float) -> Iterator[Tap]:
    """All elements within ``reach`` of each position, weighted by the kernel so that the weights add up to one. Outside
    of the input there are none."""
    columns = mx.arange(math.ceil(2 * reach)).astype(mx.float32)
    index = mx.expand_dims(mx.floor(positions - reach) + 1, 1) + columns
    weights = mx.where((index >= 0) & (index < extent), kernel(mx.expand_dims(positions, 1) - index), 0)
    weights = weights / mx.sum(weights, axis=1, keepdims=True)
    for column in range(len(columns)):
        yield index[:, column], weights[:, column]


def _weighted(x: mx.array, axis: int, taps: Iterable[Tap]) -> mx.array:
    """The sum of elements along an axis times weights."""
    parts = [_taken(x, axis, index) * _beside(weights, x.ndim - axis - 1) for index, weights in taps]
    return reduce(operator.add, parts)


def _taken(x: mx.array, axis: int, index: mx.array) -> mx.array:
    return mx.take(x, mx.clip(index, 0, x.shape[axis] - 1).astype(mx.int32), axis=axis)


def _beside(weights: mx.array, axes: int) -> mx.array:
    """A vector as an array that broadcasts along ``axes`` further axes."""
    return weights.reshape(-1, *[1] * axes)


def _triangle(distance: mx.array) -> mx.array:
    return mx.maximum(1 - mx.abs(distance), 0)


def _cubic(distance: mx.array, a: float) -> mx.array:
    """Keys' kernel: two polynomials, for distances below one and below two."""
    x = mx.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return mx.where(x <= 1, near, mx.where(x < 2, far, 0))
