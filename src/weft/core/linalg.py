"""Linear algebra: ``mx.linalg``.

Each module of ``weft.ops`` lists its public names in ``__all__``; they are not listed again here.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft.ops.eigenvalues import *
from weft.ops.linalg import *
from weft.ops.matrices import *
from weft.ops.norms import *
from weft.ops.products import matmul as matmul
from weft.ops.products import outer as outer
from weft.ops.products import tensordot as tensordot
from weft.ops.products import vecdot as vecdot
from weft.ops.shaping import matrix_transpose as matrix_transpose

if not _TYPE_CHECKING:  # mypy understands only literal lists, and treats names imported by * as public
    __all__ = [name for name in dir() if not name.startswith("_")]
