"""Parameters of primitives as parts of keys. Python has equal values that are not the same: 1, True and 1.0, 0.0 and
-0.0; and a NaN that is the same as another one need not be equal to it."""

from __future__ import annotations

import struct
from typing import Any, final


@final
class ExactParameters(tuple[Any, ...]):
    """Parameters that are equal to the same ones only, in type, sign and bits.

    Those of Weft's own primitives need not be compared like this: each of them has one type, and none is a float.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExactParameters) and identity_of(tuple(self)) == identity_of(tuple(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(identity_of(tuple(self)))


def identity_of(value: Any) -> tuple[Any, ...]:
    """What is equal for values that are the same."""
    kind = type(value)
    if isinstance(value, (tuple, frozenset)):
        return kind, (tuple if isinstance(value, tuple) else frozenset)(map(identity_of, value))
    if isinstance(value, complex):
        return kind, struct.pack("<dd", value.real, value.imag)
    return kind, struct.pack("<d", value) if isinstance(value, float) else value
