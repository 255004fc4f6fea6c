"""Where the stages of a Fourier transform read and write complex numbers.

Between stages, numbers are in the two planes of a buffer: all real parts, then all imaginary parts. In arrays they are
interleaved, or pairs of rows of real numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft import dtypes
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import Integers
from weft.compiler.cpu.fourier.butterflies import Pair

FIELDS = (
    *("function", "from", "to", "in_real", "in_imag", "out_real", "out_imag", "table", "fine", "scale"),
    *("count", "outer", "inner", "in_outer", "in_inner", "in_next", "out_outer", "out_inner", "out_next"),
    *("in_ahead", "out_ahead"),
)
"""The numbers of a stage: its function; its source and target (0 is the array, 1 and 2 are buffers); where the parts of
complex numbers begin; two tables; the bits of a scale; how often its loops run; the distances in bytes from one turn to
the next; and how many bytes ahead it prefetches."""

FLOAT, COMPLEX, LINE = 4, 8, 64
FIELD = {name: number for number, name in enumerate(FIELDS)}
PARAMETERS = "ptr %numbers, ptr %from, ptr %to, i64 %lanes, i64 %first"


@dataclass(frozen=True)
class ComplexAccess:
    """How complex numbers of neighbouring lanes are stored.

    ``kind`` is ``"planes"``; ``"row"``, interleaved in an array; ``"columns"``, the same, where only the lanes that are
    computed exist in memory; or ``"pairs"``, real parts in one row and imaginary ones in the next. ``swapped``
    exchanges real and imaginary parts, which turns a transform into its inverse. ``scaled`` multiplies by a factor.
    ``ahead`` prefetches.
    """

    kind: str
    swapped: bool = False
    scaled: bool = False
    ahead: bool = False

    @property
    def text(self) -> str:
        return self.kind + "_swapped" * self.swapped + "_scaled" * self.scaled + "_ahead" * self.ahead

    @property
    def bytes(self) -> int:
        """The distance from lane to lane."""
        return COMPLEX if self.kind in ("row", "columns") else FLOAT


PLANES = ComplexAccess("planes")


class StageWriter(Integers):
    """Writes the function of a stage."""

    def __init__(self, width: int) -> None:
        super().__init__(Emitter())
        self.L = Lanes(self.e, width)
        self.scalar = Lanes(self.e, 1)
        self.width = width
        self._masks: dict[int, str] = {}
        self._scale: Value | None = None
        self._ahead: dict[str, str] = {}

    def field(self, name: str) -> str:
        """A number of the stage."""
        return self.number(FIELD[name])

    def numbers(self, *names: str) -> list[str]:
        return [self.field(name) for name in names]

    def parts(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Where real and imaginary parts begin, in the source and in the target."""
        in_real, in_imag, out_real, out_imag = self.numbers("in_real", "in_imag", "out_real", "out_imag")
        return (in_real, in_imag), (out_real, out_imag)

    def table(self, name: str = "table") -> str:
        return self.e.assign(f"inttoptr i64 {self.field(name)} to ptr")

    def prepare(self, source: ComplexAccess, sink: ComplexAccess) -> None:
        """Write what loads and stores need before the loops."""
        if sink.scaled:
            bits = self.e.assign(f"trunc i64 {self.field('scale')} to i32")
            scale = Value(self.scalar, self.e.assign(f"bitcast i32 {bits} to float"), dtypes.float32)
            self._scale = self.L.splat(scale)
        for access, direction in ((source, "in"), (sink, "out")):
            if access.ahead:
                self._ahead[direction] = self.field(f"{direction}_ahead")
        kinds = {source.kind, sink.kind}
        lanes = self.e.assign("trunc i64 %lanes to i32")
        if "columns" in kinds:
            self._masks[2] = self.below(self.e.assign(f"shl i32 {lanes}, 1"), 2 * self.width)
        if "pairs" in kinds:
            self._masks[1] = self.below(lanes, self.width)

    def below(self, count: str, width: int) -> str:
        """A mask of the lanes whose number is below ``count``, an ``i32``."""
        type_ = f"<{width} x i32>"
        first = self.e.assign(f"insertelement {type_} poison, i32 {count}, i64 0")
        all_lanes = self.e.assign(f"shufflevector {type_} {first}, {type_} poison, {type_} zeroinitializer")
        numbers = ", ".join([f"i32 {lane}" for lane in range(width)])
        return self.e.assign(f"icmp slt {type_} <{numbers}>, {all_lanes}")

    def vector(self, pointer: str, mask: str | None = None, width: int = 0) -> str:
        """A vector of floats, of ``width`` or one for each lane; zeros outside of a mask."""
        width = width or self.width
        type_ = f"<{width} x float>"
        if mask is None:
            return self.e.assign(f"load {type_}, ptr {pointer}, align 4")
        name = f"llvm.masked.load.v{width}f32.p0"
        self.e.declarations[name] = f"declare {type_} @{name}(ptr, i32, <{width} x i1>, {type_})"
        return self.e.assign(
            f"call {type_} @{name}(ptr {pointer}, i32 4, <{width} x i1> {mask}, {type_} zeroinitializer)"
        )

    def store_vector(self, value: str, pointer: str, mask: str | None = None, width: int = 0) -> None:
        width = width or self.width
        type_ = f"<{width} x float>"
        if mask is None:
            self.e.emit(f"store {type_} {value}, ptr {pointer}, align 4")
            return
        name = f"llvm.masked.store.v{width}f32.p0"
        self.e.declarations[name] = f"declare void @{name}({type_}, ptr, i32, <{width} x i1>)"
        self.e.emit(f"call void @{name}({type_} {value}, ptr {pointer}, i32 4, <{width} x i1> {mask})")

    def value(self, register: str) -> Value:
        return Value(self.L, register, dtypes.float32)

    def shuffled(self, left: str, right: str, lanes: list[int], width: int = 0) -> str:
        """A vector of the chosen ``lanes`` of two vectors of ``width``."""
        width = width or self.width
        type_ = f"<{width} x float>"
        chosen = ", ".join([f"i32 {lane}" if lane >= 0 else "i32 poison" for lane in lanes])
        return self.e.assign(f"shufflevector {type_} {left}, {type_} {right}, <{len(lanes)} x i32> <{chosen}>")

    def splat(self, pointer: str) -> Value:
        """A float from memory, in all lanes."""
        loaded = self.e.assign(f"load float, ptr {pointer}, align 4")
        return self.L.splat(Value(self.scalar, loaded, dtypes.float32))

    def ask_ahead(self, direction: str, pointer: str, size: int, alone: bool) -> None:
        """Prefetch the cache lines of ``size`` bytes that will be read or written soon. If what follows them is not
        prefetched (``alone``), this includes the line that the last byte is in."""
        if direction not in self._ahead:
            return
        self.e.declarations["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        start = self.moved(pointer, self._ahead[direction])
        for distance in [*range(0, size, LINE), *[size - 1] * alone]:
            target = self.moved(start, distance)
            self.e.emit(f"call void @llvm.prefetch.p0(ptr {target}, i32 {int(direction == 'out')}, i32 3, i32 1)")

    def load(self, access: ComplexAccess, pointer: str, parts: tuple[str, str], reverse: bool = False) -> Pair:
        """Complex numbers from an address. ``parts`` are the distances to real and imaginary parts, unless they are
        interleaved. With ``reverse``, the order of the lanes is reversed."""
        if access.kind in ("row", "columns"):
            self.ask_ahead("in", pointer, self.width * COMPLEX, access.kind == "columns")
            width = 2 * self.width
            whole = self.vector(pointer, self._masks[2] if access.kind == "columns" else None, width)
            lanes = list(range(0, width, 2))
            lanes = lanes[::-1] if reverse else lanes
            real, imag = [self.shuffled(whole, "poison", [lane + part for lane in lanes], width) for part in (0, 1)]
        else:
            mask = self._masks[1] if access.kind == "pairs" else None
            pointers = [self.moved(pointer, part) for part in parts]
            if access.kind == "pairs":
                for one in pointers:
                    self.ask_ahead("in", one, self.width * FLOAT, True)
            real, imag = [self.vector(one, mask) for one in pointers]
            if reverse:
                backwards = list(range(self.width))[::-1]
                real, imag = [self.shuffled(part, "poison", backwards) for part in (real, imag)]
        if access.swapped:
            real, imag = imag, real
        return self.value(real), self.value(imag)

    def scaled(self, value: Value) -> Value:
        """A value times the scale of the stage, if it has one."""
        return value if self._scale is None else value * self._scale

    def scalar_value(self, register: str) -> Value:
        return Value(self.scalar, register, dtypes.float32)

    def store(self, access: ComplexAccess, pointer: str, parts: tuple[str, str], pair: Pair) -> None:
        """Write complex numbers to an address."""
        pair = self.scaled(pair[0]), self.scaled(pair[1])
        real, imag = (pair[1].name, pair[0].name) if access.swapped else (pair[0].name, pair[1].name)
        if access.kind in ("row", "columns"):
            self.ask_ahead("out", pointer, self.width * COMPLEX, access.kind == "columns")
            lanes = [lane + part * self.width for lane in range(self.width) for part in (0, 1)]
            whole = self.shuffled(real, imag, lanes)
            self.store_vector(whole, pointer, self._masks[2] if access.kind == "columns" else None, 2 * self.width)
            return
        mask = self._masks[1] if access.kind == "pairs" else None
        for part, value in zip(parts, (real, imag), strict=True):
            target = self.moved(pointer, part)
            if access.kind == "pairs":
                self.ask_ahead("out", target, self.width * FLOAT, True)
            self.store_vector(value, target, mask)
