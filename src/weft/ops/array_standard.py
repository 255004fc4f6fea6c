"""The inspection functions of the Python array API standard.

https://data-apis.org/array-api/2024.12/API_specification/inspection.html
"""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft.dtypes import ALL_DTYPES, Dtype, bfloat16, complex64, float16, float32, int32, isdtype, uint32
from weft.graph.node import wrap
from weft.ops.arguments import Array
from weft.ops.entrance import call_on
from weft.runtime.available import is_available
from weft.runtime.device import as_device
from weft.runtime.devices import Device, DeviceType, cpu, default_device

__all__ = ["API_VERSION", "API_VERSIONS", "NamespaceInfo", "namespace_info", "on_device"]

API_VERSION = "2024.12"
API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")

_IN_STANDARD = tuple(dtype for dtype in ALL_DTYPES if dtype not in (float16, bfloat16))


class NamespaceInfo:
    """Facts about `weft.core` for programs that are written for every array library."""

    __module__ = "weft.core"

    def capabilities(self) -> dict[str, Any]:
        """The optional parts of the standard that are supported. Where shapes depend on values, masks are evaluated.

        >>> mx.__array_namespace_info__().capabilities()["data-dependent shapes"]
        True
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> Device:
        """The device of arrays for which none is named."""
        return default_device()

    def devices(self) -> list[Device]:
        """The devices that are available."""
        return [Device(kind, 0) for kind in DeviceType if is_available(kind)]

    def default_dtypes(self, *, device: Device | DeviceType | None = None) -> dict[str, Dtype]:
        """The dtypes of results for which none is named; "indexing" is that of `mx.argmax` and others.

        >>> mx.__array_namespace_info__().default_dtypes()["integral"]
        weft.core.int32
        """
        _known(device)
        return {"real floating": float32, "complex floating": complex64, "integral": int32, "indexing": uint32}

    def dtypes(
        self, *, device: Device | DeviceType | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, Dtype]:
        """The dtypes of the standard that a device supports, by name; all but complex128.

        Args:
            kind: restrict to these kinds, as in `mx.isdtype`.

        Raises:
            ValueError: there is no such kind.

        >>> mx.__array_namespace_info__().dtypes(kind="real floating")
        {'float32': weft.core.float32, 'float64': weft.core.float64}
        """
        _known(device)
        return {dtype.name: dtype for dtype in _IN_STANDARD if kind is None or isdtype(dtype, kind)}


def _known(device: Device | DeviceType | None) -> Device:
    return Device(cpu) if device is None else as_device(device)


def namespace_info() -> NamespaceInfo:
    """Facts about this namespace: its devices, dtypes, defaults and capabilities.

    >>> mx.__array_namespace_info__().default_dtypes()["real floating"]
    weft.core.float32
    """
    return NamespaceInfo()


def on_device(x: Array, device: Device, stream: Any) -> Array:
    """The same elements on ``device``, copied by a stream of it unless they are there."""
    if stream is None and x.device == device:
        return wrap(x.node)
    return call_on(device if stream is None else stream, p.copy, x)
