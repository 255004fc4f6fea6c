"""Operations that are computed by one kernel or few: ``mx.fast``.

Each module of ``weft.ops`` names in its ``__all__`` what is public; nothing is listed again here.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft.ops.attention import *
from weft.ops.fast import *
from weft.ops.foreign_kernels import *
from weft.ops.gated_delta import *

if not _TYPE_CHECKING:  # mypy reads only literal lists, and takes whatever * imports for public
    __all__ = [name for name in dir() if not name.startswith("_")]
