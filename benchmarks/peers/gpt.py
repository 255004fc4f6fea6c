"""The small GPT of the language tasks: its sizes, its text and its initial values, the same for all peers.

Normalisation before each half of a block, learned positions, attention in plain operations, gelu, a head of its own.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import Floats

VOCABULARY = 256  # tokens are bytes
MLP_WIDENING = 4
INITIAL_DEVIATION = 0.02
WEIGHT_DECAY = 0.01


@dataclass(frozen=True)
class Sizes:
    """What a task may choose."""

    layers: int
    width: int
    heads: int
    context: int
    batch: int
    fused: bool = False
    """Whether attention is the framework's own function, and not in plain operations."""


def windows(sizes: Sizes) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Bytes of a module of the standard library, and for each of them the byte that follows it."""
    text = np.frombuffer(Path(argparse.__file__).read_bytes(), dtype=np.uint8).astype(np.int32)
    starts = np.random.default_rng(4).integers(len(text) - sizes.context, size=(sizes.batch, 1))
    chosen = text[starts + np.arange(sizes.context + 1)]
    return np.ascontiguousarray(chosen[:, :-1]), np.ascontiguousarray(chosen[:, 1:])


def initial_values(sizes: Sizes) -> dict[str, Any]:
    """Parameters in nested dicts and lists; weights of linear layers have the shape `(outputs, inputs)`."""
    random = np.random.default_rng(5)
    width, wide = sizes.width, sizes.width * MLP_WIDENING

    def matrix(rows: int, columns: int) -> Floats:
        return random.normal(0, INITIAL_DEVIATION, (rows, columns)).astype(np.float32)

    def linear(outputs: int, inputs: int) -> dict[str, Floats]:
        return {"weight": matrix(outputs, inputs), "bias": np.zeros(outputs, dtype=np.float32)}

    def norm() -> dict[str, Floats]:
        return {"weight": np.ones(width, dtype=np.float32), "bias": np.zeros(width, dtype=np.float32)}

    def block() -> dict[str, Any]:
        return {
            "attention_norm": norm(),
            "mixed": linear(3 * width, width),  # queries, keys and values, one after the other
            "attended": linear(width, width),
            "mlp_norm": norm(),
            "widened": linear(wide, width),
            "narrowed": linear(width, wide),
        }

    return {
        "tokens": {"weight": matrix(VOCABULARY, width)},
        "positions": matrix(sizes.context, width),
        "blocks": [block() for _ in range(sizes.layers)],
        "norm": norm(),
        "head": {"weight": matrix(VOCABULARY, width)},
    }


def cache_shapes(sizes: Sizes) -> list[tuple[int, int, int]]:
    """The shapes of a block's keys and values of all places, for one text."""
    return [(sizes.heads, sizes.context, sizes.width // sizes.heads)] * 2


def map_leaves(function: Any, values: Any) -> Any:
    """The same nested dicts and lists with `function` of each array."""
    if isinstance(values, dict):
        return {key: map_leaves(function, value) for key, value in values.items()}
    if isinstance(values, list):
        return [map_leaves(function, value) for value in values]
    return function(values)
