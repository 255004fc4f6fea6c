"""Rows that a block sorts by itself: its threads have all elements, and exchange them for one digit after the other."""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.sorting.elements import DIGIT_BITS, Elements
from weft.compiler.cuda.sorting.ranking import Ranking

# The numbers of a step: slot and offset of rows and result, and these.
ROWS, TARGET = 0, 2
UNITS, EXTENT, START, COUNT = 4, 5, 6, 7


def generate(elements: Elements, threads: int, items: int, name: str) -> str:
    """The LLVM IR of the kernel; a unit is a row of at most as many elements as all threads have."""
    code = BlockCode(threads)
    e = code.e
    ranking = Ranking(code, items, DIGIT_BITS, max(elements.dtype.size, 4 * elements.indices))
    source, target = code.global_memory(ROWS), code.global_memory(TARGET)
    extent, start, count = (code.number(place) for place in (EXTENT, START, COUNT))
    places, width = ranking.of_warp(), code.narrow(extent)
    last = code.word("sub", width, 1)
    exists = [code.word("icmp ult", place, width) for place in places]
    words = [e.slot(elements.word) for _ in places]
    indices = [e.slot("i32") for _ in places] if elements.indices else []
    with code.units(code.number(UNITS)) as row:
        first = code.moved(source, code.multiply(row, extent), elements.word)
        for place, is_there, slot in zip(places, exists, words, strict=True):
            pointer = code.at(first, code.chosen(is_there, place, last), elements.word)
            e.store(elements.word, elements.read(code, pointer), slot)
        for place, slot in zip(places, indices, strict=False):
            e.store("i32", place, slot)
        with e.loop("0", str(elements.digits)) as number:
            shift = code.word("mul", code.narrow(number), DIGIT_BITS)
            found = [e.load(elements.word, slot) for slot in words]
            digits = [
                code.chosen(is_there, elements.digit(code, word, shift), ranking.digits - 1)
                for word, is_there in zip(found, exists, strict=True)
            ]
            ranking.counted(digits)
            goals = ranking.placed(found, digits, elements.word)
            code.synchronize()
            _keep(code, words, ranking.taken(places, elements.word), elements.word)
            code.synchronize()
            if indices:
                ranking.put([e.load("i32", slot) for slot in indices], goals, "i32")
                code.synchronize()
                _keep(code, indices, ranking.taken(places, "i32"), "i32")
                code.synchronize()
        begin = code.moved(target, code.multiply(row, count), elements.result)
        lowest, wanted = code.narrow(start), code.narrow(count)
        for place, slot in zip(places, indices or words, strict=True):
            goal = code.word("sub", place, lowest)
            with e.when(code.word("icmp ult", goal, wanted)):
                e.store(elements.result, e.load(elements.result, slot), code.at(begin, goal, elements.result))
    return code.finished(name)


def _keep(code: BlockCode, slots: Sequence[str], words: Sequence[str], type_: str) -> None:
    for slot, word in zip(slots, words, strict=True):
        code.e.store(type_, word, slot)
