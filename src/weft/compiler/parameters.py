"""Parameters of primitives as parts of keys. In Python, values that differ can be equal: 1, True and 1.0, or 0.0 and
-0.0. And values that are the same can be unequal: NaN."""

from __future__ import annotations

import struct
from typing import Any, final


@final
class ExactParameters(tuple[Any, ...]):
    """Parameters that are equal only if they agree in type, sign and bits.

    For Weft's own primitives this is not needed: each of their parameters has a single type, and none is a float.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExactParameters) and identity_of(tuple(self)) == identity_of(tuple(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(identity_of(tuple(self)))


def identity_of(value: Any) -> tuple[Any, ...]:
    """A key that is equal for values that agree in type, sign and bits."""
    kind = type(value)
    if isinstance(value, (tuple, frozenset)):
        return kind, (tuple if isinstance(value, tuple) else frozenset)(map(identity_of, value))
    if isinstance(value, complex):
        return kind, struct.pack("<dd", value.real, value.imag)
    return kind, struct.pack("<d", value) if isinstance(value, float) else value
