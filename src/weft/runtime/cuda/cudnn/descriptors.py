"""cuDNN's graph interface: descriptors with numbered attributes, made from descriptions that are plain data.

NVIDIA's header ``cudnn_graph.h`` lists all numbers. Here are those that Weft uses; they are the same in all versions 9.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from weft.errors import EvaluationError
from weft.runtime.cuda.shared_libraries import CUDNN, Signatures

_Pointer = ctypes.c_void_p
_Int, _Long = ctypes.c_int, ctypes.c_int64
_TEXT = 1024
"""The length of the buffer for an error's description."""


class DescriptorKind(IntEnum):
    """What a descriptor describes."""

    POINTWISE_MODE = 0
    GEOMETRY = 1
    ENGINE = 2
    ENGINE_CONFIGURATION = 3
    HEURISTICS = 4
    PLAN = 5
    CONVOLUTION = 10
    CONVOLUTION_WEIGHTS = 11
    CONVOLUTION_ARRAY = 12
    POINTWISE = 13
    GRAPH = 15
    VARIANT_PACK = 16
    TENSOR = 17
    PRODUCT_MODE = 18
    PRODUCT = 19
    REDUCTION_MODE = 21
    REDUCTION = 22
    RESHAPE = 31


class Attribute(IntEnum):
    """Attributes of descriptors."""

    POINTWISE_MODE = 0
    POINTWISE_COMPUTES_IN = 1
    POINTWISE_AXIS = 9
    GEOMETRY_COMPUTES_IN = 100
    GEOMETRY_MODE = 101
    GEOMETRY_SPACINGS = 102
    GEOMETRY_STRIDES = 103
    GEOMETRY_PADS_BEHIND = 104
    GEOMETRY_PADS_BEFORE = 105
    GEOMETRY_AXES = 106
    HEURISTICS_MODE = 200
    HEURISTICS_GRAPH = 201
    HEURISTICS_CONFIGURATIONS = 202
    CONFIGURATION_ENGINE = 300
    PLAN_HANDLE = 400
    PLAN_CONFIGURATION = 401
    PLAN_SCRATCH = 402
    CONVOLUTION_ALPHA = 700
    CONVOLUTION_BETA = 701
    CONVOLUTION_GEOMETRY = 702
    CONVOLUTION_W = 703
    CONVOLUTION_X = 704
    CONVOLUTION_Y = 705
    ARRAY_ALPHA = 706
    ARRAY_BETA = 707
    ARRAY_GEOMETRY = 708
    ARRAY_W = 709
    ARRAY_DX = 710
    ARRAY_DY = 711
    WEIGHTS_ALPHA = 712
    WEIGHTS_BETA = 713
    WEIGHTS_GEOMETRY = 714
    WEIGHTS_DW = 715
    WEIGHTS_X = 716
    WEIGHTS_DY = 717
    POINTWISE_OPERATION = 750
    POINTWISE_X = 751
    POINTWISE_B = 752
    POINTWISE_Y = 753
    POINTWISE_T = 758
    GRAPH_HANDLE = 800
    GRAPH_OPERATIONS = 801
    TENSOR_ALIGNMENT = 900
    TENSOR_DTYPE = 901
    TENSOR_SHAPE = 902
    TENSOR_STRIDES = 903
    TENSOR_IDENTIFIER = 906
    TENSOR_IS_INSIDE = 907
    TENSOR_IS_NUMBER = 908
    PACK_IDENTIFIERS = 1000
    PACK_ADDRESSES = 1001
    PACK_SCRATCH = 1003
    ENGINE_NOTES = 1303
    PRODUCT_COMPUTES_IN = 1500
    PRODUCT_LEFT = 1520
    PRODUCT_RIGHT = 1521
    PRODUCT_RESULT = 1522
    PRODUCT_MODE = 1523
    REDUCTION_OPERATOR = 1600
    REDUCTION_COMPUTES_IN = 1601
    REDUCTION_X = 1610
    REDUCTION_Y = 1611
    REDUCTION_MODE = 1612
    RESHAPE_X = 2200
    RESHAPE_Y = 2201


class Of(IntEnum):
    """Types of attributes' values."""

    HANDLE = 0
    DATA_TYPE = 1
    BOOLEAN = 2
    INT64 = 3
    FLOAT = 4
    DOUBLE = 5
    POINTER = 6
    CONVOLUTION_MODE = 7
    HEURISTICS_MODE = 8
    NUMERICAL_NOTE = 11
    POINTWISE_MODE = 14
    DESCRIPTOR = 15
    REDUCTION_OPERATOR = 18
    INT32 = 23


ELEMENTS: dict[Of, Any] = {
    Of.HANDLE: _Pointer,
    Of.BOOLEAN: ctypes.c_bool,
    Of.INT32: ctypes.c_int32,
    Of.INT64: _Long,
    Of.FLOAT: ctypes.c_float,
    Of.DOUBLE: ctypes.c_double,
    Of.POINTER: _Pointer,
    Of.DESCRIPTOR: _Pointer,
}
"""The ctypes of values; those of enumerations are ``int``."""

