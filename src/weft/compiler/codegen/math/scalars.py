"""For arguments that few lanes have: code that runs if any lane needs it, and calls of functions on single numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value


def call_each_lane(L: Lanes, function: str, *arguments: Value) -> Value:
    """Call one of the `shared_functions`, which take and return float64, for each lane."""
    emitter = L.emitter
    parameters = ", ".join(["double"] * len(arguments))
    emitter.declarations[function] = f"declare double @{function}({parameters}) cold nounwind"
    if L.width == 1:
        result = emitter.call(function, "double", [("double", x.name) for x in arguments])
        return Value(L, result, dtypes.float64)
    type_ = L.type_of(dtypes.float64)
    slots = [emitter.slot(type_) for _ in arguments]
    for x, slot in zip(arguments, slots, strict=True):
        emitter.store(type_, x.name, slot)
    with emitter.loop("0", str(L.width)) as lane:
        pointers = [emitter.assign(f"getelementptr double, ptr {slot}, i64 {lane}") for slot in slots]
        scalars = [("double", emitter.load("double", pointer)) for pointer in pointers]
        emitter.store("double", emitter.call(function, "double", scalars), pointers[0])
    return Value(L, emitter.load(type_, slots[0]), dtypes.float64)


def replace_lanes(
    L: Lanes, condition: Value, values: Sequence[Value], make: Callable[[Value], Sequence[Value]]
) -> list[Value]:
    """``values``, replaced where ``condition`` holds by what ``make(condition)`` emits. That code runs only if the
    condition holds in any lane."""
    emitter = L.emitter
    types = [L.type_of(value.dtype) for value in values]
    slots = [emitter.slot(type_) for type_ in types]
    for value, type_, slot in zip(values, types, slots, strict=True):
        emitter.store(type_, value.name, slot)
    with emitter.when(L.any_lane(condition)):
        for value, better, type_, slot in zip(values, make(condition), types, slots, strict=True):
            emitter.store(type_, L.select(condition, better, value).name, slot)
    return [
        Value(L, emitter.load(type_, slot), value.dtype)
        for value, type_, slot in zip(values, types, slots, strict=True)
    ]
