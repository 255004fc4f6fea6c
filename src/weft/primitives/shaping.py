"""Views: operations that only change the indices of elements and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from operator import mul

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.extents import agree, identical, largest, product, value_of
from weft.graph.node import Node, Shape, new_node, wrap
from weft.primitives.base import Array, Linear, View
from weft.primitives.batching import insert, move_axis, shift_axes
from weft.primitives.index import ZERO, AxisTerm, Terms, reshaped_strides, squeezed
from weft.primitives.untrusted import LARGEST, check_axes, check_axis, check_number, check_numbers, require
from weft.runtime.devices import current_stream

__all__ = [
    "box_of",
    "broadcast",
    "expand",
    "fill",
    "full",
    "inverse",
    "joined_row",
    "ones",
    "ones_like",
    "pick",
    "pick_one",
    "repeated_row",
    "repeats",
    "reshape",
    "reshaped",
    "slice_",
    "split_axis",
    "squeeze",
    "sum_to",
    "transpose",
    "with_last_axis_outermost",
    "zeros",
    "zeros_like",
]


def _infer_reshape(x: Node, *, shape: Shape) -> tuple[Shape, Dtype]:
    if not agree(product(shape), x.size):
        raise ValueError(f"[reshape] Cannot reshape an array of size {x.size} and shape {x.shape} to shape {shape}.")
    return shape, x.dtype


def _batch_reshape(x: Array, axis: int, *, shape: Shape) -> tuple[Array, int]:
    moved = move_axis(x, axis, 0)
    return reshape(moved, shape=(x.node.shape[axis], *shape)), 0


class Reshape(Linear):
    """The same elements in row-major order under another shape. It is a view in memory where strides can describe it,
    and in a kernel where it only adds or drops axes of extent 1."""

    is_view = True

    def tangent_like(self, node: Node) -> Node | None:
        return node.inputs[0]

    def behind(self, node: Node, index: Terms) -> tuple[Node, Terms] | None:
        source = node.inputs[0]
        positions = squeezed(source.shape, node.shape)
        if positions is None:
            return None
        return source, tuple([ZERO if axis is None else index[axis] for axis in positions])

    def shown(self, node: Node, strides: Shape) -> tuple[Shape, int] | None:
        reshaped = reshaped_strides(node.inputs[0].shape, strides, node.shape)
        return None if reshaped is None else (reshaped, 0)


reshape: Linear = Reshape(
    "reshape", ("shape",), _infer_reshape, lambda ct, x, shape: reshape(ct, shape=x.node.shape), _batch_reshape
)


def _infer_transpose(x: Node, *, axes: Sequence[int]) -> tuple[Shape, Dtype]:
    return tuple([x.shape[axis] for axis in axes]), x.dtype


def _check_transpose(x: Node, *, axes: Sequence[int]) -> None:
    require(type(axes) is tuple, "axes are a tuple")
    check_axes(tuple(sorted(axes)), x.ndim)
    require(len(axes) == x.ndim, f"it has {len(axes)} axes, not {x.ndim}")


def inverse(axes: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes ``axes``."""
    result = [0] * len(axes)
    for position, axis in enumerate(axes):
        result[axis] = position
    return tuple(result)


def _batch_transpose(x: Array, axis: int, *, axes: Sequence[int]) -> tuple[Array, int]:
    return transpose(x, axes=(axis, *shift_axes(axes, axis))), 0


transpose: View = View(
    "transpose",
    ("axes",),
    _infer_transpose,
    lambda ct, x, axes: transpose(ct, axes=inverse(axes)),
    _batch_transpose,
    axis_terms=lambda shape, axes: [AxisTerm(position) for position in inverse(axes)],
    strides=lambda strides, params: (tuple([strides[axis] for axis in params[0]]), 0),
    check=_check_transpose,
)


