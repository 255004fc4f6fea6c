"""Generators, padding, gather and scatter, and operations that write into a part of an array.

`Indexed` operations say which element of an input belongs to an index of the output, so that they can be part of a
fused kernel. `Update` operations write into parts of a copy of their first input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree, value_of
from weft.graph.node import Node, Shape, describe, wrap
from weft.primitives.base import Array, Elementwise, Linear, Primitive, Tangent
from weft.primitives.batching import batch_size, insert, move_axis, with_batch
from weft.primitives.untrusted import (
    check_axes,
    check_axis,
    check_inputs,
    check_numbers,
    check_parameter,
    check_word,
    require,
)
from weft.runtime.devices import current_stream

__all__ = [
    "COMBINE",
    "Indexed",
    "RegionWrite",
    "Scatter",
    "ScatterWrite",
    "Update",
    "Write",
    "clamp_index",
    "concatenate",
    "from_front",
    "gather",
    "iota",
    "pad",
    "scatter",
    "slice_update",
]


class Indexed(Primitive):
    """``element(k, index, node)`` gives the value at an index of the output, through the kernel builder ``k``:

    ``k.read(position, index, where)`` an element of an input (only where a condition holds), ``k.number(n)`` a
    run-time integer, ``k.index_value(term)`` the value of an index, ``k.apply(primitive, *values)`` scalar code on
    values.
    """

    element: Callable[..., Any]


class Iota(Indexed):
    """0, 1, 2, ... along ``axis`` of ``shape``, as ``dtype``."""

    name = "iota"
    parameters = ("shape", "axis", "dtype")
    is_counted = True

    def __call__(self, *operands: Any, **params: Any) -> Array:
        values = (params["shape"], params["axis"], params["dtype"])
        return wrap(Node(self, (), values, params["shape"], params["dtype"], current_stream()))

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return params["shape"], params["dtype"]

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 0)
        check_numbers(params["shape"])
        check_axis(params["axis"], len(params["shape"]))
        check_parameter(self.name, "dtype", params["dtype"], ())

    def counts_along(self, node: Node) -> int | None:
        axis: int = node.params[1]
        return axis

    @staticmethod
    def element(k: Any, index: Sequence[Any], node: Node) -> Any:
        return k.apply(p.cast, k.index_value(index[node.params[1]]), dtype=node.dtype)


iota = Iota()


class Pad(Indexed, Linear):
    """``x`` with ``low`` elements before it and ``high`` behind it on each axis, all equal to the 0-d ``value``."""

    def __init__(self) -> None:
        Linear.__init__(self, "pad", ("low", "high"), _infer_pad, _transpose_pad, _batch_pad, _check_pad)

    @staticmethod
    def element(k: Any, index: Sequence[Any], node: Node) -> Any:
        low = node.params[0]
        shape = node.inputs[0].shape
        inside = k.inside(
            [
                (term, start, start + extent)
                for term, start, extent, full in zip(index, low, shape, node.shape, strict=True)
                if extent != full
            ]
        )
        value = k.read(1, [])
        if inside is None:
            return k.read(0, index)
        shifted = [k.shift(term, -start) for term, start in zip(index, low, strict=True)]
        return k.apply(p.select, inside, k.read(0, shifted, where=inside), value)

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        x, value = tangents
        if x is None and value is None:
            return None
        x = p.zeros_like(inputs[0]) if x is None else x
        value = p.zeros_like(inputs[1]) if value is None else value
        return self(x, value, **params)

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        inner = self.transpose(cotangent, *inputs, **params)
        if not wanted[1]:
            return [inner, None]
        every = tuple(range(cotangent.node.ndim))
        return [inner, p.sum(cotangent, axes=every) - p.sum(inner, axes=every)]


def _infer_pad(x: Node, value: Node, *, low: Shape, high: Shape) -> tuple[Shape, Dtype]:
    if value.shape != () or value.dtype is not x.dtype:
        raise TypeError(f"pad: the value is {describe(value.shape, value.dtype)}, not a 0-d {x.dtype.name}")
    return tuple([a + n + b for a, n, b in zip(low, x.shape, high, strict=True)]), x.dtype


def _check_pad(x: Node, value: Node, *, low: Shape, high: Shape) -> None:
    check_numbers(low, x.ndim)
    check_numbers(high, x.ndim)


def _transpose_pad(ct: Array, x: Array, value: Array, low: Shape, high: Shape) -> Array:
    return p.slice_(ct, starts=low, sizes=x.node.shape, steps=(1,) * x.node.ndim)


def _batch_pad(inputs: Sequence[Array], axes: Sequence[int | None], *, low: Shape, high: Shape) -> tuple[Array, int]:
    (x, value), (axis, value_axis) = inputs, axes
    if value_axis is None and axis is not None:
        return pad(x, value, low=insert(low, axis, 0), high=insert(high, axis, 0)), axis
    size = batch_size(inputs, axes)
    x = with_batch(x, axis, 0, size)
    padded = pad(x, p.zeros((), x.node.dtype), low=(0, *low), high=(0, *high))
    inner = pad(p.full(x.node.shape, True, dtypes.bool_), p.zeros((), dtypes.bool_), low=(0, *low), high=(0, *high))
    spread = p.expand(value, axes=tuple(range(1, padded.node.ndim)))
    return p.select(inner, padded, p.broadcast(spread, shape=padded.node.shape)), 0


pad = Pad()

# A negative index counts from the end.
from_front: Elementwise = Elementwise(
    "from_front", lambda L, index, extent: L.select(index < 0, index + extent, index), (None, None)
)
# An index outside of 0 to count - 1 moves to the nearest one inside.
clamp_index: Elementwise = Elementwise(
    "clamp_index", lambda L, index, count: L.maximum(L.minimum(index, count - 1), 0), (None, None)
)


class Gather(Indexed, Linear):
    """Slices of ``x`` at computed indices.

    ``indices[i]`` holds indices along ``axes[i]``; all have one shape. The result has that shape, then ``slice_sizes``
    (one per axis of ``x``). Negative ones count from the end. One that is out of range is moved to the "nearest"
    one inside, or, if ``outside`` is "nowhere", reads zeros.
    """

    def __init__(self) -> None:
        parameters = ("axes", "slice_sizes", "outside")
        Linear.__init__(self, "gather", parameters, _infer_gather, _transpose_gather, _batch_gather, _check_gather)

    def __call__(self, *operands: Any, **params: Any) -> Array:
        return super().__call__(*operands, **{"outside": "nearest", **params})

    @staticmethod
    def element(k: Any, index: Sequence[Any], node: Node) -> Any:
        axes, slice_sizes, outside = node.params
        x, *indices = node.inputs
        at, within = index[: indices[0].ndim], list(index[indices[0].ndim :])
        valid = None
        for position, axis in enumerate(axes):
            found, inside = k.read_index(position + 1, at, x.shape[axis] - slice_sizes[axis] + 1, x.shape[axis])
            within[axis] = k.plus(found, within[axis]) if slice_sizes[axis] != 1 else found
            if inside is not None:
                valid = inside if valid is None else k.apply(p.logical_and, valid, inside)
        if outside == "nearest" or valid is None:
            return k.read(0, within)
        value = k.read(0, within, where=valid)
        return k.apply(p.select, valid, value, k.zero(node.dtype))


def _infer_gather(
    x: Node, *indices: Node, axes: Sequence[int], slice_sizes: Shape, outside: str
) -> tuple[Shape, Dtype]:
    for index in indices:
        if not index.dtype.is_integer or not agree(index.shape, indices[0].shape):
            raise TypeError(f"gather: bad indices {', '.join(describe(i.shape, i.dtype) for i in indices)}")
    for axis, (extent, size) in enumerate(zip(x.shape, slice_sizes, strict=True)):
        fits = value_of(size) <= value_of(extent) and not (axis in axes and agree(extent, 0))
        if not fits and not agree(indices[0].size, 0):
            raise ValueError(f"[gather] Cannot take {size} elements of axis {axis} of an array of shape {x.shape}.")
    return (*indices[0].shape, *slice_sizes), x.dtype


_OUTSIDE = ("nearest", "nowhere")


def _check_gather(x: Node, *indices: Node, axes: Sequence[int], slice_sizes: Shape, outside: str) -> None:
    require(bool(indices), "it has no indices")
    require(type(axes) is tuple and len(axes) == len(indices), f"{axes!r} are no axes for {len(indices)} indices")
    check_axes(tuple(sorted(axes)), x.ndim)
    check_numbers(slice_sizes, x.ndim)
    check_word(outside, _OUTSIDE)


def _transpose_gather(
    ct: Array, x: Array, *indices: Array, axes: Sequence[int], slice_sizes: Shape, outside: str
) -> Array:
    return scatter(p.zeros_like(x), *indices, ct, axes=axes, mode="add", outside=outside)


def _batch_gather(
    inputs: Sequence[Array],
    batch_axes: Sequence[int | None],
    *,
    axes: Sequence[int],
    slice_sizes: Shape,
    outside: str,
) -> tuple[Array, int]:
    x, *indices = inputs
    x_axis, *index_axes = batch_axes
    size = batch_size(inputs, batch_axes)
    mapped = any(axis is not None for axis in index_axes)
    if mapped:
        indices = [with_batch(i, axis, 0, size) for i, axis in zip(indices, index_axes, strict=True)]
    if x_axis is None:
        return gather(x, *indices, axes=axes, slice_sizes=slice_sizes, outside=outside), 0
    x = move_axis(x, x_axis, 0)
    moved = tuple([axis + 1 for axis in axes])
    if not mapped:
        out = gather(x, *indices, axes=moved, slice_sizes=(size, *slice_sizes), outside=outside)
        return out, indices[0].node.ndim
    rows = iota(shape=indices[0].node.shape, axis=0, dtype=indices[0].node.dtype)
    out = gather(x, rows, *indices, axes=(0, *moved), slice_sizes=(1, *slice_sizes), outside=outside)
    return p.squeeze(out, axes=(indices[0].node.ndim,)), 0


gather = Gather()


@dataclass(frozen=True, slots=True)
class RegionWrite:
    """The input at ``position`` is written into a strided region of the result, given by the index of its first element
    and the distance of elements on each axis."""

    position: int
    starts: Shape
    steps: Shape


@dataclass(frozen=True, slots=True)
class ScatterWrite:
    """The input at ``position`` is written in slices at computed indices.

    The input at ``indices[i]`` holds indices along ``axes[i]``. ``combine`` joins what is there with what is written
    (None: it is replaced). Updates ``outside`` go to the "nearest" index inside, or "nowhere".
    """

    position: int
    indices: tuple[int, ...]
    axes: tuple[int, ...]
    combine: Elementwise | None
    outside: str


Write = RegionWrite | ScatterWrite


class Update(Primitive):
    """Writes parts of the result, most often into a copy of the first input.

    ``disjoint`` says that no element is written twice, so that the writes may happen in any order.
    """

    disjoint = False

    def writes(self, node: Node) -> list[Write]:
        """Which inputs are written where, in order."""
        raise NotImplementedError(f"{self.name} does not say what it writes")


def _whole(node: Node, position: int = 0) -> RegionWrite:
    """All of the result, from an input of its shape."""
    return RegionWrite(position, (0,) * node.ndim, (1,) * node.ndim)


class SliceUpdate(Update):
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

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        if tangents[0] is None and tangents[1] is None:
            return None
        filled = [p.zeros_like(x) if t is None else t for t, x in zip(tangents, inputs, strict=True)]
        return self(*filled, **params)

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


class Concatenate(Update):
    """Inputs one behind the other along ``axis``; they are equal in the other axes."""

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

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        if all(t is None for t in tangents):
            return None
        filled = [p.zeros_like(x) if t is None else t for t, x in zip(tangents, inputs, strict=True)]
        return self(*filled, **params)

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


concatenate = Concatenate()

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

    def check(self, *inputs: Node, **params: Any) -> None:
        x, *indices, updates = inputs
        require(bool(indices), "it has no indices")
        sizes = updates.shape[indices[0].ndim :]
        _check_gather(x, *indices, axes=params["axes"], slice_sizes=sizes, outside=params["outside"])
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
        p.gather.infer(x, *indices, axes=params["axes"], slice_sizes=slices, outside=params["outside"])
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
        """The derivatives of the result in ``x`` and in the updates, element by element."""
        x, *_, updates = inputs
        if params["mode"] == "multiply":
            return self._products(inputs, output, **params)
        dtype = x.node.dtype
        reached = _taken(output, inputs, **params)
        chosen = p.logical_and(p.equal(updates, reached), p.not_equal(_taken(x, inputs, **params), reached))
        return p.cast(p.equal(x, output), dtype=dtype), p.cast(chosen, dtype=dtype)

    def _products(self, inputs: Sequence[Array], output: Array, **params: Any) -> tuple[Array, Array]:
        """The product of all updates of a location, and for each update that of ``x`` and all others there."""
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
        rows = iota(shape=indices[0].node.shape, axis=0, dtype=indices[0].node.dtype)
        slice_axis = indices[0].node.ndim
        moved = tuple([axis + 1 for axis in params["axes"]])
        updates = p.expand(updates, axes=(slice_axis,))
        return self(x, rows, *indices, updates, **{**params, "axes": (0, *moved)}), 0


def _taken(array: Array, inputs: Sequence[Array], *, axes: Sequence[int], mode: str, outside: str) -> Array:
    """The elements at the scatter's indices of an array with the shape of its result."""
    _, *indices, updates = inputs
    slices = updates.node.shape[indices[0].node.ndim :]
    return p.gather(array, *indices, axes=axes, slice_sizes=slices, outside=outside)


def _is_last(inputs: Sequence[Array], **params: Any) -> Array:
    """For each update, whether it is the last one of its location."""
    x, *indices, updates = inputs
    shape = updates.node.shape
    steps = [iota(shape=shape, axis=axis, dtype=dtypes.int32) for axis in range(indices[0].node.ndim)]
    number = p.zeros(shape, dtypes.int32)
    for axis, step in enumerate(steps):
        number = number * shape[axis] + step
    latest = scatter(p.full(x.node.shape, -1, dtypes.int32), *indices, number, **params)
    return p.equal(_taken(latest, inputs, **params), number)


scatter = Scatter()
