"""Methods that NumPy's functions call: ``np.sum(a)`` is ``a.sum(axis=None, dtype=None, out=None)``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from weft.dtypes import Dtype, as_dtype, same_as_numpy
from weft.ops.arguments import Array, to_dtype
from weft.ops.entrance import in_the_name_of

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["called_by_numpy"]

_ADDED = frozenset(("dtype", "initial", "out", "where"))


def called_by_numpy(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator that makes a method of ``function`` which takes the arguments that NumPy's function of that name
    passes.

    ``dtype`` converts the array first. ``out``, ``where`` and ``initial`` must have the values that mean they are
    unused.
    """
    plain: Callable[..., R] = function
    added, translate = _ADDED, _translated

    def method(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs and not added.isdisjoint(kwargs):
            return plain(*translate(function.__name__, args, kwargs), **kwargs)
        return plain(*args, **kwargs)

    return functools.wraps(function)(in_the_name_of(function, method))


def _translated(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The positional arguments, after the keyword arguments that NumPy passes were checked and removed."""
    added = {word: kwargs.pop(word) for word in _ADDED if word in kwargs}
    for word, remedy in (("out", "Use the result"), ("initial", "Combine it with the result")):
        if added.get(word) is not None:
            raise TypeError(f"[{name}] {word}= is not supported. {remedy}.")
    if added.get("where") is not None and added["where"] is not True:
        raise TypeError(f"[{name}] where= is not supported. Replace the other elements first, with mx.where.")
    return args if added.get("dtype") is None else (_converted(args[0], added["dtype"]), *args[1:])


def _converted(x: Array, dtype: Any) -> Array:
    if not isinstance(dtype, Dtype):
        dtype = same_as_numpy(np.dtype(dtype)) or as_dtype(dtype)
    return to_dtype(x, dtype)
