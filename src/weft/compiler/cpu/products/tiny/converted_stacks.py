"""Products of stacks of small matrices that are converted to float32 or transposed first, in groups.

Rows of small matrices are shorter than vectors, and converting them one by one takes longer than multiplying them.
Here the elements of several matrices that follow each other in memory are converted at once, in whole vectors; the step
for float32 multiplies these matrices. It rounds its results where it stores them, if their vectors are long and whole;
otherwise they are rounded at once. Meanwhile all are in the first cache.

Right operands in which the terms of a column are neighbours are transposed, so that the step reads columns that are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from weft import dtypes
from weft.compiler.codegen import host, loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import SumOfProducts, Value
from weft.compiler.cpu.code import STEP, WIDTH, EmittedFunction, Integers, module_of
from weft.compiler.cpu.memory import CACHE_LINE, READ_SOON, WRITE_SOON, prefetch
from weft.compiler.cpu.products.few_rows import step as few_rows
from weft.compiler.cpu.products.few_rows import strip as few_rows_strip
from weft.compiler.cpu.products.few_rows.strip import Strip, has_pairs
from weft.compiler.cpu.products.half_squares import read_columns
from weft.compiler.cpu.products.step import B_INNER, COLUMNS, INNER, SLOTS, Sources, below
from weft.compiler.cpu.products.tiny import stacks as tiny_stacks
from weft.dtypes import Dtype
from weft.runtime.steps import Place

from .groups import Tiny

GROUP_ELEMENTS = 1024
"""How many elements of an operand, or of the result, are converted at once; a matrix has at most so many."""

ELEMENTS_BEHIND = WIDTH
"""For how many more elements there is memory, which `stacks` may read."""

TRANSPOSED_ELEMENTS = 2048
"""How many elements transposed operands have at most, with those that fill the last vector of each term."""

FEWEST_BLOCKS = 3
"""With at least this many blocks of rows, elements of the matrix would be converted so often that it pays to do it
before."""

ROWS_OF_BFLOAT16 = 8
"""From this many rows and terms on, numbers of bfloat16 are converted faster before than while rows are added up."""

TRANSPOSED_BYTES = 32
"""The length of vectors in which matrices are transposed."""
LANES_OF_SQUARE = 4
"""The fewest columns that are transposed at once."""

# The positions of the step's numbers: an address for each operand and the result, how far the matrices of each are
# apart, how many matrices are a group, how many units the step that multiplies has for a matrix, and the numbers of
# that.
_APART, _GROUP, _UNITS, _NUMBERS = 6, 9, 10, 11
_MULTIPLY = "multiply"
"""The name of that step."""
PLACES: Sequence[Place] = ((0, 0), (1, 0), (2, 0))
"""The places that the step that multiplies gets."""


def is_worth_it(strip: Strip, sources: Sources, extents: tuple[int, int, int]) -> bool:
    """Whether matrices of half precision are multiplied faster in groups than when each row is converted where it is
    read or stored: if they are read for several blocks of rows, if columns are stored one by one, if squares are
    transposed and terms are too few for squares of pairs, if the ends of rows need masks and the processor has none for
    16 bits, if the shortest vectors would be rounded to bfloat16, which takes several instructions, or if many rows of
    bfloat16 are."""
    rows, columns, inner = extents
    if has_pairs(strip, sources.right) and strip.vectors % 2 == 0 and columns % strip.columns == 0:
        return False
    if strip.apart or rows > (FEWEST_BLOCKS - 1) * strip.rows:
        return True
    if strip.across and inner * strip.dtype.size < 2 * strip.vector_bytes:
        return True
    if not _is_whole(strip, columns):
        return True
    if sources.rounded is not dtypes.bfloat16:
        return False
    many = not strip.across and min(rows, inner) >= ROWS_OF_BFLOAT16
    return strip.vector_bytes == few_rows_strip.SHORTEST_VECTOR or many


def _is_whole(strip: Strip, columns: int) -> bool:
    """Whether rows are whole vectors, or the processor has masks for 16 bits."""
    return columns % strip.lanes == 0 or "+avx512bw" in host.current().features


def multiplied(strip: Strip, sources: Sources, columns: int) -> Sources:
    """The dtypes for the step that multiplies. It rounds results itself if their vectors are long and whole."""
    rounds = not strip.apart and strip.vector_bytes > few_rows_strip.SHORTEST_VECTOR and _is_whole(strip, columns)
    return Sources(strip.dtype, strip.dtype, sources.rounded if rounds else None)


def pitch_of(strip: Strip, columns: int) -> int:
    """How far terms are apart in a transposed matrix."""
    lanes = max(strip.lanes, LANES_OF_SQUARE)
    return -(-columns // lanes) * lanes


def group_of(sizes: Sequence[int], transposed: int) -> int:
    """How many matrices are a group, if those of each operand and the result have so many elements, and transposed ones
    of the right operand ``transposed``; 0 if they are too large."""
    group = GROUP_ELEMENTS // max(1, *sizes)
    return min(group, TRANSPOSED_ELEMENTS // transposed) if transposed else group


def step_numbers(
    places: Sequence[Place], apart: Sequence[int], group: int, units: int, numbers: Sequence[int]
) -> list[int]:
    """The numbers of a step: places of operands and result, how far their matrices are ``apart``, how many are a
    ``group``, and how many units and which numbers the step that multiplies has, for matrices at `PLACES`."""
    return [*[number for place in places for number in place], *apart, group, units, *numbers]


@cache
def address(strip: Strip, sources: Sources, multiplied: Sources, transposes: bool) -> int:
    """The address of the step for operands of the dtypes ``sources``, which are multiplied as those of ``strip`` by a
    step for the dtypes ``multiplied``; the right ones may be transposed."""
    name = f"converted_stacks_{sources.name}"
    key = f"{name} {multiplied.name} {strip} {transposes}"
    return loading.load(key, lambda: generate(strip, sources, multiplied, transposes, name), (name,))[name]


@cache
def address_of_tiny(tiny: Tiny, sources: Sources) -> int:
    """The address of the step for operands of the dtypes ``sources``, which are multiplied by `stacks`."""
    name = f"converted_stacks_{sources.name}"
    return loading.load(f"{name} {tiny}", lambda: generate_for_tiny(tiny, sources, name), (name,))[name]


def generate(strip: Strip, sources: Sources, multiplied: Sources, transposes: bool, name: str) -> str:
    """The LLVM IR of the step."""
    functions = few_rows.functions(strip, multiplied, _MULTIPLY, linkage="internal ")
    if transposes:
        functions.append(_transposition(strip))
    writer = _ConvertedStacksWriter(strip.dtype, sources, multiplied, transposes)
    return module_of([*writer.conversions(), *functions, writer.function(name)])


def generate_for_tiny(tiny: Tiny, sources: Sources, name: str) -> str:
    """The LLVM IR of the step that multiplies by `stacks`."""
    writer = _ConvertedStacksWriter(tiny.dtype, sources, Sources(tiny.dtype, tiny.dtype, tiny.result), False)
    functions = tiny_stacks.functions(tiny_stacks.in_order(tiny), _MULTIPLY, "internal ")
    return module_of([*writer.conversions(), *functions, writer.function(name)])


def _name(source: Dtype, target: Dtype) -> str:
    return f"{source.name}_to_{target.name}"


def _conversion(source: Dtype, target: Dtype) -> EmittedFunction:
    """A function that converts neighbouring elements."""
    code, lanes = Integers(Emitter()), WIDTH
    L = Lanes(code.e, lanes)

    def convert(index: str, mask: str | None = None) -> None:
        value = load(L, source, Location("%from", index, False), mask)
        made = SumOfProducts if target in HALVES else Value
        store(L, made(L, value.name, target), target, Location("%to", index, False), mask)

    # A cache line in memory has this many elements. The one at the same place of the next group is prefetched.
    line = CACHE_LINE // min(source.size, target.size)
    in_memory, purpose = ("%from", READ_SOON) if source in HALVES else ("%to", WRITE_SOON)
    rest, rest_of_lines = code.remainder("%count", lanes), code.remainder("%count", line)
    whole, lines = code.subtract("%count", rest), code.subtract("%count", rest_of_lines)
    with code.e.loop("0", lines, line) as index:
        prefetch(code.e, code.moved(in_memory, code.add(index, "%count"), "i16"), purpose)
        for start in range(0, line, lanes):
            convert(code.add(index, start))
    with code.e.loop(lines, whole, lanes) as index:
        convert(index)
    with code.e.when(code.compare("ne", rest, 0)):
        convert(whole, below(L, "0", rest))
    return code.e, code.e.function(_name(source, target), "ptr %from, ptr %to, i64 %count", "internal ")


def _transposition(strip: Strip) -> EmittedFunction:
    """A function that transposes matrices which follow each other in memory: columns, in which ``%inner`` terms are
    neighbours, become neighbours; terms are ``%pitch`` elements apart then. Two stores of half a vector take no longer
    than one, and in shorter vectors elements are exchanged faster."""
    code, dtype, element = Integers(Emitter()), strip.dtype, strip.element
    L = Lanes(code.e, max(LANES_OF_SQUARE, min(strip.lanes, TRANSPOSED_BYTES // dtype.size)))
    terms, last = L.width // 2, code.subtract("%columns", 1)
    size, room = code.multiply("%columns", "%inner"), code.multiply("%pitch", "%inner")
    with code.e.loop("0", "%columns", L.width) as column:
        # Lanes without a column repeat the last one.
        numbers = [code.smaller(code.add(column, lane), last) for lane in range(L.width)]
        distances = [code.multiply(number, "%inner") for number in numbers]
        with code.e.loop("0", "%count") as matrix:
            source = code.moved("%from", code.multiply(matrix, size), element)
            target = code.moved("%to", code.add(code.multiply(matrix, room), column), element)
            with code.e.loop("0", "%inner", terms) as number:
                # The last terms may be read twice.
                term = code.smaller(number, code.subtract("%inner", terms))
                start = code.moved(source, term, element)
                vectors = read_columns(L, dtype, [code.moved(start, distance, element) for distance in distances])
                for step, vector in enumerate(vectors):
                    place = code.multiply(code.add(term, step), "%pitch")
                    store(L, Value(L, vector, dtype), dtype, Location(target, place, False), None)
    parameters = "ptr %from, ptr %to, i64 %count, i64 %columns, i64 %inner, i64 %pitch"
    return code.e, code.e.function("transpose", parameters, "internal ")


class _ConvertedStacksWriter(Integers):
    """Writes the step: a loop over groups of matrices."""

    def __init__(self, dtype: Dtype, sources: Sources, multiplied: Sources, transposes: bool) -> None:
        super().__init__(Emitter())
        self.dtype = dtype
        self.dtypes, self.multiplied = (
            {"a": x.left, "b": x.right, "c": x.result(dtype)} for x in (sources, multiplied)
        )
        """The dtypes of operands and the result in memory, and those that the step that multiplies reads and makes."""
        self.table = self.e.slot(f"[{len(SLOTS)} x ptr]")
        self.converted = {
            operand: self._memory(GROUP_ELEMENTS + ELEMENTS_BEHIND)
            for operand, source in self.dtypes.items()
            if source is not self.multiplied[operand]
        }
        self.transposed = self._memory(TRANSPOSED_ELEMENTS) if transposes else ""

    def _memory(self, elements: int) -> str:
        return self.e.slot(f"[{elements} x {MEMORY_TYPES[self.dtype]}], align 64")

    def conversions(self) -> list[EmittedFunction]:
        """The functions that convert elements."""
        pairs = {(self.dtypes[one], self.dtype) for one in self.converted if one != "c"}
        if "c" in self.converted:
            pairs.add((self.dtype, self.dtypes["c"]))
        return [_conversion(source, target) for source, target in sorted(pairs, key=str)]

    def function(self, name: str) -> EmittedFunction:
        with self.e.loop("%begin", "%end", self.number(_GROUP)) as first:
            count = self.smaller(self.subtract("%end", first), self.number(_GROUP))
            self._group(first, count)
        return self.e, self.e.function(name, STEP)

    def _group(self, first: str, count: str) -> None:
        e, apart = self.e, {operand: self.number(_APART + number) for number, operand in enumerate(SLOTS)}
        counts = {operand: self.multiply(size, count) for operand, size in apart.items()}
        memory = {
            operand: self.moved(self.memory(slot), self.multiply(apart[operand], first), self._element(operand))
            for operand, slot in SLOTS.items()
        }
        places = memory | self.converted
        if self.transposed:
            places["b"] = self.transposed
        for number, operand in enumerate(SLOTS):
            e.store("ptr", places[operand], self.moved(self.table, number, "ptr"))
        for operand in [one for one in self.converted if one != "c"]:
            self._convert(self.dtypes[operand], self.dtype, memory[operand], self.converted[operand], counts[operand])
        if self.transposed:
            source = self.converted.get("b", memory["b"])
            extents = ", ".join([f"i64 {self.number(_NUMBERS + position)}" for position in (COLUMNS, INNER, B_INNER)])
            e.emit(f"call void @transpose(ptr {source}, ptr {self.transposed}, i64 {count}, {extents})")
        units = self.multiply(count, self.number(_UNITS))
        numbers = self.moved("%numbers", _NUMBERS, "i64")
        e.emit(f"call void @{_MULTIPLY}(ptr {numbers}, ptr {self.table}, i64 0, i64 {units})")
        if "c" in self.converted:
            self._convert(self.dtype, self.dtypes["c"], self.converted["c"], memory["c"], counts["c"])

    def _element(self, operand: str) -> str:
        return MEMORY_TYPES[self.dtypes[operand]]

    def _convert(self, source: Dtype, target: Dtype, place: str, to: str, count: str) -> None:
        self.e.emit(f"call void @{_name(source, target)}(ptr {place}, ptr {to}, i64 {count})")
