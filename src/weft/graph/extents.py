"""Functions on extents for shape rules and operations. An extent is an int, or symbolic inside of a shapeless trace.

A symbolic extent supports arithmetic (``+ - * // %``). Everything else is done with these functions. Which one is right
depends on what the answer is used for:

- Whether two are the same for every shape of the inputs: ``identical(left, right)``. Equal numbers of one call are not
  enough.
- Whether two are equal, in a shape rule, which runs again for other shapes: ``agree(left, right)``.
- Whether two are equal, if the answer decides what the graph is: ``decide_equal(left, right)``, which notes a decision.
- Another comparison that decides something: ``decide(operator.lt, left, right)``, which notes a decision.
- A plain int, for a loop or a number of nodes: ``fixed(extent)``, which notes a decision.
- A plain int for a message, or to compare as with ``agree``: ``value_of(extent)``, ``values_of(shape)``.
- A number that is calculated again for other shapes: ``smallest``, ``largest``, ``product``, and
  ``derived(function, *operands)`` for any function of ints. Programs with it can be exported if the function is
  ``named``.
- The extent that two broadcast to: ``joint_extent(left, right)``.

A decision is noted with the line of the user's program. A call with shapes for which the decision would be another one
is refused, so only note decisions that the graph depends on. ``agree`` and ``value_of`` are right in code that runs
again for other shapes: in a shape rule (`Primitive.infer`), and in a check of arguments that a shape rule repeats.
`identical`, `agree` and `decide_equal` take two extents or two shapes.

Annotations say ``AnyExtent`` for extents of either kind, and ``int`` where only a plain one occurs. Graphs that are
planned have plain ones only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from weft.graph.location import user_location
from weft.graph.symbolic import AmbiguousExtentError, AnyExtent, SymbolicExtent, derived, named

__all__ = [
    "AnyExtent",
    "agree",
    "decide",
    "decide_equal",
    "derived",
    "fixed",
    "identical",
    "joint_extent",
    "largest",
    "named",
    "product",
    "smallest",
    "value_of",
    "values_of",
]


def identical(left: Any, right: Any) -> bool:
    """Whether two extents or shapes are the same for every shape of the inputs.

    Two symbolic ones are the same if they are the same expression. A symbolic one is never identical to a number.
    """
    try:
        same: bool = left == right
        return same
    except AmbiguousExtentError:  # raised only for two different symbolic extents
        return False


def agree(left: Any, right: Any) -> bool:
    """Whether two extents or shapes are equal for the present shapes of the inputs. No decision is noted."""
    try:
        if left == right:
            return True
    except AmbiguousExtentError:
        pass
    if isinstance(left, (tuple, list)):
        return values_of(left) == values_of(right)
    return value_of(left) == value_of(right)


def decide(comparison: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    """Whether a comparison such as ``operator.lt`` holds, noted as a decision if it depends on a symbolic extent."""
    return bool(fixed(derived(comparison, left, right)))


def decide_equal(left: Any, right: Any) -> bool:
    """Whether two extents or shapes are equal, noted as a decision if that depends on the shapes of the inputs."""
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(decide_equal(m, n) for m, n in zip(left, right, strict=True))
    return left is right or decide(operator.eq, left, right)


def fixed(extent: AnyExtent | SymbolicExtent) -> int:
    """The plain integer, noted as a decision: what is made with it is right for this number only."""
    return extent.fix(user_location()) if type(extent) is SymbolicExtent else extent


def value_of(extent: AnyExtent | SymbolicExtent) -> int:
    """The number that an extent is for the present shapes of the inputs. No decision is noted."""
    return extent.value if type(extent) is SymbolicExtent else extent


def values_of(shape: Iterable[AnyExtent | SymbolicExtent]) -> tuple[int, ...]:
    """`value_of` for each extent of a shape."""
    return tuple([extent.value if type(extent) is SymbolicExtent else extent for extent in shape])


def smallest(*extents: AnyExtent) -> AnyExtent:
    return derived(min, *extents)


def largest(*extents: AnyExtent) -> AnyExtent:
    return derived(max, *extents)


def product(extents: Iterable[AnyExtent]) -> AnyExtent:
    size = 1
    for extent in extents:
        size = size * extent
    return size


def joint_extent(left: Any, right: Any) -> Any:
    """The extent that two broadcast to.

    Raises:
        ValueError: they differ and neither is 1.
    """
    try:
        if left == right or right == 1:
            return left
        if left == 1:
            return right
    except AmbiguousExtentError:
        if identical(right, 1):
            return left
        if identical(left, 1):
            return right
    return derived(_joint, left, right)


@named
def _joint(left: int, right: int) -> int:
    if left != right and left != 1 and right != 1:
        raise ValueError(f"extents {left} and {right} cannot be broadcast")
    return right if left == 1 else left
