"""Quantised tensors of ``.gguf`` files: blocks of elements, each with its own scale.

Q4_0, Q4_1 and Q8_0 are converted to what `mx.quantized_matmul` takes: ``element = scale * q + bias``, with unsigned
integers ``q`` of 4 or 8 bits, eight or four of which are stored in a 32-bit number.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from weft.errors import FileFormatError
from weft.io.gguf_format import Q4_0, Q8_0, BlockFormat
from weft.runtime.atomic import without_interrupts

NumPyArray = np.ndarray[Any, Any]
Unpack = Callable[[NumPyArray], NumPyArray]
"""Converts blocks (rows of bytes) to the elements of a result (one row per block)."""


class QuantizedParts(NamedTuple):
    """The conversions to the three parts of a quantised matrix."""

    weight: Unpack
    scales: Unpack
    biases: Unpack
    bits: int


def _scales(blocks: NumPyArray) -> NumPyArray:
    return np.ascontiguousarray(blocks[:, :2]).view("<f2")


def _nibbles(blocks: NumPyArray, start: int) -> NumPyArray:
    """The 32 elements of 16 bytes: first the lower halves of all bytes, then the upper halves."""
    packed = blocks[:, start:]
    elements = np.concatenate([packed & 15, packed >> 4], axis=1)
    return np.ascontiguousarray(elements[:, ::2] | elements[:, 1::2] << 4).view("<u4")


def _bytes(blocks: NumPyArray) -> NumPyArray:
    return np.ascontiguousarray(blocks[:, 2:] ^ 0x80).view("<u4")


def parts_of(kind: int) -> QuantizedParts:
    """The conversions for a quantised kind with a scale per block."""
    if kind == Q8_0:
        return QuantizedParts(_bytes, _scales, lambda blocks: _scales(blocks) * np.float16(-128), 8)
    if kind == Q4_0:
        return QuantizedParts(
            lambda blocks: _nibbles(blocks, 2), _scales, lambda blocks: _scales(blocks) * np.float16(-8), 4
        )
    return QuantizedParts(
        lambda blocks: _nibbles(blocks, 4), _scales, lambda blocks: np.ascontiguousarray(blocks[:, 2:4]).view("<f2"), 4
    )


def other_kind(kind: int, what: str) -> tuple[BlockFormat, Unpack]:
    """The block format of another quantised kind, and its conversion to float16 by the package `gguf`.

    Raises:
        FileFormatError: the kind is unknown.
        ImportError: the package is not installed.
    """
    try:
        package: Any = without_interrupts(lambda: importlib.import_module("gguf"))
    except ImportError as error:
        raise ImportError(
            f"[load] {what} is quantised in a way (kind {kind}) that needs the package gguf: pip install weft[gguf]."
        ) from error
    try:
        quantization = package.GGMLQuantizationType(kind)
        blocks = BlockFormat(*package.GGML_QUANT_SIZES[quantization])
        package.quants.dequantize(np.zeros((1, blocks.size), np.uint8), quantization)
    except (ValueError, KeyError, NotImplementedError):
        raise FileFormatError(
            f"[load] {what} is of kind {kind}, which neither Weft nor the package gguf can read."
        ) from None

    def unpack(found: NumPyArray) -> NumPyArray:
        elements: NumPyArray = package.quants.dequantize(found, quantization)
        return elements.astype(np.float16)

    return blocks, unpack
