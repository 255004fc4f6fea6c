"""Discrete Fourier transforms: ``mx.fft``.

Each module of ``weft.ops`` names in its ``__all__`` what is public; nothing is listed again here.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft.ops.fourier import *
from weft.ops.frequencies import *
from weft.ops.hermitian import *
from weft.ops.short_time import *

if not _TYPE_CHECKING:  # mypy reads only literal lists, and takes whatever * imports for public
    __all__ = [name for name in dir() if not name.startswith("_")]
