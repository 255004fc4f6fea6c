"""Operations that map an index of the output to elements of inputs, such as counting, padding and gathering, so that
they can be part of a fused kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree, identical, value_of
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
    "Indexed",
    "clamp_index",
    "from_front",
    "gather",
    "iota",
    "pad",
    "planned_number",
    "planned_zeros",
]


class Indexed(Primitive):
    """``element(k, index, node)`` returns the value at an index of the output, using the kernel builder ``k``:

    ``k.read(position, index, where)`` reads an element of an input (only where a condition holds), ``k.number(n)`` is
    an integer known at run time, ``k.index_value(term)`` the value of an index, ``k.apply(primitive, *values)`` scalar
    code on values. ``reads_anywhere``: the locations read are computed, so that no order of elements reads them faster
    than another.
    """

    element: Callable[..., Any]
    reads_anywhere = False


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


def planned_zeros(shape: Shape, dtype: Dtype) -> Node:
    """Zeros for a planned graph, which no constant can be added to."""
    ones = (1,) * max(len(shape), 1)
    single = Node(iota, (), (ones, 0, dtype), ones, dtype, None)
    if shape:
        return Node(p.broadcast, (single,), (shape,), shape, dtype, None)
    return Node(p.squeeze, (single,), ((0,),), shape, dtype, None)


def planned_number(number: int, dtype: Dtype) -> Node:
    """A non-negative number for a planned graph. Code does not depend on it."""
    counted = Node(iota, (), ((number + 1,), 0, dtype), (number + 1,), dtype, None)
    last = Node(p.slice_, (counted,), ((number,), (1,), (1,)), (1,), dtype, None)
    return Node(p.squeeze, (last,), ((0,),), (), dtype, None)


class Pad(Indexed, Linear):
    """``x`` with ``low`` elements before it and ``high`` after it on each axis, all equal to the 0-d ``value``."""

    def __init__(self) -> None:
        Linear.__init__(self, "pad", ("low", "high"), _infer_pad, _transpose_pad, _batch_pad, _check_pad)

    @staticmethod
    def element(k: Any, index: Sequence[Any], node: Node) -> Any:
        low = node.params[0]
        value = k.read(1, [])
        bounds = []
        for term, start, extent, full in zip(index, low, node.inputs[0].shape, node.shape, strict=True):
            if extent == full:
                continue
            if not term.is_fixed:
                bounds.append((term, start, start + extent))
            elif not start <= term.start < start + extent:
                return value
        shifted = [k.shift(term, -start) for term, start in zip(index, low, strict=True)]
        inside = k.inside(bounds)
        if inside is None:
            return k.read(0, shifted)
        return k.apply(p.select, inside, k.read(0, shifted, where=inside), value)

    def padded(self, node: Node) -> tuple[Node, Shape] | None:
        inputs, params = node.inputs, node.params
        if not inputs:  # another thread has evaluated it
            return None
        x, value = inputs
        is_zero = p.is_constant(value) and identical(value.params[0], 0)
        return (x, params[0]) if is_zero else None

    def assigned(self, node: Node) -> Node | None:
        x, value = node.inputs
        around = Node(p.broadcast, (value,), (node.shape,), node.shape, node.dtype, None)
        params = (node.params[0], (1,) * node.ndim)
        return Node(p.slice_update, (around, x), params, node.shape, node.dtype, None)

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
# An index outside of 0 to count - 1 becomes the nearest one inside.
clamp_index: Elementwise = Elementwise(
    "clamp_index", lambda L, index, count: L.maximum(L.minimum(index, count - 1), 0), (None, None)
)


class Gather(Indexed, Linear):
    """Slices of ``x`` at computed indices.

    ``indices[i]`` holds indices along ``axes[i]``; all have one shape. The result has that shape, then ``slice_sizes``
    (one per axis of ``x``). Negative indices count from the end. An index out of range becomes the "nearest" one inside
    or, if ``outside`` is "nowhere", reads zeros.
    """

    reads_anywhere = True

    def __init__(self) -> None:
        parameters = ("axes", "slice_sizes", "outside")
        Linear.__init__(self, "gather", parameters, _infer_gather, _transpose_gather, _batch_gather, check_gather)

    def __call__(self, *operands: Any, **params: Any) -> Array:
        return super().__call__(*operands, **{"outside": "nearest", **params})

    def lowered(self, node: Node) -> Node | None:
        """A gather of an array converted from half precision reads the unconverted array, and converts the result: a
        gather's input must be in memory."""
        x, *indices = node.inputs
        narrow: Node = p.before_conversion(x)
        if narrow is x:
            return None
        taken = Node(self, (narrow, *indices), node.params, node.shape, narrow.dtype, None)
        return Node(p.cast, (taken,), (node.dtype,), node.shape, node.dtype, None)

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
    check_indices("gather", indices)
    check_slices("gather", x, indices[0], slice_sizes)
    return (*indices[0].shape, *slice_sizes), x.dtype


def check_indices(name: str, indices: Sequence[Node]) -> None:
    """Raise unless indices are integers of equal shapes."""
    for index in indices:
        if not index.dtype.is_integer or not agree(index.shape, indices[0].shape):
            raise TypeError(f"{name}: bad indices {', '.join(describe(i.shape, i.dtype) for i in indices)}")


def check_slices(name: str, x: Node, index: Node, sizes: Shape) -> None:
    """Raise if slices are larger than ``x``, unless there are no indices and so no slices."""
    for axis, (extent, size) in enumerate(zip(x.shape, sizes, strict=True)):
        if value_of(size) > value_of(extent) and not agree(index.size, 0):
            raise ValueError(f"[{name}] There are no slices of extent {size} along axis {axis} of shape {x.shape}.")


_OUTSIDE = ("nearest", "nowhere")


def check_gather(x: Node, *indices: Node, axes: Sequence[int], slice_sizes: Shape, outside: str) -> None:
    require(bool(indices), "it has no indices")
    require(type(axes) is tuple and len(axes) == len(indices), f"{axes!r} are no axes for {len(indices)} indices")
    check_axes(tuple(sorted(axes)), x.ndim)
    check_numbers(slice_sizes, x.ndim)
    check_word(outside, _OUTSIDE)


def _transpose_gather(
    ct: Array, x: Array, *indices: Array, axes: Sequence[int], slice_sizes: Shape, outside: str
) -> Array:
    return p.scatter(p.zeros_like(x), *indices, ct, axes=axes, mode="add", outside=outside)


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
