"""Gradients with respect to the parameters of a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import weft.core as mx
from weft.checks import function_of, integer_of, wrong_type
from weft.errors import ArgumentTypeError
from weft.nn.checks import Group, group_of
from weft.nn.module import Module
from weft.nn.module_tree import put_back
from weft.transforms.lending import exclusive

__all__ = ["average_gradients", "checkpoint", "value_and_grad"]


def value_and_grad(model: Module, fn: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A function that returns the result of ``fn`` and its gradient with respect to a model's trainable parameters.

    Args:
        model: a module that ``fn`` uses, as an argument or as a variable from outside.
        fn: returns a scalar, or a tuple or list whose first element is one; the gradient is that of this scalar.

    The result takes the arguments of ``fn``. It returns its value and a tree of gradients like
    ``model.trainable_parameters()``.

    Raises:
        TypeError: ``model`` is no module.

    >>> model = nn.LayerNorm(2)
    >>> def loss(x):
    ...     return mx.sum(model(x))
    >>> value, gradients = nn.value_and_grad(model, loss)(mx.array([1.0, 2.0]))
    >>> gradients["bias"]
    array([1, 1], dtype=float32)
    """
    if not isinstance(model, Module):
        raise ArgumentTypeError(f"[value_and_grad] the first argument must be a Module; got {type(model).__name__}.")
    if not callable(fn):
        raise ArgumentTypeError(f"[value_and_grad] the second argument must be a function; got {type(fn).__name__}.")

    def call_with(parameters: dict[str, Any], /, *args: Any, **kwargs: Any) -> Any:
        before = model.trainable_parameters()
        model.update(parameters)
        try:
            return fn(*args, **kwargs)
        finally:
            # Values that the function has assigned itself, such as running statistics, are not undone.
            put_back(model, parameters, before)

    # Errors about what the function returns name that function, not this one.
    call_with.__qualname__ = getattr(fn, "__qualname__", type(fn).__qualname__)
    value_and_gradients = mx.value_and_grad(call_with)

    @wraps(fn)
    def with_gradients(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        with exclusive(model):  # the function reads arrays of the model, in place of which it has others meanwhile
            value, gradients = value_and_gradients(model.trainable_parameters(), *args, **kwargs)
        return value, gradients

    return with_gradients


def checkpoint(module: Module, fn: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """`mx.checkpoint` of a function that uses a module; the gradients of the module's parameters are as without it.

    Args:
        module: the module.
        fn: the function; by default the module itself.

    >>> layer = nn.LayerNorm(2)
    >>> again = nn.checkpoint(layer)
    >>> mx.array_equal(again(mx.array([1.0, 2.0])), layer(mx.array([1.0, 2.0])))
    array(True, dtype=bool)
    """
    if not isinstance(module, Module):
        raise wrong_type("checkpoint", "module", "a Module", module)
    return mx.checkpoint(function_of("checkpoint", "fn", module if fn is None else fn))


def average_gradients(
    gradients: Any,
    group: Group | None = None,
    all_reduce_size: int = 32 * 1024**2,
    communication_stream: mx.Stream | None = None,
) -> Any:
    """The mean of the gradients of all processes; with one process, its gradients.

    Args:
        gradients: a tree of arrays.
        group: which processes; None for all.
        all_reduce_size: how many bytes are sent at a time.
        communication_stream: the stream that sends; None for the default stream.

    >>> nn.average_gradients({"weight": mx.array([1.0, 2.0])})
    {'weight': array([1, 2], dtype=float32)}
    """
    group_of("average_gradients", group)
    integer_of("average_gradients", "all_reduce_size", all_reduce_size)
    if not (communication_stream is None or isinstance(communication_stream, mx.Stream)):
        raise wrong_type("average_gradients", "communication_stream", "a Stream", communication_stream)
    return gradients
