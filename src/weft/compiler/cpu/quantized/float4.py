"""Decodes vectors of words of 4-bit floating-point codes without a table of 16 numbers in registers.

The lower half of the float32 of such a number is zero. An instruction looks up a byte for each of 32 codes, so two of
them make the upper halves for half of the codes of the words.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack

from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.quantized.codes import FLOAT4, VectorCoding

CODES_OF_WORD = 8
_LANES = 8
"""How many words the vectors of AVX2 have."""
_EVEN_CODES = 0x0F0F0F0F
_FIRST_BYTES, _SECOND_BYTES, _UPPER_HALF = 0x00FF00FF, 0xFF00FF00, 0xFFFF0000


def takes(coding: VectorCoding) -> bool:
    """Whether words are decoded here: processors with AVX-512 have the table."""
    of_float4 = coding.bits == 4 and not coding.affine and coding.dtype is dtypes.float32
    return of_float4 and coding.lanes == _LANES and "+avx2" in host.current().features


def numbers(words: Value) -> Iterator[Value]:
    """The numbers, without their scale, of a vector of words, in the order of the codes."""
    L = words.lanes
    pairs = []
    for codes in (words & _EVEN_CODES, (words >> 4) & _EVEN_CODES):
        low, high = [_looked_up(codes, place) for place in (2, 3)]
        pairs.append((low & _FIRST_BYTES) | _shifted(high, "shl"))
        pairs.append(_shifted(low, "lshr") | (high & _SECOND_BYTES))
    for step in range(CODES_OF_WORD):
        byte, odd = divmod(step, 2)
        half, other = divmod(byte, 2)
        pair = pairs[2 * odd + other]
        yield L.bitcast(pair & _UPPER_HALF if half else pair << 16, dtypes.float32)


def _looked_up(codes: Value, place: int) -> Value:
    """A byte of the float32 of each code, where the code is."""
    L, e = codes.lanes, codes.lanes.emitter
    type_, of_words = f"<{4 * L.width} x i8>", L.type_of(dtypes.uint32)
    images = [pack("<f", n) for n in (*FLOAT4, *[-n for n in FLOAT4])]
    table = ", ".join([f"i8 {image[place]}" for image in images] * 2)
    name = e.assign(f"bitcast {of_words} {codes.name} to {type_}")
    found = e.call("llvm.x86.avx2.pshuf.b", type_, [(type_, f"<{table}>"), (type_, name)])
    return Value(L, e.assign(f"bitcast {type_} {found} to {of_words}"), dtypes.uint32)


def _shifted(x: Value, shift: str) -> Value:
    """Both halves of each lane, shifted by a byte."""
    L, e = x.lanes, x.lanes.emitter
    type_, of_words = f"<{2 * L.width} x i16>", L.type_of(dtypes.uint32)
    counts = ", ".join(["i16 8"] * (2 * L.width))
    name = e.assign(f"{shift} {type_} {e.assign(f'bitcast {of_words} {x.name} to {type_}')}, <{counts}>")
    return Value(L, e.assign(f"bitcast {type_} {name} to {of_words}"), dtypes.uint32)
