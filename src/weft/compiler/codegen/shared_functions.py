"""Functions that generated code calls, as LLVM IR: compiled once and cached, not once in each module.

Some compute, in one lane, what vectors cannot do well and few arguments need. Others convert between float16 and
float32 on processors without such instructions; they have the names by which LLVM's code calls them. Importing this
module does not load LLVM: `loading` also links code from the disk cache with these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from weft.compiler.codegen import attached_calls
from weft.compiler.codegen.attached_calls import CALL_ATTACHED


class SharedModule(NamedTuple):
    """A module that defines ``functions``; ``text`` gives its LLVM IR."""

    functions: tuple[str, ...]
    text: Callable[[], str]


# To float16, rounding to nearest, ties to even: for numbers from 2**-14 on by integer arithmetic on their bits. A
# smaller one is counted in units of 2**-24, and adding 2**23 leaves the rounded count in the last bits. To float32,
# which is exact: a subnormal number is a count of units of 2**-24.
_HALF_CONVERSIONS = """
define half @__truncsfhf2(float %x) {
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %sign = and i32 %high, 32768
  %size = and i32 %bits, 2147483647
  %payload = lshr i32 %size, 13
  %quiet = or i32 %payload, 32256
  %nan = and i32 %quiet, 32767
  %rebased = sub i32 %size, 939524096
  %last = and i32 %payload, 1
  %bias = add i32 %last, 4095
  %above = add i32 %rebased, %bias
  %normal = lshr i32 %above, 13
  %magnitude = bitcast i32 %size to float
  %units = fmul float %magnitude, 0x4170000000000000
  %aligned = fadd float %units, 0x4160000000000000
  %small_bits = bitcast float %aligned to i32
  %small = sub i32 %small_bits, 1258291200
  %is_small = icmp ult i32 %size, 947912704
  %is_large = icmp uge i32 %size, 1199570944
  %is_nan = icmp ugt i32 %size, 2139095040
  %finite = select i1 %is_small, i32 %small, i32 %normal
  %bounded = select i1 %is_large, i32 31744, i32 %finite
  %chosen = select i1 %is_nan, i32 %nan, i32 %bounded
  %signed = or i32 %chosen, %sign
  %narrow = trunc i32 %signed to i16
  %result = bitcast i16 %narrow to half
  ret half %result
}

define float @__extendhfsf2(half %x) {
  %narrow = bitcast half %x to i16
  %bits = zext i16 %narrow to i32
  %high = and i32 %bits, 32768
  %sign = shl i32 %high, 16
  %size = and i32 %bits, 32767
  %shifted = shl i32 %size, 13
  %normal = add i32 %shifted, 939524096
  %infinite = or i32 %shifted, 2139095040
  %payload = and i32 %size, 1023
  %is_nan = icmp ugt i32 %size, 31744
  %quiet = select i1 %is_nan, i32 4194304, i32 0
  %special = or i32 %infinite, %quiet
  %count = uitofp i32 %payload to float
  %units = fmul float %count, 0x3E70000000000000
  %small = bitcast float %units to i32
  %is_small = icmp ult i32 %size, 1024
  %is_special = icmp uge i32 %size, 31744
  %finite = select i1 %is_small, i32 %small, i32 %normal
  %chosen = select i1 %is_special, i32 %special, i32 %finite
  %signed = or i32 %chosen, %sign
  %result = bitcast i32 %signed to float
  ret float %result
}
"""

# floor(2^1168 / (2 pi)), stored as a little-endian number of 1280 bits. These are enough digits for every float64.
TURNS_PER_RADIAN = int(
    "638050520329280541442549785977855430924667521455026122341735887656403248778511004975682600598306791973605962742947"
    "290906667561641826797651980610103967072641407020052901183047408554003593085701891127593580980674341927650360189213"
    "500214895917555439753703820147578195947879378846111230665542312287415350592057228126411488831169222011019010813288"
    "098436480"
)


_WRAP_ANGLE = (
    f"@weft.wrap_angle.digits = internal constant i1280 {TURNS_PER_RADIAN}, align 8"
    """
define double @weft.wrap_angle(double %x, double %quarters, double %rest) nounwind {
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

# An angle in [-pi/2, pi/2] that has the sine of x plus some quarter turns, for finite x beyond 2^16. With an integer m,
# x is m 2^e / (2 pi) turns: the 192 bits of 2^e / (2 pi) after the binary point times m, modulo 2^192, are the
# fraction of a turn to more than 130 bits. An angle beyond a quarter of a turn is mirrored, as sin(pi - a) = sin(a),
# and the result is converted to radians by a product of pairs. If the third argument is not zero, the result is the
# rounding error of the angle instead.
WRAP_ANGLE = "weft.wrap_angle"

_REMAINDER = """
define double @weft.remainder(double %x, double %y) nounwind {
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

# C's fmod for finite x >= y > 0, by long division of the fractions, eleven bits in each step.
REMAINDER = "weft.remainder"

MODULES = (
    SharedModule(("__truncsfhf2", "__extendhfsf2"), lambda: _HALF_CONVERSIONS),
    SharedModule((WRAP_ANGLE,), lambda: _WRAP_ANGLE),
    SharedModule((REMAINDER,), lambda: _REMAINDER),
    SharedModule((CALL_ATTACHED,), attached_calls.text),
)
