"""The rules that users give a `custom_function`, in the form that transformations call: on flat lists, with checks.

They refer to the user's rules, not to the `custom_function`: traces hold them, and a trace must not keep the function
alive in whose cache it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft import tree
from weft.errors import TraceError
from weft.graph.extents import decide_equal
from weft.graph.node import Handle, Node, Placeholder, describe
from weft.primitives.base import Array, Tangent

Rule = Callable[..., Any]


def vjp_rule(rule: Rule, name: str, arguments: tree.Structure, result: tree.Structure) -> Rule:
    """A vjp rule from a user's ``rule(primals, cotangent, output)``, which returns one cotangent for each argument."""

    def backwards(primals: Sequence[Array], cotangents: Sequence[Array], outputs: Sequence[Array]) -> list[Tangent]:
        expected = arguments.unflatten(primals)
        found = rule(_bare(expected), result.unflatten(cotangents), result.unflatten(outputs))
        leaves = _fitted(_in_tuple(found, expected) if len(expected) == 1 else found, expected)
        if leaves is None:
            raise ValueError(
                f"[custom_function] The vjp rule of {name} returned {_text(found)}; expected "
                f"{_text(_bare(expected))}: a cotangent like each argument, or None in a tuple for a zero one."
                f"{_shapes(expected)}"
            )
        _require_own("vjp", name, leaves, [*primals, *cotangents, *outputs])
        return leaves

    return backwards


def jvp_rule(rule: Rule, name: str, arguments: tree.Structure, result: tree.Structure) -> Rule:
    """A jvp rule from a user's ``rule(primals, tangents)``, which returns a tangent like the output."""

    def forwards(primals: Sequence[Array], tangents: Sequence[Tangent], outputs: Sequence[Array]) -> list[Tangent]:
        found = rule(_bare(arguments.unflatten(primals)), _bare(arguments.unflatten(tangents)))
        expected = (result.unflatten(outputs),)
        leaves = _fitted(_in_tuple(found, expected), expected)
        if leaves is None:
            raise ValueError(
                f"[custom_function] The jvp rule of {name} returned {_text(found)}; expected {_text(expected[0])}: "
                f"a tangent like each output, or None in a tuple for a zero one.{_shapes(expected)}"
            )
        _require_own("jvp", name, leaves, [*primals, *[tangent for tangent in tangents if tangent is not None]])
        return leaves

    return forwards


def vmap_rule(rule: Rule, name: str, arguments: tree.Structure, result: tree.Structure) -> Rule:
    """A vmap rule from a user's ``rule(inputs, axes)``, which returns the outputs and their mapped axes."""

    def batched(
        inputs: Sequence[Array], axes: Sequence[int | None], outputs: Sequence[Node]
    ) -> list[tuple[Array, int | None]]:
        size = next(array.node.shape[axis] for array, axis in zip(inputs, axes, strict=True) if axis is not None)
        found = rule(_bare(arguments.unflatten(inputs)), _bare(arguments.unflatten(axes)))
        pairs = _pairs(found, result, outputs, size)
        if pairs is None:
            one = result.unflatten([_Shown(describe(output.shape, output.dtype)) for output in outputs])
            raise ValueError(
                f"[custom_function] The vmap rule of {name} returned {_text(found)}; expected a pair: "
                f"outputs like {one!r} with one more axis of extent {size}, and where it is (an int; None for an "
                "output without it)."
            )
        _require_own("vmap", name, [array for array, _ in pairs], inputs)
        return pairs

    return batched


def _bare(args: Any) -> Any:
    """Arguments in the form that users' rules get: a single one alone, several as a tuple."""
    return args[0] if len(args) == 1 else args


def _in_tuple(found: Any, expected: tuple[Any]) -> Any:
    """The result of a rule for a single argument, in a tuple. The rule itself may have returned that tuple."""
    if found is None:
        return ()
    is_wrapped = isinstance(expected[0], Handle) and isinstance(found, (tuple, list)) and len(found) == 1
    return found if is_wrapped else (found,)


