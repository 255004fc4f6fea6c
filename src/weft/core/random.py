"""Random numbers: ``mx.random``.

Each module of ``weft.ops`` names in its ``__all__`` what is public; nothing is listed again here.
"""

import time as _time
from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft.ops.multivariate import *
from weft.ops.random import *

if not _TYPE_CHECKING:  # mypy reads only literal lists, and takes whatever * imports for public
    __all__ = [name for name in dir() if not name.startswith("_")]

# Every process starts elsewhere unless it seeds.
seed(_time.time_ns())
