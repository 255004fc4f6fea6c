"""Random bits: a pure function of a key and an index, so they can be part of a fused kernel.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree, product
from weft.graph.node import Node, Shape, describe
from weft.primitives.base import Array, Elementwise, Tangent
from weft.primitives.indexing import Indexed
from weft.primitives.untrusted import check_inputs

__all__ = ["random_bits"]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry(L: Any, key0: Any, key1: Any, count0: Any, count1: Any) -> tuple[Any, Any]:
    """The two output words for a key of two words and a counter of two words, all uint32."""
    keys = (key0, key1, key0 ^ key1 ^ _PARITY)
    x, y = count0 + key0, count1 + key1
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            x = L.sum_by_multiplier(x, y)
            y = (y << rotation) | (y >> (32 - rotation))
            y = x ^ y
        x = L.sum_by_multiplier(x, keys[(block + 1) % 3])
        y = L.sum_by_multiplier(y, keys[(block + 2) % 3] + (block + 1))
    return x, y


def _word_lanes(L: Any, key0: Any, key1: Any, index: Any, half: Any, total: Any) -> Any:
    """The 32-bit word at ``index`` of ``total`` words: the first ``half`` words are first outputs, the rest second
    outputs.

    The counters 0, 1, ... are paired as ``(i, i + half)``; if ``i + half`` is ``total`` or more, 0 is used in its
    place.
    """
    is_second = index >= half
    count0 = L.select(is_second, index - half, index)
    count1 = count0 + half
    count1 = L.select(count1 < total, count1, 0)
    first, second = threefry(L, key0, key1, L.convert(count0, dtypes.uint32), L.convert(count1, dtypes.uint32))
    return L.select(is_second, second, first)


def _word_pair(L: Any, key0: Any, key1: Any, index: Any, half: Any, total: Any) -> tuple[Any, Any]:
    """The words at ``index`` and ``index + half``, if both exist."""
    return threefry(L, key0, key1, L.convert(index, dtypes.uint32), L.convert(index + half, dtypes.uint32))


class _Word(Elementwise):
    pair = staticmethod(_word_pair)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return inputs[0].shape, dtypes.uint32


random_word = _Word("random_word", _word_lanes, (None,) * 5, result=dtypes.uint32, cheap=False, cost=80)


class RandomBits(Indexed):
    """Random uint32 words of ``shape`` for each of ``keys``, whose shape is ``(*batch, 2)``: ``(*batch, *shape)``."""

    name = "random_bits"
    parameters = ("shape",)

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 1)
        super().check(*inputs, **params)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        keys = inputs[0]
        if keys.dtype is not dtypes.uint32 or keys.ndim < 1 or not agree(keys.shape[-1], 2):
            raise ValueError(
                f"[random] A key is uint32[2] (see mx.random.key), not {describe(keys.shape, keys.dtype)}."
            )
        return (*keys.shape[:-1], *params["shape"]), dtypes.uint32

    @staticmethod
    def element(k: Any, index: Sequence[Any], node: Node) -> Any:
        shape = node.params[0]
        batch = list(index[: len(index) - len(shape)])
        linear = k.linear(index[len(batch) :], shape)
        total = product(shape)
        words = [k.read(0, [*batch, k.fixed(word)]) for word in (0, 1)]
        return k.apply(random_word, *words, linear, k.number((total + 1) // 2), k.number(total))

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        return None

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        return [None]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        axis = axes[0]
        if axis is None:
            raise ValueError("random_bits: no input is mapped")
        return self(p.move_axis(inputs[0], axis, 0), **params), 0


random_bits = RandomBits()
