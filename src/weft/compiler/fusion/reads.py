"""What the scalar code of an `Indexed` primitive reads, and where: into a kernel, or only noted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives import index_code
from weft.primitives.index import Term, Terms, added, shifted, weighted
from weft.runtime.memory import contiguous_strides

if TYPE_CHECKING:
    from .builder import Draft


class ReadRecorder:
    """Takes the place of the kernel's `Reader`, and records which inputs an `Indexed` primitive reads, and where."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.reads: list[tuple[int, Terms]] = []

    def read(self, position: int, terms: Sequence[Term], where: int | None = None) -> int:
        self.reads.append((position, tuple(terms)))
        return 0

    def read_index(self, position: int, terms: Sequence[Term], count: int, extent: int) -> tuple[Term, int | None]:
        self.reads.append((position, tuple(terms)))
        return Term(0, (), ((0, 1),)), 0

    def zero(self, dtype: Any) -> int:
        return 0

    def inside(self, bounds: Sequence[Any]) -> int | None:
        return 0 if bounds else None

    def apply(self, primitive: Any, *values: int, **params: Any) -> int:
        return 0

    def index_value(self, term: Term) -> int:
        return 0

    def number(self, value: int) -> int:
        return 0

    def linear(self, terms: Sequence[Term], shape: Shape) -> int:
        return 0

    def fixed(self, value: int) -> Term:
        return Term(value)

    def shift(self, term: Term, distance: int) -> Term:
        return Term(term.start + distance, term.axes, term.computed)

    def plus(self, left: Term, right: Term) -> Term:
        return Term(left.start + right.start, left.axes + right.axes, left.computed + right.computed)


class Reader:
    """How the scalar code of an `Indexed` primitive reads the inputs of its node and makes numbers."""

    def __init__(self, draft: Draft, node: Node, where: int | None) -> None:
        self._draft, self._node, self._where = draft, node, where
        self.apply = draft.apply
        self.index_value = draft.index_value

    def read(self, position: int, terms: Sequence[Term], where: int | None = None) -> int:
        """An element of an input, read only where the condition ``where`` holds."""
        both = where
        if where is not None and self._where is not None:
            both = index_code.both(self._draft, where, self._where)
        return self._draft.value(self._node.inputs[position], tuple(terms), self._where if both is None else both)

    def number(self, value: int) -> int:
        """A number that is passed when the kernel is launched."""
        return self._draft.index_value(Term(value))

    def fixed(self, value: int) -> Term:
        return Term(value)

    def shift(self, term: Term, distance: int) -> Term:
        return shifted(term, distance)

    def plus(self, left: Term, right: Term) -> Term:
        return added(left, right)

    def linear(self, terms: Sequence[Term], shape: Shape) -> int:
        """The row-major position of an index."""
        return self.index_value(weighted(terms, contiguous_strides(shape)))

    def inside(self, bounds: Sequence[tuple[Term, int, int]]) -> int | None:
        """Whether every term is at least its low bound and below its high one; None if there are no bounds."""
        result = None
        for term, low, high in bounds:
            holds = index_code.within(self._draft, self.index_value(term), low, high)
            result = holds if result is None else index_code.both(self._draft, result, holds)
        return result

    def read_index(self, position: int, terms: Sequence[Term], count: int, extent: int) -> tuple[Term, int | None]:
        """An index along an axis of ``extent``, read from an integer input and moved into 0 to ``count - 1``; and
        whether it was there already (None: always)."""
        node = self._node.inputs[position]
        return self._draft.index_from(node, tuple(terms), count, extent, where=self._where)

    def zero(self, dtype: Dtype) -> int:
        """Zero in a dtype."""
        return self._draft.zero(dtype)
