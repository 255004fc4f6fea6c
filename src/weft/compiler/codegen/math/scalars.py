"""Functions of one lane, written as LLVM IR: what few arguments need and vectors cannot do well.

They join the module of the kernel that calls them, once, and take and give float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value


@dataclass(frozen=True)
class ScalarFunction:
    """An LLVM function from float64 numbers to one, and the text that defines it."""

    name: str
    definition: str


def call_each_lane(L: Lanes, function: ScalarFunction, *arguments: Value) -> Value:
    """Apply a scalar function to every lane of float64 values."""
    emitter = L.emitter
    emitter.declarations.setdefault(function.name, function.definition)
    if L.width == 1:
        result = emitter.call(function.name, "double", [("double", x.name) for x in arguments])
        return Value(L, result, dtypes.float64)
    type_ = L.type_of(dtypes.float64)
    slots = [emitter.slot(type_) for _ in arguments]
    for x, slot in zip(arguments, slots, strict=True):
        emitter.store(type_, x.name, slot)
    with emitter.loop("0", str(L.width)) as lane:
        places = [emitter.assign(f"getelementptr double, ptr {slot}, i64 {lane}") for slot in slots]
        scalars = [("double", emitter.load("double", place)) for place in places]
        emitter.store("double", emitter.call(function.name, "double", scalars), places[0])
    return Value(L, emitter.load(type_, slots[0]), dtypes.float64)


def replace_lanes(
    L: Lanes, condition: Value, values: Sequence[Value], make: Callable[[Value], Sequence[Value]]
) -> list[Value]:
    """``values``, but what ``make(condition)`` emits where ``condition`` holds: code that runs if any lane needs it."""
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


# floor(2^1168 / (2 pi)) as a little-endian number of 1280 bits: enough digits for every float64.
_DIGITS = int(
    "638050520329280541442549785977855430924667521455026122341735887656403248778511004975682600598306791973605962742947"
    "290906667561641826797651980610103967072641407020052901183047408554003593085701891127593580980674341927650360189213"
    "500214895917555439753703820147578195947879378846111230665542312287415350592057228126411488831169222011019010813288"
    "098436480"
)


_WRAP_ANGLE = (
    f"@weft.wrap_angle.digits = internal constant i1280 {_DIGITS}, align 8"
    """
