"""Random numbers: ``mx.random``.

Each module of ``weft.ops`` lists its public names in ``__all__``; they are not listed again here.
"""

import time as _time
from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft.ops.multivariate import *
from weft.ops.random import *

if not _TYPE_CHECKING:  # mypy understands only literal lists, and treats names imported by * as public
    __all__ = [name for name in dir() if not name.startswith("_")]

# Each process starts with another seed, unless the program sets one.
seed(_time.time_ns())
