"""The public functions on arrays: arguments, promotion, broadcasting and documentation around the primitives.

Each file lists its public names in ``__all__``; they are not listed again here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.ops import (
    arithmetic,
    comparison,
    constants,
    conversion,
    convolution,
    creation,
    diagonals,
    elementwise,
    float8,
    gathered_products,
    indexing,
    joining,
    padding,
    products,
    quantized,
    quantized_products,
    reductions,
    scans,
    sets,
    shaping,
    sorting,
    views,
)
from weft.ops.arithmetic import *
from weft.ops.comparison import *
from weft.ops.constants import *
from weft.ops.conversion import *
from weft.ops.convolution import *
from weft.ops.creation import *
from weft.ops.diagonals import *
from weft.ops.einsum import einsum as einsum
from weft.ops.einsum import einsum_path as einsum_path
from weft.ops.elementwise import *
from weft.ops.float8 import *
from weft.ops.gathered_products import *
from weft.ops.hadamard import hadamard_transform as hadamard_transform
from weft.ops.indexing import *
from weft.ops.joining import *
from weft.ops.norms import norm as matrix_norm
from weft.ops.padding import *
from weft.ops.products import *
from weft.ops.quantized import *
from weft.ops.quantized_products import *
from weft.ops.reductions import *
from weft.ops.scans import *
from weft.ops.sets import *
from weft.ops.shaping import *
from weft.ops.sorting import *
from weft.ops.views import *

if not TYPE_CHECKING:  # mypy understands only literal lists, and treats names imported by * as public
    __all__ = [
        "einsum",
        "einsum_path",
        "hadamard_transform",
        *arithmetic.__all__,
        *comparison.__all__,
        *constants.__all__,
        *conversion.__all__,
        *convolution.__all__,
        *creation.__all__,
        *diagonals.__all__,
        *elementwise.__all__,
        *float8.__all__,
        *gathered_products.__all__,
        *indexing.__all__,
        *joining.__all__,
        "matrix_norm",
        *padding.__all__,
        *products.__all__,
        *quantized.__all__,
        *quantized_products.__all__,
        *reductions.__all__,
        *scans.__all__,
        *sets.__all__,
        *shaping.__all__,
        *views.__all__,
        *sorting.__all__,
    ]