def with_last_axis_outermost(x: Node) -> Node:
    """A view of a copy of ``x`` in memory whose outermost axis is the last one of ``x``."""
    order, shape = (x.ndim - 1, *range(x.ndim - 1)), (x.shape[-1], *x.shape[:-1])
    view = Node(transpose, (x,), (order,), shape, x.dtype, x.stream)
    copied = Node(p.stored, (view,), (), shape, x.dtype, x.stream)
    return Node(transpose, (copied,), (inverse(order),), x.shape, x.dtype, x.stream)


def _infer_broadcast(x: Node, *, shape: Shape) -> tuple[Shape, Dtype]:
    _require_broadcastable(x.shape, shape)
    return shape, x.dtype


def _require_broadcastable(source: Shape, shape: Shape) -> None:
    fits = len(source) == len(shape)
    for a, b in zip(source, shape, strict=False):
        fits = fits and (a is b or value_of(a) in (1, value_of(b)))
    if not fits:
        raise ValueError(f"[broadcast_to] Cannot broadcast an array of shape {source} to shape {shape}.")


def _transpose_broadcast(ct: Array, x: Array, shape: Shape) -> Array:
    source = x.node.shape
    return ct if identical(source, shape) else sum_to(ct, shape=source)


def _batch_broadcast(x: Array, axis: int, *, shape: Shape) -> tuple[Array, int]:
    return broadcast(x, shape=insert(shape, axis, x.node.shape[axis])), axis


def _terms_of_broadcast(source: Shape, shape: Shape) -> list[AxisTerm]:
    return [AxisTerm(axis) if extent == shape[axis] else AxisTerm(None) for axis, extent in enumerate(source)]


broadcast: View = View(
    "broadcast", ("shape",), _infer_broadcast, _transpose_broadcast, _batch_broadcast, axis_terms=_terms_of_broadcast
)


def reshaped(x: Node, shape: Shape) -> Node:
    """A node of another shape with the same elements."""
    return Node(reshape, (x,), (shape,), shape, x.dtype, x.stream)


def repeats(x: Node) -> bool:
    """Whether ``x`` repeats elements of its input."""
    return x.primitive is broadcast


def repeated_row(x: Node) -> Node | None:
    """The row, or the number, of which ``x`` consists of copies; None if it is made in another way."""
    if not repeats(x):
        return None
    row = x.inputs[0]
    return row if all(extent == 1 for extent in row.shape[:-1]) else None


def joined_row(row: Node, count: int, shape: Shape) -> Node:
    """A node of ``shape`` each of whose rows consists of ``count`` copies of ``row``, or of one number."""
    extent = row.shape[-1]
    row = reshaped(row, (1, extent))
    if extent > 1:
        repeated = Node(broadcast, (row,), ((count, extent),), (count, extent), row.dtype, row.stream)
        copied = Node(p.stored, (repeated,), (), repeated.shape, row.dtype, row.stream)
        row = reshaped(copied, (1, count * extent))
    return Node(broadcast, (row,), (shape,), shape, row.dtype, row.stream)


class SumTo(Linear):
    """The sum over all axes that have extent 1 in ``shape``, which stay: the transpose of `broadcast`.

    Planning decides which axes these are, so that one trace of ``compile(shapeless=True)`` serves all shapes.
    """

    def __init__(self) -> None:
        super().__init__(
            "sum_to",
            ("shape",),
            _infer_sum_to,
            lambda ct, x, shape: broadcast(ct, shape=x.node.shape),
            lambda x, axis, shape: (sum_to(x, shape=insert(shape, axis, x.node.shape[axis])), axis),
        )

    def lowered(self, node: Node) -> Node | None:
        x, shape, dtype = node.inputs[0], node.shape, node.dtype
        axes = tuple([axis for axis, extent in enumerate(shape) if extent == 1 and x.shape[axis] != 1])
        if not axes:
            return x
        remaining = tuple([extent for axis, extent in enumerate(shape) if axis not in axes])
        total = Node(p.sum, (x,), (axes,), remaining, dtype, None)
        return Node(expand, (p.sum.lowered(total) or total,), (axes,), shape, dtype, None)


