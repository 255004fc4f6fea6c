"""Conversions between float16 and float32 for processors without instructions for them, under the names by which LLVM's
code calls them."""

from __future__ import annotations

FUNCTIONS = ("__truncsfhf2", "__extendhfsf2")

# To float16, rounding to nearest, ties to even: numbers from 2**-14 on by integer arithmetic on their bits; smaller
# ones by adding 2**23 to the number of units of 2**-24, which leaves the rounded number of units in the last bits.
# To float32, which is exact: subnormal numbers are so many units of 2**-24.
TEXT = """
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
