"""Lanes: the arithmetic that the scalar code of operations is written with.

A `Value` stands for one number per lane. On a CPU it is an LLVM vector of ``width`` elements, or a scalar if ``width``
is 1, as it is on a GPU, where each thread is a lane. Code written with `Lanes` does not depend on the width, so each
formula exists once for all targets.

There is no arithmetic in half precision: a ``float16`` or ``bfloat16`` value is held as the float32 of the same
value, computed in float32 and rounded after each operation (`Lanes.round_to`). That is correctly rounded for
``+ - * / sqrt`` because float32 has more than twice the bits (Figueroa, 1995).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, overload

from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.literals import literal
from weft.compiler.codegen.saturation import saturated, saturates_by_comparing
from weft.compiler.codegen.values import Complex, Number, RoundedValue, SumOfProducts, Value
from weft.dtypes import Dtype

REGISTER_TYPES: dict[Dtype, str] = {
    dtypes.bool_: "i1",
    dtypes.uint8: "i8",
    dtypes.uint16: "i16",
    dtypes.uint32: "i32",
    dtypes.uint64: "i64",
    dtypes.int8: "i8",
    dtypes.int16: "i16",
    dtypes.int32: "i32",
    dtypes.int64: "i64",
    dtypes.float16: "float",
    dtypes.bfloat16: "float",
    dtypes.float32: "float",
    dtypes.float64: "double",
}
INTRINSIC_SUFFIXES = {"float": "f32", "double": "f64", "i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64"}
HALVES = (dtypes.float16, dtypes.bfloat16)
LONG_POLYNOMIAL = 12
LOW_POWERS = 4

_REFLECTED = {"add": "__radd__", "sub": "__rsub__", "mul": "__rmul__", "div": "__rtruediv__"}


class Lanes:
    """Emits the arithmetic of ``width`` lanes into an `Emitter`."""

    def __init__(self, emitter: Emitter, width: int) -> None:
        self.emitter, self.width = emitter, width

    def type_of(self, dtype: Dtype) -> str:
        """The LLVM type of a value of ``dtype`` in these lanes."""
        element = REGISTER_TYPES[dtype]
        return f"<{self.width} x {element}>" if self.width > 1 else element

    def _suffix(self, dtype: Dtype) -> str:
        suffix = INTRINSIC_SUFFIXES[REGISTER_TYPES[dtype]]
        return f"v{self.width}{suffix}" if self.width > 1 else suffix

    def constant(self, value: Number, dtype: Dtype) -> Value:
        """The same number in every lane, rounded to ``dtype``."""
        text = literal(value, dtype)
        if self.width > 1:
            text = f"splat ({REGISTER_TYPES[dtype]} {text})"
        return Value(self, text, dtype)

    def coerce(self, value: Value | Number, dtype: Dtype) -> Value:
        """``value`` itself, or the constant of ``dtype`` for a Python number."""
        return value if isinstance(value, Value) else self.constant(value, dtype)

    def _pair(self, left: Value | Number, right: Value | Number) -> tuple[Value, Value]:
        dtype = left.dtype if isinstance(left, Value) else right.dtype  # type: ignore[union-attr]  # one is a Value
        left, right = self.coerce(left, dtype), self.coerce(right, dtype)
        if REGISTER_TYPES[left.dtype] != REGISTER_TYPES[right.dtype]:
            raise TypeError(f"lanes of {left.dtype.name} met lanes of {right.dtype.name}")
        return left, right

    def arithmetic(self, operation: str, left: Value | Number | Complex, right: Value | Number | Complex) -> Any:
        if isinstance(right, Complex):
            return getattr(right, _REFLECTED[operation])(left)
        left, right = self._pair(left, right)  # type: ignore[arg-type]  # complex is handled above
        prefix = "f" if left.dtype.is_floating else ""
        return self._two(f"{prefix}{operation}", left, right)

    def sum_by_multiplier(self, left: Value, right: Value | Number) -> Value:
        """``left + right``, for code that has a GPU's units for integers do nothing but sums, shifts and bitwise
        operations. Its multipliers compute this sum meanwhile."""
        if not self.emitter.for_gpu:
            return self.arithmetic("add", left, right)
        # The height of the grid, which is always one. The assembler does not know that, and leaves the product.
        one = self.emitter.call("llvm.nvvm.read.ptx.sreg.nctaid.y", "i32", [])
        product = self._two("mul", left, self.splat(Value(Lanes(self.emitter, 1), one, left.dtype)))
        return self.arithmetic("add", product, right)

    def bitwise(self, operation: str, left: Value | Number, right: Value | Number) -> Value:
        left, right = self._pair(left, right)
        return self._two(operation, left, right)

    def _two(self, instruction: str, left: Value, right: Value) -> Value:
        text = f"{instruction} {self.type_of(left.dtype)} {left.name}, {right.name}"
        return Value(self, self.emitter.assign(text), left.dtype)

    def integer_divide(self, left: Value, right: Value | Number) -> Value:
        """Division of integers towards zero. The caller excludes division by zero and the one quotient that
        overflows."""
        left, right = self._pair(left, right)
        return self._two("sdiv" if left.dtype.is_signed else "udiv", left, right)

    def truncate_to_integer(self, x: Value, dtype: Dtype) -> Value:
        """A float rounded towards zero. The caller excludes floats that are out of the range of ``dtype``."""
        return self._cast("fptosi" if dtype.is_signed else "fptoui", x, dtype)

    def any_lane(self, condition: Value) -> str:
        """The register of an ``i1`` that says whether ``condition`` holds in any lane."""
        if self.width == 1:
            return condition.name
        type_ = self.type_of(condition.dtype)
        return self.emitter.call(f"llvm.vector.reduce.or.v{self.width}i1", "i1", [(type_, condition.name)])

    def highest_bit(self, x: Value) -> str:
        """The register of an ``i64``: the position of the highest bit set in any lane, counted from 1; 0 if there is
        none."""
        element, all_bits = REGISTER_TYPES[x.dtype], x.name
        if self.width > 1:
            type_, name = self.type_of(x.dtype), f"llvm.vector.reduce.or.v{self.width}{element}"
            all_bits = self.emitter.call(name, element, [(type_, x.name)])
        wide = all_bits if element == "i64" else self.emitter.assign(f"zext {element} {all_bits} to i64")
        zeros = self.emitter.call("llvm.ctlz.i64", "i64", [("i64", wide), ("i1", "false")])
        return self.emitter.assign(f"sub i64 64, {zeros}")

    def negative(self, x: Value) -> Value:
        type_ = self.type_of(x.dtype)
        text = (
            f"fneg {type_} {x.name}"
            if x.dtype.is_floating
            else f"sub {type_} {self.constant(0, x.dtype).name}, {x.name}"
        )
        return Value(self, self.emitter.assign(text), x.dtype)

    def compare(self, relation: str, left: Value | Number, right: Value | Number) -> Value:
        """Lanes of bool. For floating point, comparisons with NaN are false, except ``ne``, which is true."""
        left, right = self._pair(left, right)
        dtype = left.dtype
        if dtype.is_floating:
            predicate = "fcmp une" if relation == "ne" else f"fcmp o{relation}"
        elif relation in ("eq", "ne"):
            predicate = f"icmp {relation}"
        else:
            predicate = f"icmp {'s' if dtype.is_signed else 'u'}{relation}"
        text = f"{predicate} {self.type_of(dtype)} {left.name}, {right.name}"
        return Value(self, self.emitter.assign(text), dtypes.bool_)

    def equal(self, left: Value | Number, right: Value | Number) -> Value:
        return self.compare("eq", left, right)

    def not_equal(self, left: Value | Number, right: Value | Number) -> Value:
        return self.compare("ne", left, right)

    def compare_values(self, relation: str, left: Any, right: Any) -> Value:
        """A comparison of real or complex values; complex numbers are ordered by real, then by imaginary part."""
        if not isinstance(left, Complex):
            return self.compare(relation, left, right)
        reals, imags = self.equal(left.real, right.real), self.compare(relation, left.imag, right.imag)
        if relation == "eq":
            return reals & imags
        if relation == "ne":
            return ~reals | imags
        return self.compare(relation[0] + "t", left.real, right.real) | (reals & imags)

    def sign(self, x: Any) -> Any:
        """-1, 0 or 1, and NaN for NaN; a complex number is divided by its magnitude."""
        if isinstance(x, Complex):
            size = self.absolute(x)
            zero = self.equal(size, 0)
            return self.select(zero, x, x / self.select(zero, self.constant(1.0, size.dtype), size))
        if x.dtype.is_floating:
            unit = self.copysign(self.constant(1.0, x.dtype), x)
            return self.select(self.equal(x, 0) | self.is_nan(x), x, unit)
        if not x.dtype.is_signed:
            return self.select(self.equal(x, 0), x, self.constant(1, x.dtype))
        one = self.constant(1, x.dtype)
        return self.select(x > 0, one, self.select(x < 0, -one, x))

    def round(self, x: Any) -> Any:
        """The nearest integer, ties to even. The parts of a complex number are rounded each by itself."""
        if isinstance(x, Complex):
            return Complex(self.rint(x.real), self.rint(x.imag))
        return self.rint(x) if x.dtype.is_floating else x

    def conjugate(self, x: Any) -> Any:
        return Complex(x.real, -x.imag) if isinstance(x, Complex) else x

    def shift_left(self, x: Value, count: Value) -> Value:
        """A left shift; 0 if ``count`` is at least the number of bits."""
        return self.select(self._shifts_all(x, count), self.constant(0, x.dtype), x << self._few(x, count))

    def shift_right(self, x: Value, count: Value) -> Value:
        """A right shift that fills with the sign bit, or with zeros if ``x`` is unsigned."""
        last = self.constant(8 * x.dtype.size - 1, x.dtype)
        if x.dtype.is_signed:
            return x >> self.select(self._shifts_all(x, count), last, count)
        return self.select(self._shifts_all(x, count), self.constant(0, x.dtype), x >> self._few(x, count))

    def _shifts_all(self, x: Value, count: Value) -> Value:
        beyond = count >= 8 * x.dtype.size
        return beyond | (count < 0) if x.dtype.is_signed else beyond

    def _few(self, x: Value, count: Value) -> Value:
        return count & (8 * x.dtype.size - 1)

    @overload
    def select(self, condition: Value, yes: Value, no: Value | Number) -> Value: ...
    @overload
    def select(self, condition: Value, yes: Number, no: Value) -> Value: ...
    @overload
    def select(self, condition: Value, yes: Complex, no: Complex) -> Complex: ...
    @overload
    def select(self, condition: Value, yes: Any, no: Any) -> Any: ...
    def select(self, condition: Value, yes: Any, no: Any) -> Any:
        """``yes`` where ``condition`` holds, else ``no``."""
        if isinstance(yes, Complex) or isinstance(no, Complex):
            return Complex(self.select(condition, yes.real, no.real), self.select(condition, yes.imag, no.imag))
        yes, no = self._pair(yes, no)
        mask, type_ = self.type_of(dtypes.bool_), self.type_of(yes.dtype)
        text = f"select {mask} {condition.name}, {type_} {yes.name}, {type_} {no.name}"
        return Value(self, self.emitter.assign(text), yes.dtype)

    def intrinsic(self, name: str, *arguments: Value) -> Value:
        """Call ``llvm.<name>`` on values of one dtype."""
        first = arguments[0]
        type_ = self.type_of(first.dtype)
        function = f"llvm.{name}.{self._suffix(first.dtype)}"
        result = self.emitter.call(function, type_, [(type_, value.name) for value in arguments])
        return Value(self, result, first.dtype)

    def fma(self, x: Value, y: Value | Number, z: Value | Number) -> Value:
        """``x * y + z`` rounded once."""
        return self.intrinsic("fma", x, self.coerce(y, x.dtype), self.coerce(z, x.dtype))

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Horner's scheme with fused multiply-add; the highest power comes first.

        The high powers of a long polynomial are evaluated in two chains, even and odd powers, because one chain of
        dependent operations leaves a processor idle. The low powers, which decide how the result is rounded, stay in
        one chain.
        """
        result = self.constant(coefficients[0], x.dtype)
        rest = coefficients[1:]
        if len(coefficients) >= LONG_POLYNOMIAL:
            high, rest = coefficients[:-LOW_POWERS], coefficients[-LOW_POWERS:]
            square, last = x * x, len(high) - 1
            even, odd = high[last % 2 :: 2], high[1 - last % 2 :: 2]
            result = self.fma(self.polynomial(square, odd), x, self.polynomial(square, even))
        for coefficient in rest:
            result = self.fma(result, x, coefficient)
        return result

    def table(self, index: Value, numbers: Sequence[float]) -> Value:
        """The float64 of a constant table at a uint32 index. The caller excludes indices outside of the table."""
        if self.width == len(numbers) == 16 and "+avx512f" in host.current().features:
            return self._permuted(index, numbers)
        contents = ", ".join([f"double {literal(number, dtypes.float64)}" for number in numbers])
        name = f"weft.table.{blake2b(contents.encode(), digest_size=8).hexdigest()}"
        self.emitter.declarations[name] = f"@{name} = internal constant [{len(numbers)} x double] [{contents}]"
        if self.width == 1:
            wide = self.emitter.assign(f"zext i32 {index.name} to i64")
            pointer = self.emitter.assign(f"getelementptr double, ptr @{name}, i64 {wide}")
            return Value(self, self.emitter.load("double", pointer), dtypes.float64)
        type_, pointers, masks = self.type_of(dtypes.float64), f"<{self.width} x ptr>", f"<{self.width} x i1>"
        pointer = self.emitter.assign(f"getelementptr double, ptr @{name}, {self.type_of(index.dtype)} {index.name}")
        arguments = [(pointers, pointer), ("i32 immarg", "8"), (masks, "splat (i1 true)"), (type_, "poison")]
        gather = f"llvm.masked.gather.v{self.width}f64.v{self.width}p0"
        return Value(self, self.emitter.call(gather, type_, arguments), dtypes.float64)

    def _permuted(self, index: Value, numbers: Sequence[float]) -> Value:
        """A table of 16 numbers in two registers of AVX-512: that takes half the time of reading from memory."""
        type_, wide = "<8 x double>", self._cast("zext", index, dtypes.uint64)
        texts = [f"double {literal(number, dtypes.float64)}" for number in numbers]
        low, high = (f"<{', '.join(part)}>" for part in (texts[:8], texts[8:]))
        halves = []
        for lanes in (range(8), range(8, 16)):
            mask = ", ".join([f"i32 {lane}" for lane in lanes])
            part = self.emitter.assign(f"shufflevector <16 x i64> {wide.name}, <16 x i64> poison, <8 x i32> <{mask}>")
            arguments = [(type_, low), ("<8 x i64>", part), (type_, high)]
            halves.append(self.emitter.call("llvm.x86.avx512.vpermi2var.pd.512", type_, arguments))
        mask = ", ".join([f"i32 {lane}" for lane in range(16)])
        joined = f"shufflevector {type_} {halves[0]}, {type_} {halves[1]}, <16 x i32> <{mask}>"
        return Value(self, self.emitter.assign(joined), dtypes.float64)

    def complex(self, real: Value, imag: Value) -> Complex:
        return Complex(real, imag)

    def complex_divide(self, left: Complex, right: Complex) -> Complex:
        """The quotient of complex numbers; `MathLanes` has the formula."""
        raise NotImplementedError

    def absolute(self, x: Any) -> Any:
        """The magnitude; that of complex numbers is in `MathLanes`."""
        if x.dtype.is_floating:
            return self.intrinsic("fabs", x)
        if not x.dtype.is_signed:
            return x
        return self.select(x < 0, -x, x)

    def sqrt(self, x: Value) -> Value:
        return self.intrinsic("sqrt", x)

    def floor(self, x: Value) -> Value:
        return self.intrinsic("floor", x)

    def ceil(self, x: Value) -> Value:
        return self.intrinsic("ceil", x)

    def trunc(self, x: Value) -> Value:
        return self.intrinsic("trunc", x)

    def rint(self, x: Value) -> Value:
        """The nearest integer; ties go to the even one."""
        return self.intrinsic("rint", x)

    def copysign(self, magnitude: Value, sign: Value | Number) -> Value:
        return self.intrinsic("copysign", magnitude, self.coerce(sign, magnitude.dtype))

    def is_nan(self, x: Value) -> Value:
        return self.not_equal(x, x)

    def maximum(self, x: Value, y: Value | Number) -> Value:
        """The larger one; NaN where either is NaN."""
        x, y = self._pair(x, y)
        larger = self.select(x > y, x, y)
        return self.select(self.is_nan(x), x, larger) if x.dtype.is_floating else larger

    def larger(self, x: Value, y: Value) -> Value:
        """The larger one of two numbers; NaN where either is NaN; either one of 0 and -0."""
        return self.intrinsic("maximum", x, y)

    def lesser(self, x: Value, y: Value) -> Value:
        """The smaller one of two numbers; NaN where either is NaN; either one of 0 and -0."""
        return self.intrinsic("minimum", x, y)

    def minimum(self, x: Value, y: Value | Number) -> Value:
        """The smaller one; NaN where either is NaN."""
        x, y = self._pair(x, y)
        smaller = self.select(x < y, x, y)
        return self.select(self.is_nan(x), x, smaller) if x.dtype.is_floating else smaller

    def bitcast(self, x: Value, dtype: Dtype) -> Value:
        """The same bits read as another dtype whose register has the same size."""
        text = f"bitcast {self.type_of(x.dtype)} {x.name} to {self.type_of(dtype)}"
        return Value(self, self.emitter.assign(text), dtype)

    def _cast(self, instruction: str, x: Value, dtype: Dtype) -> Value:
        text = f"{instruction} {self.type_of(x.dtype)} {x.name} to {self.type_of(dtype)}"
        return Value(self, self.emitter.assign(text), dtype)

    def convert(self, x: Any, dtype: Dtype) -> Any:
        """A conversion of values: rounding to nearest, truncation towards zero for integers, ``!= 0`` for bool.

        A float outside of the range of ``dtype`` gives the nearest bound of the range, NaN gives zero: the result is
        the same on every machine.
        """
        if x.dtype is dtype:
            return x
        if dtype.is_complex:
            real = self.convert(x, dtypes.float32)
            return Complex(real, self.constant(0.0, dtypes.float32))
        if isinstance(x, Complex):
            if dtype.is_bool:
                return self.not_equal(x.real, 0) | self.not_equal(x.imag, 0)
            return self.convert(x.real, dtype)
        if dtype.is_bool:
            return self.not_equal(x, 0)
        if dtype in HALVES:
            single = self.convert(x, dtypes.float32)
            # LLVM may merge this rounding with one to float32, even one made before, and then calls a library.
            fenced = x.dtype.size == 8 or self.width == 1
            return self.round_to(self.intrinsic("arithmetic.fence", single) if fenced else single, dtype)
        if x.dtype.is_floating:
            return self._convert_float(x, dtype)
        if dtype.is_floating:
            return self._cast("sitofp" if x.dtype.is_signed else "uitofp", x, dtype)
        return self._resize_integer(x, dtype)

    def _convert_float(self, x: Value, dtype: Dtype) -> Value:
        if dtype.is_floating:
            source, target = REGISTER_TYPES[x.dtype], REGISTER_TYPES[dtype]
            if source == target:
                return Value(self, x.name, dtype)
            return self._cast("fpext" if source == "float" else "fptrunc", x, dtype)
        if saturates_by_comparing(self, dtype):
            return saturated(self, x, dtype)
        operation = "fptosi" if dtype.is_signed else "fptoui"
        source, target = self.type_of(x.dtype), self.type_of(dtype)
        name = f"llvm.{operation}.sat.{self._suffix(dtype)}.{self._suffix(x.dtype)}"
        return Value(self, self.emitter.call(name, target, [(source, x.name)]), dtype)

    def _resize_integer(self, x: Value, dtype: Dtype) -> Value:
        if REGISTER_TYPES[x.dtype] == REGISTER_TYPES[dtype]:
            return Value(self, x.name, dtype)
        if x.dtype.size > dtype.size:
            return self._cast("trunc", x, dtype)
        return self._cast("sext" if x.dtype.is_signed else "zext", x, dtype)

    def round_to(self, x: Value, dtype: Dtype) -> Value:
        """Round a float32 value to the nearest ``float16`` or ``bfloat16``, still held as float32."""
        if dtype is dtypes.float16 or self.emitter.rounds_bfloat16:
            bits = self.half_to_bits(Value(self, x.name, dtype))
            return RoundedValue(self.half_from_bits(bits, dtype), bits)
        bits = self._rounded_bfloat16_bits(x)
        return RoundedValue(Value(self, self.bitcast(bits, dtypes.float32).name, dtype), bits)

    def round_quickly(self, x: Value) -> Value:
        """Round a float32 value to ``bfloat16``, where subnormal numbers may become zero."""
        if self.width == 1 or not self._rounds_to_bfloat16:
            return self.round_to(x, dtypes.bfloat16)
        bits = self._rounded("bfloat", x)
        return RoundedValue(self.half_from_bits(bits, dtypes.bfloat16), bits)

    @property
    def _rounds_to_bfloat16(self) -> bool:
        """Whether the CPU has an instruction that rounds vectors to bfloat16. It takes subnormal numbers as zero."""
        return "+avx512bf16" in host.current().features.split(",")

    def _rounded(self, half: str, x: Value) -> Value:
        """The bits of float32 values rounded to ``half``, a type of LLVM."""
        element = f"<{self.width} x {half}>" if self.width > 1 else half
        rounded = self.emitter.assign(f"fptrunc {self.type_of(dtypes.float32)} {x.name} to {element}")
        text = f"bitcast {element} {rounded} to {self.type_of(dtypes.uint16)}"
        return Value(self, self.emitter.assign(text), dtypes.uint16)

    def _rounded_bfloat16_bits(self, x: Value) -> Value:
        """The float32 bits of ``x`` rounded to 16 significant leading bits, ties to even; NaN stays NaN."""
        bits = self.bitcast(Value(self, x.name, dtypes.float32), dtypes.uint32)
        odd = (bits >> 16) & 1
        rounded = (bits + odd + 0x7FFF) & 0xFFFF0000
        if isinstance(x, SumOfProducts):
            return rounded
        quiet = (bits | 0x00400000) & 0xFFFF0000
        return self.select(self.is_nan(x), quiet, rounded)

    def half_to_bits(self, x: Value) -> Value:
        """The bits that a half-precision value has in memory, rounded to its dtype, as uint16."""
        if isinstance(x, RoundedValue):
            return x.bits if x.bits.dtype is dtypes.uint16 else self._cast("trunc", x.bits >> 16, dtypes.uint16)
        if x.dtype is dtypes.float16:
            return self._rounded("half", x)
        if self.emitter.rounds_bfloat16:
            return self._rounded("bfloat", x)
        if self.width > 1 and self._rounds_to_bfloat16:
            return self._rounded_to_bfloat16_bits(x)
        return self._cast("trunc", self._rounded_bfloat16_bits(x) >> 16, dtypes.uint16)

    def _rounded_to_bfloat16_bits(self, x: Value) -> Value:
        """The bits of ``x`` rounded to bfloat16, by an instruction that takes subnormal numbers as zero."""
        bits = self.bitcast(Value(self, x.name, dtypes.float32), dtypes.uint32)
        small = self.equal(bits & 0x7F800000, 0)
        # One added to the exponent of a number below the smallest normal one makes it normal, with the same last bits.
        normal = self.bitcast(self.select(small, bits | 0x00800000, bits), dtypes.float32)
        rounded = self._rounded("bfloat", normal)
        return self.select(small, rounded - 0x0080, rounded)

    def half_from_bits(self, bits: Value, dtype: Dtype) -> Value:
        """The value, held as float32, of half-precision bits from memory."""
        if dtype is dtypes.float16:
            element = f"<{self.width} x half>" if self.width > 1 else "half"
            half = self.emitter.assign(f"bitcast {self.type_of(dtypes.uint16)} {bits.name} to {element}")
            return Value(self, self.emitter.assign(f"fpext {element} {half} to {self.type_of(dtypes.float32)}"), dtype)
        if self.width > 1 and self.emitter.for_gpu:
            return self._bfloat16_pairs(bits)
        wide = self._cast("zext", bits, dtypes.uint32) << 16
        return Value(self, self.bitcast(wide, dtypes.float32).name, dtype)

    def _bfloat16_pairs(self, bits: Value) -> Value:
        """The values of bfloat16 bits. A GPU has two of them in a register, and makes each a float32 with one
        instruction: a shift or a mask."""
        e, pairs = self.emitter, f"<{self.width // 2} x i32>"
        both = e.assign(f"bitcast {self.type_of(dtypes.uint16)} {bits.name} to {pairs}")
        low = e.assign(f"shl {pairs} {both}, splat (i32 16)")
        high = e.assign(f"and {pairs} {both}, splat (i32 {0xFFFF0000})")
        order = ", ".join([f"i32 {lane // 2 + lane % 2 * (self.width // 2)}" for lane in range(self.width)])
        wide = e.assign(f"shufflevector {pairs} {low}, {pairs} {high}, <{self.width} x i32> <{order}>")
        floats = self.bitcast(Value(self, wide, dtypes.uint32), dtypes.float32)
        return Value(self, floats.name, dtypes.bfloat16)

    def splat(self, value: Any) -> Any:
        """A value of one lane repeated in every lane."""
        if isinstance(value, Complex):
            return Complex(self.splat(value.real), self.splat(value.imag))
        if value.lanes.width == self.width:
            return value
        if not value.name.startswith("%"):
            return Value(self, f"splat ({REGISTER_TYPES[value.dtype]} {value.name})", value.dtype)
        type_, element = self.type_of(value.dtype), REGISTER_TYPES[value.dtype]
        first = self.emitter.assign(f"insertelement {type_} poison, {element} {value.name}, i64 0")
        text = f"shufflevector {type_} {first}, {type_} poison, <{self.width} x i32> zeroinitializer"
        return Value(self, self.emitter.assign(text), value.dtype)
