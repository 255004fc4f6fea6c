"""The numbers of quantised matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, describe
from weft.primitives.base import Array, Primitive, Tangent
from weft.primitives.conversions import to_dtype, wide_dtype
from weft.primitives.quantized_formats import QuantizedFormat
from weft.primitives.routine import Routine
from weft.primitives.untrusted import check_inputs, check_parameter, require

__all__ = ["dequantize"]


class Dequantize(Primitive):
    """The numbers that codes, scales and (in affine modes) biases stand for, rounded to a dtype: ``code * scale +
    bias`` in float32, or in float64 if that is the dtype.

    Both operations round, as in MLX; but with scales of half precision they are one fused multiply-add. The product of
    a code and such a scale is exact in float32 anyway, unless it overflows.
    """

    name = "dequantize"
    parameters = (*QuantizedFormat._fields, "dtype")
    routine: Routine = Routine(names=("dequantised matrix", "dequantised matrices"))

    def check(self, *inputs: Node, **params: Any) -> None:
        check_parameter(self.name, "dtype", params["dtype"], inputs)
        require(params["dtype"].is_floating, "numbers are floating")
        kind = _format(params)
        kind.check()
        check_inputs(inputs, 2 + kind.affine)
        require(inputs[0].ndim > 0, "it has no axes")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        words, scales, *biases = inputs
        kind, dtype = _format(params), params["dtype"]
        if not kind.fits(words, scales, biases[0] if biases else None, dtype):
            operands = " and ".join([describe(one.shape, one.dtype) for one in inputs])
            raise ValueError(f"dequantize: {operands} do not fit together in the mode {kind.mode}")
        return kind.shape(words.shape), dtype

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        """The result is linear in scales and biases together."""
        pairs = list(zip(tangents, inputs, strict=True))[1:]
        if all(tangent is None for tangent, _ in pairs):
            return None
        return self(inputs[0], *[p.zeros_like(x) if tangent is None else tangent for tangent, x in pairs], **params)

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        words, scales, *biases = inputs
        kind, dtype = _format(params), wide_dtype(params["dtype"])
        groups = kind.in_groups(to_dtype(cotangent, dtype))
        found: list[Tangent] = [None] * len(inputs)
        if wanted[1]:
            found[1] = _sums(groups * kind.in_groups(kind.codes(words, scales, dtype)), scales)
        if biases and wanted[2]:
            found[2] = _sums(groups, biases[0])
        return found

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        return self(*p.batch_first(inputs, axes), **params), 0


dequantize = Dequantize()


def _format(params: dict[str, Any]) -> QuantizedFormat:
    return QuantizedFormat(*[params[name] for name in QuantizedFormat._fields])


def _sums(groups: Array, like: Array) -> Array:
    total = p.sum(groups, axes=(groups.node.ndim - 1,))
    return total if total.node.dtype is like.node.dtype else p.cast(total, dtype=like.node.dtype)
