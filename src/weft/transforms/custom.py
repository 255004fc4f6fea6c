"""`custom_function` and `checkpoint`: functions with rules of their own for derivatives and batching."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import weft.primitives as p
from weft import tree
from weft.checks import function_of
from weft.graph.node import Handle, Node, reachable, wrap
from weft.graph.tracing import name_of
from weft.primitives.base import Array
from weft.primitives.structure import Rules
from weft.transforms.autodiff import fresh, pull_back, require_arrays
from weft.transforms.custom_rules import jvp_rule, vjp_rule, vmap_rule
from weft.transforms.lending import Lending, exclusive
from weft.transforms.replay import RecordedGraph
from weft.transforms.vectorize import batched_rules

__all__ = ["checkpoint", "custom_function"]


def _call_marked(
    fun: Callable[..., Any],
    args: Any,
    name: str,
    rules_for: Callable[[tree.Structure, tree.Structure], Rules],
) -> Any:
    """Call ``fun`` on its arguments, and attach rules to the call in the graph."""
    with exclusive(*args):
        leaves, structure = tree.flatten(args)
        require_arrays(name, leaves, structure.key_paths, "give what is no array by name, or bind it to the function.")
        lending = Lending(args, structure, leaves, [fresh(leaf) for leaf in leaves], around=1)
        with lending.running():
            value = fun(*lending.arguments)
            lending.take_back()
    outputs, result = tree.flatten(value)
    if not outputs or not all(isinstance(output, Handle) for output in outputs):
        raise ValueError(f"[{name}] {name_of(fun)} should return arrays, not {type(value).__name__}.")
    rules = rules_for(structure, result)
    return result.unflatten(p.marked_call(*leaves, *outputs, rules=rules, arguments=len(leaves)))


class custom_function:  # users know it as a decorator
    """A function whose derivatives or batching the user gives.

    Rules are set by decorators. ``vjp(primals, cotangent, output)`` returns one cotangent per primal; ``jvp(primals,
    tangents)`` returns the tangent of the output; ``vmap(inputs, axes)`` returns the output and the position of its
    mapped axis. For a function of one argument the rule gets it alone, for several a tuple of them. Without a rule,
    derivatives and batching are derived as usual. A derivative has the shape and dtype of the array to which it
    belongs; None in a tuple stands for zeros. Rules may be called long after the call of the function has ended, so
    they may use only its arguments and output.

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
        self._fun = function_of("custom_function", "fun", fun)
        functools.update_wrapper(self, fun)
        self._vjp: Callable[..., Any] | None = None
        self._jvp: Callable[..., Any] | None = None
        self._vmap: Callable[..., Any] | None = None

    def vjp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule for reverse mode.

        >>> @mx.custom_function
        ... def f(x):
        ...     return x * 3
        >>> @f.vjp
        ... def f_vjp(x, cotangent, output):
        ...     return cotangent * 5
        >>> mx.grad(f)(mx.array(1.0))
        array(5, dtype=float32)
        """
        self._vjp = rule
        return rule

    def jvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule for forward mode.

        >>> @mx.custom_function
        ... def f(x):
        ...     return x * 3
        >>> @f.jvp
        ... def f_jvp(x, tangent):
        ...     return tangent * 5
        >>> mx.jvp(f, [mx.array(1.0)], [mx.array(1.0)])[1]
        [array(5, dtype=float32)]
        """
        self._jvp = rule
        return rule

    def vmap(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule for batching.

        >>> @mx.custom_function
        ... def f(x):
        ...     return x * 3
        >>> @f.vmap
        ... def f_vmap(x, axis):
        ...     return x * 3 + 1, axis
        >>> mx.vmap(f)(mx.array([1.0, 2.0]))
        array([4, 7], dtype=float32)
        """
        self._vmap = rule
        return rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function. Keyword arguments are passed on and have no derivatives."""
        if self._vjp is None and self._jvp is None and self._vmap is None:
            return self._fun(*args, **kwargs)
        fun = functools.partial(self._fun, **kwargs) if kwargs else self._fun
        return _call_marked(fun, args, "custom_function", self._rules)

    def _rules(self, arguments: tree.Structure, result: tree.Structure) -> Rules:
        name = name_of(self._fun)
        return Rules(
            vjp=None if self._vjp is None else vjp_rule(self._vjp, name, arguments, result),
            jvp=None if self._jvp is None else jvp_rule(self._jvp, name, arguments, result),
            vmap=None if self._vmap is None else vmap_rule(self._vmap, name, arguments, result),
            batched=batched_rules,
        )


def checkpoint(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, but its intermediate results are not stored for the gradient: they are computed again.

    >>> f = mx.checkpoint(lambda x: mx.exp(mx.sin(x)))
    >>> mx.grad(f)(mx.array(0.0))
    array(1, dtype=float32)
    """
    function_of("checkpoint", "fun", fun)

    @functools.wraps(fun)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        with exclusive(*args, *kwargs.values()):
            return of_arguments(args, kwargs)

    def of_arguments(args: Any, kwargs: Any) -> Any:
        own, structure = tree.flatten((args, kwargs))
        leaves = list(own)
        positions = [position for position, leaf in enumerate(leaves) if isinstance(leaf, Handle)]
        arrays = [leaves[position] for position in positions]
        inner = [fresh(array) for array in arrays]
        nodes = [array.node for array in inner]
        for position, array in zip(positions, inner, strict=True):
            leaves[position] = array
        lending = Lending((args, kwargs), structure, own, leaves, around=3)
        with lending.running():
            new_args, new_kwargs = lending.arguments
            outputs, result = tree.flatten(fun(*new_args, **new_kwargs))
            lending.take_back()
        if not all(isinstance(output, Handle) for output in outputs):
            raise ValueError(f"[checkpoint] {name_of(fun)} should return arrays only.")
        captured = _captured(outputs, nodes)
        rules = _recomputing(outputs, nodes, captured)
        count = len(arrays) + len(captured)
        return result.unflatten(p.marked_call(*arrays, *captured, *outputs, rules=rules, arguments=count))

    return checkpointed


def _captured(outputs: Sequence[Array], inputs: Sequence[Node]) -> list[Array]:
    """Arrays from outside that the graph between ``inputs`` and ``outputs`` uses.

    They have derivatives too. Arrays without derivatives are included if they have no value: an outer transformation
    replaces them when it applies its graph to other inputs.
    """
    first = min((node.serial for node in inputs), default=-1)
    inside = reachable([output.node for output in outputs], first - 1) if inputs else []
    known, own = set(inside), set(inputs)
    used = [source for node in inside if node not in own for source in node.inputs]
    found = dict.fromkeys(
        source
        for source in [*used, *(output.node for output in outputs)]
        if source not in known and (source.dtype.is_inexact or source.value is None) and not p.is_constant(source)
    )
    return [wrap(node) for node in found]


def _recomputing(outputs: Sequence[Array], inputs: Sequence[Node], captured: Sequence[Array]) -> Rules:
    """A vjp rule that computes the graph again. Barriers delay that until the cotangents are computed."""
    recorded = RecordedGraph([*inputs, *(array.node for array in captured)], [o.node for o in outputs])

    def backwards(primals: Sequence[Array], cotangents: Sequence[Array], _: Sequence[Array]) -> list[Any]:
        mark = p.new_mark()
        again = [p.barrier(primal, *cotangents, mark=mark) for primal in primals]
        results = [wrap(node) for node in recorded.replay([array.node for array in again])]
        return pull_back(results, cotangents, [array.node for array in again])

    return Rules(vjp=backwards, jvp=None, vmap=None, batched=batched_rules)
