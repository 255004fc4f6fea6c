"""The elements that are sorted on a GPU: they are moved as they are in memory, by the digits of their keys."""

from __future__ import annotations

from dataclasses import dataclass

from weft import dtypes
from weft.compiler.codegen import keys
from weft.compiler.codegen.memory import dtype_alignment
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.code import BlockCode
from weft.dtypes import Dtype

DIGIT_BITS = 8


@dataclass(frozen=True)
class Elements:
    """Elements of a dtype, which are moved unchanged; with their ``indices``, if these are the result.

    Keys are computed from the elements for each digit that is read. So elements need not be restored from keys, and -0
    and all kinds of NaN keep their bits.
    """

    dtype: Dtype
    indices: bool

    @property
    def word(self) -> str:
        """The LLVM type of an element in memory."""
        return f"i{8 * self.dtype.size}"

    @property
    def result(self) -> str:
        """The LLVM type of an element of the result."""
        return "i32" if self.indices else self.word

    @property
    def digits(self) -> int:
        """How many digits a key has."""
        return 8 * self.dtype.size // DIGIT_BITS

    @property
    def name(self) -> str:
        return f"{self.dtype.name} {'indices' if self.indices else 'values'}"

    def read(self, code: BlockCode, pointer: str) -> str:
        """An element from memory."""
        return code.e.assign(f"load {self.word}, ptr {pointer}, align {dtype_alignment(self.dtype)}")

    def key(self, code: BlockCode, word: str) -> Value:
        """The key of an element."""
        raw = Value(code.scalar, word, dtypes.UNSIGNED[self.dtype.size])
        return keys.equal(code.scalar, raw, self.dtype)

    def digit(self, code: BlockCode, word: str, shift: str) -> str:
        """The digit of an element ``shift`` bits (an ``i32``) above the lowest one of its key."""
        key, bits = self.key(code, word).name, 8 * self.dtype.size
        if bits == DIGIT_BITS:
            return code.e.assign(f"zext i8 {key} to i32")
        amount = shift
        if bits != 32:
            amount = code.e.assign(f"{'zext' if bits > 32 else 'trunc'} i32 {shift} to {self.word}")
        shifted = code.e.assign(f"lshr {self.word} {key}, {amount}")
        if bits > 32:
            shifted = code.e.assign(f"trunc {self.word} {shifted} to i32")
        elif bits < 32:
            shifted = code.e.assign(f"zext {self.word} {shifted} to i32")
        return code.word("and", shifted, (1 << DIGIT_BITS) - 1)
