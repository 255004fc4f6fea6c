"""Drafts of graphs for cuDNN: tensors, and operations on them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.node import Shape
from weft.runtime.cuda.cudnn.descriptors import Attribute, Described, DescriptorContent, DescriptorKind, Of
from weft.runtime.cuda.cudnn.plans import ALIGNMENT, ALWAYS_AVOIDED, CudnnWork, Note

DATA_TYPES = {
    dtypes.float32: 0,
    dtypes.float64: 1,
    dtypes.float16: 2,
    dtypes.int32: 4,
    dtypes.bfloat16: 9,
    dtypes.bool_: 11,
}
"""cuDNN's numbers for dtypes."""


class Pointwise(IntEnum):
    """Operations on each element."""

    ADD = 0
    MULTIPLY = 1
    DIVIDE = 6
    SUBTRACT = 9
    EXP = 13
    LOG = 15
    GREATER_EQUAL = 303
    INDEX = 501
    SELECT = 601


class ReduceOperator(IntEnum):
    """How the elements along an axis are combined."""

    SUM = 0
    MAX = 3


def convolution_mode(compute: Dtype, strides: Shape, pads: Shape, spacings: Shape) -> DescriptorContent:
    """The geometry of a convolution that does not reverse the weights."""
    cross_correlation = 1
    return DescriptorContent(
        DescriptorKind.GEOMETRY,
        (
            (Attribute.GEOMETRY_COMPUTES_IN, Of.DATA_TYPE, (DATA_TYPES[compute],)),
            (Attribute.GEOMETRY_MODE, Of.CONVOLUTION_MODE, (cross_correlation,)),
            (Attribute.GEOMETRY_AXES, Of.INT64, (len(strides),)),
            (Attribute.GEOMETRY_PADS_BEFORE, Of.INT64, pads),
            (Attribute.GEOMETRY_PADS_BEHIND, Of.INT64, pads),
            (Attribute.GEOMETRY_SPACINGS, Of.INT64, spacings),
            (Attribute.GEOMETRY_STRIDES, Of.INT64, strides),
        ),
    )


