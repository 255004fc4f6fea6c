"""`grad`, `value_and_grad`, `vjp` and `jvp`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import weft.primitives as p
from weft import tree
from weft.checks import function_of, wrong_type
from weft.errors import ArgumentTypeError
from weft.graph.extents import decide_equal
from weft.graph.node import Handle, Node, wrap
from weft.graph.tracing import name_of, trace
from weft.ops.arguments import integer_of
from weft.primitives.base import Array, Tangent
from weft.transforms.autodiff import fresh, push_forward, require_arrays
from weft.transforms.known_gradients import pulled_back
from weft.transforms.lending import Lending, exclusive

__all__ = ["grad", "jvp", "value_and_grad", "vjp"]

Function = Callable[..., Any]


def value_and_grad(
    fun: Function, argnums: int | Sequence[int] | None = None, argnames: str | Sequence[str] = ()
) -> Function:
    """A function that returns the value of ``fun`` and its gradient.

    Args:
        fun: a function whose result is a scalar array, or a tuple that begins with one (`grad`: the array alone).
        argnums: the positions of the arguments to differentiate with respect to; 0 if neither this nor ``argnames``
            is given. The arguments may be arrays in any nesting of list, tuple and dict.
        argnames: the names of keyword arguments to differentiate with respect to.

    Returns:
        A function with the arguments of ``fun`` that returns ``(value, gradient)``. The gradient has the tree of the
        argument; it is a tuple for several ``argnums``, and ``(of_positions, {name: gradient})`` with ``argnames``.

    Raises:
        ValueError: the result is not a scalar array, an argument is not there or holds something else than arrays.

    >>> loss = lambda w, x: mx.sum(w * x)
    >>> mx.value_and_grad(loss)(mx.array([1.0, 2.0]), mx.array([3.0, 4.0]))
    (array(11, dtype=float32), array([3, 4], dtype=float32))
    """
    return _differentiated(fun, argnums, argnames, "value_and_grad")


def grad(fun: Function, argnums: int | Sequence[int] | None = None, argnames: str | Sequence[str] = ()) -> Function:
    """A function that returns the gradient of ``fun``; arguments are those of `value_and_grad`.

    Raises:
        ValueError: the result is not a scalar array, an argument is not there or holds something else than arrays.

    >>> mx.grad(mx.sin)(mx.array(mx.pi))
    array(-1, dtype=float32)
    >>> mx.grad(mx.grad(mx.sin))(mx.array(mx.pi / 2))
    array(-1, dtype=float32)
    """
    both = _differentiated(fun, argnums, argnames, "grad")

    @_like(fun)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return gradient


def _like(fun: Function) -> Callable[[Function], Function]:
    return functools.wraps(fun, assigned=("__name__", "__qualname__", "__doc__", "__module__"), updated=())


def _differentiated(
    fun: Function, argnums: int | Sequence[int] | None, argnames: str | Sequence[str], name: str
) -> Function:
    function_of(name, "fun", fun)
    chosen = _Chosen(argnums, argnames, name)

    @_like(fun)
    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        arguments = chosen.arguments(args, kwargs)
        with exclusive(*args, *kwargs.values()):
            if not arguments[1] and all(type(one) is Handle.concrete for one in arguments[0]):
                return of_arrays(arguments[0], args, kwargs)
            return of_arguments(arguments, args, kwargs)

    def of_arguments(arguments: Any, args: Any, kwargs: Any) -> Any:
        leaves, structure = tree.flatten(arguments)
        require_arrays(
            name, leaves, lambda: chosen.paths(structure), "give what is no array in an argument of its own."
        )
        with trace(name, fun):
            inputs = [fresh(leaf) for leaf in leaves]
            nodes = [array.node for array in inputs]
            lending = Lending(arguments, structure, leaves, inputs, around=3)
            with lending.running():
                new_args, new_kwargs = chosen.replaced(args, kwargs, lending.arguments)
                value = fun(*new_args, **new_kwargs)
                lending.take_back()
            gradients = gradients_of(value, nodes, leaves)
        return value, chosen.result(structure.unflatten(gradients))

    def of_arrays(arrays: list[Array], args: Any, kwargs: Any) -> Any:
        """What `of_arguments` returns if all arguments are arrays, for which it takes longer."""
        with trace(name, fun):
            inputs = [fresh(array) for array in arrays]
            nodes = [array.node for array in inputs]
            new_args, _ = chosen.replaced(args, kwargs, (inputs, {}))
            value = fun(*new_args, **kwargs)
            gradients = gradients_of(value, nodes, arrays)
        return value, chosen.result((gradients, {}))

    def gradients_of(value: Any, nodes: list[Node], leaves: Sequence[Array]) -> list[Array]:
        loss = _loss_of(value, name, fun)
        cotangents = pulled_back([loss], [p.ones_like(loss)], nodes)
        return [_filled(cotangent, leaf) for cotangent, leaf in zip(cotangents, leaves, strict=True)]

    return value_and_gradient


def _filled(cotangent: Tangent, like: Array) -> Array:
    """The gradient that the caller gets: a new handle, because one cotangent may belong to several arguments."""
    return p.zeros_like(like) if cotangent is None else wrap(cotangent.node)


def _loss_of(value: Any, name: str, fun: Function) -> Array:
    """The scalar that is a function's result, or the first entry of it."""
    loss = value[0] if isinstance(value, tuple) and value and name == "value_and_grad" else value
    if not isinstance(loss, Handle):
        remedy = " Use mx.value_and_grad for a tuple that begins with one." if isinstance(value, tuple) else ""
        raise ValueError(
            f"[{name}] {name_of(fun)} returned a {type(value).__name__}; its result should be a scalar array.{remedy}"
        )
    node = loss.node
    if node.shape != () or not node.dtype.is_inexact:
        remedy = "Reduce it with mx.sum or mx.mean" if node.shape else "Convert it with .astype(mx.float32)"
        raise ValueError(
            f"[{name}] {name_of(fun)} returned an array of shape {tuple(node.shape)} and dtype "
            f"{node.dtype.name}; gradients are "
            f"taken of a scalar, one floating-point number. {remedy}, or use mx.vjp with a cotangent."
        )
    return loss