SIGNATURES: Signatures = {
    "cudnnGetLastErrorString": (_Pointer, ctypes.c_size_t),
    "cudnnCreate": (_Pointer,),
    "cudnnSetStream": (_Pointer, _Pointer),
    "cudnnBackendCreateDescriptor": (_Int, _Pointer),
    "cudnnBackendDestroyDescriptor": (_Pointer,),
    "cudnnBackendSetAttribute": (_Pointer, _Int, _Int, _Long, _Pointer),
    "cudnnBackendFinalize": (_Pointer,),
    "cudnnBackendGetAttribute": (_Pointer, _Int, _Int, _Long, _Pointer, _Pointer),
    "cudnnBackendExecute": (_Pointer, _Pointer, _Pointer),
}


Described = tuple[Attribute, Of, tuple[Any, ...]]
"""An attribute, the type of its values, and the values, which may be descriptions."""


class DescriptorContent(NamedTuple):
    """The contents of a descriptor. Equal contents give one descriptor within a graph."""

    kind: DescriptorKind
    attributes: tuple[Described, ...]


class CudnnError(EvaluationError):
    """cuDNN reported an error."""


class CudnnMemoryError(CudnnError, MemoryError):
    """cuDNN has too little memory for what it needs besides arrays."""


class Descriptor:
    """A descriptor of cuDNN, destroyed with this object. ``ctypes`` passes it as its native handle."""

    def __init__(self, library: Library, kind: DescriptorKind) -> None:
        made = _Pointer()
        library.call("cudnnBackendCreateDescriptor", kind, ctypes.byref(made))
        self._as_parameter_ = made
        self._library = library
        self.used: list[Descriptor] = []
        """The descriptors that it refers to, which must live as long."""

    def set(self, attribute: Attribute, of: Of, *values: Any) -> Descriptor:
        given = [value.address if isinstance(value, Descriptor) else value for value in values]
        self.used += [value for value in values if isinstance(value, Descriptor)]
        elements = (ELEMENTS.get(of, _Int) * len(given))(*given)
        self._library.call("cudnnBackendSetAttribute", self, attribute, of, len(given), elements)
        return self

    def finalized(self) -> Descriptor:
        """The descriptor itself, after which it cannot be changed."""
        self._library.call("cudnnBackendFinalize", self)
        return self

    def get(self, attribute: Attribute, of: Of, most: int = 1) -> list[Any]:
        """The values of an attribute, at most ``most``."""
        elements, count = (ELEMENTS.get(of, _Int) * most)(), _Long()
        self._library.call("cudnnBackendGetAttribute", self, attribute, of, most, ctypes.byref(count), elements)
        return list(elements[: min(count.value, most)])

    def get_descriptors(self, attribute: Attribute, kind: DescriptorKind, most: int) -> list[Descriptor]:
        """The descriptors that are the values of an attribute, at most ``most``."""
        found = [Descriptor(self._library, kind) for _ in range(most)]
        elements, count = (_Pointer * most)(*[one.address for one in found]), _Long()
        self._library.call(
            "cudnnBackendGetAttribute", self, attribute, Of.DESCRIPTOR, most, ctypes.byref(count), elements
        )
        return found[: min(count.value, most)]

    @property
    def address(self) -> int:
        return self._as_parameter_.value or 0

    def __del__(self) -> None:
        made = getattr(self, "_as_parameter_", None)
        if made is not None:
            self._library.functions["cudnnBackendDestroyDescriptor"](made)


class Library:
    """The functions of cuDNN."""

    def __init__(self, functions: Mapping[str, Callable[..., int]]) -> None:
        self.functions = functions

    def call(self, name: str, *arguments: Any) -> None:
        self.check(self.functions[name](*arguments), name)

    def check(self, code: int, called: str) -> None:
        """Raise the error of a code other than 0."""
        if code:
            name = CUDNN.text("cudnnGetErrorString", code)
            kind = CudnnMemoryError if name.endswith("ALLOCATION_FAILED") else CudnnError  # numbers differ by version
            raise kind(f"{name}: {self._last_error()} (reported by {called})")

    def _last_error(self) -> str:
        text = ctypes.create_string_buffer(_TEXT)
        self.functions["cudnnGetLastErrorString"](text, _TEXT)
        return text.value.decode(errors="replace")

    def handle(self) -> int:
        """A new handle, whose work goes to the default stream."""
        made = _Pointer()
        self.call("cudnnCreate", ctypes.byref(made))
        return made.value or 0

    def made(self, description: DescriptorContent, known: dict[DescriptorContent, Descriptor]) -> Descriptor:
        """The descriptor of a description; ``known`` has those that were made for the same graph."""
        found = known.get(description)
        if found is None:
            found = Descriptor(self, description.kind)
            for attribute, of, values in description.attributes:
                found.set(
                    attribute, of, *[self.made(x, known) if isinstance(x, DescriptorContent) else x for x in values]
                )
            known[description] = found.finalized()
        return found
