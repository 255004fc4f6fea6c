"""If only a small part of a sorted row is wanted, words that are far from that part are left out before sorting.

A sorted sample of the row gives two words between which the wanted ones are, with a probability of more than 99 %. One
pass over the row counts the words below and writes the words between the two. (R. W. Floyd and R. L. Rivest, Expected
time bounds for selection, 1975.)
"""

from __future__ import annotations

from weft.compiler.codegen.keys import WordForm
from weft.compiler.cpu.code import Code, EmittedFunction, read, write

SAMPLE = 256
DEVIATION = 24
"""At least three standard deviations of a position in the sorted sample: for the middle, one is ``sqrt(256) / 2``."""
FEWEST = 1024
"""In shorter rows, leaving out words takes more time than it saves."""
LARGEST_PART = 4
"""Words are left out if at most one part in this many of a row is wanted."""


def narrow(form: WordForm) -> EmittedFunction:
    """Write words to ``%a`` that probably include those from ``%start`` to ``%stop`` of the sorted row.

    Store at ``%below`` how many words of the row are smaller, and at ``%chosen`` how many were written.
    """
    code = Code()
    e, word = code.e, f"i{8 * form.size}"
    elements, words, other = (e.slot(f"[{SAMPLE * form.size} x i8], align 64") for _ in range(3))
    with e.loop("0", str(SAMPLE)) as number:
        index = code.divide(code.multiply(number, "%count"), SAMPLE)
        write(code.scalar, read(code.scalar, form.key, "%from", index), elements, number)
    e.emit(f"call void @make_words(ptr {elements}, i64 0, i64 {SAMPLE}, ptr {words}, ptr %odd, i64 0)")
    e.emit(f"call void @sort_words(ptr {words}, i64 {SAMPLE}, ptr {other}, i64 0, i64 {SAMPLE})")
    positions = [code.divide(code.multiply(index, SAMPLE), "%count") for index in ("%start", "%stop")]
    first, last = code.subtract(positions[0], DEVIATION), code.add(positions[1], DEVIATION)

    def sampled(position: str) -> str:
        inside = code.smaller(code.larger(position, "0"), SAMPLE - 1)
        return e.assign(f"load {word}, ptr {code.moved(words, inside, word)}, align {form.size}")

    low = e.assign(f"select i1 {code.compare('sgt', first, 0)}, {word} {sampled(first)}, {word} 0")
    high = e.assign(f"add {word} {sampled(last)}, 1")  # include the words that are equal to the sampled one
    end = e.assign(f"and i1 {code.compare('slt', last, SAMPLE)}, {e.assign(f'icmp ne {word} {high}, 0')}")
    e.emit(
        f"call void @choose_words(ptr %from, i64 0, i64 %count, ptr %a, ptr %odd, i64 0, {word} {low}, {word} {high}, "
        f"i1 {end}, ptr %below, ptr %chosen)"
    )
    parameters = "ptr %from, i64 %count, i64 %start, i64 %stop, ptr %a, ptr %odd, ptr %below, ptr %chosen"
    return code.finished("narrow", parameters)
