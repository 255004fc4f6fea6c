"""`vmap`: a function of one example becomes a function of many. Each node is replaced by its batched version."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import weft.primitives as p
from weft import tree
from weft.checks import function_of, wrong_type
from weft.errors import AxisError
from weft.graph.extents import AnyExtent, decide_equal
from weft.graph.node import Handle, Node, Placeholder, describe, reachable, wrap
from weft.graph.tracing import assignments_undone, name_of, trace
from weft.ops.arguments import dimensions_text, integer_of
from weft.primitives.base import Array
from weft.primitives.structure import Rules
from weft.runtime.devices import saved_stream, set_current_stream
from weft.transforms.lending import Lending, exclusive

__all__ = ["vmap"]

Mapped = tuple[Array, int | None]


def vmap(fun: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """A function that applies ``fun`` along an axis of its arguments, to all positions at once.

    Args:
        fun: a function of arrays, in any nesting of list, tuple and dict.
        in_axes: which axis of each argument is mapped: an int (negative ones count from the end), or None for an
            argument that is the same for all positions; nested like the arguments, or one for all of them.
        out_axes: the position of the mapped axis in each result, in the same way.

    Raises:
        ValueError: no argument is mapped, mapped axes differ in extent, or the nesting does not fit.
        AxisError: an axis is out of range.

    >>> mx.vmap(lambda x, y: x + y, in_axes=(0, None))(mx.array([1, 2]), mx.array(10))
    array([11, 12], dtype=int32)
    """
    function_of("vmap", "fun", fun)

    @functools.wraps(fun, assigned=("__name__", "__qualname__", "__doc__", "__module__"), updated=())
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise TypeError(
                f"[vmap] Keyword arguments cannot be mapped, got {sorted(kwargs)}: pass them by position, with "
                "an entry in in_axes."
            )
        with exclusive(*args):
            return of_arguments(args)

    def of_arguments(args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        axes = [
            _checked_axis(leaf, axis) for leaf, axis in zip(leaves, _axes_of(in_axes, args, structure), strict=True)
        ]
        size = _common_size(leaves, axes)
        with ExitStack() as lent:
            with trace("vmap", fun) as record, assignments_undone():
                inputs = [
                    leaf if axis is None else _placeholder(record, leaf, axis)
                    for leaf, axis in zip(leaves, axes, strict=True)
                ]
                known = {
                    x.node: (leaf, axis) for x, leaf, axis in zip(inputs, leaves, axes, strict=True) if axis is not None
                }
                lending = Lending(args, structure, leaves, inputs, around=1)
                lent.enter_context(lending.running())
                value = fun(*lending.arguments)
                results, result_structure = tree.flatten(value)
                nodes = _result_nodes(results, fun)
                assigned = {id(array): array.node for array in lending.assigned()}
            arrays = _batched([*nodes, *assigned.values()], known)
            at = {id(x): axis for x, axis in zip(inputs, axes, strict=True) if axis is not None}
            changed = dict(zip(assigned, arrays[len(nodes) :], strict=True))
            lending.take_back(lambda array, before: _assigned(array, changed, at.get(id(before), 0)))
        if isinstance(value, Handle) and isinstance(out_axes, (list, tuple)) and len(out_axes) == 1:
            targets = list(out_axes)
        else:
            targets = tree.broadcast_prefix(out_axes, result_structure, "[vmap] out_axes")
        outputs = [_with_axis_at(array, target, size) for array, target in zip(arrays, targets, strict=False)]
        return result_structure.unflatten(outputs)

    return mapped


def _assigned(array: Handle, changed: dict[int, Mapped], target: int) -> Handle:
    """The array that a container of the caller gets for one that the function assigned. Its mapped axis is put at
    position ``target``, as in the former entry."""
    result, axis = changed.get(id(array), (array, None))
    if axis is None:
        return array if array.node is result.node else result
    moved: Handle = p.move_axis(result, axis, min(target, result.node.ndim - 1))
    return moved


def _axes_of(in_axes: Any, args: Sequence[Any], structure: tree.Structure) -> list[Any]:
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if len(args) == 1 and _is_for_one(in_axes, args[0]):
        in_axes = (in_axes,)
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise ValueError(f"[vmap] in_axes has {len(in_axes)} entries for {len(args)} arguments: {in_axes!r}.")
    return tree.broadcast_prefix(in_axes, structure, "[vmap] in_axes")


def _is_for_one(axes: Any, value: Any) -> bool:
    """Whether axes are nested like the only argument, rather than like a tuple of arguments."""
    if isinstance(axes, tuple):
        return len(axes) != 1 and isinstance(value, (list, tuple)) and len(value) == len(axes)
    return isinstance(axes, dict)


def _checked_axis(leaf: Any, axis: Any) -> int | None:
    """The axis as a non-negative number."""
    if not isinstance(leaf, Handle):
        if axis is None or not isinstance(axis, int):
            return None
        raise ValueError(
            f"[vmap] Only arrays can be mapped over; got a {type(leaf).__name__} with axis {axis}. Give it the "
            "axis None."
        )
    if axis is None:
        return None
    axis = _axis_number("in_axes", axis)
    shape = leaf.node.shape
    if not -len(shape) <= axis < len(shape):
        raise AxisError(f"[vmap] Axis {axis} is out of range for an array of shape {tuple(shape)}.")
    return axis % len(shape)


def _axis_number(word: str, axis: Any) -> int:
    if isinstance(axis, bool):
        raise wrong_type("vmap", word, "ints or None", axis)
    return integer_of("vmap", word, axis)


def _common_size(leaves: Sequence[Any], axes: Sequence[int | None]) -> AnyExtent:
    sizes = [leaf.node.shape[axis] for leaf, axis in zip(leaves, axes, strict=True) if axis is not None]
    if not sizes:
        raise ValueError("[vmap] At least one argument must be mapped: every in_axes is None.")
    if not all(decide_equal(size, sizes[0]) for size in sizes):
        parts = [
            f"axis {axis} of {describe(leaf.node.shape, leaf.node.dtype)}"
            for leaf, axis in zip(leaves, axes, strict=True)
            if axis is not None
        ]
        raise ValueError(f"[vmap] The mapped axes must have one extent; got {', '.join(parts)}.")
    return sizes[0]


def _placeholder(record: Any, leaf: Array, axis: int) -> Array:
    shape = leaf.node.shape
    return wrap(Placeholder(record, (*shape[:axis], *shape[axis + 1 :]), leaf.node.dtype))


def _result_nodes(results: Sequence[Any], fun: Callable[..., Any]) -> list[Node]:
    for result in results:
        if not isinstance(result, Handle):
            raise ValueError(f"[vmap] {name_of(fun)} should return arrays, not {type(result).__name__}.")
    return [result.node for result in results]


def _batched(nodes: Sequence[Node], known: dict[Node, Any]) -> list[Mapped]:
    """The results, each with its mapped axis (None if it does not depend on a mapped input)."""
    stream = saved_stream()
    try:
        for node in reachable(nodes, min(node.serial for node in known) - 1):
            if node not in known and any(source in known for source in node.inputs):
                set_current_stream(node.stream)
                known[node] = _batch(node, known)
    finally:
        set_current_stream(stream)
    return [known[node] if node in known else (wrap(node), None) for node in nodes]


def _batch(node: Node, known: dict[Node, Any]) -> Any:
    primitive = node.primitive
    if primitive.is_result:
        results: list[Mapped] = known[node.inputs[0]]
        return results[node.params[0]]
    entries = [known.get(source) for source in node.inputs]
    inputs = [wrap(source) if entry is None else entry[0] for source, entry in zip(node.inputs, entries, strict=True)]
    axes = [None if entry is None else entry[1] for entry in entries]
    if all(axis is None for axis in axes):
        return _made_again(node, inputs)
    return primitive.vmap(inputs, axes, **node.keywords)


def _made_again(node: Node, inputs: Sequence[Array]) -> Any:
    """The operation on other inputs, which have no mapped axis: rules found that they do not depend on mapped
    inputs."""
    again = Node(node.primitive, tuple([x.node for x in inputs]), node.params, node.shape, node.dtype, node.stream)
    if not node.primitive.several:
        return wrap(again), None
    return [(wrap(p.result_of(again, position)), None) for position in range(p.result_count(node))]


def batched_rules(rules: Rules, axes: Sequence[int | None], out_axes: Sequence[int | None]) -> Rules:
    """The rules of the batched call: the rules of one call, mapped. Cotangents of arguments that are not mapped are
    summed."""

    one_vjp, one_jvp = rules.vjp, rules.jvp

    def backwards(primals: Sequence[Array], cotangents: Sequence[Array], outputs: Sequence[Array]) -> list[Any]:
        def one(primal: list[Array], cotangent: list[Array], output: list[Array]) -> list[Array]:
            assert one_vjp is not None
            found = one_vjp(primal, cotangent, output)
            return [p.zeros_like(x) if g is None else g for g, x in zip(found, primal, strict=True)]

        targets = [0 if axis is None else axis for axis in axes]
        rule = vmap(one, in_axes=(list(axes), list(out_axes), list(out_axes)), out_axes=targets)
        results = rule(list(primals), list(cotangents), list(outputs))
        return [p.sum(g, axes=(0,)) if axis is None else g for g, axis in zip(results, axes, strict=True)]

    def forwards(primals: Sequence[Array], tangents: Sequence[Array], outputs: Sequence[Array]) -> list[Any]:
        def one(primal: list[Array], tangent: list[Array], output: list[Array]) -> list[Array]:
            assert one_jvp is not None
            found = one_jvp(primal, tangent, output)
            return [p.zeros_like(x) if t is None else t for t, x in zip(found, output, strict=True)]

        filled = [p.zeros_like(x) if t is None else t for x, t in zip(primals, tangents, strict=True)]
        rule = vmap(one, in_axes=(list(axes), list(axes), list(out_axes)), out_axes=list(out_axes))
        return list(rule(list(primals), filled, list(outputs)))

    return Rules(
        vjp=None if rules.vjp is None else backwards,
        jvp=None if rules.jvp is None else forwards,
        vmap=None,
        batched=batched_rules,
    )


def _with_axis_at(result: Mapped, target: Any, size: AnyExtent) -> Array:
    """A result with its mapped axis in the position that the user wants."""
    array, axis = result
    if target is None:
        if axis is not None:
            raise ValueError("[vmap] out_axes is None for a result that depends on a mapped argument; give it an axis.")
        return array
    target = _axis_number("out_axes", target)
    rank = array.node.ndim + (axis is None)
    if not -rank <= target < rank:
        raise AxisError(f"[vmap] out_axes {target} is out of range for a result of {dimensions_text(rank)}.")
    moved: Array = p.with_batch(array, axis, target % rank, size)
    # A new handle, because a function may return its argument.
    return wrap(moved.node)
