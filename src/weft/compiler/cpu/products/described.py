"""Matrix products as they are described before it is chosen how they are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from weft.compiler.cpu.products.windows import axes as product_axes
from weft.dtypes import Dtype
from weft.primitives.routine import Attached
from weft.runtime.steps import Place

from .step import Block, Sources


class Product(NamedTuple):
    """A matrix product to plan: dtypes of the result and of the operands; places of both operands and the result; rows,
    columns and terms. ``storage`` says of each operand whether it is stored by columns, and how far these, or its rows,
    are apart. ``batch`` has for each batch axis its extent and three strides. ``attached`` is a kernel, ``whole`` says
    whether it needs whole rows, ``in_memory`` whether the result is made in memory or in scratch memory of the step.
    ``axes`` are the axes in memory that rows, terms of the left operand, terms of the right one and columns go over, if
    any of these goes over several. ``feeder`` is a kernel that makes the left operand. If ``is_fast``, the processor's
    own roundings may be used. If these are products of parts of the terms, ``parts`` are how many terms there are in
    all, and how many matrices have each part: see `parts`. If the right operand is in memory as panels for a
    kind of block, ``panels`` is this block: see `shared_panels`.
    """

    dtype: Dtype
    sources: Sources
    places: Sequence[Place]
    extents: tuple[int, int, int]
    storage: Sequence[tuple[int, int]]
    batch: Sequence[tuple[int, int, int, int]]
    attached: Attached | None
    whole: bool
    in_memory: bool
    axes: tuple[product_axes.AxisFactors, ...] | None = None
    feeder: Attached | None = None
    is_fast: bool = False
    parts: tuple[int, int] | None = None
    panels: Block | None = None

    @property
    def matrices(self) -> int:
        """How many products there are."""
        return prod([extent for extent, *_ in self.batch])

    @property
    def strides(self) -> list[int]:
        """Strides of the left operand from row to row and from term to term, and of the right one from term to term and
        from column to column."""
        return [n for by_columns, far in self.storage for n in ((1, far) if by_columns else (far, 1))]

    def transposed(self) -> Product:
        """The transposed product, with its operands exchanged."""
        (a, b, c), (rows, columns, inner), (left, right) = self.places, self.extents, self.storage
        return self._replace(
            sources=self.sources._replace(left=self.sources.right, right=self.sources.left),
            places=[b, a, c],
            extents=(columns, rows, inner),
            storage=[(1 - right[0], right[1]), (1 - left[0], left[1])],
            batch=[(extent, right, left, out) for extent, left, right, out in self.batch],
        )


Tiled = tuple[Callable[[], int], list[int], tuple[int, int]]
"""A function that returns the address of a step's code, which it may have to compile first; the step's numbers; and the
rows and columns of its tiles."""
