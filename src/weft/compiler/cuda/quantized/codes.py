"""Decodes quantised numbers in the registers of a thread."""

from __future__ import annotations

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


_LOWEST_BIT = 8
"""The lowest bit of the mantissa at which a code may be put. With a lower one, fewer biases can include the power of
two."""


def bits_of_codes(bits: int) -> list[tuple[int, int]]:
    """For each code of a word, by how many bits the word is shifted to the left, and at which bit of a mantissa the
    code then is. Neighbouring codes have the same shift if possible."""
    found: list[tuple[int, int]] = []
    shift, bits_of_mantissa = 0, range(_LOWEST_BIT, _MANTISSA - bits + 1)
    for start in range(0, WORD, bits):
        if start + shift not in bits_of_mantissa:
            shift = 0 if start in bits_of_mantissa else _LOWEST_BIT - start
        found.append((shift, start + shift))
    return found


def power_at(bit: int) -> float:
    """The power of two in whose mantissa a code at ``bit`` is an integer."""
    return float(2.0 ** (_MANTISSA - bit))


def joined_at(word: Value, shift: int, bit: int, bits: int) -> Value:
    """The sum of a code and `power_at` its bit, as float32, from a word that is shifted first."""
    if shift:
        word = word << shift if shift > 0 else word >> -shift
    together = (word & (((1 << bits) - 1) << bit)) | ((_MANTISSA - bit + 127) << _MANTISSA)
    return word.lanes.bitcast(together, dtypes.float32)


def takes_in(factor: Value, offset: Value, power: float) -> Value:
    """Whether ``offset - power * factor`` is exact in float32, so that the bias can include the power of two: the
    rounding error of the sum is zero. (T. J. Dekker, A floating-point technique for extending the available precision,
    1971.)"""
    other = factor * -power
    total = offset + other
    part = total - offset
    rest = (offset - (total - part)) + (other - part)
    found: Value = rest.lanes.equal(rest, 0.0)
    return found


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
