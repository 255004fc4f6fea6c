"""Replaces instructions of PTX that NVIDIA's assembler translates wrongly.

Seen with ptxas 12.8, 12.9 and 13.0 for sm_90, from -O1 on, and with the assembler of driver 580, on an H100:

- Two extrema become one instruction, `VIMNMX3`, and the negation of an operand is lost: ``max(max(a, -b), c)`` gives
  ``max(a, b, c)``.
- An absolute value is taken to be positive, although that of the smallest integer is negative: a 16-bit one becomes a
  32-bit one, and ``abs(x) < 0`` is never true.
- A 16-bit extremum is computed by an instruction for two of them, and the predicate that says which operand was taken
  is that of the other half of the register.
- In ``(p ? 0 : x) & y`` the choice becomes a mask. If ``p`` is known before two loops that contain such a choice, the
  mask is computed in the first loop, and the second one uses it even if the first loop ran zero times.

The replacements are complements and sums, 32-bit operations, and zeros that the assembler cannot see through. They give
the bits that PTX specifies.
"""

from __future__ import annotations

import re

_NEGATED = re.compile(r"\bneg\.s(16|32|64)\s+(%\w+), (%\w+);")
_ABSOLUTE = re.compile(r"\babs\.s(16|32|64)\s+(%\w+), (%\w+);")
_COMPLEMENT_AND_SUM = r"not.b\1 \2, \3; add.s\1 \2, \2, 1;"

_EXTREMUM = re.compile(r"\b(max|min)\.([su])16\s+(%\w+), (%\w+|-?\d+), (%\w+|-?\d+);")
_IN_32_BITS = (
    r"{ .reg .b32 %first, %second; .reg .b16 %half; mov.b16 %half, \4; cvt.\g<2>32.\g<2>16 %first, %half; "
    r"mov.b16 %half, \5; cvt.\g<2>32.\g<2>16 %second, %half; \1.\g<2>32 %first, %first, %second; "
    r"cvt.u16.u32 \3, %first; }"
)

_MASKED = re.compile(r"\band\.b(?:16|32|64)\s+%\w+, (%\w+), (%\w+|-?\d+);")
_CHOICE_OF_ZERO = re.compile(r"\bselp\.b(16|32|64)\s+(%\w+), (?:0, (%\w+)|(%\w+), 0), (%p\d+);")
_BODY = re.compile(r"^\{$", re.MULTILINE)
# Grids have a single axis, so this is always zero; the assembler does not know that.
_ZERO = """{
	.reg .b32 %zero32;
	.reg .b16 %zero16;
	.reg .b64 %zero64;
	mov.u32 %zero32, %ctaid.y;
	cvt.u16.u32 %zero16, %zero32;
	cvt.u64.u32 %zero64, %zero32;"""


def as_assemblers_respect_it(text: str) -> str:
    """PTX with the same meaning, without the instructions that the assembler translates wrongly."""
    text = _NEGATED.sub(_COMPLEMENT_AND_SUM, text)
    text = _ABSOLUTE.sub(rf"{_COMPLEMENT_AND_SUM} max.s\1 \2, \2, \3;", text)
    return _with_unknown_zeros(_EXTREMUM.sub(_IN_32_BITS, text))


def _with_unknown_zeros(text: str) -> str:
    masked = {name for found in _MASKED.finditer(text) for name in found.groups()}

    def choice(found: re.Match[str]) -> str:
        bits, result, otherwise, then, predicate = found.groups()
        if result not in masked:
            return found[0]
        zero = f"%zero{bits}"
        operands = f"{then}, {zero}" if then else f"{zero}, {otherwise}"
        return f"selp.b{bits} {result}, {operands}, {predicate};"

    changed = _CHOICE_OF_ZERO.sub(choice, text)
    return text if changed == text else _BODY.sub(lambda _: _ZERO, changed, count=1)
