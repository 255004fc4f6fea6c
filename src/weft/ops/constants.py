"""Numbers with a name."""

from __future__ import annotations

import math

__all__ = ["e", "euler_gamma", "inf", "nan", "newaxis", "pi"]

pi = math.pi
"""Half the length of the unit circle."""
e = math.e
"""The base of natural logarithms."""
inf = math.inf
"""Positive infinity."""
nan = math.nan
"""Not a number: the result of undefined operations, equal to nothing, itself included."""
euler_gamma = 0.5772156649015329
"""The limit of 1 + 1/2 + ... + 1/n - log(n)."""
newaxis = None
"""In an index: a new axis of extent 1."""
