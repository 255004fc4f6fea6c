"""Layers that encode positions in a sequence."""

from __future__ import annotations

import math
from typing import Any

import weft.core as mx
from weft.nn.checks import array_input, array_of, number_of, positive_number_of, size_of
from weft.nn.module import Module
from weft.ops.arguments import real_number

__all__ = ["ALiBi", "RoPE", "SinusoidalPositionalEncoding"]


class RoPE(Module):
    """Rotary positional encoding: rotates pairs of features by angles that grow with the position; see `mx.fast.rope`.

    Su et al., arXiv:2104.09864.

    Args:
        dims: how many features are rotated, an even number; further features are unchanged.
        traditional: whether a pair consists of two neighbours; else of feature ``i`` and feature ``i + dims / 2``.
        base: the angle per position of pair ``i`` is ``base ** (-2 * i / dims)``. With None, the module can be made,
            but not called before its attribute ``base`` is a number.
        scale: the factor of positions.

    Called with ``(B, ..., T, D)`` and optionally ``offset``, the first position: an int (0 by default), or integers
    ``()``, ``(1,)`` or ``(B,)``.

    >>> nn.RoPE(2)(mx.array([[[1.0, 0.0], [1.0, 0.0]]]))
    array([[[1, 0],
            [0.540302, 0.841471]]], dtype=float32)
    """

    def __init__(self, dims: int, traditional: bool = False, base: float | None = 10000, scale: float = 1.0) -> None:
        super().__init__()
        self.dims = size_of("RoPE", "dims", dims, least=2)
        if self.dims % 2:
            raise ValueError(f"[RoPE] dims must be even; got {dims}.")
        self.traditional = bool(traditional)
        self.base = None if base is None else positive_number_of("RoPE", "base", base)
        self.scale = real_number("RoPE", "scale", scale)

    def _extra_repr(self) -> str:
        return f"{self.dims}, traditional={self.traditional}"

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        if self.base is None:
            raise ValueError("[RoPE] base is None: set the module's attribute base to a number before calling it.")
        settings = {"traditional": self.traditional, "base": self.base, "scale": self.scale}
        return mx.fast.rope(array_input(self, x), self.dims, offset=offset, **settings)


class SinusoidalPositionalEncoding(Module):
    """Sines and cosines of positions times ``dims / 2`` frequencies, which are evenly spaced on a logarithmic scale.

    Vaswani et al., arXiv:1706.03762.

    Args:
        dims: the number of features for a position, an even number.
        min_freq: the lowest frequency, which is the last one.
        max_freq: the highest frequency, which is the first one.
        scale: the factor of the result; by default ``sqrt(2 / dims)``.
        cos_first: whether cosines come before sines.
        full_turns: whether frequencies are in turns; otherwise in radians.

    Called with positions, it returns an array with a new last axis of size ``dims``.

    >>> nn.SinusoidalPositionalEncoding(4, scale=1)(mx.array([0, 1]))
    array([[0, 0, 1, 1],
           [0.841471, 0.0001, 0.540302, 1]], dtype=float32)
    """

    def __init__(
        self,
        dims: int,
        min_freq: float = 0.0001,
        max_freq: float = 1,
        scale: float | None = None,
        cos_first: bool = False,
        full_turns: bool = False,
    ) -> None:
        super().__init__()
        name = "SinusoidalPositionalEncoding"
        dims = size_of(name, "dims", dims, least=2)
        if dims % 2:
            raise ValueError(f"[{name}] dims must be even; got {dims}.")
        lowest, highest = positive_number_of(name, "min_freq", min_freq), positive_number_of(name, "max_freq", max_freq)
        steps = dims // 2 - 1
        turn = 2 * math.pi if full_turns else 1.0
        frequencies = [turn * highest * (lowest / highest) ** (step / max(steps, 1)) for step in range(steps + 1)]
        self._sigmas = mx.array(frequencies)
        self.scale = math.sqrt(2 / dims) if scale is None else number_of(name, "scale", scale)
        self.cos_first = cos_first

    def __call__(self, x: mx.array) -> mx.array:
        angles = mx.expand_dims(array_input(self, x), -1) * self["_sigmas"]
        waves = [mx.sin(angles), mx.cos(angles)]
        return mx.concatenate(waves[::-1] if self.cos_first else waves, axis=-1) * self.scale


class ALiBi(Module):
    """Attention with linear biases: lowers the scores of attention in proportion to the distance between query and key.

    Press, Smith, Lewis, arXiv:2108.12409. Each head multiplies the distance by a slope of its own.

    Called with scores ``(B, heads, queries, keys)``; optionally with ``offset``, the number of keys before the first
    query (0 by default), and with ``mask``: numbers to add to the scores, or booleans that say which keys a query may
    see.

    >>> nn.ALiBi()(mx.zeros((1, 1, 2, 2)))
    array([[[[0, -0.00390625],
             [-0.00390625, 0]]]], dtype=float32)
    """

    @staticmethod
    def create_alibi_slope(num_heads: int, dtype: mx.Dtype = mx.float32) -> mx.array:
        """The slopes of heads, ``(num_heads, 1, 1)``: powers of two if the number of heads is a power of two.

        Args:
            num_heads: number of heads.
            dtype: the dtype of the result.

        >>> nn.ALiBi.create_alibi_slope(4).flatten()
        array([0.25, 0.0625, 0.015625, 0.00390625], dtype=float32)
        """
        heads = size_of("create_alibi_slope", "num_heads", num_heads, least=1)
        half = 1 << (heads.bit_length() - 1)
        # Every other slope of those for twice as many heads, which lie between the first ones.
        exponents = [*range(2, 2 * half + 1, 2), *range(1, 2 * half, 2)][:heads]
        return mx.array([2.0 ** (-4 * exponent / half) for exponent in exponents], dtype).reshape(heads, 1, 1)

    @staticmethod
    def create_alibi_matrix(
        q_sequence_length: int,
        k_sequence_length: int,
        num_heads: int,
        offset: int = 0,
        dtype: mx.Dtype = mx.float32,
    ) -> mx.array:
        """Minus the distances between queries and keys, times the slopes: ``(1, heads, queries, keys)``.

        Args:
            q_sequence_length: the position after the last query.
            k_sequence_length: number of keys.
            num_heads: number of heads.
            offset: the position of the first query.
            dtype: the dtype of the result.

        >>> nn.ALiBi.create_alibi_matrix(3, 3, 1, offset=1)
        array([[[[-0.00390625, 0, -0.00390625],
                 [-0.0078125, -0.00390625, 0]]]], dtype=float32)
        """
        queries, keys = mx.arange(offset, q_sequence_length), mx.arange(k_sequence_length)
        nearness = -mx.abs(mx.expand_dims(queries, 1) - keys)
        return mx.expand_dims(nearness, (0, 1)).astype(dtype) * ALiBi.create_alibi_slope(num_heads, dtype)

    def __call__(self, attention_scores: mx.array, offset: int = 0, mask: Any = None) -> mx.array:
        scores = array_input(self, attention_scores)
        if scores.ndim != 4:
            raise ValueError(
                f"[{self!r}] attention_scores must have the shape (B, heads, queries, keys); got {scores.shape}."
            )
        _, heads, queries, keys = scores.shape
        biases = self.create_alibi_matrix(queries + offset, keys, heads, offset, scores.dtype)
        if mask is None:
            return scores + biases
        mask = array_of(repr(self), "mask", mask)
        if mask.dtype == mx.bool_:
            return mx.where(mask, scores + biases, -mx.inf)
        return scores + biases + mask
