"""Decodes quantised numbers in vectors. If the processor has an instruction for it, codes are looked up in a table in
registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft import dtypes
from weft.compiler.codegen import host, quantized
from weft.compiler.codegen.literals import literal
from weft.compiler.codegen.quantized import Coding
from weft.compiler.codegen.values import Value
from weft.dtypes import Dtype
from weft.primitives.quantized_formats import WORD, QuantizedFormat

FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class VectorCoding(Coding):
    """A coding for vectors of ``vector_bytes``."""

    vector_bytes: int

    @property
    def lanes(self) -> int:
        return self.vector_bytes // self.dtype.size


def coding_of(kind: QuantizedFormat, scales: Dtype, dtype: Dtype) -> VectorCoding:
    """The coding for this processor."""
    vector_bytes = 64 if "+avx512f" in host.current().features else 32
    return VectorCoding(kind.mode, kind.bits, scales, dtype, kind.group_size < WORD, vector_bytes)


def number(coding: VectorCoding, code: Value) -> Value:
    """The number, without its scale, of a code: a uint32 whose upper bits are undefined."""
    numbers: list[float] = []
    if coding.affine:
        numbers = [float(n) for n in range(1 << coding.bits)]
    elif coding.bits == 4:
        numbers = [*FLOAT4, *[-n for n in FLOAT4]]
    return _looked_up(code, numbers, coding.dtype) or quantized.number(coding, code)


def _looked_up(code: Value, numbers: Sequence[float], dtype: Dtype) -> Value | None:
    """Numbers of a table, which fits one or two registers, at the lowest bits of each code; None if there is no
    instruction for it."""
    L = code.lanes
    fits = 0 < len(numbers) <= 32 and L.width == 16 and dtype is dtypes.float32
    if not fits or "+avx512f" not in host.current().features:
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
