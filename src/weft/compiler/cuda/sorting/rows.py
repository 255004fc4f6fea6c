"""Sorts rows of which each fits a block: its threads hold all elements, and exchange them for one digit after
another."""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.sorting.elements import DIGIT_BITS, Elements
from weft.compiler.cuda.sorting.ranking import Ranking

# The positions of the numbers of a step: slot and offset of rows and result, and those below.
ROWS, TARGET = 0, 2
UNITS, EXTENT, START, COUNT = 4, 5, 6, 7


def generate(elements: Elements, threads: int, items: int, name: str) -> str:
    """The LLVM IR of the kernel. A unit is a row with at most as many elements as all threads hold."""
    code = BlockCode(threads)
    e = code.e
    ranking = Ranking(code, items, DIGIT_BITS, max(elements.dtype.size, 4 * elements.indices))
    source, target = code.global_memory(ROWS), code.global_memory(TARGET)
    extent, start, count = (code.number(position) for position in (EXTENT, START, COUNT))
    positions, width = ranking.of_warp(), code.narrow(extent)
    last = code.word("sub", width, 1)
    exists = [code.word("icmp ult", position, width) for position in positions]
    words = [e.slot(elements.word) for _ in positions]
    indices = [e.slot("i32") for _ in positions] if elements.indices else []
    with code.units(code.number(UNITS)) as row:
        first = code.moved(source, code.multiply(row, extent), elements.word)
        for position, is_there, slot in zip(positions, exists, words, strict=True):
            pointer = code.at(first, code.chosen(is_there, position, last), elements.word)
            e.store(elements.word, elements.read(code, pointer), slot)
        for position, slot in zip(positions, indices, strict=False):
            e.store("i32", position, slot)
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
            _keep(code, words, ranking.taken(positions, elements.word), elements.word)
            code.synchronize()
            if indices:
                ranking.put([e.load("i32", slot) for slot in indices], goals, "i32")
                code.synchronize()
                _keep(code, indices, ranking.taken(positions, "i32"), "i32")
                code.synchronize()
        begin = code.moved(target, code.multiply(row, count), elements.result)
        lowest, wanted = code.narrow(start), code.narrow(count)
        for position, slot in zip(positions, indices or words, strict=True):
            goal = code.word("sub", position, lowest)
            with e.when(code.word("icmp ult", goal, wanted)):
                e.store(elements.result, e.load(elements.result, slot), code.at(begin, goal, elements.result))
    return code.finished(name)


def _keep(code: BlockCode, slots: Sequence[str], words: Sequence[str], type_: str) -> None:
    for slot, word in zip(slots, words, strict=True):
        code.e.store(type_, word, slot)
