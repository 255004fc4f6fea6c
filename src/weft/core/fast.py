"""Operations that are computed by one kernel or a few: ``mx.fast``.

Each module of ``weft.ops`` lists its public names in ``__all__``; they are not listed again here.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft.ops.attention import *
from weft.ops.fast import *
from weft.ops.foreign_kernels import *
from weft.ops.gated_delta import *

if not _TYPE_CHECKING:  # mypy understands only literal lists, and treats names imported by * as public
    __all__ = [name for name in dir() if not name.startswith("_")]