class GraphDraft:
    """A graph while it is written. Tensors are numbered as they are made. Those in memory get their addresses in that
    order."""

    def __init__(self) -> None:
        self._count = 0
        self._memory: list[int] = []
        self._numbers: list[tuple[int, Of, float]] = []
        self._operations: list[DescriptorContent] = []

    def work(self, title: str, avoided: frozenset[Note] = ALWAYS_AVOIDED) -> CudnnWork:
        """The finished graph as a work."""
        return CudnnWork(title, tuple(self._operations), tuple(self._memory), tuple(self._numbers), avoided)

    def in_memory(self, dtype: Dtype, shape: Shape, strides: Shape) -> DescriptorContent:
        found = self._tensor(dtype, shape, strides)
        self._memory.append(self._count)
        return found

    def inside(self, dtype: Dtype, shape: Shape, strides: Shape | None = None) -> DescriptorContent:
        """A tensor that is never in memory."""
        return self._tensor(
            dtype, shape, strides or row_major(shape), (Attribute.TENSOR_IS_INSIDE, Of.BOOLEAN, (True,))
        )

    def number(self, dtype: Dtype, rank: int, value: float) -> DescriptorContent:
        """A number that is passed from the host."""
        of = Of.FLOAT if dtype is dtypes.float32 else Of.INT32
        found = self._tensor(dtype, (1,) * rank, (1,) * rank, (Attribute.TENSOR_IS_NUMBER, Of.BOOLEAN, (True,)))
        self._numbers.append((self._count, of, value))
        return found

    def _tensor(self, dtype: Dtype, shape: Shape, strides: Shape, *more: Described) -> DescriptorContent:
        self._count += 1
        return DescriptorContent(
            DescriptorKind.TENSOR,
            (
                (Attribute.TENSOR_ALIGNMENT, Of.INT64, (ALIGNMENT,)),
                (Attribute.TENSOR_DTYPE, Of.DATA_TYPE, (DATA_TYPES[dtype],)),
                (Attribute.TENSOR_SHAPE, Of.INT64, shape),
                (Attribute.TENSOR_STRIDES, Of.INT64, strides),
                (Attribute.TENSOR_IDENTIFIER, Of.INT64, (self._count,)),
                *more,
            ),
        )

    def add(self, kind: DescriptorKind, *attributes: Described) -> None:
        """Add an operation."""
        self._operations.append(DescriptorContent(kind, attributes))

    def pointwise(
        self,
        mode: Pointwise,
        result: DescriptorContent,
        *sources: DescriptorContent,
        compute: Dtype = dtypes.float32,
        axis: int | None = None,
    ) -> DescriptorContent:
        """Add an operation on each element of up to three sources; returns its result."""
        parts: list[Described] = [
            (Attribute.POINTWISE_MODE, Of.POINTWISE_MODE, (int(mode),)),
            (Attribute.POINTWISE_COMPUTES_IN, Of.DATA_TYPE, (DATA_TYPES[compute],)),
        ]
        if axis is not None:
            parts.append((Attribute.POINTWISE_AXIS, Of.INT64, (axis,)))
        given = [
            (Attribute.POINTWISE_X, sources[0]),
            *zip((Attribute.POINTWISE_B, Attribute.POINTWISE_T), sources[1:], strict=False),
        ]
        given.append((Attribute.POINTWISE_Y, result))
        self.add(
            DescriptorKind.POINTWISE,
            (
                Attribute.POINTWISE_OPERATION,
                Of.DESCRIPTOR,
                (DescriptorContent(DescriptorKind.POINTWISE_MODE, tuple(parts)),),
            ),
            *[(attribute, Of.DESCRIPTOR, (one,)) for attribute, one in given],
        )
        return result

    def reduce(
        self, reducer: ReduceOperator, result: DescriptorContent, source: DescriptorContent
    ) -> DescriptorContent:
        """Add a reduction along the axes in which the result has extent 1; returns its result."""
        mode = DescriptorContent(
            DescriptorKind.REDUCTION_MODE,
            (
                (Attribute.REDUCTION_COMPUTES_IN, Of.DATA_TYPE, (DATA_TYPES[dtypes.float32],)),
                (Attribute.REDUCTION_OPERATOR, Of.REDUCTION_OPERATOR, (int(reducer),)),
            ),
        )
        given = (
            (Attribute.REDUCTION_X, source),
            (Attribute.REDUCTION_Y, result),
            (Attribute.REDUCTION_MODE, mode),
        )
        self.add(DescriptorKind.REDUCTION, *[(attribute, Of.DESCRIPTOR, (one,)) for attribute, one in given])
        return result

    def product(
        self, result: DescriptorContent, left: DescriptorContent, right: DescriptorContent
    ) -> DescriptorContent:
        """Add a matrix product; returns its result."""
        mode = DescriptorContent(
            DescriptorKind.PRODUCT_MODE, ((Attribute.PRODUCT_COMPUTES_IN, Of.DATA_TYPE, (DATA_TYPES[dtypes.float32],)),)
        )
        given = (
            (Attribute.PRODUCT_MODE, mode),
            (Attribute.PRODUCT_LEFT, left),
            (Attribute.PRODUCT_RIGHT, right),
            (Attribute.PRODUCT_RESULT, result),
        )
        self.add(DescriptorKind.PRODUCT, *[(attribute, Of.DESCRIPTOR, (one,)) for attribute, one in given])
        return result

    def reshape(self, result: DescriptorContent, source: DescriptorContent) -> DescriptorContent:
        """Add a change of shape; returns its result."""
        self.add(
            DescriptorKind.RESHAPE,
            (Attribute.RESHAPE_X, Of.DESCRIPTOR, (source,)),
            (Attribute.RESHAPE_Y, Of.DESCRIPTOR, (result,)),
        )
        return result


def row_major(shape: Sequence[int]) -> Shape:
    """The strides of a row-major array, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
