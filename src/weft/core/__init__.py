"""The public namespace, ``import weft.core as mx``: arrays, functions on them, transformations of functions.

Each module names in its ``__all__`` what is public; nothing is listed again here.
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

# Of MLX: the version whose names and behaviour these are. `weft.__version__` is Weft's own.
__version__ = "0.32.4"
__array_api_version__ = _array_standard.API_VERSION
__array_namespace_info__ = _array_standard.namespace_info

# A name of the standard.
bool = _dtypes.bool_

if not _typing.TYPE_CHECKING:  # mypy reads only literal lists, and takes whatever * imports for public
    # What * imports leaves Python's own `bool` alone, which is no function as `sum` is.
    __all__ = [name for name in dir() if not name.startswith("_") and name != "bool"]