def _fitted(found: Any, expected: tuple[Any, ...]) -> list[Tangent] | None:
    """A derivative for each array in ``expected``; None if ``found`` does not have this form."""
    if not isinstance(found, (tuple, list)) or len(found) != len(expected):
        return None
    fitted: list[Tangent] = []
    for part, like in zip(found, expected, strict=True):
        arrays, structure = tree.flatten(like)
        if part is None:
            fitted += [None] * len(arrays)
            continue
        leaves = _matched(part, structure)
        if leaves is None or not all(map(_is_derivative, leaves, arrays)):
            return None
        fitted += [leaf if array.node.dtype.is_inexact else None for leaf, array in zip(leaves, arrays, strict=True)]
    return fitted


def _matched(found: Any, structure: tree.Structure) -> list[Any] | None:
    """The leaves of ``found`` in the order of a structure; None if they are nested in another way."""
    if len(tree.flatten(found)[0]) != structure.num_leaves:
        return None
    try:
        return tree.broadcast_prefix(found, structure)
    except ValueError:
        return None


def _is_derivative(found: Any, like: Array) -> bool:
    """Whether an object can be the tangent or cotangent of an array. Derivatives of integers may have any dtype: they
    are not used."""
    if found is None:
        return True
    if not isinstance(found, Handle) or not decide_equal(found.node.shape, like.node.shape):
        return False
    return found.node.dtype is like.node.dtype or not like.node.dtype.is_inexact


def _pairs(
    found: Any, result: tree.Structure, outputs: Sequence[Node], size: int
) -> list[tuple[Array, int | None]] | None:
    """The outputs of a vmap rule, each with its mapped axis; None if the rule returned something else."""
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        return None
    arrays = _matched(found[0], result)
    try:
        mapped_axes = tree.broadcast_prefix(found[1], result)
    except ValueError:
        return None
    if arrays is None:
        return None
    pairs = []
    for array, axis, output in zip(arrays, mapped_axes, outputs, strict=True):
        if not isinstance(array, Handle) or array.node.dtype is not output.dtype:
            return None
        shape = list(array.node.shape)
        if axis is not None:
            if type(axis) is not int or not -len(shape) <= axis < len(shape):
                return None
            axis %= len(shape)
            if not decide_equal(shape.pop(axis), size):
                return None
        if not decide_equal(tuple(shape), output.shape):
            return None
        pairs.append((array, axis))
    return pairs


def _require_own(kind: str, name: str, results: Sequence[Tangent], given: Sequence[Array]) -> None:
    """Raise if a rule used an array of a trace that has ended: the array has no value and is no input of this call."""
    seen = {array.node for array in given}
    pending = [result.node for result in results if result is not None]
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Placeholder) and node.trace is not None and not node.trace.active:
            raise TraceError(
                f"[custom_function] The {kind} rule of {name} uses an array ({describe(node.shape, node.dtype)}) that "
                f"{node.trace} was called with. A rule is called later, when that array stands for nothing any more: "
                f"make what it needs an argument of {name}."
            )
        if node.value is None:
            pending.extend(node.inputs)


def _shapes(expected: tuple[Any, ...]) -> str:
    """For a message: the expected shape of a single derivative; an empty text if there are several."""
    leaves = tree.flatten(expected)[0]
    return f" Its shape should be {tuple(leaves[0].node.shape)}." if len(leaves) == 1 else ""


class _Shown:
    """An object whose ``repr`` is a given text, for use inside of containers."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _text(found: Any) -> str:
    """The result of a rule as text, with shapes in place of arrays, and types in place of objects other than numbers
    and None."""
    leaves, structure = tree.flatten(found)
    return repr(structure.unflatten([_Shown(_leaf_text(leaf)) for leaf in leaves]))


def _leaf_text(leaf: Any) -> str:
    if isinstance(leaf, Handle):
        return describe(leaf.node.shape, leaf.node.dtype)
    return repr(leaf) if leaf is None or isinstance(leaf, (int, float)) else type(leaf).__name__
