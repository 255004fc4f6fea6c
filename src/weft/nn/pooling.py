"""Pooling: one number for each window of an array, over one to three axes; channels are last."""

from __future__ import annotations

from typing import Any, ClassVar

import weft.core as mx
from weft.nn.checks import CHANNELS_LAST, array_input, axis_numbers_of
from weft.nn.module import Module

__all__ = ["AvgPool1d", "AvgPool2d", "AvgPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d"]


class _Pool(Module):
    """The base of pooling layers. A subclass names its number of axes in its class statement."""

    _rank: ClassVar[int]

    def __init_subclass__(cls, rank: int = 0, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._rank = rank

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        name, rank = type(self).__name__, self._rank
        self._kernel_size = axis_numbers_of(name, "kernel_size", kernel_size, rank, least=1)
        self._stride = self._kernel_size if stride is None else axis_numbers_of(name, "stride", stride, rank, least=1)
        self._padding = axis_numbers_of(name, "padding", padding, rank, least=0)

    def _extra_repr(self) -> str:
        return f"kernel_size={self._kernel_size}, stride={self._stride}, padding={self._padding}"

    def _windows(self, x: mx.array, filling: Any) -> tuple[mx.array, tuple[int, ...]]:
        """The padded input as a view of all windows, and the axes of the view along which a window lies."""
        if x.ndim != self._rank + 2:
            axes = CHANNELS_LAST[self._rank]
            raise ValueError(f"[{self!r}] the input must have the axes {axes}; got shape {x.shape}.")
        if any(self._padding):
            x = mx.pad(x, [(0, 0), *[(n, n) for n in self._padding], (0, 0)], constant_values=filling)
        extents = zip(x.shape[1:-1], self._kernel_size, self._stride, strict=True)
        counts = tuple([(extent - size) // step + 1 for extent, size, step in extents])
        if any(count < 1 for count in counts):
            raise ValueError(
                f"[{self!r}] a window is longer than its axis: with padding, the input has the shape {x.shape}."
            )
        return _shown(x, counts, self._kernel_size, self._stride)


def _shown(
    x: mx.array, counts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[mx.array, tuple[int, ...]]:
    """A view of windows, with ``counts`` windows of ``sizes`` elements along each axis, which begin ``steps`` apart;
    and the axes along which a window lies. Overlapping windows take no more memory than the array."""
    rank = len(counts)
    if sizes == steps:  # each element is in at most one window
        x = x[(slice(None), *[slice(count * size) for count, size in zip(counts, sizes, strict=True)])]
        for axis in reversed(range(rank)):
            x = mx.unflatten(x, 1 + axis, (-1, sizes[axis]))
        return x, tuple(range(2, 2 * rank + 1, 2))
    strides = [1]
    for extent in reversed(x.shape[1:]):
        strides.insert(0, strides[0] * extent)
    outer, *inner, channels = strides
    between = [step * stride for step, stride in zip(steps, inner, strict=True)]
    shape = (x.shape[0], *counts, *sizes, x.shape[-1])
    return mx.as_strided(x, shape, (outer, *between, *inner, channels)), tuple(range(1 + rank, 1 + 2 * rank))


class _MaxPool(_Pool):
    def __call__(self, x: mx.array) -> mx.array:
        x = array_input(self, x)
        windows, axes = self._windows(x, _least(x.dtype))
        return mx.max(windows, axis=axes)


class _AvgPool(_Pool):
    def __call__(self, x: mx.array) -> mx.array:
        windows, axes = self._windows(array_input(self, x), 0)
        return mx.mean(windows, axis=axes)


def _least(dtype: mx.Dtype) -> Any:
    """The smallest number of a dtype."""
    if mx.issubdtype(dtype, mx.inexact):
        return -mx.inf
    return False if dtype == mx.bool_ else mx.iinfo(dtype).min


class MaxPool1d(_MaxPool, rank=1):
    """The largest element of each window of a sequence, channel by channel.

    Args:
        kernel_size: size of a window.
        stride: the distance between the beginnings of windows; by default ``kernel_size``.
        padding: how many elements, below all others, are put at both ends.

    Called with ``(N, L, C)``; the result has ``(L + 2 * padding - kernel_size) // stride + 1`` elements along its
    second axis.

    >>> nn.MaxPool1d(2)(mx.array([1.0, 5.0, 2.0, 4.0]).reshape(1, 4, 1)).flatten()
    array([5, 4], dtype=float32)
    """

    def __init__(
        self, kernel_size: int | tuple[int], stride: int | tuple[int] | None = None, padding: int | tuple[int] = 0
    ) -> None:
        super().__init__(kernel_size, stride, padding)


class MaxPool2d(_MaxPool, rank=2):
    """The largest element of each window of an image, channel by channel.

    Args:
        kernel_size: size of a window; each is one number, or one for height and one for width.
        stride: the distance between the beginnings of windows; by default ``kernel_size``.
        padding: how many elements, below all others, are put at both ends of an axis.

    Called with ``(N, H, W, C)``; the result has ``(H + 2 * padding - kernel_size) // stride + 1`` rows, and as many
    columns.

    >>> nn.MaxPool2d(2)(mx.arange(16.0).reshape(1, 4, 4, 1)).flatten()
    array([5, 7, 13, 15], dtype=float32)
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__(kernel_size, stride, padding)


class MaxPool3d(_MaxPool, rank=3):
    """The largest element of each window of a volume, channel by channel.

    Args:
        kernel_size: size of a window; each is one number, or one for each of the three axes.
        stride: the distance between the beginnings of windows; by default ``kernel_size``.
        padding: how many elements, below all others, are put at both ends of an axis.

    Called with ``(N, D, H, W, C)``; the result has ``(D + 2 * padding - kernel_size) // stride + 1`` elements along
    its second axis, and likewise along the next two.

    >>> nn.MaxPool3d(2)(mx.arange(8.0).reshape(1, 2, 2, 2, 1)).item()
    7.0
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] | None = None,
        padding: int | tuple[int, int, int] = 0,
    ) -> None:
        super().__init__(kernel_size, stride, padding)


class AvgPool1d(_AvgPool, rank=1):
    """The mean of each window of a sequence, channel by channel.

    Args:
        kernel_size: size of a window.
        stride: the distance between the beginnings of windows; by default ``kernel_size``.
        padding: how many zeros, which count as elements, are put at both ends.

    Called with ``(N, L, C)``; the result has ``(L + 2 * padding - kernel_size) // stride + 1`` elements along its
    second axis.

    >>> nn.AvgPool1d(2)(mx.array([1.0, 5.0, 2.0, 4.0]).reshape(1, 4, 1)).flatten()
    array([3, 3], dtype=float32)
    """

    def __init__(
        self, kernel_size: int | tuple[int], stride: int | tuple[int] | None = None, padding: int | tuple[int] = 0
    ) -> None:
        super().__init__(kernel_size, stride, padding)


class AvgPool2d(_AvgPool, rank=2):
    """The mean of each window of an image, channel by channel.

    Args:
        kernel_size: size of a window; each is one number, or one for height and one for width.
        stride: the distance between the beginnings of windows; by default ``kernel_size``.
        padding: how many zeros, which count as elements, are put at both ends of an axis.

    Called with ``(N, H, W, C)``; the result has ``(H + 2 * padding - kernel_size) // stride + 1`` rows, and as many
    columns.

    >>> nn.AvgPool2d(2)(mx.arange(16.0).reshape(1, 4, 4, 1)).flatten()
    array([2.5, 4.5, 10.5, 12.5], dtype=float32)
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__(kernel_size, stride, padding)


class AvgPool3d(_AvgPool, rank=3):
    """The mean of each window of a volume, channel by channel.

    Args:
        kernel_size: size of a window; each is one number, or one for each of the three axes.
        stride: the distance between the beginnings of windows; by default ``kernel_size``.
        padding: how many zeros, which count as elements, are put at both ends of an axis.

    Called with ``(N, D, H, W, C)``; the result has ``(D + 2 * padding - kernel_size) // stride + 1`` elements along
    its second axis, and likewise along the next two.

    >>> nn.AvgPool3d(2)(mx.arange(8.0).reshape(1, 2, 2, 2, 1)).item()
    3.5
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] | None = None,
        padding: int | tuple[int, int, int] = 0,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
