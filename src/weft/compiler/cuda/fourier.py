"""Fourier transforms on NVIDIA GPUs, computed by cuFFT."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.compiler.cuda.library_operations import LibraryOperation
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array
from weft.primitives.replacing import replaces
from weft.primitives.routine import RoutineCall, RoutineStep
from weft.runtime.cuda import cufft
from weft.runtime.cuda.cufft import TransformKind, Transforms

_MOST_CALLS = 8
"""An axis that is not the last one is transformed in place if that takes at most this many calls of cuFFT. Else it is
moved to the end, which takes two copies."""


def _step(call: RoutineCall) -> RoutineStep:
    (x,), (out,) = call.operands, call.results
    transforms, inverse = call.params["work"]
    title = f"{'inverse ' if inverse else ''}Fourier transform of {transforms.length}"
    places = (x.slot, x.offset), (out.slot, out.offset), call.scratch
    code = cufft.TransformCall(title, places, transforms, inverse)
    return RoutineStep(code, work=call.params["arithmetic"], way="cuFFT")


OPERATION = LibraryOperation("fourier", ("Fourier transform", "Fourier transforms"), _step)


@replaces("cuda", p.fft)
def _of_complex(node: Node, machine: Any) -> Sequence[Node] | None:
    return _replaced(node, machine, TransformKind.COMPLEX, node.keywords["inverse"])


@replaces("cuda", p.rfft)
def _of_real(node: Node, machine: Any) -> Sequence[Node] | None:
    return _replaced(node, machine, TransformKind.FROM_REAL, False)


@replaces("cuda", p.irfft)
def _to_real(node: Node, machine: Any) -> Sequence[Node] | None:
    return _replaced(node, machine, TransformKind.TO_REAL, True)


def _replaced(node: Node, machine: Any, kind: TransformKind, inverse: bool) -> Sequence[Node] | None:
    axis, roots = node.keywords["axis"], node.keywords["roots"]
    length = (node if kind is TransformKind.TO_REAL else node.inputs[0]).shape[axis]
    if machine is None or cufft.missing() or not node.size or length == 1:
        return None
    source, order, factors = _plain(node.inputs[0])
    x, axis = wrap(source), order[axis]
    if kind is TransformKind.TO_REAL:
        x = _with_real_ends(x, axis, length)
    result = p.transpose(_transformed(machine, kind, x, axis, length, inverse), axes=order)
    if roots:
        factors.append(_scale(length, roots))
    return [_scaled(result, factors).node if factors else result.node]


def _plain(x: Node) -> tuple[Node, tuple[int, ...], list[Array]]:
    """An operand without exchanges of axes and without factors of other transforms, both of which can be applied later;
    the order of the axes, and the factors."""
    order, factors = tuple(range(x.ndim)), []
    while True:
        if x in _factors:
            factors.append(_factors[x])
        elif x.primitive is p.transpose:
            order = tuple([x.keywords["axes"][axis] for axis in order])
        else:
            return x, order, factors
        x = x.inputs[0]


_factors: weakref.WeakKeyDictionary[Node, Array] = weakref.WeakKeyDictionary()
"""For each product of a transform and its factor, the factor."""


def _scaled(x: Array, factors: Sequence[Array]) -> Array:
    factor = factors[0]
    for other in factors[1:]:
        factor = p.multiply(factor, other)
    found = p.multiply(x, p.fill(p.cast(factor, dtype=x.node.dtype), x.node.shape))
    _factors[found.node] = factor
    return found


def _with_real_ends(x: Array, axis: int, length: int) -> Array:
    """The first half of a transform, made real where a number is its own conjugate: cuFFT gives wrong results
    otherwise."""
    shape = x.node.shape
    index = p.iota(shape=shape, axis=axis, dtype=dtypes.int32)
    ends = [0, length // 2] if length % 2 == 0 else [0]
    alone = [p.equal(index, p.fill(wrap(p.planned_number(end, dtypes.int32)), shape)) for end in ends]
    is_real = alone[0] if len(alone) == 1 else p.logical_or(*alone)
    return p.select(is_real, p.cast(p.real(x), dtype=x.node.dtype), x)


def _scale(length: int, roots: int) -> Array:
    """The factor of transforms that are divided by ``roots`` square roots of their length."""
    divisor = wrap(p.planned_number(length, dtypes.float32))
    if roots == 1:
        divisor = p.sqrt(divisor)
    return p.divide(wrap(p.planned_number(1, dtypes.float32)), divisor)


def _never(call: RoutineCall) -> RoutineStep:
    raise AssertionError("what cuFFT does not compute is left to the CPU")


def _transformed(machine: Any, kind: TransformKind, x: Array, axis: int, length: int, inverse: bool) -> Array:
    """The transforms along an axis, without the factor."""
    shape = x.node.shape
    outer, inner, last = prod(shape[:axis]), prod(shape[axis + 1 :]), len(shape) - 1
    transforms = Transforms(kind, outer, length, inner)
    if transforms.calls > _MOST_CALLS or not transforms.is_aligned:
        result = _transformed(machine, kind, p.move_axis(x, axis, last), last, length, inverse)
        return p.move_axis(result, last, axis)
    result_shape: Shape = (*shape[:axis], transforms.extents[1], *shape[axis + 1 :])
    dtype = dtypes.float32 if kind is TransformKind.TO_REAL else dtypes.complex64
    (result,) = OPERATION.of(
        (x.node,),
        [(result_shape, dtype)],
        work=(transforms, inverse),
        scratch=cufft.scratch_of(machine, transforms),
        arithmetic=5 * outer * inner * length * (length - 1).bit_length(),
    )
    return wrap(result)


for _primitive in (p.fft, p.rfft, p.irfft):
    _primitive.routine.on("cuda", declines=lambda node: cufft.missing() or "of one number")(_never)
