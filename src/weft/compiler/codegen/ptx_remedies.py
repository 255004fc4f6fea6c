"""Instructions of PTX that NVIDIA's assembler gets wrong, in other words.

Seen with ptxas 12.8, 12.9 and 13.0 for sm_90, from -O1 on, and with the assembler of driver 580, on an H100:

- Two extrema become one instruction, `VIMNMX3`, which loses that an operand was negated: ``max(max(a, -b), c)`` gives
  ``max(a, b, c)``.
- An absolute value counts as positive, that of the smallest integer too, which has none: of 16 bits it becomes one of
  32, and ``abs(x) < 0`` is never true.
- The extremum of 16 bits is computed as one of two such numbers, and what says which operand was taken tells of the
  other half of the register.

What is written as a complement and a sum, or in 32 bits, has the bits that PTX promises.
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


def as_assemblers_respect_it(text: str) -> str:
    """PTX of the same meaning, without what assemblers get wrong."""
    text = _NEGATED.sub(_COMPLEMENT_AND_SUM, text)
    text = _ABSOLUTE.sub(rf"{_COMPLEMENT_AND_SUM} max.s\1 \2, \2, \3;", text)
    return _EXTREMUM.sub(_IN_32_BITS, text)