def _infer_sum_to(x: Node, *, shape: Shape) -> tuple[Shape, Dtype]:
    _require_broadcastable(shape, x.shape)
    return shape, x.dtype


sum_to = SumTo()


def _infer_expand(x: Node, *, axes: Sequence[int]) -> tuple[Shape, Dtype]:
    return _with(x.shape, axes, 1), x.dtype


def _with(extents: Shape, axes: Sequence[int], extent: int) -> Shape:
    """Extents, or strides, and ``extent`` for each of the ``axes``, which are ascending."""
    result = list(extents)
    for axis in axes:
        result.insert(axis, extent)
    return tuple(result)


def _check_expand(x: Node, *, axes: Sequence[int]) -> None:
    require(type(axes) is tuple, "axes are a tuple")
    check_axes(axes, x.ndim + len(axes))


def _batch_expand(x: Array, axis: int, *, axes: Sequence[int]) -> tuple[Array, int]:
    moved = move_axis(x, axis, 0)
    return expand(moved, axes=tuple([a + 1 for a in axes])), 0


expand: View = View(
    "expand_dims",
    ("axes",),
    _infer_expand,
    lambda ct, x, axes: squeeze(ct, axes=axes),
    _batch_expand,
    axis_terms=lambda source, axes: [AxisTerm(axis) for axis in range(len(source) + len(axes)) if axis not in axes],
    strides=lambda strides, params: (_with(strides, params[0], 0), 0),
    check=_check_expand,
)


def _infer_squeeze(x: Node, *, axes: Sequence[int]) -> tuple[Shape, Dtype]:
    for axis in axes:
        if value_of(x.shape[axis]) != 1:
            raise ValueError(
                f"[squeeze] Cannot squeeze axes {tuple(axes)} of shape {x.shape}: only axes of extent 1 can go."
            )
    return _without(x.shape, axes), x.dtype


def _without(extents: Shape, axes: Sequence[int]) -> Shape:
    """Extents, or strides, of the axes that are not among ``axes``."""
    return tuple([extent for axis, extent in enumerate(extents) if axis not in axes])


def _batch_squeeze(x: Array, axis: int, *, axes: Sequence[int]) -> tuple[Array, int]:
    moved = move_axis(x, axis, 0)
    return squeeze(moved, axes=tuple([a + 1 for a in axes])), 0


def _terms_of_squeeze(source: Shape, axes: Sequence[int]) -> list[AxisTerm]:
    remaining = [axis for axis in range(len(source)) if axis not in axes]
    position = {axis: index for index, axis in enumerate(remaining)}
    return [AxisTerm(position.get(axis)) for axis in range(len(source))]


squeeze: View = View(
    "squeeze",
    ("axes",),
    _infer_squeeze,
    lambda ct, x, axes: expand(ct, axes=axes),
    _batch_squeeze,
    axis_terms=_terms_of_squeeze,
    strides=lambda strides, params: (_without(strides, params[0]), 0),
)


def _infer_slice(x: Node, *, starts: Shape, sizes: Shape, steps: Shape) -> tuple[Shape, Dtype]:
    for start, size, step, extent in zip(starts, sizes, steps, x.shape, strict=True):
        if size is extent and step == 1 and identical(start, 0):
            continue
        first, count, end = value_of(start), value_of(size), value_of(extent)
        if count and not (0 <= first < end and 0 <= first + (count - 1) * step < end):
            raise ValueError(
                f"[slice] {size} elements from {start} in steps of {step} are not inside an axis of {extent} "
                f"(array of shape {x.shape})."
            )
    return sizes, x.dtype


def _check_slice(x: Node, *, starts: Shape, sizes: Shape, steps: Shape) -> None:
    check_numbers(starts, x.ndim)
    check_numbers(sizes, x.ndim)
    check_numbers(steps, x.ndim, lowest=-LARGEST)


