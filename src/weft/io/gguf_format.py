"""The numbers for kinds of values and tensors in ``.gguf`` files, for reading and writing."""

from __future__ import annotations

from typing import NamedTuple

from weft import dtypes
from weft.dtypes import Dtype

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32
"""The alignment of tensors in a file, unless its metadata has another one."""
ALIGNMENT_KEY = "general.alignment"

BOOL, STRING, ARRAY = 7, 8, 9
VALUES: dict[int, Dtype] = {
    0: dtypes.uint8,
    1: dtypes.int8,
    2: dtypes.uint16,
    3: dtypes.int16,
    4: dtypes.uint32,
    5: dtypes.int32,
    6: dtypes.float32,
    BOOL: dtypes.bool_,
    10: dtypes.uint64,
    11: dtypes.int64,
    12: dtypes.float64,
}
"""The kinds of metadata values that are numbers."""

PLAIN: dict[int, Dtype] = {
    0: dtypes.float32,
    1: dtypes.float16,
    24: dtypes.int8,
    25: dtypes.int16,
    26: dtypes.int32,
    27: dtypes.int64,
    28: dtypes.float64,
    30: dtypes.bfloat16,
}
"""The kinds of tensors whose elements are stored one by one."""


class BlockFormat(NamedTuple):
    """A block of a quantised tensor: how many elements it has, and how many bytes."""

    elements: int
    size: int


Q4_0, Q4_1, Q8_0 = 2, 3, 8
BLOCKS: dict[int, BlockFormat] = {Q4_0: BlockFormat(32, 18), Q4_1: BlockFormat(32, 20), Q8_0: BlockFormat(32, 34)}
"""The quantised kinds that Weft converts itself."""
