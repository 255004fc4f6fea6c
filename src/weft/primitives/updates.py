"""Operations that write into parts of a copy of their first input: concatenation, slice updates, scatters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree
from weft.graph.node import Node, Shape, describe
from weft.primitives.base import Array, Elementwise, Primitive, Tangent
from weft.primitives.batching import insert
from weft.primitives.conversions import wide_dtype
from weft.primitives.indexing import check_gather, check_indices, check_slices
from weft.primitives.untrusted import (
    check_inputs,
    check_word,
    require,
)

__all__ = [
    "COMBINE",
    "RegionWrite",
    "Scatter",
    "ScatterWrite",
    "Update",
    "Write",
    "assembled",
    "concatenate",
    "made_of_boxes",
    "scatter",
    "slice_update",
]


@dataclass(frozen=True, slots=True)
class RegionWrite:
    """The input at ``position`` is written to a strided region of the result, given by the index of its first element
    and the step along each axis."""

    position: int
    starts: Shape
    steps: Shape


@dataclass(frozen=True, slots=True)
class ScatterWrite:
    """The input at ``position`` is written in slices at computed indices.

    The input at ``indices[i]`` holds indices along ``axes[i]``. ``combine`` merges the old value with the update (None:
    the update replaces it). Updates ``outside`` go to the "nearest" index inside, or "nowhere".
    """

    position: int
    indices: tuple[int, ...]
    axes: tuple[int, ...]
    combine: Elementwise | None
    outside: str


Write = RegionWrite | ScatterWrite


class Update(Primitive):
    """An operation that writes parts of its result, usually into a copy of the first input.

    ``disjoint`` says that no element is written twice, so that the writes may happen in any order.
    """

    disjoint = False

    def writes(self, node: Node) -> list[Write]:
        """Which inputs are written where, in order of writing."""
        raise NotImplementedError(f"{self.name} does not say what it writes")


class LinearUpdate(Update):
    """An update that only moves elements, and so is linear in all inputs together."""

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        if all(t is None for t in tangents):
            return None
        filled = [p.zeros_like(x) if t is None else t for t, x in zip(tangents, inputs, strict=True)]
        return self(*filled, **params)


def _whole(node: Node, position: int = 0) -> RegionWrite:
    """A write of the whole result, from an input of the same shape."""
    return RegionWrite(position, (0,) * node.ndim, (1,) * node.ndim)


class SliceUpdate(LinearUpdate):
    """A copy of ``x`` with ``update`` in a strided slice."""

    name = "slice_update"
    parameters = ("starts", "steps")

    def writes(self, node: Node) -> list[Write]:
        starts, steps = node.params
        return [_whole(node), RegionWrite(1, starts, steps)]

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 2)
        p.slice_.check(inputs[0], sizes=inputs[1].shape, **params)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, update = inputs
        if x.dtype is not update.dtype:
            raise TypeError(f"slice_update: {describe(x.shape, x.dtype)} and {describe(update.shape, update.dtype)}")
        p.slice_.infer(x, starts=params["starts"], sizes=update.shape, steps=params["steps"])
        return x.shape, x.dtype

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        update = inputs[1]
        of_x = self(cotangent, p.zeros_like(update), **params) if wanted[0] else None
        part = p.slice_(cotangent, sizes=update.node.shape, **params) if wanted[1] else None
        return [of_x, part]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        x, update = p.batch_first(inputs, axes)
        return self(x, update, starts=(0, *params["starts"]), steps=(1, *params["steps"])), 0


slice_update = SliceUpdate()


class Concatenate(LinearUpdate):
    """Inputs one after the other along ``axis``; their other extents are equal."""

    name = "concatenate"
    parameters = ("axis",)
    disjoint = True

    def writes(self, node: Node) -> list[Write]:
        axis, start = node.params[0], 0
        writes: list[Write] = []
        for position, source in enumerate(node.inputs):
            writes.append(RegionWrite(position, insert((0,) * (node.ndim - 1), axis, start), (1,) * node.ndim))
            start += source.shape[axis]
        return writes

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        axis, first = params["axis"], inputs[0]
        for node in inputs[1:]:
            same = [
                agree(a, b) for number, (a, b) in enumerate(zip(node.shape, first.shape, strict=True)) if number != axis
            ]
            if node.dtype is not first.dtype or not all(same):
                raise ValueError(
                    f"[concatenate] Shapes must be equal but for axis {axis}; got "
                    f"{', '.join(str(n.shape) for n in inputs)}."
                )
        extent = inputs[0].shape[axis]
        for node in inputs[1:]:
            extent = extent + node.shape[axis]
        return (*first.shape[:axis], extent, *first.shape[axis + 1 :]), first.dtype

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        axis = params["axis"]
        results: list[Tangent] = []
        start = 0
        for x, want in zip(inputs, wanted, strict=True):
            shape = x.node.shape
            starts = insert((0,) * (len(shape) - 1), axis, start)
            results.append(p.slice_(cotangent, starts=starts, sizes=shape, steps=(1,) * len(shape)) if want else None)
            start = start + shape[axis]
        return results

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        return self(*p.batch_first(inputs, axes), axis=params["axis"] + 1), 0

    def is_joined(self, node: Node) -> bool:
        return node.shape[: node.params[0]].count(1) == node.params[0]

    def rotated(self, node: Node) -> tuple[Node, Shape] | None:
        """If the inputs are the two parts of one array in reverse order, that array, rotated."""
        if len(node.inputs) != 2 or any(part.primitive is not p.slice_ for part in node.inputs) or 0 in node.shape:
            return None
        end, begin = node.inputs
        source, axis = end.inputs[0], node.params[0]
        first = end.params[0][axis]
        if begin.inputs[0] is not source or source.shape != node.shape or any(map(_skips, node.inputs)):
            return None
        is_end = first > 0 and first + end.shape[axis] == node.shape[axis]
        is_begin = begin.params[0][axis] == 0 and begin.shape[axis] == first
        return (source, insert((0,) * (node.ndim - 1), axis, first)) if is_end and is_begin else None


def _skips(part: Node) -> bool:
    """Whether a slice leaves out elements between its first and its last one."""
    return any(step != 1 for step in part.params[2])


concatenate = Concatenate()


class Assembled(LinearUpdate):
    """An array of ``shape`` made of boxes at ``starts``; each element is in exactly one box. Only planned graphs
    contain it."""

    name = "assembled"
    parameters = ("starts", "shape")
    disjoint = True

    def writes(self, node: Node) -> list[Write]:
        steps = (1,) * node.ndim
        return [RegionWrite(position, start, steps) for position, start in enumerate(node.params[0])]

    def check(self, *inputs: Node, **params: Any) -> None:
        require(False, "no file has it")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return params["shape"], inputs[0].dtype


assembled = Assembled()


def made_of_boxes(boxes: Sequence[Node], starts: Sequence[Shape], shape: Shape) -> Node:
    """A node of ``shape`` that consists of boxes, which begin at ``starts``."""
    return Node(assembled, tuple(boxes), (tuple(starts), shape), shape, boxes[0].dtype, None)


COMBINE: dict[str, Elementwise | None] = {
    "set": None, "add": p.add, "multiply": p.multiply, "maximum": p.maximum, "minimum": p.minimum,
}  # fmt: skip


class Scatter(Update):
    """A copy of ``x`` in which slices at computed indices are replaced by ``updates`` or combined with them.

    Arguments are ``x, *indices, updates``; ``updates`` has the indices' shape, then a slice's shape, with one axis
    per axis of ``x``. Updates of the same location are applied in row-major order of the indices. ``mode`` is a key of
    `COMBINE`. Updates ``outside`` go to the "nearest" index inside, or "nowhere".
    """

    name = "scatter"
    parameters = ("axes", "mode", "outside")

    def writes(self, node: Node) -> list[Write]:
        axes, mode, outside = node.params
        last = len(node.inputs) - 1
        return [_whole(node), ScatterWrite(last, tuple(range(1, last)), axes, COMBINE[mode], outside)]

    def __call__(self, *operands: Any, **params: Any) -> Array:
        return super().__call__(*operands, **{"outside": "nowhere", **params})

    def lowered(self, node: Node) -> Node | None:
        """An update of one element in each row of equal elements needs no array of these elements."""
        found: Node | None = p.with_single_updates(node)
        return found

    def check(self, *inputs: Node, **params: Any) -> None:
        x, *indices, updates = inputs
        require(bool(indices), "it has no indices")
        sizes = updates.shape[indices[0].ndim :]
        check_gather(x, *indices, axes=params["axes"], slice_sizes=sizes, outside=params["outside"])
        check_word(params["mode"], COMBINE)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, *indices, updates = inputs
        slices = updates.shape[indices[0].ndim :]
        if (
            updates.dtype is not x.dtype
            or len(slices) != x.ndim
            or not agree(updates.shape[: indices[0].ndim], indices[0].shape)
        ):
            raise TypeError(
                f"scatter: updates {describe(updates.shape, updates.dtype)} do not fit {describe(x.shape, x.dtype)} "
                f"at indices of shape {indices[0].shape}"
            )
        check_indices("scatter", indices)
        check_slices("scatter", x, indices[0], slices)
        return x.shape, x.dtype

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        x, *indices, updates = inputs
        t, u = tangents[0], tangents[-1]
        if t is None and u is None:
            return None
        t = p.zeros_like(x) if t is None else t
        u = p.zeros_like(updates) if u is None else u
        mode = params["mode"]
        if mode in ("set", "add"):
            return self(t, *indices, u, **params)
        of_x, of_updates = self._factors(inputs, output, **params)
        return self(t * of_x, *indices, u * of_updates, **{**params, "mode": "add"})

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        _, *indices, updates = inputs
        mode = params["mode"]
        none = [None] * len(indices)
        taken = _taken(cotangent, inputs, **params) if wanted[-1] else None
        if mode == "add":
            return [cotangent, *none, taken]
        if mode == "set":
            of_x = self(cotangent, *indices, p.zeros_like(updates), **params) if wanted[0] else None
            if taken is not None:
                taken = p.select(_is_last(inputs, **params), taken, p.zeros_like(taken))
            return [of_x, *none, taken]
        of_x, of_updates = self._factors(inputs, output, **params)
        return [cotangent * of_x, *none, None if taken is None else taken * of_updates]

    def _factors(self, inputs: Sequence[Array], output: Array, **params: Any) -> tuple[Array, Array]:
        """The derivatives of the result with respect to ``x`` and to the updates, element by element."""
        x, *_, updates = inputs
        if params["mode"] == "multiply":
            return self._products(inputs, output, **params)
        dtype = x.node.dtype
        reached = _taken(output, inputs, **params)
        chosen = p.logical_and(p.equal(updates, reached), p.not_equal(_taken(x, inputs, **params), reached))
        return p.cast(p.equal(x, output), dtype=dtype), self._shares(chosen, inputs, **params)

    def _shares(self, chosen: Array, inputs: Sequence[Array], **params: Any) -> Array:
        """For each chosen update, one over the number of those of its location; zero for all others."""
        x, *indices, _ = inputs
        # Half precision cannot count far enough.
        counted = wide_dtype(x.node.dtype)
        chosen = p.cast(chosen, dtype=counted)
        numbers = self(p.zeros(x.node.shape, counted), *indices, chosen, **{**params, "mode": "add"})
        numbers = p.maximum(_taken(numbers, inputs, **params), 1)
        return p.cast(chosen / numbers, dtype=x.node.dtype)

    def _products(self, inputs: Sequence[Array], output: Array, **params: Any) -> tuple[Array, Array]:
        """The product of all updates of a location and, for each update, that of ``x`` and the other updates there."""
        x, *indices, updates = inputs
        one, zero = p.ones_like(updates), p.zeros_like(updates)
        is_zero = p.equal(updates, zero)
        nonzero = p.select(is_zero, one, updates)
        zeros = scatter(p.zeros_like(x), *indices, p.select(is_zero, one, zero), **{**params, "mode": "add"})
        count = _taken(zeros, inputs, **params)
        rest = _taken(scatter(x, *indices, nonzero, **params), inputs, **params)
        alone = p.equal(count, p.select(is_zero, one, zero))
        others = p.select(alone, rest / nonzero, zero)
        return scatter(p.ones_like(x), *indices, updates, **params), others

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        x, *indices, updates = p.batch_first(inputs, axes)
        rows = p.iota(shape=indices[0].node.shape, axis=0, dtype=indices[0].node.dtype)
        slice_axis = indices[0].node.ndim
        moved = tuple([axis + 1 for axis in params["axes"]])
        updates = p.expand(updates, axes=(slice_axis,))
        return self(x, rows, *indices, updates, **{**params, "axes": (0, *moved)}), 0


def _taken(array: Array, inputs: Sequence[Array], *, axes: Sequence[int], mode: str, outside: str) -> Array:
    """The elements at a scatter's indices of an array that has the shape of its result."""
    _, *indices, updates = inputs
    slices = updates.node.shape[indices[0].node.ndim :]
    return p.gather(array, *indices, axes=axes, slice_sizes=slices, outside=outside)


def _is_last(inputs: Sequence[Array], **params: Any) -> Array:
    """For each update, whether it is the last one of its location."""
    x, *indices, updates = inputs
    shape = updates.node.shape
    steps = [p.iota(shape=shape, axis=axis, dtype=dtypes.int32) for axis in range(indices[0].node.ndim)]
    number = p.zeros(shape, dtypes.int32)
    for axis, step in enumerate(steps):
        number = number * shape[axis] + step
    latest = scatter(p.full(x.node.shape, -1, dtypes.int32), *indices, number, **params)
    return p.equal(_taken(latest, inputs, **params), number)


scatter = Scatter()
