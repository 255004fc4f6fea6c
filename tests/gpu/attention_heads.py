"""Shapes of attention, for its tests."""

from __future__ import annotations

from typing import NamedTuple


class Heads(NamedTuple):
    """The shape of a call of `mx.fast.scaled_dot_product_attention`: numbers of heads of ``queries`` and of ``keys``,
    of ``rows`` of queries, the ``length`` of keys, ``features`` of both and the ``width`` of values."""

    batch: int
    queries: int
    keys: int
    rows: int
    length: int
    features: int
    width: int
