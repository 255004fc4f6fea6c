"""Instructions of PTX that NVIDIA's assembler gets wrong, in other words.

Seen with ptxas 12.8, 12.9 and 13.0 for sm_90, from -O1 on, and with the assembler of driver 580, on an H100:

- Two extrema become one instruction, `VIMNMX3`, which loses that an operand was negated: ``max(max(a, -b), c)`` gives
  ``max(a, b, c)``.
- An absolute value counts as positive, that of the smallest integer too, which has none: of 16 bits it becomes one of
  32, and ``abs(x) < 0`` is never true.
- The extremum of 16 bits is computed as one of two such numbers, and what says which operand was taken tells of the
  other half of the register.
- In ``(p ? 0 : x) & y`` the choice becomes a mask. If ``p`` is known before two loops that choose so, the mask is made
  in the first loop, and the second one uses it even if the first had no turn.

What is written as a complement and a sum, in 32 bits, or with a zero that the assembler does not know, has the bits
that PTX promises.
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
# Grids have one axis, of which the assembler knows nothing.
_ZERO = """{
	.reg .b32 %zero32;
	.reg .b16 %zero16;
	.reg .b64 %zero64;
	mov.u32 %zero32, %ctaid.y;
	cvt.u16.u32 %zero16, %zero32;
	cvt.u64.u32 %zero64, %zero32;"""


def as_assemblers_respect_it(text: str) -> str:
    """PTX of the same meaning, without what assemblers get wrong."""
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
