"""Attention of bfloat16 in tile registers, where users allow roundings of the processor's own.

Both products are those of bfloat16, so the powers of e are rounded to bfloat16 before they are multiplied with values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.compiler.cpu.products.packed import amx
from weft.graph.node import Node, wrap
from weft.primitives.attention_blocks import BLOCK_BYTES, blocks_of, joined
from weft.primitives.attention_formulas import given_inputs
from weft.primitives.base import Array
from weft.primitives.replacing import replaces
from weft.runtime.precision import FAST


@replaces("cpu", p.attention)
def _attention(node: Node, machine: Any) -> Sequence[Node] | None:
    """Attention as products of bfloat16; None if tile registers may not be used, or would not be for so few queries,
    keys or features."""
    queries, _, values = node.inputs[:3]
    if node.keywords["precision"] != FAST or queries.dtype is not dtypes.bfloat16:
        return None
    inputs = given_inputs([wrap(x) for x in node.inputs], node.keywords)
    _, _, groups, count, keys = inputs.shape
    sides = [(groups * count, keys), (groups * count, values.shape[-1])]
    if not amx.is_available() or not all(amx.is_worth_it(*side) for side in sides):
        return None
    blocks = blocks_of(inputs.shape, node.dtype.size, node.keywords["mask"] == "causal", BLOCK_BYTES)
    return [joined([inputs.block(*block).value_of_halves(_multiplied, quickly=True) for block in blocks]).node]


def _multiplied(a: Array, b: Array) -> Array:
    """The fast product of matrices of bfloat16, in float32."""
    half = p.matmul(a, b, precision=FAST).node
    return wrap(Node(half.primitive, half.inputs, half.params, half.shape, dtypes.float32, None))
