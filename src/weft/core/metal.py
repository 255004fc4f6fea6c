"""Apple GPUs: ``mx.metal``. Weft has no backend for them.

Older programs find functions for memory and devices here. They call those of ``mx``, with a ``DeprecationWarning``.
"""

import typing as _typing
import warnings as _warnings

from weft.runtime import devices as _devices
from weft.runtime import memory_use as _memory_use

__all__ = ["is_available", "start_capture", "stop_capture"]

_FORMER = {name: _memory_use for name in _memory_use.__all__ if name != "get_memory_limit"}
_FORMER["device_info"] = _devices
"""Functions that were here in earlier versions of MLX, and their present places."""


def is_available() -> bool:
    """Whether arrays can be computed on an Apple GPU, which is False.

    >>> mx.metal.is_available()
    False
    """
    return False


def start_capture(path: str) -> None:
    """Does nothing: in MLX it records the work of an Apple GPU. `weft.profile` records that of Weft.

    Args:
        path (str): the name of the file; none is written.

    >>> mx.metal.start_capture("trace.gputrace")
    """


def stop_capture() -> None:
    """Does nothing, like `start_capture`.

    >>> mx.metal.stop_capture()
    """


def __getattr__(name: str) -> _typing.Any:
    if name not in _FORMER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _warnings.warn(f"mx.metal.{name} is an old name of mx.{name}", DeprecationWarning, stacklevel=2)
    return getattr(_FORMER[name], name)
