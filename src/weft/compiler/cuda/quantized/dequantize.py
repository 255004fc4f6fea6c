"""Decodes quantised matrices into memory: a thread makes eight neighbouring numbers."""

from __future__ import annotations

from math import prod

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.quantized import Coding, scale, scale_image, scaled
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.kernels import RoutineCode
from weft.compiler.cuda.numbered import NumberedCode
from weft.compiler.cuda.quantized.codes import coding_of, number_at, words_from
from weft.compiler.cuda.schedule import WIDEST_ACCESS
from weft.dtypes import Dtype
from weft.primitives.conversions import wide_dtype
from weft.primitives.quantized_formats import QuantizedFormat
from weft.primitives.routine import RoutineCall, RoutineStep

THREADS = 256
TOGETHER = 8
"""How many codes a thread decodes at once: they share a scale, and end at a byte."""

# The positions of the step's numbers: units; slots and byte offsets; how many threads have codes; how many words there
# are; the shift from the number of a thread to its group.
_WORDS, _SCALES, _BIASES, _RESULT, _COUNT, _LENGTH, _SHIFT = 1, 3, 5, 7, 9, 10, 11


def step(call: RoutineCall) -> RoutineStep:
    """The step that decodes quantised matrices."""
    params = dict(call.params)
    dtype = params.pop("dtype")
    kind = QuantizedFormat(**params)
    words, scales, *biases = call.operands
    (result,) = call.results
    places = [n for one in (words, scales, (biases or [scales])[0], result) for n in (one.slot, one.offset)]
    size = prod(result.shape)
    count = size // TOGETHER
    units = -(-count // THREADS)
    coding = coding_of(kind, scales.dtype, wide_dtype(dtype))
    numbers = [units, *places, count, prod(words.shape), (kind.group_size // TOGETHER).bit_length() - 1]
    return RoutineStep(_code(coding, dtype), numbers, units, 1, size)


def _code(coding: Coding, dtype: Dtype) -> RoutineCode:
    title = f"dequantize, {coding.mode}"
    return RoutineCode(
        f"{title}: {coding} {dtype.name}", lambda name: _Dequantize(coding, dtype).text(name), THREADS, title
    )


class _Dequantize(NumberedCode):
    """Writes the kernel."""

    def __init__(self, coding: Coding, dtype: Dtype) -> None:
        super().__init__(THREADS, _SHIFT + 1)
        self.coding, self.dtype = coding, dtype
        self.L = Lanes(self.e, 1)

    def text(self, name: str) -> str:
        words, scales, biases, result = (
            self.global_memory(position) for position in (_WORDS, _SCALES, _BIASES, _RESULT)
        )
        with self.each_unit() as unit:
            index = self.add(self.multiply(unit, THREADS), self.position)
            with self.e.when(self.compare("slt", index, self.number(_COUNT))):
                self._eight(words, scales, biases, result, index)
        return self.finished(name)

    def _eight(self, words: str, scales: str, biases: str, result: str, index: str) -> None:
        """Decode the numbers at an index, which counts in eights."""
        group = self.e.assign(f"lshr i64 {index}, {self.number(_SHIFT)}")
        factor = self._scale(scales, group)
        offset = self._scale(biases, group) if self.coding.affine else None
        bits = TOGETHER * self.coding.bits
        last = self.subtract(self.number(_LENGTH), 1)
        codes = words_from(self, words, self.multiply(index, bits), bits, last)
        wide = Lanes(self.e, TOGETHER)
        type_ = wide.type_of(self.dtype)
        vector = "poison"
        for code in range(TOGETHER):
            plain = number_at(self.coding, codes, code * self.coding.bits)
            value = scaled(self.coding, plain, factor, offset)
            element = MEMORY_TYPES[value.dtype]
            vector = self.e.assign(f"insertelement {type_} {vector}, {element} {value.name}, i64 {code}")
        location = Location(
            result, self.multiply(index, TOGETHER), False, min(TOGETHER * self.dtype.size, WIDEST_ACCESS)
        )
        store(wide, Value(wide, vector, self.dtype), self.dtype, location, None)

    def _scale(self, scales: str, group: str) -> Value:
        image = load(self.L, self.coding.scales, Location(scales, group, False), None)
        if self.coding.scales.is_floating:
            image = self.L.convert(Value(self.L, image.name, self.coding.scales), self.coding.dtype)
        else:
            image = self.L.convert(image, scale_image(self.coding))
        return scale(self.coding, image)
