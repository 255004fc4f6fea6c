"""Decodes quantised numbers in the registers of a thread."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

from weft import dtypes
from weft.compiler.codegen.integers import Integers
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load
from weft.compiler.codegen.quantized import Coding, field
from weft.compiler.codegen.values import Value
from weft.dtypes import Dtype
from weft.primitives.quantized_formats import FLOAT8_NAN, WORD, QuantizedFormat

_MANTISSA = 23
"""How many bits the mantissa of a float32 has in memory."""

_SMALL = {4: (22, 126), 8: (20, 120)}
"""For 4-bit and 8-bit floating-point codes: by how many bits a code without its sign is shifted to get the bits of a
float32, and by which power of two this number is too small."""

_BYTE = 8
_EACH_BYTE = 0x01010101
_MIDDLE = 3 * 2.0 ** (_MANTISSA - 1)
"""A number in float32 that is at the middle of those between two powers of two, where neighbours differ by one."""


def coding_of(kind: QuantizedFormat, scales: Dtype, dtype: Dtype) -> Coding:
    return Coding(kind.mode, kind.bits, scales, dtype, kind.group_size < WORD)


def number_at(coding: Coding, words: Sequence[Value], position: int) -> Value:
    """The number, without its scale, of the code that begins at bit ``position`` of neighbouring words (uint32)."""
    L, bits = words[0].lanes, coding.bits
    word, shift = divmod(position, WORD)
    if not coding.affine:
        value = _small_float(field(words, position, bits), bits)
    elif shift + bits <= _MANTISSA:
        value = _whole(words[word], shift, bits)
    else:
        value = _whole(field(words, position, bits), 0, bits)
    found: Value = L.convert(value, coding.dtype)
    return found


def _whole(word: Value, shift: int, bits: int) -> Value:
    """Some bits of a word as an integer in float32: they are written into the mantissa of a power of two, and this
    power is subtracted. That takes two operations, and is exact."""
    L, power = word.lanes, 2.0 ** (_MANTISSA - shift)
    inside = word & (((1 << bits) - 1) << shift)
    together = inside | ((_MANTISSA - shift + 127) << _MANTISSA)
    return L.bitcast(together, dtypes.float32) - power


def _small_float(code: Value, bits: int) -> Value:
    """A floating-point code as float32. A subnormal one is first a subnormal float32, which GPUs multiply at full
    speed."""
    L = code.lanes
    shift, power = _SMALL[bits]
    size = code & ((1 << (bits - 1)) - 1)
    sign = (code << (WORD - bits)) & (1 << (WORD - 1))
    value = L.bitcast((size << shift) | sign, dtypes.float32) * 2.0**power
    if bits == 8:
        value = L.select(L.equal(size, FLOAT8_NAN), L.constant(float("nan"), dtypes.float32), value)
    return value


def signed_bytes(word: Value, bits: int) -> list[Value]:
    """The codes of a word, four in each result: less the middle code and times ``2**(8 - bits)``, as bytes with signs.
    The first result has the lowest code of each byte."""
    of_byte, signs = _BYTE // bits, sum(1 << place for place in range(bits - 1, WORD, bits))
    highest = (0xFF << (_BYTE - bits) & 0xFF) * _EACH_BYTE
    less = word ^ signs
    shifted = [less << place if place else less for place in range(_BYTE - bits, -1, -bits)]
    return [one & highest for one in shifted] if of_byte > 1 else shifted


def offset_of(zero: Value, bits: int) -> Value:
    """The middle code less the code ``zero``, which is a float32, times ``2**(8 - bits)``, as int32."""
    less = float(1 << (bits - 1)) - zero
    return zero.lanes.truncate_to_integer(less * float(1 << (_BYTE - bits)), dtypes.int32)


def halves(total: Value) -> tuple[Value, Value]:
    """An int32 in two: multiples of ``2**16``, and the rest, which has no sign."""
    return total >> 2 * _BYTE, total & 0xFFFF


def rounded_sum(sums: Sequence[Value], total: tuple[Value, Value], offset: Value, bits: int) -> Value:
    """The sum of products of terms with codes less a code, rounded once to float32. ``sums`` are those of the digits of
    terms, from the lowest one on, with what `signed_bytes` gives; ``total`` has the `halves` of the sum of terms;
    ``offset`` is what `offset_of` gives. There are at most 128 products."""
    L, power = offset.lanes, 2.0 ** -(_BYTE - bits)
    low = sums[0] + (sums[1] << _BYTE) + offset * total[1]
    above, rest = halves(low)
    high = sums[2] + offset * total[0] + above
    # The sum is high * 2**16 + rest, times the power. Both become numbers exactly, in mantissas: high has 23 bits.
    whole = L.bitcast(high + _bits_of(_MIDDLE), dtypes.float32) - _MIDDLE
    start = 2.0**_MANTISSA * power
    return L.fma(whole, 2.0 ** (2 * _BYTE) * power, L.bitcast(rest | _bits_of(start), dtypes.float32) - start)


def _bits_of(number: float) -> int:
    """The bits of a number in float32."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int(bits)


def words_from(w: Integers, words: str, start: str, bits: int, last: str) -> list[Value]:
    """Words of the bits from ``start``, a multiple of eight, on: its bit is the lowest one of the first word. Nothing
    after word ``last`` is read."""
    L = Lanes(w.e, 1)
    first = w.e.assign(f"lshr i64 {start}, {WORD.bit_length() - 1}")
    count = -(-bits // WORD)
    if bits % WORD == 0:
        return [load(L, dtypes.uint32, Location(words, w.add(first, word), False), None) for word in range(count)]
    shift = Value(L, w.e.assign(f"trunc i64 {start} to i32"), dtypes.uint32) & (WORD - 1)
    indices = [w.smaller(w.add(first, word), last) for word in range(count + 1)]
    found = [load(L, dtypes.uint32, Location(words, index, False), None) for index in indices]
    # Bits that are shifted in from after the last word are not used.
    return [L.intrinsic("fshr", high, low, shift) for low, high in pairwise(found)]
