"""Convolutions of an array with zeros between its elements, as several ones of the array without these zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product as combinations
from math import gcd, prod
from typing import Any, NamedTuple

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives.base import Array
from weft.primitives.convolution_windows import Geometry, spread
from weft.primitives.planned_matrices import zeros
from weft.primitives.untrusted import require
from weft.primitives.updates import RegionWrite, Update, Write

__all__ = ["interleaved"]


class Interleaved(Update):
    """Parts of an array, each in a strided region of its own. Every element is in exactly one of the parts."""

    name = "interleaved"
    parameters = ("shape", "starts", "steps")
    disjoint = True

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return params["shape"], inputs[0].dtype

    def check(self, *inputs: Node, **params: Any) -> None:
        require(False, "it is made when a graph is planned")

    def writes(self, node: Node) -> list[Write]:
        _, starts, steps = node.params
        regions = zip(starts, steps, strict=True)
        return [RegionWrite(position, *region) for position, region in enumerate(regions)]


interleaved = Interleaved()


class _Phase(NamedTuple):
    """The results along an axis, from ``start`` on and ``apart`` from each other, whose windows have the same elements
    on elements of the array, and all others on zeros between them: ``taps`` elements, from ``first`` on, ``step``
    apart. In the array without these zeros they are windows that begin ``stride`` apart, of elements ``spacing`` apart,
    with ``low`` zeros before the array."""

    start: int
    apart: int
    results: int
    first: int
    step: int
    taps: int
    stride: int
    spacing: int
    low: int


def _phases(geometry: Geometry, axis: int, results: int, size: int) -> list[_Phase]:
    """All phases of an axis. A phase may have no results, or no taps."""
    stride, low, spacing, dilation = (numbers[axis] for numbers in geometry[:2] + geometry[3:5])
    period = dilation // gcd(stride, dilation)
    found = []
    for start in range(period):
        taps = [tap for tap in range(size) if (start * stride + tap * spacing - low) % dilation == 0]
        first = taps[0] if taps else 0
        step = taps[1] - first if len(taps) > 1 else 1
        apart = step * spacing // dilation if len(taps) > 1 else 1
        before = (low - start * stride - first * spacing) // dilation
        count = len(range(start, results, period))
        found.append(_Phase(start, period, count, first, step, len(taps), period * stride // dilation, apart, before))
    return found


def _undilated(geometry: Geometry, extents: Shape, results: Shape, sizes: Shape) -> Iterator[tuple[Any, ...]]:
    """The phases of all axes, each with the geometry of its convolution of the array without zeros between elements."""
    every = [_phases(geometry, axis, *axes) for axis, axes in enumerate(zip(results, sizes, strict=True))]
    for phases in combinations(*every):
        strides, spacings, low = (tuple([getattr(x, name) for x in phases]) for name in ("stride", "spacing", "low"))
        high = [
            (x.results - 1) * x.stride + spread(x.taps, x.spacing) - extent - x.low
            for x, extent in zip(phases, extents, strict=True)
        ]
        ones = (1,) * len(phases)
        yield phases, Geometry(strides, low, tuple(high), spacings, ones, geometry.groups, False)


def used_phases(x: Array, w: Array, geometry: Geometry, counts: Shape) -> list[Geometry]:
    """The geometries of all phases that have results and taps."""
    found = []
    for phases, one in _undilated(geometry, x.node.shape[1:-1], counts, w.node.shape[1:-1]):
        if all(phase.taps and phase.results for phase in phases):
            found.append(one)
    return found


def in_phases(
    x: Array, w: Array, geometry: Geometry, counts: Shape, part_of: Callable[[Array, Geometry, Shape], Array]
) -> Array:
    """A convolution of an array with zeros between its elements, made of those of its phases, which ``part_of`` gives
    for the weights, the geometry and the counts of windows of each."""
    count, outputs = x.node.shape[0], w.node.shape[0]
    parts, starts = [], []
    for phases, without_zeros in _undilated(geometry, x.node.shape[1:-1], counts, w.node.shape[1:-1]):
        results = tuple([phase.results for phase in phases])
        if all(phase.taps and phase.results for phase in phases):
            part = part_of(_taps_of(w, phases), without_zeros, results)
        else:
            part = zeros((count, *results, outputs), x.node.dtype)
        parts.append(part)
        starts.append((0, *[phase.start for phase in phases], 0))
    steps = (1, *[phase.apart for phase in phases], 1)
    every = (steps,) * len(parts)
    return interleaved(*parts, shape=(count, *counts, outputs), starts=tuple(starts), steps=every)


def weights_in_phases(
    ct: Array, x: Array, geometry: Geometry, sizes: Shape, weights: Callable[[Array, Array, Geometry, Shape], Array]
) -> Array:
    """The cotangents of the weights of such a convolution: a weight is used in one phase, or in none. ``weights``
    computes the cotangents of those of a phase."""
    count, *counts, outputs = ct.node.shape
    channels = x.node.shape[-1] // geometry.groups
    shape = (outputs, *sizes, channels)
    parts: list[tuple[Array, Shape, Shape]] = []
    for phases, without_zeros in _undilated(geometry, x.node.shape[1:-1], tuple(counts), sizes):
        taps, results = (tuple([getattr(x, name) for x in phases]) for name in ("taps", "results"))
        if all(taps) and all(results):
            starts, steps = (0, *[phase.start for phase in phases], 0), (1, *[phase.apart for phase in phases], 1)
            some = p.slice_(ct, starts=starts, sizes=(count, *results, outputs), steps=steps)
            part = weights(some, x, without_zeros, taps)
            starts, steps = (0, *[phase.first for phase in phases], 0), (1, *[phase.step for phase in phases], 1)
            parts.append((part, starts, steps))
    if parts and sum([part.node.size for part, *_ in parts]) == prod(shape):
        results, starts_of, steps_of = zip(*parts, strict=True)
        return interleaved(*results, shape=shape, starts=starts_of, steps=steps_of)
    found = zeros(shape, ct.node.dtype)
    for part, starts, steps in parts:
        found = p.slice_update(found, part, starts=starts, steps=steps)
    return found


def _taps_of(w: Array, phases: Sequence[_Phase]) -> Array:
    """The weights that a phase uses."""
    outputs, *_, channels = w.node.shape
    starts, sizes, steps = (tuple([getattr(x, name) for x in phases]) for name in ("first", "taps", "step"))
    return p.slice_(w, starts=(0, *starts, 0), sizes=(outputs, *sizes, channels), steps=(1, *steps, 1))
