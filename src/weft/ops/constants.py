"""Named constants."""

from __future__ import annotations

import math

__all__ = ["e", "euler_gamma", "inf", "nan", "newaxis", "pi"]

pi = math.pi
"""The ratio of a circle's circumference to its diameter."""
e = math.e
"""The base of natural logarithms."""
inf = math.inf
"""Positive infinity."""
nan = math.nan
"""Not a number: the result of undefined operations. It equals nothing, itself included."""
euler_gamma = 0.5772156649015329
"""Euler's constant, the limit of 1 + 1/2 + ... + 1/n - log(n)."""
newaxis = None
"""In an index: a new axis of extent 1."""
