"""Divides attention of many heads into several calls of cuDNN, so that its intermediate results fit the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.compiler.cuda.cudnn.attention_graphs import Heads

Placed = tuple[Heads, int] | None
"""Heads in memory, and the bytes of an element; None for an operand that all parts share."""


class AttentionParts(NamedTuple):
    """Into how many parts examples and heads are divided."""

    of_batch: int
    of_heads: int

    def part(self, x: Heads) -> Heads:
        return x._replace(batch=x.batch // self.of_batch, heads=x.heads // self.of_heads)

    def offsets(self, placed: Sequence[Placed]) -> list[list[int]]:
        """For each part, the distances in bytes of its operands from those of the first part."""
        parts = [(example, head) for example in range(self.of_batch) for head in range(self.of_heads)]
        return [[self._offset(x, *part) for x in placed] for part in parts]

    def _offset(self, x: Placed, example: int, head: int) -> int:
        if x is None:
            return 0
        heads, size = x
        part = self.part(heads)
        return (example * part.batch * heads.strides[0] + head * part.heads * heads.strides[1]) * size


def parts_of(q: Heads, k: Heads, most: int) -> AttentionParts | None:
    """Parts that have at most ``most`` scores; None if the queries of one head of keys have more."""
    scores = q.positions * k.positions * (q.heads // k.heads)
    choices = [(n, 1) for n in _divisors(q.batch)] + [(q.batch, n) for n in _divisors(k.heads)]
    for of_batch, of_heads in choices:
        if (q.batch // of_batch) * (k.heads // of_heads) * scores <= most:
            return AttentionParts(of_batch, of_heads)
    return None


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
