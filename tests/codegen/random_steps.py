"""Programs of random operations on two arrays, for tests of chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import weft.core as mx
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of

Operation = Callable[[mx.array, mx.array], mx.array]
Step = tuple[int, int, int]
"""The numbers of an operation, and of its operands among the inputs and the results of earlier steps."""


def stored(x: mx.array) -> mx.array:
    mx.eval(x)
    return x


def computed(
    operations: Sequence[Operation],
    steps: Sequence[Step],
    asked: Sequence[int],
    keep: Callable[[mx.array], mx.array],
    values: Sequence[mx.array],
) -> list[mx.array]:
    """The results of the steps that are asked for."""
    known = list(values)
    for operation, left, right in steps:
        known.append(keep(operations[operation](known[left], known[right])))
    return [known[len(values) + number] for number in dict.fromkeys(asked)]


def chains_with_the_same_bits(
    operations: Sequence[Operation], steps: Sequence[Step], asked: Sequence[int], values: Sequence[mx.array]
) -> int:
    """How many chains a program is planned as; its results must have the bits of the operations evaluated alone."""
    print("program:", steps, asked)
    found: list[mx.array] = []

    def program() -> list[mx.array]:
        found[:] = computed(operations, steps, asked, lambda x: x, values)
        return found

    chains = sum([str(plan).count("chain of") for plan in plans_of(program)])
    assert_same_bits(found, computed(operations, steps, asked, stored, values))
    return chains
