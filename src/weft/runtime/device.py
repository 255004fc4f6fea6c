"""What names a device."""

from __future__ import annotations

import enum
from typing import final

from weft.checks import called, integer_of, wrong_type


class DeviceType(enum.Enum):
    """The kinds of devices.

    >>> mx.cpu
    DeviceType.cpu
    """

    cpu = 0
    gpu = 1

    def __repr__(self) -> str:
        return f"DeviceType.{self.name}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Device):
            return other.type is self and other.index == 0
        return self is other

    __hash__ = enum.Enum.__hash__


@final
class Device:
    """A processor of a kind: ``Device(mx.cpu, 0)``.

    >>> Device(DeviceType.cpu)
    Device(cpu, 0)
    """

    __slots__ = ("index", "type")

    def __init__(self, type: DeviceType, index: int = 0) -> None:
        if not isinstance(type, DeviceType):
            raise wrong_type("Device", "type", "mx.cpu or mx.gpu", type)
        self.type, self.index = type, integer_of("Device", "index", index)

    def __repr__(self) -> str:
        return f"Device({self.type.name}, {self.index})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DeviceType):
            return other is self.type and self.index == 0
        return isinstance(other, Device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))


cpu, gpu = DeviceType.cpu, DeviceType.gpu


def as_device(device: Device | DeviceType) -> Device:
    if isinstance(device, DeviceType):
        return Device(device)
    if isinstance(device, Device):
        return device
    raise wrong_type(called(), "device", "a device such as mx.cpu or mx.Device(mx.cpu, 0)", device)
