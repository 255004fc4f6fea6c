"""The generator of random numbers: keys, the key of the global generator, and uniform numbers from a key."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

import weft.primitives as p
from weft import dtypes
from weft.checks import wrong_type
from weft.dtypes import Dtype
from weft.graph.extents import agree
from weft.graph.node import Handle, Shape, describe
from weft.ops.arguments import Array, checked_extents, integer_of, to_dtype
from weft.ops.convert import from_bytes
from weft.ops.entrance import in_the_name_of, on_stream
from weft.ops.replays import replayed
from weft.runtime.atomic import refuse_reentry
from weft.runtime.devices import StreamOrDevice
from weft.runtime.locks import fork_safe_lock

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["drawing", "key", "seed", "split", "state"]

state: list[Array] = []
"""The key of the global generator. `seed` sets it; every random function that is called without a key replaces it."""

_state_lock = fork_safe_lock()
_pack_key = struct.Struct("=2I").pack

_FLOAT32_BELOW_ONE = 1 - 2.0**-24
_ABOVE_MINUS_ONE = -_FLOAT32_BELOW_ONE


def key(seed: int) -> Array:
    """The key for a seed.

    Args:
        seed: from 0 to 2**64 - 1.

    >>> mx.random.key(42)
    array([0, 42], dtype=uint32)
    """
    return _key_of("random.key", seed)


def _key_of(name: str, seed: int) -> Array:
    number = integer_of(name, "seed", seed)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"[{name}] A seed is a number from 0 to 2**64 - 1, not {number}.")
    return from_bytes(_pack_key(number >> 32, number & 0xFFFFFFFF), (2,), dtypes.uint32)


def seed(seed: int) -> None:
    """Set the global generator to the key for a seed.

    >>> mx.random.seed(0)
    >>> mx.random.uniform(shape=(2,))
    array([0.576551, 0.299172], dtype=float32)
    """
    fresh_state = _key_of("random.seed", seed)
    with _state_lock:
        state[:] = [fresh_state]


@replayed
def split(key: Array, num: int = 2, stream: StreamOrDevice = None) -> Array:
    """``num`` independent keys derived from one: ``uint32[num, 2]``.

    Args:
        key: ``uint32[2]``.
        num: how many keys.

    >>> mx.random.split(mx.random.key(0), 3).shape
    (3, 2)
    """
    return random_words("split", (integer_of("split", "num", num), 2), _checked_key("split", key))


def drawing(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator of functions that make arrays from the argument ``key``, for which None stands for the next key of
    the global generator. A call that raises leaves the generator as it was. What they make is replayed.
    """
    code = function.__code__
    position = code.co_varnames.index("key")
    # Local names, because `entrance` gets the globals of another module.
    makes: Callable[..., R] = replayed(function)
    draw, take_back = _next_key, _put_back

    def entrance(*args: P.args, **kwargs: P.kwargs) -> R:
        if (args[position] if len(args) > position else kwargs.get("key")) is not None:
            return makes(*args, **kwargs)
        before, after, key = draw()
        try:
            if len(args) > position:
                return makes(*args[:position], key, *args[position + 1 :], **kwargs)
            return makes(*args, **{**kwargs, "key": key})
        except BaseException:
            take_back(before, after)
            raise

    return on_stream(functools.wraps(function)(in_the_name_of(function, entrance)))


def _next_key() -> tuple[Array, Array, Array]:
    """The states of the global generator before and after this call, and the next key."""
    refuse_reentry(_state_lock)
    with _state_lock:
        before = state[0]
        state[0], taken = _halves(before)
        return before, state[0], taken


@replayed
def _halves(key: Array) -> list[Array]:
    """Two keys derived from one."""
    pair = p.random_bits(key, shape=(2, 2))
    return [p.pick_one(pair, axis=0, position=row) for row in (0, 1)]


def _put_back(before: Array, after: Array) -> None:
    """Undo `_next_key`, unless the state has changed since."""
    with _state_lock:
        if state[0] is after:
            state[0] = before


def random_words(name: str, shape: Shape, key: Any) -> Array:
    """Random ``uint32`` of ``shape`` from a key."""
    checked_extents(name, shape)
    return p.random_bits(_checked_key(name, key), shape=shape)


def _checked_key(name: str, key: Any) -> Array:
    if not isinstance(key, Handle):
        raise wrong_type(name, "A key", "an array (see mx.random.key)", key)
    node = key.node
    if node.dtype is not dtypes.uint32 or not agree(node.shape, (2,)):
        raise ValueError(
            f"[{name}] A key is uint32[2] (see mx.random.key), not {describe(node.shape, node.dtype)}. "
            "For many keys at once use mx.vmap."
        )
    return key


def _below_one(dtype: Dtype) -> float:
    """The largest number of ``dtype`` below 1."""
    return 1 - dtypes.finfo(dtype).eps / 2


def unit_interval(name: str, shape: Shape, dtype: Dtype, key: Any) -> Array:
    """Numbers from 0 (included) to 1 (excluded): 32 random bits rounded to ``dtype``, 53 for float64."""
    if dtype is dtypes.float64:
        high, low = (p.cast(words, dtype=dtype) for words in _word_pair(name, shape, key))
        high = p.multiply(high, 2.0**21)
        low = p.floor(p.multiply(low, 2.0**-11))
        return p.multiply(p.add(high, low), 2.0**-53)
    words = random_words(name, shape, key)
    unit = p.multiply(p.cast(words, dtype=dtypes.float32), 2.0**-32)
    return p.minimum(to_dtype(unit, dtype), _below_one(dtype))


def _word_pair(name: str, shape: Shape, key: Any) -> list[Array]:
    words = random_words(name, (2, *shape), key)
    return [p.pick_one(words, axis=0, position=row) for row in (0, 1)]


def symmetric_interval(name: str, shape: Shape, key: Any) -> Array:
    """Float32 numbers between -1 and 1, both excluded."""
    unit = unit_interval(name, shape, dtypes.float32, key)
    return p.add(
        p.multiply(unit, difference(1, _ABOVE_MINUS_ONE, dtypes.float32)),
        _ABOVE_MINUS_ONE,
    )


def difference(high: float, low: float, dtype: Dtype) -> float:
    """``high - low`` computed in ``dtype``."""
    rounded = dtype.numpy.type
    with np.errstate(all="ignore"):
        return float(rounded(high) - rounded(low))
