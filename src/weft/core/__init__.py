"""The public namespace, ``import weft.core as mx``: arrays, functions on them, transformations of functions.

Each module lists its public names in ``__all__``; they are not listed again here.
"""

import typing as _typing

import weft.dtypes as _dtypes
import weft.ops.array_standard as _array_standard
from weft.array import *
from weft.core import cuda as cuda
from weft.core import distributed as distributed
from weft.core import fast as fast
from weft.core import fft as fft
from weft.core import linalg as linalg
from weft.core import metal as metal
from weft.core import random as random
from weft.dtypes import *
from weft.export import *
from weft.formatting import *
from weft.inspection.dot import export_to_dot as export_to_dot
from weft.inspection.profile import profile as profile
from weft.io import *
from weft.ops import *
from weft.ops.construction import asarray as asarray
from weft.ops.construction import from_dlpack as from_dlpack
from weft.runtime.devices import *
from weft.runtime.memory_use import *
from weft.transforms import *

# The version of MLX whose names and behaviour these are. Weft's own version is `weft.__version__`.
__version__ = "0.32.4"
__array_api_version__ = _array_standard.API_VERSION
__array_namespace_info__ = _array_standard.namespace_info

# The name in the array API standard.
bool = _dtypes.bool_

if not _typing.TYPE_CHECKING:  # mypy understands only literal lists, and treats names imported by * as public
    # With `bool` in the list, * would replace Python's `bool`.
    __all__ = [name for name in dir() if not name.startswith("_") and name != "bool"]
