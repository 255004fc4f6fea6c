"""How much memory arrays take, and how much may be cached: on the default device, or another one."""

from __future__ import annotations

from weft.checks import integer_of
from weft.runtime.available import available
from weft.runtime.devices import Device, DeviceType, default_device
from weft.runtime.engine import engine_of
from weft.runtime.memory import Allocator

__all__ = [
    "clear_cache",
    "get_active_memory",
    "get_cache_memory",
    "get_memory_limit",
    "get_peak_memory",
    "reset_peak_memory",
    "set_cache_limit",
    "set_memory_limit",
    "set_wired_limit",
]


def _memory(device: Device | DeviceType | None) -> Allocator:
    return engine_of(default_device() if device is None else available(device)).memory


def get_active_memory(*, device: Device | DeviceType | None = None) -> int:
    """Bytes in use by arrays, on the default device unless another one is named.

    >>> a = mx.zeros((1024,))
    >>> mx.eval(a)
    >>> mx.get_active_memory() >= a.nbytes
    True
    """
    return _memory(device).active


def get_peak_memory(*, device: Device | DeviceType | None = None) -> int:
    """The most bytes that were in use by arrays since the start or the last `reset_peak_memory`, on the default device
    unless another one is named.

    >>> mx.get_peak_memory() >= mx.get_active_memory()
    True
    """
    return _memory(device).peak


def reset_peak_memory(*, device: Device | DeviceType | None = None) -> None:
    """Start measuring the peak of a device again, of the default one unless another one is named.

    >>> mx.reset_peak_memory()
    >>> mx.get_peak_memory() == mx.get_active_memory()
    True
    """
    _memory(device).peak = _memory(device).active


def get_cache_memory(*, device: Device | DeviceType | None = None) -> int:
    """Bytes that are cached, on the default device unless another one is named.

    >>> mx.clear_cache()
    >>> mx.get_cache_memory()
    0
    """
    return _memory(device).cached


def clear_cache(*, device: Device | DeviceType | None = None) -> None:
    """Return cached memory to the system, or to the driver of a GPU: that of the default device unless another
    one is named.

    >>> mx.clear_cache(device=mx.cpu)
    """
    _memory(device).clear()


def get_memory_limit(*, device: Device | DeviceType | None = None) -> int:
    """The limit in bytes above which cached memory is returned before more is taken, on the default device unless
    another one is named.

    >>> mx.get_memory_limit() > 0
    True
    """
    return _memory(device).memory_limit


def _bytes(name: str, limit: int) -> int:
    limit = integer_of(name, "limit", limit)
    if limit < 0:
        raise ValueError(f"[{name}] limit must not be negative; got {limit}.")
    return limit


def set_memory_limit(limit: int, *, device: Device | DeviceType | None = None) -> int:
    """Set the limit in bytes above which cached memory is returned before more is taken, on the default device unless
    another one is named; returns the old one.

    >>> before = set_memory_limit(1 << 30)
    >>> set_memory_limit(before) == 1 << 30
    True
    """
    before, _memory(device).memory_limit = _memory(device).memory_limit, _bytes("set_memory_limit", limit)
    return before


def set_cache_limit(limit: int, *, device: Device | DeviceType | None = None) -> int:
    """Set how many bytes are cached at most, on the default device unless another one is named; returns the old limit.
    Memory of arrays that ended is given back when the next array is made, or with `clear_cache`.

    >>> before = set_cache_limit(1 << 30)
    >>> set_cache_limit(before) == 1 << 30
    True
    """
    before, _memory(device).cache_limit = _memory(device).cache_limit, _bytes("set_cache_limit", limit)
    if _memory(device).cached > _memory(device).cache_limit:
        _memory(device).clear()
    return before


def set_wired_limit(limit: int) -> int:
    """Set how many bytes the system keeps resident for a GPU. This does nothing, because Weft wires no memory.

    `set_memory_limit` and `set_cache_limit` bound what is in use and what is cached.

    Returns:
        The limit before, which is 0.

    >>> mx.set_wired_limit(2**30)
    0
    """
    _bytes("set_wired_limit", limit)
    return 0
