"""Codes of quantised numbers in registers: how they are cut out of words, and which numbers they stand for.

What is computed is what `weft.primitives.quantized_formats` defines, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.codegen.lanes import literal
from weft.compiler.codegen.values import Value
from weft.dtypes import Dtype
from weft.primitives.quantized_formats import FLOAT8_NAN, POWER_NAN, WORD, Format, rounds_once

FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FLOAT4_NIBBLES = 0xC8643210
"""Twice these numbers, four bits each."""
_FLOAT8_LEAST_NORMAL = 8
_SIGN = {4: 28, 8: 24}
"""How far the sign of a floating code is from that of a float32."""


@dataclass(frozen=True)
class Coding:
    """A format as machine code knows it: the dtype of scales (and biases) in memory, and that of the numbers."""

    mode: str
    bits: int
    scales: Dtype
    dtype: Dtype
    narrow: bool
    vector_bytes: int

    @property
    def affine(self) -> bool:
        return self.mode == "affine"

    @property
    def lanes(self) -> int:
        return self.vector_bytes // self.dtype.size

    @property
    def terms(self) -> int:
        """How many codes, which have one scale and begin and end with a word, are treated together."""
        return WORD // 2 if self.narrow else WORD

    @property
    def words(self) -> int:
        """The words of these codes."""
        return self.terms * self.bits // WORD


def coding_of(kind: Format, scales: Dtype, dtype: Dtype) -> Coding:
    """The coding for this processor."""
    vector_bytes = 64 if "+avx512f" in host.current().features else 32
    return Coding(kind.mode, kind.bits, scales, dtype, kind.group_size < WORD, vector_bytes)


def field(words: Sequence[Value], start: int, bits: int) -> Value:
    """The code that begins at a bit of neighbouring words; bits above it may be anything."""
    word, shift = divmod(start, WORD)
    code = words[word] >> shift if shift else words[word]
    return code | (words[word + 1] << (WORD - shift)) if shift + bits > WORD else code


def number(coding: Coding, code: Value) -> Value:
    """The number that a code (uint32, with any bits above it) stands for, without its scale."""
    L, bits = code.lanes, coding.bits
    if coding.affine:
        numbers = [float(n) for n in range(1 << bits)]
        found = _looked_up(code, numbers, coding.dtype)
        if found is None:
            whole = code & ((1 << bits) - 1)
            found = L.convert(Value(L, whole.name, dtypes.int32), coding.dtype)
        return found
    if bits == 4:
        found = _looked_up(code, [*FLOAT4, *[-n for n in FLOAT4]], coding.dtype)
        return found if found is not None else L.convert(_float4(code), coding.dtype)
    return L.convert(_float8(code), coding.dtype)


def scale(coding: Coding, value: Value) -> Value:
    """A scale or bias as a number of the result, from what `scale_image` says is in registers."""
    L = value.lanes
    if coding.scales is not dtypes.uint8:
        return value
    if coding.mode == "nvfp4":
        return L.convert(_float8(value), coding.dtype)
    # The exponents of float32, but for the lowest, which is a subnormal number there, and NaN.
    bits = L.select(L.equal(value, 0), L.constant(1 << 22, dtypes.uint32), value << 23)
    bits = L.select(L.equal(value, POWER_NAN), L.constant(0x7FC00000, dtypes.uint32), bits)
    return L.convert(L.bitcast(bits, dtypes.float32), coding.dtype)


def scale_image(coding: Coding) -> Dtype:
    """As what scales are read: as numbers, or as uint32 if they are bytes."""
    return dtypes.uint32 if coding.scales is dtypes.uint8 else coding.dtype


def scaled(coding: Coding, code: Value, factor: Value, offset: Value | None) -> Value:
    """A number of the matrix."""
    if offset is None:
        return code * factor
    return code.lanes.fma(code, factor, offset) if rounds_once(coding.scales) else code * factor + offset


def _float4(code: Value) -> Value:
    """A 4-bit floating number (e2m1) as float32."""
    L = code.lanes
    places = (code & 7) << 2
    twice = (L.constant(_FLOAT4_NIBBLES, dtypes.uint32) >> places) & 15
    size = L.convert(Value(L, twice.name, dtypes.int32), dtypes.float32) * 0.5
    return _signed(size, code, 4)


def _float8(code: Value) -> Value:
    """An 8-bit floating number (e4m3) as float32. Subnormal ones get an implicit bit first, which is subtracted."""
    L = code.lanes
    size = code & 0x7F
    subnormal = size < _FLOAT8_LEAST_NORMAL
    fields = L.select(subnormal, size + _FLOAT8_LEAST_NORMAL, size)
    normal = L.bitcast((fields << 20) + (120 << 23), dtypes.float32)
    value = normal - L.select(subnormal, L.constant(2.0**-6, dtypes.float32), 0.0)
    value = L.select(L.equal(size, FLOAT8_NAN), L.constant(float("nan"), dtypes.float32), value)
    return _signed(value, code, 8)


def _signed(size: Value, code: Value, bits: int) -> Value:
    """A number with the highest bit of a code as its sign."""
    L = code.lanes
    sign = (code & (1 << (bits - 1))) << _SIGN[bits]
    return L.bitcast(L.bitcast(size, dtypes.uint32) | sign, dtypes.float32)


def _looked_up(code: Value, numbers: Sequence[float], dtype: Dtype) -> Value | None:
    """Numbers of a table that fits into one or two registers, by the lowest bits of a code; None if there is no
    instruction for it."""
    L = code.lanes
    if L.width != 16 or dtype is not dtypes.float32 or len(numbers) > 32 or "+avx512f" not in host.current().features:
        return None
    repeated = list(numbers) * max(1, 16 // len(numbers))
    texts = [f"float {literal(n, dtypes.float32)}" for n in repeated]
    low, high = (f"<{', '.join(texts[start : start + 16])}>" for start in (0, 16))
    table, index = ("<16 x float>", low), ("<16 x i32>", code.name)
    if len(repeated) == 16:
        found = L.emitter.call("llvm.x86.avx512.permvar.sf.512", "<16 x float>", [table, index])
    else:
        arguments = [table, index, ("<16 x float>", high)]
        found = L.emitter.call("llvm.x86.avx512.vpermi2var.ps.512", "<16 x float>", arguments)
    return Value(L, found, dtype)
