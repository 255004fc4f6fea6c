"""Extents of attention, for its tests."""

from __future__ import annotations

from typing import NamedTuple


class Heads(NamedTuple):
    """As `mx.fast.scaled_dot_product_attention` has them: numbers of heads of ``queries`` and of ``keys``, with so many
    ``rows`` of queries, a ``length`` of keys, ``features`` of both and a ``width`` of values."""

    batch: int
    queries: int
    keys: int
    rows: int
    length: int
    features: int
    width: int