define internal double @weft.wrap_angle(double %x, double %quarters, double %rest) cold noinline nounwind {
  %bits = bitcast double %x to i64
  %shifted = lshr i64 %bits, 52
  %field = and i64 %shifted, 2047
  %position = sub i64 2051, %field
  %missing = sub i64 0, %position
  %align = and i64 %missing, 7
  %aligned = add i64 %position, %align
  %byte = lshr i64 %aligned, 3
  %location = getelementptr i8, ptr @weft.wrap_angle.digits, i64 %byte
  %window = load i192, ptr %location, align 1
  %fraction = and i64 %bits, 4503599627370495
  %whole = or i64 %fraction, 4503599627370496
  %mantissa = shl i64 %whole, %align
  %m = zext i64 %mantissa to i192
  %product = mul i192 %window, %m
  %opposite = sub i192 0, %product
  %negative = icmp slt i64 %bits, 0
  %signed = select i1 %negative, i192 %opposite, i192 %product
  %count = fptoui double %quarters to i64
  %wide = zext i64 %count to i192
  %offset = shl i192 %wide, 190
  %turn = add i192 %signed, %offset
  %double = shl i192 %turn, 1
  %differ = xor i192 %turn, %double
  %far = icmp slt i192 %differ, 0
  %mirrored = sub i192 -3138550867693340381917894711603833208051177722232017256448, %turn
  %near = select i1 %far, i192 %mirrored, i192 %turn
  %below = icmp slt i192 %near, 0
  %inverted = sub i192 0, %near
  %size = select i1 %below, i192 %inverted, i192 %near
  %top = lshr i192 %size, 128
  %high = trunc i192 %top to i64
  %middle = lshr i192 %size, 64
  %low = trunc i192 %middle to i64
  %a = uitofp i64 %high to double
  %back = fptoui double %a to i64
  %lost = sub i64 %high, %back
  %b1 = sitofp i64 %lost to double
  %b2 = uitofp i64 %low to double
  %b3 = fmul double %b2, 0x3BF0000000000000
  %b = fadd double %b1, %b3
  %radians = fmul double %a, 3.4061215800865545e-19
  %minus = fneg double %radians
  %c1 = call double @llvm.fma.f64(double %a, double 3.4061215800865545e-19, double %minus)
  %c2 = call double @llvm.fma.f64(double %a, double 1.3277647201630000e-35, double %c1)
  %c3 = call double @llvm.fma.f64(double %b, double 3.4061215800865545e-19, double %c2)
  %sum = fadd double %radians, %c3
  %part = fsub double %sum, %radians
  %below_sum = fsub double %c3, %part
  %rest_wanted = fcmp une double %rest, 0.0
  %wanted = select i1 %rest_wanted, double %below_sum, double %sum
  %negated = fneg double %wanted
  %result = select i1 %below, double %negated, double %wanted
  ret double %result
}"""
)

# An angle in [-pi/2, pi/2] whose sine is that of x plus some quarter turns, for finite x beyond 2^16. In turns,
# x / (2 pi) = m 2^e / (2 pi) with an integer m: the 192 bits of 2^e / (2 pi) behind the binary point times m, modulo
# 2^192, are the fraction of a turn to more than 130 bits. An angle beyond a quarter of a turn is mirrored, as
# sin(pi - a) = sin(a), and the result becomes radians by a product of pairs. With a third argument other than zero it
# is what rounding the angle loses.
WRAP_ANGLE = ScalarFunction("weft.wrap_angle", _WRAP_ANGLE)

_REMAINDER = """
define internal double @weft.remainder(double %x, double %y) cold noinline nounwind {
entry:
  %xbits = bitcast double %x to i64
  %ybits = bitcast double %y to i64
  %xfield = lshr i64 %xbits, 52
  %yfield = lshr i64 %ybits, 52
  %xnormal = icmp ne i64 %xfield, 0
  %ynormal = icmp ne i64 %yfield, 0
  %xone = zext i1 %xnormal to i64
  %yone = zext i1 %ynormal to i64
  %xlead = shl i64 %xone, 52
  %ylead = shl i64 %yone, 52
  %xfraction = and i64 %xbits, 4503599627370495
  %yfraction = and i64 %ybits, 4503599627370495
  %xm = or i64 %xfraction, %xlead
  %ym = or i64 %yfraction, %ylead
  %xe = call i64 @llvm.umax.i64(i64 %xfield, i64 1)
  %ye = call i64 @llvm.umax.i64(i64 %yfield, i64 1)
  %apart = sub i64 %xe, %ye
  %first = urem i64 %xm, %ym
  br label %head
head:
  %left = phi i64 [ %apart, %entry ], [ %less, %body ]
  %m = phi i64 [ %first, %entry ], [ %next, %body ]
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %body, label %done
body:
  %step = call i64 @llvm.umin.i64(i64 %left, i64 11)
  %shifted = shl i64 %m, %step
  %next = urem i64 %shifted, %ym
  %less = sub i64 %left, %step
  br label %head
done:
  %rest = uitofp i64 %m to double
  %small = fmul double %rest, 0x3CB0000000000000
  %power = shl i64 %ye, 52
  %factor = bitcast i64 %power to double
  %result = fmul double %small, %factor
  ret double %result
}"""

# C's fmod for finite x >= y > 0, by long division of the fractions, eleven bits at a time.
REMAINDER = ScalarFunction("weft.remainder", _REMAINDER.strip())
