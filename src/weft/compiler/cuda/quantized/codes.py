"""Codes of quantised numbers in the registers of a thread: how they are cut out of words and become numbers."""

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
"""Bits of the mantissa of a float32 in memory."""

_SMALL = {4: (22, 126), 8: (20, 120)}
"""For 4-bit and 8-bit floating codes: how far its bits but the sign are from where they would be in a float32, and by
which power of two the number is then too small."""


def coding_of(kind: QuantizedFormat, scales: Dtype, dtype: Dtype) -> Coding:
    return Coding(kind.mode, kind.bits, scales, dtype, kind.group_size < WORD)


def number_at(coding: Coding, words: Sequence[Value], position: int) -> Value:
    """The number, without its scale, that the code stands for which begins at a bit of neighbouring words (uint32)."""
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
    """Some bits of a word as a whole number in float32: they are put into the mantissa of a power of two, which is then
    subtracted. That takes two operations, and is exact."""
    L, power = word.lanes, 2.0 ** (_MANTISSA - shift)
    inside = word & (((1 << bits) - 1) << shift)
    together = inside | ((_MANTISSA - shift + 127) << _MANTISSA)
    return L.bitcast(together, dtypes.float32) - power


def _small_float(code: Value, bits: int) -> Value:
    """A floating code as float32. Subnormal ones are subnormal float32 first, which GPUs multiply like any other."""
    L = code.lanes
    shift, power = _SMALL[bits]
    size = code & ((1 << (bits - 1)) - 1)
    sign = (code << (WORD - bits)) & (1 << (WORD - 1))
    value = L.bitcast((size << shift) | sign, dtypes.float32) * 2.0**power
    if bits == 8:
        value = L.select(L.equal(size, FLOAT8_NAN), L.constant(float("nan"), dtypes.float32), value)
    return value


_LOWEST_BIT = 8
"""The lowest bit of a mantissa at which codes are put: at lower ones few biases could take in the power of two."""


def bits_of_codes(bits: int) -> list[tuple[int, int]]:
    """For each code of a word, by how many bits (to the left) the word is shifted, and at which bit of a mantissa the
    code is then. Neighbours have the same shift where they can."""
    found: list[tuple[int, int]] = []
    shift, bits_of_mantissa = 0, range(_LOWEST_BIT, _MANTISSA - bits + 1)
    for start in range(0, WORD, bits):
        if start + shift not in bits_of_mantissa:
            shift = 0 if start in bits_of_mantissa else _LOWEST_BIT - start
        found.append((shift, start + shift))
    return found


def power_at(bit: int) -> float:
    """The power of two in whose mantissa a code at a bit is a whole number."""
    return float(2.0 ** (_MANTISSA - bit))


def joined_at(word: Value, shift: int, bit: int, bits: int) -> Value:
    """The sum of a code and `power_at` its bit, as float32, from a word that has to be shifted."""
    if shift:
        word = word << shift if shift > 0 else word >> -shift
    together = (word & (((1 << bits) - 1) << bit)) | ((_MANTISSA - bit + 127) << _MANTISSA)
    return word.lanes.bitcast(together, dtypes.float32)


def takes_in(factor: Value, offset: Value, power: float) -> Value:
    """Whether ``offset - power * factor`` is a float32: what is left of the sum after rounding is zero. (T. J. Dekker,
    A floating-point technique for extending the available precision, 1971.)"""
    other = factor * -power
    total = offset + other
    part = total - offset
    rest = (offset - (total - part)) + (other - part)
    found: Value = rest.lanes.equal(rest, 0.0)
    return found


def words_from(w: Integers, words: str, start: str, bits: int, last: str) -> list[Value]:
    """Words of so many bits from one on, a multiple of eight: the first of these is the lowest one. No word behind the
    ``last`` one is read."""
    L = Lanes(w.e, 1)
    first = w.e.assign(f"lshr i64 {start}, {WORD.bit_length() - 1}")
    count = -(-bits // WORD)
    if bits % WORD == 0:
        return [load(L, dtypes.uint32, Location(words, w.add(first, word), False), None) for word in range(count)]
    shift = Value(L, w.e.assign(f"trunc i64 {start} to i32"), dtypes.uint32) & (WORD - 1)
    indices = [w.smaller(w.add(first, word), last) for word in range(count + 1)]
    found = [load(L, dtypes.uint32, Location(words, index, False), None) for index in indices]
    # What is shifted in from behind the last word is not looked at.
    return [L.intrinsic("fshr", high, low, shift) for low, high in pairwise(found)]