def _transpose_slice(ct: Array, x: Array, starts: Shape, sizes: Shape, steps: Shape) -> Array:
    shape = x.node.shape
    if all(step in (1, -1) for step in steps):
        last = tuple([largest(size - 1, 0) if step == -1 else 0 for size, step in zip(sizes, steps, strict=True)])
        forwards = slice_(ct, starts=last, sizes=sizes, steps=steps) if -1 in steps else ct
        low = tuple([start - back for start, back in zip(starts, last, strict=True)])
        high = tuple([n - first - size for n, first, size in zip(shape, low, sizes, strict=True)])
        return p.pad(forwards, p.zeros((), ct.node.dtype), low=low, high=high)
    return p.slice_update(p.zeros_like(x), ct, starts=starts, steps=steps)


def _batch_slice(x: Array, axis: int, *, starts: Shape, sizes: Shape, steps: Shape) -> tuple[Array, int]:
    size = x.node.shape[axis]
    return slice_(
        x, starts=insert(starts, axis, 0), sizes=insert(sizes, axis, size), steps=insert(steps, axis, 1)
    ), axis


def _strides_of_slice(strides: Shape, params: tuple[Shape, Shape, Shape]) -> tuple[Shape, int]:
    starts, _, steps = params
    return tuple(map(mul, strides, steps)), sum(map(mul, strides, starts))


slice_: View = View(
    "slice",
    ("starts", "sizes", "steps"),
    _infer_slice,
    _transpose_slice,
    _batch_slice,
    axis_terms=lambda source, starts, sizes, steps: [
        AxisTerm(axis, step, start) for axis, (start, step) in enumerate(zip(starts, steps, strict=True))
    ],
    strides=_strides_of_slice,
    check=_check_slice,
)


def box_of(x: Node, starts: Shape, sizes: Shape) -> Node:
    """A view of a box of ``x``."""
    return Node(slice_, (x,), (starts, sizes, (1,) * x.ndim), sizes, x.dtype, None)


def _infer_pick(x: Node, *, axes: Sequence[int], positions: Sequence[int]) -> tuple[Shape, Dtype]:
    for axis, position in zip(axes, positions, strict=True):
        if not 0 <= position < value_of(x.shape[axis]):
            raise ValueError(f"[pick] There is no element {position} along axis {axis} of an array of shape {x.shape}.")
    return _without(x.shape, axes), x.dtype


def _check_pick(x: Node, *, axes: Sequence[int], positions: Sequence[int]) -> None:
    check_axes(axes, x.ndim)
    check_numbers(positions, len(axes))


def _transpose_pick(ct: Array, x: Array, axes: Sequence[int], positions: Sequence[int]) -> Array:
    shape = x.node.shape
    low, high = [0] * len(shape), [0] * len(shape)
    for axis, position in zip(axes, positions, strict=True):
        low[axis], high[axis] = position, shape[axis] - 1 - position
    return p.pad(expand(ct, axes=axes), p.zeros((), ct.node.dtype), low=tuple(low), high=tuple(high))


def _batch_pick(x: Array, batch: int, *, axes: Sequence[int], positions: Sequence[int]) -> tuple[Array, int]:
    shifted = shift_axes(axes, batch)
    return pick(x, axes=shifted, positions=positions), batch - sum([axis < batch for axis in shifted])


def _terms_of_pick(source: Shape, axes: Sequence[int], positions: Sequence[int]) -> list[AxisTerm]:
    starts = dict(zip(axes, positions, strict=True))
    remaining = count()
    return [
        AxisTerm(None, start=starts[axis]) if axis in starts else AxisTerm(next(remaining))
        for axis in range(len(source))
    ]


def _strides_of_pick(strides: Shape, params: tuple[Sequence[int], Sequence[int]]) -> tuple[Shape, int]:
    axes, positions = params
    rest, offset = list(strides), 0
    for axis, position in zip(reversed(axes), reversed(positions)):  # noqa: B905  # `strict` takes its time
        offset += rest.pop(axis) * position
    return tuple(rest), offset


