"""Whether there is an NVIDIA GPU."""

from weft.runtime.available import engine_at
from weft.runtime.devices import Device, gpu

__all__ = ["is_available"]


def is_available() -> bool:
    """Whether arrays can be computed on an NVIDIA GPU.

    >>> mx.cuda.is_available() == mx.is_available(mx.gpu)
    True
    """
    return engine_at(Device(gpu)) is not None
