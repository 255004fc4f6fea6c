"""The public namespace, ``import weft.core as mx``: arrays, functions on them, transformations of functions.

Each module lists its public names in ``__all__``; only those that are imported later are listed again here.
"""

import importlib as _importlib
import typing as _typing

import weft.dtypes as _dtypes
import weft.ops.array_standard as _array_standard
from weft.array import *
from weft.dtypes import *
from weft.formatting import *
from weft.inspection.dot import export_to_dot as export_to_dot
from weft.ops import *
from weft.ops.construction import asarray as asarray
from weft.ops.construction import from_dlpack as from_dlpack
from weft.runtime.devices import *
from weft.runtime.memory_use import *
from weft.transforms import *

if _typing.TYPE_CHECKING:
    from weft.core import cuda as cuda
    from weft.core import distributed as distributed
    from weft.core import fast as fast
    from weft.core import fft as fft
    from weft.core import linalg as linalg
    from weft.core import metal as metal
    from weft.core import random as random
    from weft.export import *
    from weft.inspection.profile import profile as profile
    from weft.io import *

# The version of MLX whose names and behaviour these are. Weft's own version is `weft.__version__`.
__version__ = "0.32.4"
__array_api_version__ = _array_standard.API_VERSION
__array_namespace_info__ = _array_standard.namespace_info

# The name in the array API standard.
bool = _dtypes.bool_

_MODULES = ("cuda", "distributed", "fast", "fft", "linalg", "metal", "random")
_FUNCTIONS = {
    "weft.export": ("FunctionExporter", "export_function", "exporter", "import_function"),
    "weft.inspection.profile": ("profile",),
    "weft.io": ("load", "save", "save_gguf", "save_safetensors", "savez", "savez_compressed"),
}
_LATER = {name: f"{__name__}.{name}" for name in _MODULES}
_LATER |= {name: module for module, names in _FUNCTIONS.items() for name in names}
"""Names that many programs do not use, and the modules that define them. Each is imported when it is used first."""


if not _typing.TYPE_CHECKING:  # mypy understands only literal lists, and treats names imported by * as public

    def __getattr__(name: str) -> _typing.Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = _importlib.import_module(_LATER[name])
        return globals().setdefault(name, module if name in _MODULES else getattr(module, name))

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LATER})

    # With `bool` in the list, * would replace Python's `bool`.
    __all__ = [name for name in __dir__() if not name.startswith("_") and name != "bool"]