pick: View = View(
    "pick",
    ("axes", "positions"),
    _infer_pick,
    _transpose_pick,
    _batch_pick,
    axis_terms=_terms_of_pick,
    strides=_strides_of_pick,
    check=_check_pick,
)


def _batch_pick_one(x: Array, batch: int, *, axis: int, position: int) -> tuple[Array, int]:
    (moved,) = shift_axes((axis,), batch)
    return pick_one(x, axis=moved, position=position), batch - (moved < batch)


def _strides_of_pick_one(strides: Shape, params: tuple[int, int]) -> tuple[Shape, int]:
    axis, position = params
    if not axis:  # the most frequent case, for speed
        return strides[1:], strides[0] * position
    return strides[:axis] + strides[axis + 1 :], strides[axis] * position


# What programs make most often has a primitive of its own: two numbers take less time and memory than tuples of them.
pick_one: View = View(
    "pick_one",
    ("axis", "position"),
    lambda x, axis, position: _infer_pick(x, axes=(axis,), positions=(position,)),
    lambda ct, x, axis, position: _transpose_pick(ct, x, (axis,), (position,)),
    _batch_pick_one,
    axis_terms=lambda source, axis, position: _terms_of_pick(source, (axis,), (position,)),
    strides=_strides_of_pick_one,
    check=lambda x, axis, position: _check_pick(x, axes=(axis,), positions=(position,)),
)


def _infer_split_axis(x: Node, *, axis: int, count: int) -> tuple[Shape, Dtype]:
    extent = x.shape[axis]
    if not agree(extent % count, 0):
        raise ValueError(f"split_axis: {extent} elements cannot be {count} equal parts")
    return (*x.shape[:axis], count, extent // count, *x.shape[axis + 1 :]), x.dtype


def _check_split_axis(x: Node, *, axis: int, count: int) -> None:
    check_axis(axis, x.ndim)
    check_number(count, lowest=1)


def _batch_split_axis(x: Array, batch: int, *, axis: int, count: int) -> tuple[Array, int]:
    return split_axis(move_axis(x, batch, 0), axis=axis + 1, count=count), 0


def _terms_of_split_axis(source: Shape, axis: int, count: int) -> list[AxisTerm]:
    before = [AxisTerm(number) for number in range(axis)]
    behind = [AxisTerm(number + 1) for number in range(axis + 1, len(source))]
    return [*before, AxisTerm(axis, source[axis] // count, inner=axis + 1), *behind]


split_axis: View = View(
    "split_axis",
    ("axis", "count"),
    _infer_split_axis,
    lambda ct, x, axis, count: reshape(ct, shape=x.node.shape),
    _batch_split_axis,
    axis_terms=_terms_of_split_axis,
    check=_check_split_axis,
)


def zeros(shape: Shape, dtype: Dtype) -> Array:
    return full(shape, 0, dtype)


def ones(shape: Shape, dtype: Dtype) -> Array:
    return full(shape, 1, dtype)


def full(shape: Shape, value: complex, dtype: Dtype) -> Array:
    """An array whose elements are all ``value``."""
    return fill(wrap(p.constant.make(value, dtype)), shape)


def fill(scalar: Array, shape: Shape) -> Array:
    """A 0-d array repeated to ``shape``."""
    if not shape:
        return scalar
    rank, dtype, stream = len(shape), scalar.node.dtype, current_stream()
    expanded = new_node(expand, (scalar.node,), (tuple(range(rank)),), (1,) * rank, dtype, stream)
    return wrap(new_node(broadcast, (expanded,), (shape,), shape, dtype, stream))


def zeros_like(x: Array) -> Array:
    return full(x.node.shape, 0, x.node.dtype)


def ones_like(x: Array) -> Array:
    return full(x.node.shape, 1, x.node.dtype)
