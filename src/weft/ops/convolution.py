"""Convolutions, of vectors and of arrays with channels."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.checks import one_of
from weft.graph.extents import agree, decide, decide_equal, value_of
from weft.ops.arguments import Array, as_sequence, broadcast, integer_of, promoted, shape_text, to_dtype
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_general",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolve",
]

Numbers = int | Sequence[int]


@replayed
def conv1d(
    input: Array,
    weight: Array,
    /,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The convolution over one axis of an array with channels; see `conv_general`.

    Args:
        input: ``(N, L, C)``.
        weight: ``(O, K, C / groups)``.
        stride: how far apart windows begin.
        padding: how many zeros are put before and after the array.
        dilation: how far apart the elements of a window are.
        groups: how many groups of channels; each makes its share of the outputs.

    Returns:
        ``(N, ..., O)``.

    Raises:
        ValueError: shapes do not fit, or dtypes are not floating.

    >>> mx.conv1d(mx.array([1.0, 2.0, 4.0]).reshape(1, 3, 1), mx.array([1.0, -1.0]).reshape(1, 2, 1)).flatten()
    array([-1, -2], dtype=float32)
    """
    return _convolution("conv1d", input, weight, 1, stride, padding, dilation, 1, groups, False)


@replayed
def conv2d(
    input: Array,
    weight: Array,
    /,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The convolution over two axes of an array with channels; see `conv_general`.

    Args:
        input: ``(N, H, W, C)``.
        weight: ``(O, KH, KW, C / groups)``.
        stride: how far apart windows begin, or one for each axis.
        padding: how many zeros are put before and after each axis, or one number for each axis.
        dilation: how far apart the elements of a window are, or one for each axis.
        groups: how many groups of channels; each makes its share of the outputs.

    Returns:
        ``(N, ..., O)``.

    Raises:
        ValueError: shapes do not fit, or dtypes are not floating.

    >>> mx.conv2d(mx.ones((1, 4, 4, 3)), mx.ones((2, 3, 3, 3)), padding=1)[0, :, :, 0]
    array([[12, 18, 18, 12],
           [18, 27, 27, 18],
           [18, 27, 27, 18],
           [12, 18, 18, 12]], dtype=float32)
    """
    return _convolution("conv2d", input, weight, 2, stride, padding, dilation, 1, groups, False)


@replayed
def conv3d(
    input: Array,
    weight: Array,
    /,
    stride: int | tuple[int, int, int] = 1,
    padding: int | tuple[int, int, int] = 0,
    dilation: int | tuple[int, int, int] = 1,
    groups: int = 1,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The convolution over three axes of an array with channels; see `conv_general`.

    Args:
        input: ``(N, D, H, W, C)``.
        weight: ``(O, KD, KH, KW, C / groups)``.
        stride: how far apart windows begin, or one for each axis.
        padding: how many zeros are put before and after each axis, or one number for each axis.
        dilation: how far apart the elements of a window are, or one for each axis.
        groups: how many groups of channels; each makes its share of the outputs.

    Returns:
        ``(N, ..., O)``.

    Raises:
        ValueError: shapes do not fit, or dtypes are not floating.

    >>> mx.conv3d(mx.ones((1, 2, 2, 2, 3)), mx.ones((4, 2, 2, 2, 3))).flatten()
    array([24, 24, 24, 24], dtype=float32)
    """
    return _convolution("conv3d", input, weight, 3, stride, padding, dilation, 1, groups, False)


@replayed
def conv_general(
    input: Array,
    weight: Array,
    /,
    stride: Numbers = 1,
    padding: int | Sequence[int] | tuple[Sequence[int], Sequence[int]] = 0,
    kernel_dilation: Numbers = 1,
    input_dilation: Numbers = 1,
    groups: int = 1,
    flip: bool = False,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The convolution over all axes between the first, which counts examples, and the last, which counts channels.

    An element of the result is the sum of products of weights with the elements of a window:
    ``sum(weight[o, k, c] * input[n, i * stride + k * kernel_dilation - padding, c] for k, c)``. The sums of half
    precision are computed in float32 and rounded once.

    Args:
        input: floating, ``(N, ..., C)`` with one to three axes in the middle.
        weight: ``(O, ..., C / groups)``.
        stride: how far apart windows begin, one number or one for each axis.
        padding: how many zeros are put before and after an axis, or taken from it if negative: one number, one for
            each axis, or a pair of sequences, before and after.
        kernel_dilation: how far apart the elements of a window are.
        input_dilation: how far apart the elements of the input are; between them are zeros.
        groups: how many groups of channels; each makes its share of the outputs.
        flip: whether the weights are read backwards.

    Returns:
        ``(N, ..., O)``.

    Raises:
        ValueError: shapes do not fit, a window is longer than an axis, or dtypes are not floating.

    >>> x = mx.array([1.0, 2.0, 4.0]).reshape(1, 3, 1)
    >>> mx.conv_general(x, mx.ones((1, 2, 1)), padding=([1], [0]), input_dilation=2).flatten()
    array([1, 1, 2, 2, 4], dtype=float32)
    """
    return _convolution(
        "conv_general", input, weight, None, stride, padding, kernel_dilation, input_dilation, groups, flip
    )


@replayed
def conv_transpose1d(
    input: Array,
    weight: Array,
    /,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    output_padding: int = 0,
    groups: int = 1,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The transposed convolution over one axis: each element, times the weights, is added to a window of the result.

    With inputs and outputs of the weights exchanged, it is the derivative of ``conv1d`` with the same parameters with
    respect to an input of the result's shape.

    Args:
        input: ``(N, L, C)``.
        weight: ``(O, K, C / groups)``.
        stride: how far apart windows begin.
        padding: how many elements are taken from both ends of the result.
        dilation: how far apart the elements of a window are.
        output_padding: how many elements are added after the result.
        groups: how many groups of channels; each makes its share of the outputs.

    Returns:
        ``(N, ..., O)``, of ``(L - 1) * stride - 2 * padding + dilation * (K - 1) + output_padding + 1`` elements along
        an axis.

    Raises:
        ValueError: shapes do not fit, or dtypes are not floating.

    >>> mx.conv_transpose1d(mx.array([1.0, 2.0]).reshape(1, 2, 1), mx.ones((1, 3, 1)), stride=2).flatten()
    array([1, 1, 3, 2, 2], dtype=float32)
    """
    return _transposed("conv_transpose1d", input, weight, 1, stride, padding, dilation, output_padding, groups)


@replayed
def conv_transpose2d(
    input: Array,
    weight: Array,
    /,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    output_padding: int | tuple[int, int] = 0,
    groups: int = 1,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The transposed convolution over two axes: each element, times the weights, is added to a window of the result.

    With inputs and outputs of the weights exchanged, it is the derivative of ``conv2d`` with the same parameters with
    respect to an input of the result's shape.

    Args:
        input: ``(N, H, W, C)``.
        weight: ``(O, KH, KW, C / groups)``.
        stride: how far apart windows begin, or one for each axis.
        padding: how many elements are taken from both ends of each axis of the result, or one number for each axis.
        dilation: how far apart the elements of a window are, or one for each axis.
        output_padding: how many elements are added after each axis of the result, or one number for each axis.
        groups: how many groups of channels; each makes its share of the outputs.

    Returns:
        ``(N, ..., O)``, of ``(L - 1) * stride - 2 * padding + dilation * (K - 1) + output_padding + 1`` elements along
        an axis.

    Raises:
        ValueError: shapes do not fit, or dtypes are not floating.

    >>> mx.conv_transpose2d(mx.ones((1, 2, 2, 3)), mx.ones((1, 2, 2, 3)))[0, :, :, 0]
    array([[3, 6, 3],
           [6, 12, 6],
           [3, 6, 3]], dtype=float32)
    """
    return _transposed("conv_transpose2d", input, weight, 2, stride, padding, dilation, output_padding, groups)


@replayed
def conv_transpose3d(
    input: Array,
    weight: Array,
    /,
    stride: int | tuple[int, int, int] = 1,
    padding: int | tuple[int, int, int] = 0,
    dilation: int | tuple[int, int, int] = 1,
    output_padding: int | tuple[int, int, int] = 0,
    groups: int = 1,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The transposed convolution over three axes: each element, times the weights, is added to a window of the result.

    With inputs and outputs of the weights exchanged, it is the derivative of ``conv3d`` with the same parameters with
    respect to an input of the result's shape.

    Args:
        input: ``(N, D, H, W, C)``.
        weight: ``(O, KD, KH, KW, C / groups)``.
        stride: how far apart windows begin, or one for each axis.
        padding: how many elements are taken from both ends of each axis of the result, or one number for each axis.
        dilation: how far apart the elements of a window are, or one for each axis.
        output_padding: how many elements are added after each axis of the result, or one number for each axis.
        groups: how many groups of channels; each makes its share of the outputs.

    Returns:
        ``(N, ..., O)``, of ``(L - 1) * stride - 2 * padding + dilation * (K - 1) + output_padding + 1`` elements along
        an axis.

    Raises:
        ValueError: shapes do not fit, or dtypes are not floating.

    >>> mx.conv_transpose3d(mx.ones((1, 2, 2, 2, 3)), mx.ones((4, 2, 2, 2, 3)), stride=2).shape
    (1, 4, 4, 4, 4)
    """
    return _transposed("conv_transpose3d", input, weight, 3, stride, padding, dilation, output_padding, groups)


@replayed
def convolve(a: Array, v: Array, /, mode: str = "full", *, stream: StreamOrDevice = None) -> Array:
    """The discrete convolution of two vectors, ``sum(a[m] * v[n - m] for m)``; they are exchanged if ``v`` is longer.

    Args:
        a: a vector.
        v: a vector.
        mode: if N and M are the lengths of ``a`` and ``v``: ``"full"`` for all N + M - 1 results, ``"same"`` for N
            results in the middle, ``"valid"`` for the N - M + 1 results to which all of ``v`` contributes.

    Raises:
        ValueError: an argument is empty or no vector, or there is no such mode.

    >>> mx.convolve(mx.array([1.0, 2.0, 3.0]), mx.array([0.0, 1.0, 0.5]))
    array([0, 1, 2.5, 4, 1.5], dtype=float32)
    >>> mx.convolve(mx.array([1.0, 2.0, 3.0]), mx.array([0.0, 1.0, 0.5]), "same")
    array([1, 2.5, 4], dtype=float32)
    """
    one_of("convolve", "mode", mode, ("full", "same", "valid"))
    x, y = promoted("convolve", (a, v), words=("a", "v"))
    for word, one in (("a", x), ("v", y)):
        if one.node.ndim != 1 or decide_equal(one.node.size, 0):
            raise ValueError(
                f"[convolve] {word} must be a vector that is not empty; its shape is {shape_text(one.node.shape)}."
            )
    if decide(operator.lt, x.node.size, y.node.size):
        x, y = y, x
    dtype = x.node.dtype
    wide = dtypes.float32 if dtype.is_floating and dtype.size == 2 else dtypes.int32 if dtype.is_bool else dtype
    result = _sliding_sums(to_dtype(x, wide), to_dtype(y, wide), mode)
    return to_dtype(result, dtype) if dtype.is_inexact else result


def _sliding_sums(x: Array, y: Array, mode: str) -> Array:
    """The convolution, as sums over windows of the padded longer vector."""
    length = y.node.size
    low, high = {
        "full": (length - 1, length - 1),
        "same": (length // 2, (length - 1) // 2),
        "valid": (0, 0),
    }[mode]
    padded = p.pad(x, p.zeros((), x.node.dtype), low=(low,), high=(high,))
    shape = (padded.node.size - length + 1, length)
    windows = p.as_strided(padded, shape=shape, strides=(1, 1), offset=0)
    return p.sum(p.multiply(windows, broadcast(p.reversed_rows(y), shape)), axes=(1,))


def _convolution(
    name: str,
    array: Any,
    weight: Any,
    rank: int | None,
    stride: Any,
    padding: Any,
    spacing: Any,
    dilation: Any,
    groups: Any,
    flip: bool,
) -> Array:
    """The convolution over ``rank`` axes, or over all axes between the first and the last one if ``rank`` is None."""
    x, w, count = _operands(name, array, weight, rank, groups)
    rank = x.node.ndim - 2
    before, behind = _paddings(name, padding, rank)
    result = p.convolution(
        x,
        w,
        strides=_numbers(name, "stride", stride, rank),
        low=before,
        high=behind,
        spacings=_numbers(name, "dilation", spacing, rank),
        dilations=_numbers(name, "input_dilation", dilation, rank),
        groups=count,
        flip=bool(flip),
    )
    _check_windows(name, x, w, result, before, behind)
    return result


def _transposed(
    name: str,
    array: Any,
    weight: Any,
    rank: int,
    stride: Any,
    padding: Any,
    spacing: Any,
    output_padding: Any,
    groups: Any,
) -> Array:
    x, w, count = _operands(name, array, weight, rank, groups)
    strides, spacings = _numbers(name, "stride", stride, rank), _numbers(name, "dilation", spacing, rank)
    taken = _numbers(name, "padding", padding, rank, lowest=None)
    added = _numbers(name, "output_padding", output_padding, rank, lowest=0)
    sizes = w.node.shape[1:-1]
    before = tuple([step * (size - 1) - n for step, size, n in zip(spacings, sizes, taken, strict=True)])
    behind = tuple([n + more for n, more in zip(before, added, strict=True)])
    ones = (1,) * rank
    result = p.convolution(
        x, w, strides=ones, low=before, high=behind, spacings=spacings, dilations=strides, groups=count, flip=True
    )
    _check_windows(name, x, w, result, before, behind)
    return result


def _operands(name: str, array: Any, weight: Any, rank: int | None, groups: Any) -> tuple[Array, Array, int]:
    """Array and weights in one dtype, and the number of groups."""
    x, w = promoted(name, (array, weight), words=("input", "weight"))
    count = integer_of(name, "groups", groups)
    left, right = x.node.shape, w.node.shape
    shapes = f"input has the shape {shape_text(left)}, weight {shape_text(right)}"
    if not x.node.dtype.is_floating:
        raise ValueError(f"[{name}] Convolutions are of floating numbers, not of {x.node.dtype.name}.")
    if len(left) != len(right) or not (3 <= len(left) <= 5 if rank is None else len(left) == rank + 2):
        axes = "one to three axes" if rank is None else f"{rank} {'axis' if rank == 1 else 'axes'}"
        raise ValueError(f"[{name}] Both operands need {axes} between the first and the last; {shapes}.")
    if count < 1 or value_of(right[0]) % count or not agree(left[-1], right[-1] * count):
        raise ValueError(
            f"[{name}] In {count} groups the last axis of input must be {count} times that of weight, and the first "
            f"axis of weight a multiple of {count}; {shapes}."
        )
    return x, w, count


def _numbers(name: str, word: str, value: Any, rank: int, lowest: int | None = 1) -> tuple[int, ...]:
    """One number for each axis, from a number or a sequence."""
    several = as_sequence(value)
    numbers = tuple([integer_of(name, word, number) for number in ((value,) * rank if several is None else several)])
    if len(numbers) != rank:
        raise ValueError(f"[{name}] {word} must be one number or {rank}, one for each axis; got {numbers}.")
    if lowest is not None and min(numbers, default=lowest) < lowest:
        raise ValueError(f"[{name}] {word} must be at least {lowest}; got {numbers}.")
    return numbers


def _paddings(name: str, padding: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many zeros are put before and after each axis."""
    ends = as_sequence(padding)
    if ends is not None and len(ends) == 2 and all(as_sequence(end) is not None for end in ends):
        before, behind = [_numbers(name, "padding", end, rank, None) for end in ends]
        return before, behind
    both = _numbers(name, "padding", padding, rank, None)
    return both, both


def _check_windows(name: str, x: Array, w: Array, result: Array, before: Sequence[int], behind: Sequence[int]) -> None:
    """Raise if a window is longer than its axis."""
    if any(value_of(extent) == 0 for extent in result.node.shape[1:-1]):
        raise ValueError(
            f"[{name}] A window is longer than its axis: input has the shape {shape_text(x.node.shape)} with "
            f"{tuple(before)} zeros before and {tuple(behind)} behind, weight {shape_text(w.node.shape)}."
        )
