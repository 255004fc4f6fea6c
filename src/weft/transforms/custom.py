"""`custom_function` and `checkpoint`: functions with rules of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import weft.primitives as p
from weft import tree
from weft.graph.node import Handle, Node, reachable, wrap
from weft.graph.tracing import name_of
from weft.primitives.base import Array
from weft.primitives.structure import Rules
from weft.transforms.autodiff import fresh, pull_back, require_arrays
from weft.transforms.replay import Recording

__all__ = ["checkpoint", "custom_function"]

_marks = count().__next__


def _call_marked(
    fun: Callable[..., Any],
    args: Any,
    name: str,
    rules_for: Callable[[tree.Structure, tree.Structure], Rules],
) -> Any:
    """Call ``fun`` on its arguments, and mark the call in the graph with rules."""
    leaves, structure = tree.flatten(args)
    require_arrays(name, leaves, structure.paths)
    value = fun(*structure.unflatten([fresh(leaf) for leaf in leaves]))
    outputs, result = tree.flatten(value)
    if not outputs or not all(isinstance(output, Handle) for output in outputs):
        raise ValueError(f"[{name}] {name_of(fun)} should return arrays, not {type(value).__name__}.")
    rules = rules_for(structure, result)
    marked = p.marked_call(*leaves, *outputs, rules=rules, arguments=len(leaves))
    return result.unflatten([p.project(marked, position=position) for position in range(len(outputs))])


class custom_function:  # a decorator, named as one
    """A function whose derivatives or batching the user gives.

    Rules are set by decorators. ``vjp(primals, cotangent, output)`` returns one cotangent per primal; ``jvp(primals,
    tangents)`` returns the tangent of the output; ``vmap(inputs, axes)`` returns the output and where its mapped axis
    is. For a single argument the rule gets it bare, for several a tuple of them. What has no rule is derived as usual.

    >>> @mx.custom_function
    ... def f(x):
    ...     return mx.sin(x)
    >>> @f.vjp
    ... def f_vjp(primals, cotangent, output):
    ...     return cotangent * 2
    >>> mx.grad(f)(mx.array(1.0))
    array(2, dtype=float32)
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        if not callable(fun):
            raise TypeError(f"custom_function takes a function, not {type(fun).__name__}.")
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._vjp: Callable[..., Any] | None = None
        self._jvp: Callable[..., Any] | None = None
        self._vmap: Callable[..., Any] | None = None

    def vjp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule for reverse mode."""
        self._vjp = rule
        return rule

    def jvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule for forward mode."""
        self._jvp = rule
        return rule

    def vmap(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule for batching."""
        self._vmap = rule
        return rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; keyword arguments are passed on and have no derivative."""
        if self._vjp is None and self._jvp is None and self._vmap is None:
            return self._fun(*args, **kwargs)
        fun = functools.partial(self._fun, **kwargs) if kwargs else self._fun
        return _call_marked(fun, args, "custom_function", self._rules)

    def _rules(self, arguments: tree.Structure, result: tree.Structure) -> Rules:
        return Rules(
            vjp=_vjp_rule(self._vjp, name_of(self._fun), arguments, result) if self._vjp else None,
            jvp=_jvp_rule(self._jvp, arguments) if self._jvp else None,
            vmap=_vmap_rule(self._vmap, arguments) if self._vmap else None,
        )


# The rules below hold the user's rules, not the `custom_function`: what is compiled holds them, and must not keep
# the function alive that it was compiled for.


def _bare(arguments: tree.Structure, leaves: Sequence[Any]) -> Any:
    """Arguments as a rule gets them: a single one alone, several as a tuple."""
    args = arguments.unflatten(leaves)
    return args[0] if len(args) == 1 else args


def _vjp_rule(
    rule: Callable[..., Any], name: str, arguments: tree.Structure, result: tree.Structure
) -> Callable[..., list[Any]]:
    def backwards(primals: Sequence[Array], cotangents: Sequence[Array], outputs: Sequence[Array]) -> list[Any]:
        bare = _bare(arguments, primals)
        found = rule(bare, result.unflatten(cotangents), result.unflatten(outputs))
        wrapped = isinstance(bare, Handle) and isinstance(found, (tuple, list)) and len(found) == 1
        single = len(arguments.unflatten(list(primals))) == 1 and not wrapped
        leaves, given = tree.flatten((found,) if single else tuple(found))
        if len(leaves) != arguments.num_leaves:
            raise ValueError(f"[custom_function] The vjp rule of {name} returned {given}; expected {arguments}.")
        for position, (cotangent, primal) in enumerate(zip(leaves, primals, strict=True)):
            _require_shape(name, position, cotangent, primal)
        return leaves

    return backwards


def _require_shape(name: str, position: int, cotangent: Any, primal: Array) -> None:
    if cotangent is None or (isinstance(cotangent, Handle) and cotangent.node.shape == primal.node.shape):
        return
    got = f"shape {tuple(cotangent.node.shape)}" if isinstance(cotangent, Handle) else repr(cotangent)
    raise ValueError(
        f"[custom_function] The vjp rule of {name} returned {got} for argument {position}, which has "
        f"shape {tuple(primal.node.shape)}."
    )


def _jvp_rule(rule: Callable[..., Any], arguments: tree.Structure) -> Callable[..., list[Any]]:
    def forwards(primals: Sequence[Array], tangents: Sequence[Array]) -> list[Any]:
        return tree.flatten(rule(_bare(arguments, primals), _bare(arguments, tangents)))[0]

    return forwards


def _vmap_rule(rule: Callable[..., Any], arguments: tree.Structure) -> Callable[..., list[Any]]:
    def batched(inputs: Sequence[Array], axes: Sequence[int | None]) -> list[tuple[Array, int | None]]:
        value, places = rule(_bare(arguments, inputs), _bare(arguments, list(axes)))
        outputs, structure = tree.flatten(value)
        return list(zip(outputs, tree.broadcast_prefix(places, structure, "vmap rule: axes"), strict=True))

    return batched


def checkpoint(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose intermediate results are computed again for its gradient instead of being kept.

    >>> f = mx.checkpoint(lambda x: mx.exp(mx.sin(x)))
    >>> mx.grad(f)(mx.array(0.0))
    array(1, dtype=float32)
    """
    if not callable(fun):
        raise TypeError(f"checkpoint takes a function, not {type(fun).__name__}.")

    @functools.wraps(fun)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs))
        places = [position for position, leaf in enumerate(leaves) if isinstance(leaf, Handle)]
        arrays = [leaves[position] for position in places]
        inner = [fresh(array) for array in arrays]
        nodes = [array.node for array in inner]
        for position, array in zip(places, inner, strict=True):
            leaves[position] = array
        new_args, new_kwargs = structure.unflatten(leaves)
        outputs, result = tree.flatten(fun(*new_args, **new_kwargs))
        if not all(isinstance(output, Handle) for output in outputs):
            raise ValueError(f"[checkpoint] {name_of(fun)} should return arrays only.")
        captured = _captured(outputs, nodes)
        rules = _recomputing(outputs, nodes, captured)
        marked = p.marked_call(*arrays, *captured, *outputs, rules=rules, arguments=len(arrays) + len(captured))
        return result.unflatten([p.project(marked, position=position) for position in range(len(outputs))])

    return checkpointed


def _captured(outputs: Sequence[Array], inputs: Sequence[Node]) -> list[Array]:
    """Arrays from outside that the graph between ``inputs`` and ``outputs`` uses: they have derivatives too."""
    first = min((node.serial for node in inputs), default=-1)
    inside = reachable([output.node for output in outputs], first - 1) if inputs else []
    known, own = set(inside), set(inputs)
    used = [source for node in inside if node not in own for source in node.inputs]
    found = dict.fromkeys(
        source
        for source in [*used, *(output.node for output in outputs)]
        if source not in known and source.dtype.is_inexact and not p.is_constant(source)
    )
    return [wrap(node) for node in found]


def _recomputing(outputs: Sequence[Array], inputs: Sequence[Node], captured: Sequence[Array]) -> Rules:
    """A vjp rule that computes the graph again, behind barriers, when the cotangents are there."""
    recording = Recording([*inputs, *(array.node for array in captured)], [o.node for o in outputs])

    def backwards(primals: Sequence[Array], cotangents: Sequence[Array], _: Sequence[Array]) -> list[Any]:
        mark = _marks()
        again = [p.barrier(primal, *cotangents, mark=mark) for primal in primals]
        results = [wrap(node) for node in recording.replay([array.node for array in again])]
        return pull_back(results, cotangents, [array.node for array in again])

    return Rules(vjp=backwards, jvp=None, vmap=None)
