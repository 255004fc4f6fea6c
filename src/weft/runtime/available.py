"""The devices that are there, with the engine of each, and how they are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from weft.checks import called
from weft.runtime.device import Device, DeviceType, as_device, cpu, gpu
from weft.runtime.locks import fork_safe_lock

CPU = Device(cpu)

_engines: dict[Device, Any] = {}
"""The engines of the devices that are there, as far as anybody has asked."""
_told: list[Callable[[Any], None]] = []


def register_engine(engine: Any) -> None:
    """Make a device available: ``engine``, which names it, runs its work."""
    _engines[engine.device] = engine
    for function in _told:
        function(engine)


def tell(function: Callable[[Any], None]) -> None:
    """Call ``function`` with each engine that is registered from now on."""
    _told.append(function)


def forget_engine(engine: Any) -> None:
    """Make a device unavailable again, unless it is found again when somebody asks for it."""
    del _engines[engine.device]
    _searched.discard(engine.device.type)


class DeviceFinder(Protocol):
    """Finds the devices of a kind."""

    def engines(self) -> Sequence[Any]:
        """Their engines."""

    def reason(self) -> str:
        """Why there is none."""


_finders: dict[DeviceType, DeviceFinder] = {}
_searched: set[DeviceType] = set()
_searching = fork_safe_lock()


def find_with(kind: DeviceType, finder: DeviceFinder) -> None:
    """Find the devices of a kind with ``finder`` when they are first asked for: looking for them may take time and load
    libraries."""
    _finders[kind] = finder


def _search(kind: DeviceType) -> None:
    """Make the devices of a kind available, once. Devices that were registered before stay."""
    if kind in _searched or kind not in _finders:
        return
    with _searching:
        if kind not in _searched:
            for engine in _finders[kind].engines():
                if engine.device not in _engines:
                    register_engine(engine)
            _searched.add(kind)


def engine_at(device: Device) -> Any:
    """The engine of a device, None if it is not there."""
    engine = _engines.get(device)
    if engine is None:
        _search(device.type)
        engine = _engines.get(device)
    return engine


def is_available(device: Device | DeviceType) -> bool:
    """Whether a device is there.

    >>> is_available(cpu)
    True
    """
    return engine_at(as_device(device)) is not None


def device_count(device_type: DeviceType) -> int:
    """How many devices of a kind there are.

    >>> device_count(cpu)
    1
    """
    kind = as_device(device_type).type
    _search(kind)
    return sum([device.type is kind for device in _engines])


def has_one_device() -> bool:
    """Whether there is no other device than the CPU."""
    return not is_available(gpu) and len(_engines) == 1


def require(device: Device) -> None:
    """Raise an error if a device is not there."""
    if not is_available(device):
        raise ValueError(
            f"[{called()}] {device} is not available on this machine: {absent(device)}. Use mx.cpu, or ask "
            "mx.is_available first."
        )


def available(device: Device | DeviceType) -> Device:
    """A device that is there.

    Raises:
        ValueError: it is not.
    """
    device = as_device(device)
    require(device)
    return device


def absent(device: Device) -> str:
    """Why a device is not there."""
    others = [str(other) for other in _engines if other.type is device.type]
    if others:
        return f"there is only {' and '.join(others)}"
    found = _finders[device.type].reason() if device.type in _finders else ""
    return f"there is no GPU that Weft can use{': ' * bool(found)}{found}"
