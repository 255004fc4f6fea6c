"""Loads and stores of lanes: contiguous, strided or at computed locations, possibly masked."""

from __future__ import annotations

from typing import Any

from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import HALVES, REGISTER_TYPES, Lanes
from weft.compiler.codegen.values import Complex, Value
from weft.compiler.kernel import VIRTUAL_LANES
from weft.dtypes import Dtype

MEMORY_TYPES = {
    **REGISTER_TYPES,
    dtypes.bool_: "i8",
    dtypes.float16: "i16",
    dtypes.bfloat16: "i16",
    dtypes.complex64: "i64",
}
STREAM_ALIGNMENT = 64
"""Streamed stores are aligned to this many bytes, or to those of `VIRTUAL_LANES` lanes if these are fewer."""
ALL_LANES = "splat (i1 true)"
"""The mask of all lanes of a vector."""
SUFFIXES = {"i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "float": "f32", "double": "f64"}


class Location:
    """Where an access goes: ``index`` is the number of elements from ``base``, in a register, or a vector of such
    numbers, of type ``number``, if ``scattered``. ``alignment`` is that of the first lane in bytes, if it is known to
    be more than an element's."""

    __slots__ = ("alignment", "base", "index", "number", "scattered")

    def __init__(self, base: str, index: str, scattered: bool, alignment: int = 0, number: str = "i64") -> None:
        self.base, self.index, self.scattered, self.alignment = base, index, scattered, alignment
        self.number = number


def element_pointer(L: Lanes, location: Location, element: str) -> str:
    index = f"<{L.width} x {location.number}>" if location.scattered else "i64"
    return L.emitter.assign(f"getelementptr {element}, ptr {location.base}, {index} {location.index}")


def load(L: Lanes, dtype: Dtype, location: Location, mask: str | None) -> Any:
    """The value of ``dtype`` at a location, in as many lanes as ``L`` has. Lanes outside of ``mask`` are zero and do
    not access memory."""
    return from_memory(L, image(L, dtype, location, mask), dtype)


def image(L: Lanes, dtype: Dtype, location: Location, mask: str | None) -> str:
    """What `load` reads, with the type that it has in memory."""
    element = MEMORY_TYPES[dtype]
    type_ = f"<{L.width} x {element}>" if L.width > 1 else element
    pointer = element_pointer(L, location, element)
    if L.width == 1:
        return load_if(L.emitter, type_, pointer, dtype_alignment(dtype), mask)
    if location.scattered:
        return _gather(L, dtype, type_, pointer, mask or ALL_LANES)
    if mask is None:
        align = max(location.alignment, dtype_alignment(dtype))
        return L.emitter.assign(f"load {type_}, ptr {pointer}, align {align}")
    return masked_load(L, dtype, type_, pointer, mask)


def load_near(L: Lanes, dtype: Dtype, location: Location, stride: int, where: str | None) -> Any:
    """Elements that are ``stride`` apart, from a location of one lane on, or before it if that is negative; zero if
    ``where`` is false. All elements between them are read, and none beyond the last one."""
    e, element = L.emitter, MEMORY_TYPES[dtype]
    type_ = f"<{L.width} x {element}>"
    if where is None:
        return from_memory(L, _near(L, dtype, location, stride), dtype)
    slot = e.slot(type_)
    e.store(type_, "zeroinitializer", slot)
    with e.when(where):
        e.store(type_, _near(L, dtype, location, stride), slot)
    return from_memory(L, e.load(type_, slot), dtype)


def _near(L: Lanes, dtype: Dtype, location: Location, stride: int) -> str:
    """As many vectors as the stride, of which the last one begins earlier than behind the one before, with their lanes
    that are wanted joined to one vector. If the stride is negative, they are those of the last lane on, reversed."""
    e, width, element = L.emitter, L.width, MEMORY_TYPES[dtype]
    type_, first = f"<{width} x {element}>", element_pointer(L, location, element)
    if stride < 0:
        last = Location(first, str(stride * (width - 1)), False)
        order = ", ".join([f"i32 {lane}" for lane in reversed(range(width))])
        joined = _near(L, dtype, last, -stride)
        return e.assign(f"shufflevector {type_} {joined}, {type_} poison, <{width} x i32> <{order}>")
    found = "poison"
    for number in range(stride):
        start = min(number * width, stride * (width - 1) - (width - 1))
        pointer = e.assign(f"getelementptr {element}, ptr {first}, i64 {start}")
        vector = e.assign(f"load {type_}, ptr {pointer}, align {dtype_alignment(dtype)}")
        known = -(-number * width // stride)  # the first lane that is in no vector before
        chosen = [lane if lane < known else width + stride * lane - start for lane in range(width)]
        lanes = ", ".join([f"i32 {lane if lane < 2 * width else 'poison'}" for lane in chosen])
        found = e.assign(f"shufflevector {type_} {found}, {type_} {vector}, <{width} x i32> <{lanes}>")
    return found


def load_if(e: Emitter, type_: str, pointer: str, align: int, mask: str | None) -> str:
    """The element of one lane; zero if ``mask`` is false. Then memory is not accessed, and need not exist."""
    if mask is None:
        return e.assign(f"load {type_}, ptr {pointer}, align {align}")
    slot = e.slot(type_)
    e.store(type_, "zeroinitializer", slot)
    with e.when(mask):
        e.store(type_, e.assign(f"load {type_}, ptr {pointer}, align {align}"), slot)
    return e.load(type_, slot)


def store(L: Lanes, value: Any, dtype: Dtype, location: Location, mask: str | None, streamed: bool = False) -> None:
    """Write ``value`` to a location, in the lanes of ``mask``. If ``streamed``, the store goes past the caches."""
    element = MEMORY_TYPES[dtype]
    type_ = f"<{L.width} x {element}>" if L.width > 1 else element
    raw = to_memory(L, value, dtype)
    pointer = element_pointer(L, location, element)
    align = max(location.alignment, dtype_alignment(dtype))
    if L.width == 1:
        if mask is None:
            L.emitter.emit(f"store {type_} {raw}, ptr {pointer}, align {align}")
            return
        with L.emitter.when(mask):
            L.emitter.emit(f"store {type_} {raw}, ptr {pointer}, align {align}")
        return
    masks = f"<{L.width} x i1>"
    suffix = f"v{L.width}{SUFFIXES[element]}"
    if location.scattered:
        pointers = f"<{L.width} x ptr>"
        function = f"llvm.masked.scatter.{suffix}.v{L.width}p0"
        L.emitter.declarations[function] = f"declare void @{function}({type_}, {pointers}, i32, {masks})"
        L.emitter.emit(
            f"call void @{function}({type_} {raw}, {pointers} {pointer}, i32 {align}, {masks} {mask or ALL_LANES})"
        )
    elif mask is None and streamed:
        align = min(VIRTUAL_LANES * dtype.size, STREAM_ALIGNMENT)
        L.emitter.emit(f"store {type_} {raw}, ptr {pointer}, align {align}, !nontemporal !0")
    elif mask is None:
        L.emitter.emit(f"store {type_} {raw}, ptr {pointer}, align {align}")
    else:
        function = f"llvm.masked.store.{suffix}.p0"
        L.emitter.declarations[function] = f"declare void @{function}({type_}, ptr, i32, {masks})"
        L.emitter.emit(f"call void @{function}({type_} {raw}, ptr {pointer}, i32 {align}, {masks} {mask})")


def store_near(L: Lanes, value: Any, dtype: Dtype, location: Location, stride: int) -> None:
    """Write lanes that are ``stride`` elements apart, from a location of one lane on, or before it if that is negative:
    by vectors with masks."""
    e, width, element = L.emitter, L.width, MEMORY_TYPES[dtype]
    type_, masks = f"<{width} x {element}>", f"<{width} x i1>"
    function = f"llvm.masked.store.v{width}{SUFFIXES[element]}.p0"
    e.declarations[function] = f"declare void @{function}({type_}, ptr, i32, {masks})"
    raw, first = to_memory(L, value, dtype), element_pointer(L, location, element)
    lanes = list(range(width))
    if stride < 0:
        first = e.assign(f"getelementptr {element}, ptr {first}, i64 {stride * (width - 1)}")
        stride, lanes = -stride, lanes[::-1]
    for number in range(stride):
        places = range(number * width, (number + 1) * width)
        order = ", ".join([f"i32 {'poison' if place % stride else lanes[place // stride]}" for place in places])
        mask = ", ".join([f"i1 {'false' if place % stride else 'true'}" for place in places])
        vector = e.assign(f"shufflevector {type_} {raw}, {type_} poison, <{width} x i32> <{order}>")
        pointer = e.assign(f"getelementptr {element}, ptr {first}, i64 {number * width}")
        align = dtype_alignment(dtype)
        e.emit(f"call void @{function}({type_} {vector}, ptr {pointer}, i32 {align}, {masks} <{mask}>)")


def masks_stores_slowly() -> bool:
    """Whether the processor has no masks of lanes for stores, or takes long for one, as AMD's with AVX2 do."""
    return "+avx512vl" not in host.current().features.split(",")


def store_first(L: Lanes, value: Any, dtype: Dtype, location: Location, count: str) -> None:
    """Write the first ``count`` lanes, which are not all, to a location that is not scattered: of 16 lanes 8 if there
    are so many, then 4, 2 and 1 of those that are left."""
    e, element = L.emitter, MEMORY_TYPES[dtype]
    target, lanes = element_pointer(L, location, element), e.slot(f"[{L.width} x {element}]")
    align = dtype_alignment(dtype)
    e.emit(f"store <{L.width} x {element}> {to_memory(L, value, dtype)}, ptr {lanes}, align {align}")
    size = L.width // 2
    while size:
        written = e.assign(f"and i64 {count}, {L.width - 2 * size}")
        with e.when(e.assign(f"icmp ne i64 {e.assign(f'and i64 {count}, {size}')}, 0")):
            type_ = f"<{size} x {element}>"
            source, place = (e.assign(f"getelementptr {element}, ptr {at}, i64 {written}") for at in (lanes, target))
            part = e.assign(f"load {type_}, ptr {source}, align {align}")
            e.emit(f"store {type_} {part}, ptr {place}, align {align}")
        size //= 2


def _gather(L: Lanes, dtype: Dtype, type_: str, pointer: str, mask: str) -> str:
    pointers, masks = f"<{L.width} x ptr>", f"<{L.width} x i1>"
    function = f"llvm.masked.gather.v{L.width}{SUFFIXES[MEMORY_TYPES[dtype]]}.v{L.width}p0"
    L.emitter.declarations[function] = f"declare {type_} @{function}({pointers}, i32, {masks}, {type_})"
    align = dtype_alignment(dtype)
    return L.emitter.assign(
        f"call {type_} @{function}({pointers} {pointer}, i32 {align}, {masks} {mask}, {type_} zeroinitializer)"
    )


def masked_load(L: Lanes, dtype: Dtype, type_: str, pointer: str, mask: str) -> str:
    masks = f"<{L.width} x i1>"
    function = f"llvm.masked.load.v{L.width}{SUFFIXES[MEMORY_TYPES[dtype]]}.p0"
    L.emitter.declarations[function] = f"declare {type_} @{function}(ptr, i32, {masks}, {type_})"
    align = dtype_alignment(dtype)
    return L.emitter.assign(
        f"call {type_} @{function}(ptr {pointer}, i32 {align}, {masks} {mask}, {type_} zeroinitializer)"
    )


def dtype_alignment(dtype: Dtype) -> int:
    return 4 if dtype.is_complex else dtype.size


def from_memory(L: Lanes, raw: str, dtype: Dtype) -> Any:
    """A value from a register that has the type in memory."""
    if dtype.is_bool:
        return L.not_equal(Value(L, raw, dtypes.uint8), 0)
    if dtype in HALVES:
        return L.half_from_bits(Value(L, raw, dtypes.uint16), dtype)
    if dtype.is_complex:
        bits = Value(L, raw, dtypes.uint64)
        low, high = L.convert(bits, dtypes.uint32), L.convert(bits >> 32, dtypes.uint32)
        return Complex(L.bitcast(low, dtypes.float32), L.bitcast(high, dtypes.float32))
    return Value(L, raw, dtype)


def to_memory(L: Lanes, value: Any, dtype: Dtype) -> str:
    """A value converted to the type that it has in memory."""
    if dtype.is_bool:
        element = f"<{L.width} x i8>" if L.width > 1 else "i8"
        return L.emitter.assign(f"zext {L.type_of(dtype)} {value.name} to {element}")
    if dtype in HALVES:
        return L.half_to_bits(value).name
    if dtype.is_complex:
        low = L.convert(L.bitcast(value.real, dtypes.uint32), dtypes.uint64)
        high = L.convert(L.bitcast(value.imag, dtypes.uint32), dtypes.uint64)
        return (low | (high << 32)).name
    return str(value.name)
