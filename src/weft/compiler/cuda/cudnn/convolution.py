"""Convolutions, and the cotangents of their weights, by cuDNN.

cuDNN has no convolution of an array with zeros between its elements, or with reversed weights. But such a convolution
is the cotangent of the array in another convolution, which cuDNN has. The derivatives of convolutions are of this kind
(`primitives/convolution.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.compiler.cuda.cudnn.graphs import GraphDraft, convolution_mode
from weft.compiler.cuda.cudnn.operations import CudnnOperation
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array
from weft.primitives.conversions import wide_dtype
from weft.primitives.convolution_windows import Geometry, reversed_along, spread, with_padding
from weft.primitives.replacing import replaces
from weft.runtime.cuda.cudnn.descriptors import Attribute, DescriptorContent, DescriptorKind, Of
from weft.runtime.cuda.cudnn.plans import ALWAYS_AVOIDED, CudnnWork, Note

_DTYPES = (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)
_MOST_AXES = 3
_GROUPED = 4
"""With several groups, channels and outputs of each are multiples of this, or one."""

_ROUNDED = frozenset({Note.TENSOR_CORE, Note.DOWN_CONVERT_INPUTS})
"""Notes of engines that round float32 to TF32."""

_NAMES = ("convolution", "convolutions")
_forward = CudnnOperation("convolution", _NAMES)
_for_array = CudnnOperation("convolution_array", _NAMES)
_for_weights = CudnnOperation("convolution_weights", _NAMES)
OPERATIONS = (_forward, _for_array, _for_weights)


class _Windows(NamedTuple):
    """A convolution in cuDNN's terms: an array ``(N, ..., C)``, weights ``(O, ..., C / groups)``, a result ``(N, ...,
    O)``, and for each axis the distance of windows, the zeros on both sides, and the distance of a window's
    elements."""

    array: Shape
    weights: Shape
    result: Shape
    strides: Shape
    pads: Shape
    spacings: Shape

    @property
    def counts(self) -> list[int]:
        """How many windows there are along each axis."""
        sizes = zip(self.array[1:-1], self.weights[1:-1], self.strides, self.pads, self.spacings, strict=True)
        return [(n + 2 * pad - spread(size, spacing)) // step + 1 for n, size, step, pad, spacing in sizes]

    @property
    def fits(self) -> bool:
        """Whether cuDNN can compute it."""
        some = all(map(prod, (self.array, self.weights, self.result)))
        known = 1 <= len(self.strides) <= _MOST_AXES and self._has_known_groups
        return some and known and min(self.pads) >= 0 and self.counts == list(self.result[1:-1])

    @property
    def _has_known_groups(self) -> bool:
        """Whether cuDNN computes groups of this size correctly. It does not, for example, with one output and two
        channels in each group: cuDNN 9.19 then leaves a part of the cotangent of the array unwritten."""
        channels = self.weights[-1]
        groups = self.array[-1] // max(channels, 1)
        outputs = self.result[-1] // max(groups, 1)
        return groups == 1 or channels == outputs == 1 or channels % _GROUPED == outputs % _GROUPED == 0

    @property
    def arithmetic(self) -> int:
        return 2 * prod(self.result) * prod(self.weights[1:])

    def work(self, kind: DescriptorKind, dtype: Dtype) -> CudnnWork:
        """The work for cuDNN: it computes one of array, weights and result from the other two."""
        draft = GraphDraft()
        shapes = {"array": self.array, "weights": self.weights, "result": self.result}
        roles = _ROLES[kind]
        tensors = {role: _tensor(draft, dtype, shapes[role]) for role in roles}
        compute = wide_dtype(dtype)
        spare = (0,) * (2 - len(self.strides))
        ones = (1,) * len(spare)
        mode = convolution_mode(compute, (*ones, *self.strides), (*spare, *self.pads), (*ones, *self.spacings))
        of = Of.DOUBLE if compute is dtypes.float64 else Of.FLOAT
        alpha, beta, geometry, *attributes = _ATTRIBUTES[kind]
        draft.add(
            kind,
            (geometry, Of.DESCRIPTOR, (mode,)),
            *[(attribute, Of.DESCRIPTOR, (tensors[role],)) for attribute, role in zip(attributes, roles, strict=True)],
            (alpha, of, (1.0,)),
            (beta, of, (0.0,)),
        )
        avoided = ALWAYS_AVOIDED | _ROUNDED if dtype is dtypes.float32 else ALWAYS_AVOIDED
        return draft.work(f"convolution {self.array} with {self.weights}", avoided)


_ROLES = {
    DescriptorKind.CONVOLUTION: ("array", "weights", "result"),
    DescriptorKind.CONVOLUTION_ARRAY: ("result", "weights", "array"),
    DescriptorKind.CONVOLUTION_WEIGHTS: ("result", "array", "weights"),
}
"""For each kind, two operands and the result."""

_ATTRIBUTES = {
    DescriptorKind.CONVOLUTION: (
        Attribute.CONVOLUTION_ALPHA,
        Attribute.CONVOLUTION_BETA,
        Attribute.CONVOLUTION_GEOMETRY,
        Attribute.CONVOLUTION_X,
        Attribute.CONVOLUTION_W,
        Attribute.CONVOLUTION_Y,
    ),
    DescriptorKind.CONVOLUTION_ARRAY: (
        Attribute.ARRAY_ALPHA,
        Attribute.ARRAY_BETA,
        Attribute.ARRAY_GEOMETRY,
        Attribute.ARRAY_DY,
        Attribute.ARRAY_W,
        Attribute.ARRAY_DX,
    ),
    DescriptorKind.CONVOLUTION_WEIGHTS: (
        Attribute.WEIGHTS_ALPHA,
        Attribute.WEIGHTS_BETA,
        Attribute.WEIGHTS_GEOMETRY,
        Attribute.WEIGHTS_DY,
        Attribute.WEIGHTS_X,
        Attribute.WEIGHTS_DW,
    ),
}
"""For each kind, the attributes for the factor of the result, the factor of its previous value, the windows, and the
tensors in the order of `_ROLES`."""


def _tensor(draft: GraphDraft, dtype: Dtype, shape: Shape) -> DescriptorContent:
    """A channels-last array with the axes in cuDNN's order: channels are second, and there are at least two spatial
    axes."""
    first, *spatial, channels = shape
    spatial = [1] * (2 - len(spatial)) + spatial
    steps = [channels * prod(spatial[number + 1 :]) for number in range(len(spatial))]
    return draft.in_memory(dtype, (first, channels, *spatial), (channels * prod(spatial), 1, *steps))


@replaces("cuda", p.convolution)
def _convolution(node: Node, machine: Any) -> Sequence[Node] | None:
    if node.dtype not in _DTYPES:
        return None
    x, w = map(wrap, node.inputs)
    geometry = Geometry(*node.params)
    if geometry.flip or max(geometry.dilations, default=1) > 1:
        found = _as_cotangent(node, x, w, geometry, machine)
        if found is not None:
            return found
    if geometry.flip:
        w = reversed_along(w, range(1, w.node.ndim - 1))
    x, geometry = _plain(x, w.node.shape, geometry, node.shape)
    windows = _Windows(x.node.shape, w.node.shape, node.shape, geometry.strides, geometry.low, geometry.spacings)
    if not windows.fits:
        return None
    work = windows.work(DescriptorKind.CONVOLUTION, node.dtype)
    return _forward.results(machine, work, (x.node, w.node), [(node.shape, node.dtype)], windows.arithmetic)


def _as_cotangent(node: Node, x: Array, w: Array, geometry: Geometry, machine: Any) -> Sequence[Node] | None:
    """The convolution as the cotangent of the array in another convolution."""
    strides, low, _, spacings, dilations, groups, flip = geometry
    if max(strides, default=1) > 1:
        return None
    if not flip:
        w = reversed_along(w, range(1, w.node.ndim - 1))
    channels, *sizes, outputs = w.node.shape
    apart = p.reshape(w, shape=(groups, channels // groups, *sizes, outputs))
    turned = p.move_axis(p.move_axis(apart, apart.node.ndim - 1, 1), 2, apart.node.ndim - 1)
    weights = p.reshape(turned, shape=(groups * outputs, *sizes, channels // groups))
    pads = tuple([spread(n, apart) - 1 - m for n, apart, m in zip(sizes, spacings, low, strict=True)])
    windows = _Windows(node.shape, weights.node.shape, x.node.shape, dilations, pads, spacings)
    if not windows.fits:
        return None
    work = windows.work(DescriptorKind.CONVOLUTION_ARRAY, node.dtype)
    return _for_array.results(machine, work, (x.node, weights.node), [(node.shape, node.dtype)], windows.arithmetic)


@replaces("cuda", p.convolution_weights)
def _weights(node: Node, machine: Any) -> Sequence[Node] | None:
    if node.dtype not in _DTYPES:
        return None
    ct, x = map(wrap, node.inputs)
    geometry = Geometry(*node.params[1:])
    x, geometry = _plain(x, node.shape, geometry, ct.node.shape)
    windows = _Windows(x.node.shape, node.shape, ct.node.shape, geometry.strides, geometry.low, geometry.spacings)
    if not windows.fits:
        return None
    work = windows.work(DescriptorKind.CONVOLUTION_WEIGHTS, node.dtype)
    found = _for_weights.results(machine, work, (ct.node, x.node), [(node.shape, node.dtype)], windows.arithmetic)
    if found is None or not geometry.flip:
        return found
    return [reversed_along(wrap(found[0]), range(1, node.ndim - 1)).node]


def _plain(x: Array, weights: Shape, geometry: Geometry, result: Shape) -> tuple[Array, Geometry]:
    """An array and a geometry with as many zeros before as after it, and none between its elements. If the given
    geometry is another one, the zeros are made a part of the array."""
    zeros = (0,) * len(geometry.low)
    alike = geometry._replace(high=geometry.low)
    windows = _Windows(x.node.shape, weights, result, alike.strides, alike.low, alike.spacings)
    if max(geometry.dilations, default=1) == 1 and windows.fits:
        return x, alike
    return with_padding(x, geometry), geometry._replace(low=zeros, high=zeros, dilations=(1,) * len(zeros))