def _several(chosen: Any) -> tuple[Any, ...]:
    return tuple(chosen) if isinstance(chosen, (list, tuple, range, Set)) else (chosen,)


class _Chosen:
    """The arguments with respect to which a function is differentiated."""

    def __init__(self, argnums: int | Sequence[int] | None, argnames: str | Sequence[str], name: str) -> None:
        self._name = name
        self._names = _several(argnames)
        if any(not isinstance(one, str) for one in self._names):
            raise wrong_type(name, "argnames", "a string or a sequence of strings", argnames)
        if argnums is None:
            self._numbers: tuple[int, ...] = () if self._names else (0,)
        else:
            self._numbers = tuple([integer_of(name, "argnums", one) for one in _several(argnums)])
        self._single = len(self._numbers) == 1
        self._none = not self._numbers and bool(self._names)
        if not self._numbers and not self._names:
            raise ValueError(f"[{name}] argnums is empty: name at least one argument to differentiate with respect to.")
        if len(set(self._numbers)) != len(self._numbers) or len(set(self._names)) != len(self._names):
            raise ValueError(f"[{name}] argnums and argnames must not repeat: {argnums!r}, {argnames!r}.")

    def arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The chosen arguments, as ``(positional, by name)``."""
        for number in self._numbers:
            if not 0 <= number < len(args):
                raise ValueError(
                    f"[{self._name}] Cannot differentiate with respect to argument {number}: the function was "
                    "called with "
                    f"{len(args)} positional arguments."
                )
        for key in self._names:
            if key not in kwargs:
                raise ValueError(
                    f"[{self._name}] Cannot differentiate with respect to keyword argument {key!r}: the "
                    "function was called "
                    f"with the keyword arguments {sorted(kwargs)}."
                )
        return [args[number] for number in self._numbers], {key: kwargs[key] for key in self._names}

    def paths(self, structure: tree.Structure) -> list[tuple[Any, ...]]:
        """For each leaf of the chosen arguments, the number or name of its argument, and the keys that lead to it
        there."""
        return [(key if by_name else self._numbers[key], *rest) for by_name, key, *rest in structure.key_paths()]

    def replaced(self, args: Sequence[Any], kwargs: dict[str, Any], chosen: Any) -> tuple[list[Any], dict[str, Any]]:
        positional, named = chosen
        new_args = list(args)
        for number, value in zip(self._numbers, positional, strict=True):
            new_args[number] = value
        return new_args, {**kwargs, **named}

    def result(self, gradients: Any) -> Any:
        positional, named = gradients
        of_positions: Any = None
        if not self._none:
            of_positions = positional[0] if self._single else tuple(positional)
        return (of_positions, named) if self._names else of_positions


def _array_list(name: str, what: str, values: Any) -> list[Array]:
    if isinstance(values, Handle):
        return [values]
    if not isinstance(values, Iterable):
        raise wrong_type(name, what, "a list of arrays", values)
    arrays = list(values)
    for position, value in enumerate(arrays):
        if not isinstance(value, Handle):
            raise ArgumentTypeError(
                f"[{name}] {what}[{position}] is a {type(value).__name__}; {what} is a list of arrays."
            )
    return arrays


def _outputs_of(name: str, fun: Function, value: Any) -> list[Array]:
    outputs = [value] if isinstance(value, Handle) else list(value) if isinstance(value, (list, tuple)) else [None]
    if not all(isinstance(output, Handle) for output in outputs):
        raise ValueError(
            f"[{name}] {name_of(fun)} should return an array or a sequence of arrays, not {type(value).__name__}."
        )
    return outputs


def _require_same(name: str, what: str, given: Sequence[Array], expected: Sequence[Array]) -> None:
    if len(given) != len(expected):
        raise ValueError(f"[{name}] Got {len(given)} {what} for {len(expected)} arrays; there must be one for each.")
    for position, (one, other) in enumerate(zip(given, expected, strict=True)):
        if not decide_equal(one.node.shape, other.node.shape):
            raise ValueError(
                f"[{name}] {what}[{position}] has shape {tuple(one.node.shape)}, but what it belongs to has shape "
                f"{tuple(other.node.shape)}."
            )


def vjp(fun: Function, primals: Sequence[Array], cotangents: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """The product of cotangents with the Jacobian of ``fun``.

    Args:
        fun: takes arrays, returns an array or a sequence of arrays.
        primals: the arrays at which ``fun`` is called.
        cotangents: one array per output, of its shape.

    Returns:
        The outputs, and one array per primal, of its shape and dtype.

    >>> mx.vjp(lambda x, y: x * y, [mx.array(2.0), mx.array(3.0)], [mx.array(1.0)])
    ([array(6, dtype=float32)], [array(3, dtype=float32), array(2, dtype=float32)])
    """
    function_of("vjp", "fun", fun)
    arrays = _array_list("vjp", "primals", primals)
    given = _array_list("vjp", "cotangents", cotangents)
    with trace("vjp", fun):
        inputs = [fresh(array) for array in arrays]
        nodes = [array.node for array in inputs]
        outputs = _outputs_of("vjp", fun, fun(*inputs))
        _require_same("vjp", "cotangents", given, outputs)
        cast = [_as_dtype_of(cotangent, output) for cotangent, output in zip(given, outputs, strict=True)]
        results = pulled_back(outputs, cast, nodes)
    return outputs, [_filled(result, array) for result, array in zip(results, arrays, strict=True)]


def _as_dtype_of(tangent: Array, like: Array) -> Array:
    dtype = like.node.dtype
    return tangent if tangent.node.dtype is dtype else p.cast(tangent, dtype=dtype)


def jvp(fun: Function, primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """The product of the Jacobian of ``fun`` with tangents.

    Args:
        fun: takes arrays, returns an array or a sequence of arrays.
        primals: the arrays at which ``fun`` is called.
        tangents: one array per primal, of its shape.

    Returns:
        The outputs, and one array per output, of its shape and dtype. The tangent of a comparison is zero, in the dtype
        of the arrays that are compared.

    >>> mx.jvp(mx.sin, [mx.array(0.0)], [mx.array(2.0)])
    ([array(0, dtype=float32)], [array(2, dtype=float32)])
    """
    function_of("jvp", "fun", fun)
    arrays = _array_list("jvp", "primals", primals)
    given = _array_list("jvp", "tangents", tangents)
    _require_same("jvp", "tangents", given, arrays)
    with trace("jvp", fun):
        inputs = [fresh(array) for array in arrays]
        nodes = [array.node for array in inputs]
        outputs = _outputs_of("jvp", fun, fun(*inputs))
        moving = [
            _as_dtype_of(tangent, array) if array.node.dtype.is_inexact else None
            for tangent, array in zip(given, arrays, strict=True)
        ]
        results = push_forward(nodes, moving, outputs)
        tangents = [_tangent_of(result, output) for result, output in zip(results, outputs, strict=True)]
    return outputs, tangents


def _tangent_of(tangent: Tangent, output: Array) -> Array:
    """The tangent of an output that the caller gets; zeros if ``tangent`` is None."""
    if tangent is not None:
        return wrap(tangent.node)
    node: Node | None = output.node
    while node is not None:
        dtype = node.dtype
        node = None if node.primitive is None else node.primitive.tangent_like(node)
    return p.zeros(output.node.shape, dtype)
