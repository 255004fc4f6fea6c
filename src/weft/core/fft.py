"""Discrete Fourier transforms: ``mx.fft``.

Each module of ``weft.ops`` lists its public names in ``__all__``; they are not listed again here.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft.ops.fourier import *
from weft.ops.frequencies import *
from weft.ops.hermitian import *
from weft.ops.short_time import *

if not _TYPE_CHECKING:  # mypy understands only literal lists, and treats names imported by * as public
    __all__ = [name for name in dir() if not name.startswith("_")]
