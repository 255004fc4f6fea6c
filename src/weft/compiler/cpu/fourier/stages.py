"""Which stages a Fourier transform consists of, and their numbers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from weft.compiler.codegen import host, loading
from weft.compiler.cpu.fourier import ends, parts, passes, rows, tables
from weft.compiler.cpu.fourier.access import COMPLEX, FIELDS, FLOAT, PLANES, ComplexAccess
from weft.primitives.fourier import PADDING
from weft.primitives.fourier_lengths import Floats, convolution_length, radices_of, work_length

AHEAD = 3
"""How many turns of the loop over rows of an array ahead a stage prefetches."""


@cache
def vector_width() -> int:
    """How many floats a vector of the generated code has on this processor."""
    return 16 if "+avx512f" in host.current().features else 8


@cache
def _function(name: str, width: int, make: Callable[..., str], *arguments: object) -> int:
    """The address of a stage's function."""
    return loading.load(f"{name} {width}", lambda: make(name, *arguments, width), (name,))[name]


@dataclass(frozen=True)
class End:
    """Where a transform reads from or writes to: how neighbouring lanes are accessed, and the distance in bytes of
    numbers along the axis.

    With ``rows``, ``stride`` is the distance of the rows, one for each lane, in which numbers are neighbours. ``plane``
    is the distance of imaginary from real parts in planes that are not those of a buffer.
    """

    access: ComplexAccess
    stride: int
    rows: bool = False
    plane: int = 0


@dataclass
class Stages:
    """The stages of transforms side by side, or of one row (``single``).

    Each reads what the one before wrote; the first one reads the array, the last one writes it.
    """

    single: bool
    plane: int
    scale: float
    ahead: tuple[int, int] = (0, 0)
    width: int = field(default_factory=vector_width)
    numbers: list[dict[str, int]] = field(default_factory=list)
    tables: list[Floats] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The distance in bytes of neighbouring numbers in a plane."""
        return FLOAT if self.single else FLOAT * self.width

    def planes(self, access: ComplexAccess, direction: str) -> dict[str, int]:
        """Where the parts of complex numbers begin in planes, as numbers of a stage."""
        first, second = (self.plane, 0) if access.swapped else (0, self.plane)
        return {f"{direction}_real": first, f"{direction}_imag": second}

    def add(
        self, function: int, source: ComplexAccess, sink: ComplexAccess, table: Floats | None = None, **numbers: int
    ) -> None:
        """Add a stage."""
        index = len(self.numbers)
        every = {"function": function, "from": index % 2 + 1, "to": (index + 1) % 2 + 1}
        if source.kind == "planes":
            every |= self.planes(source, "in")
        if sink.kind == "planes":
            every |= self.planes(sink, "out")
        every["table"] = self._address_of(table)
        every |= {"in_ahead": self.ahead[0], "out_ahead": self.ahead[1]}
        every["scale"] = struct.unpack("<I", struct.pack("<f", self.scale))[0]
        self.numbers.append(every | numbers)

    def _address_of(self, table: Floats | None) -> int:
        """The address of a table, which is kept alive; 0 if there is none."""
        if table is None:
            return 0
        self.tables.append(table)
        return tables.address_of(table)

    def finished(self) -> list[int]:
        """The numbers of all stages."""
        self.numbers[0]["from"] = self.numbers[-1]["to"] = 0
        return [stage.get(name, 0) for stage in self.numbers for name in FIELDS]

    def complex(self, length: int, source: End, sink: End) -> None:
        """A complex transform."""
        if radices_of(length) is not None:
            self._passes(length, source, sink)
            return
        whole = convolution_length(length)
        chirp = tables.shared(tables.chirp, length)
        spectrum = tables.shared(tables.chirp_spectrum, length, whole)
        middle, swapped = self._end(), self._end(swapped=True)
        self._product(length, whole, source, middle, chirp)
        self._passes(whole, middle, middle)
        self._product(whole, whole, middle, swapped, spectrum)
        self._passes(whole, middle, middle)
        self._product(length, length, swapped, sink, chirp)

    def _end(self, swapped: bool = False) -> End:
        return End(ComplexAccess("planes", swapped), self.step)

    def _product(self, inner: int, outer: int, source: End, sink: End, table: Floats) -> None:
        first, last = _without_swap(source.access), _without_swap(sink.access)
        name = f"fourier_product_{'row' if self.single else 'lanes'}_{first.text}_{last.text}"
        function = _function(name, self.width, ends.product, self.single, first, last)
        numbers = {"inner": inner, "outer": outer, "in_next": source.stride, "out_next": sink.stride}
        self.add(function, source.access, sink.access, table, **numbers, **_pairs(source, sink))

    def _passes(self, length: int, source: End, sink: End) -> None:
        radices = radices_of(length)
        assert radices is not None
        done = 1
        for position, radix in enumerate(radices):
            rest = length // done // radix
            before = source if position == 0 else self._end()
            behind = sink if position == len(radices) - 1 else self._end()
            if self.single and done < self.width:
                self._spread(radix, rest, done, before)
            else:
                self._lanes(radix, rest, done, before, behind)
            done *= radix

    def _spread(self, radix: int, rest: int, done: int, source: End) -> None:
        plain = _without_swap(source.access)
        name = f"fourier_spread_{radix}_{done}_{plain.text}"
        function = _function(name, self.width, passes.spread_pass, radix, done, plain)
        table = tables.shared(tables.spread_roots, radix, rest, done, self.width)
        numbers = {"count": rest * done, "in_next": source.stride * rest * done}
        self.add(function, source.access, PLANES, table, **numbers)

    def _lanes(self, radix: int, rest: int, done: int, source: End, sink: End) -> None:
        has_roots = rest > 1
        first, last = _without_swap(source.access), _without_swap(sink.access)
        name = f"fourier_lanes_{radix}_{first.text}_{last.text}{'_roots' * has_roots}"
        function = _function(name, self.width, passes.lanes_pass, radix, first, last, has_roots)
        table = tables.shared(tables.lane_roots, radix, rest) if has_roots else None
        numbers = {"outer": rest, "inner": 1, "count": done if self.single else done * self.width}
        if not self.single and (first.kind, last.kind) != ("planes", "planes"):
            numbers |= {"inner": done, "count": self.width, "in_inner": source.stride, "out_inner": sink.stride}
        if sink.plane:
            numbers["out_imag"] = sink.plane
        if first.kind in ("columns", "pairs"):
            numbers["in_ahead"] = AHEAD * source.stride
        if last.kind in ("columns", "pairs"):
            numbers["out_ahead"] = AHEAD * sink.stride
        numbers |= {"in_outer": source.stride * done, "in_next": source.stride * done * rest}
        numbers |= {"out_outer": sink.stride * done * radix, "out_next": sink.stride * done}
        self.add(function, source.access, sink.access, table, **numbers, **_pairs(source, sink))

    def load_rows(self, count: int, source: End) -> None:
        """Read complex numbers of rows into lanes."""
        access = source.access
        plain = ComplexAccess("row", ahead=access.ahead)
        function = _function(f"fourier_load_rows_{plain.text}", self.width, ends.load_rows, plain)
        self.add(
            function,
            access,
            ComplexAccess("planes", access.swapped),
            inner=count,
            in_next=source.stride,
            out_next=self.step,
        )

    def rows_together(self, length: int, source: End, sink: End) -> None:
        """Both passes of short rows that share vectors; see `rows`."""
        self._first_of_rows(rows.first_pass, length, source)
        self._second_of_rows(rows.second_pass, length, sink)

    def real_rows_together(self, length: int, source: End, sink: End) -> None:
        """As `rows_together`, from ``length`` pairs of real numbers to the first half of their transform."""
        done, _ = radices_of(length) or ()
        self._first_of_rows(rows.first_pass, length, source)
        table = tables.shared(tables.row_half_roots, length, done, self.width // done, True)
        self._second_of_rows(rows.second_pass_to_real, length, sink, table)

    def half_rows_together(self, length: int, source: End, sink: End) -> None:
        """As `rows_together`, from the first half of a transform to ``length`` pairs of real numbers."""
        _, rest = radices_of(length) or ()
        table = tables.shared(tables.row_half_roots, length, rest, self.width // rest, False)
        self._first_of_rows(rows.first_pass_of_halves, length, source, table)
        self._second_of_rows(rows.second_pass, length, sink)

    def _first_of_rows(self, make: Callable[..., str], length: int, source: End, halves: Floats | None = None) -> None:
        radix, rest = radices_of(length) or ()
        name = f"fourier_rows_{make.__name__}_{radix}_{rest}_{source.access.text}"
        function = _function(name, self.width, make, radix, rest, source.access)
        table = tables.shared(tables.row_roots, radix, rest, self.width // rest)
        self.add(function, source.access, PLANES, table, fine=self._address_of(halves), in_next=source.stride)

    def _second_of_rows(self, make: Callable[..., str], length: int, sink: End, halves: Floats | None = None) -> None:
        done, radix = radices_of(length) or ()
        name = f"fourier_rows_{make.__name__}_{radix}_{done}_{sink.access.text}"
        function = _function(name, self.width, make, radix, done, sink.access)
        self.add(function, PLANES, sink.access, fine=self._address_of(halves), out_next=sink.stride)

    def load_blocks(self, split: tuple[int, int]) -> None:
        """See `ends.load_blocks`."""
        first, second = split
        function = _function("fourier_load_blocks", self.width, ends.load_blocks)
        coarse = tables.shared(tables.coarse_roots, first, second)
        fine = tables.shared(tables.fine_roots, first * second, second)
        block = first * self.width
        numbers = {"inner": second, "in_next": COMPLEX * block, "in_imag": FLOAT * block, "out_next": self.step}
        self.add(function, PLANES, PLANES, coarse, fine=self._address_of(fine), **numbers)

    def store_rows(self, count: int, sink: End) -> None:
        """Write complex numbers of lanes to rows."""
        access = sink.access
        plain = ComplexAccess("row", scaled=access.scaled, ahead=access.ahead)
        function = _function(f"fourier_store_rows_{plain.text}", self.width, ends.store_rows, plain)
        self.add(
            function,
            ComplexAccess("planes", access.swapped),
            access,
            inner=count,
            in_next=self.step,
            out_next=sink.stride,
        )

    def halves_to_real(self, count: int, sink: End) -> None:
        """See `ends.halves_to_real`."""
        name = f"fourier_halves_to_real_{'row' if self.single else 'lanes'}_{sink.access.text}"
        function = _function(name, self.width, ends.halves_to_real, self.single, sink.access)
        table = tables.shared(tables.half_roots, count, True)
        self.add(function, PLANES, sink.access, table, inner=count, in_next=self.step, out_next=sink.stride)

    def real_to_halves(self, count: int, source: End) -> None:
        """See `ends.real_to_halves`; for the inverse transform, real and imaginary parts are exchanged."""
        name = f"fourier_real_to_halves_{'row' if self.single else 'lanes'}_{source.access.text}"
        function = _function(name, self.width, ends.real_to_halves, self.single, source.access)
        table = tables.shared(tables.half_roots, count, False)
        target = ComplexAccess("planes", swapped=True)
        self.add(function, source.access, target, table, inner=count, in_next=source.stride, out_next=self.step)

    def product_in_parts(self, count: int, source: ComplexAccess, sink: ComplexAccess, table: Floats) -> None:
        """See `parts.product`."""
        name = f"fourier_part_product_{source.text}_{sink.text}"
        self.add(_function(name, self.width, parts.product, source, sink), source, sink, table, inner=count)

    def zeros_in_parts(self, before: int) -> None:
        """See `parts.zeros`."""
        row = ComplexAccess("row")
        self.add(_function("fourier_part_zeros", self.width, parts.zeros), row, row, inner=before)

    def halves_to_real_in_parts(self, count: int, sink: ComplexAccess) -> None:
        """See `parts.halves_to_real`."""
        function = _function(f"fourier_part_to_real_{sink.text}", self.width, parts.halves_to_real, sink)
        table = tables.shared(tables.half_roots, count, True)
        self.add(function, ComplexAccess("row"), sink, table, inner=count)

    def real_to_halves_in_parts(self, count: int) -> None:
        """See `parts.real_to_halves`; real and imaginary parts are exchanged."""
        sink = ComplexAccess("row", swapped=True)
        function = _function(f"fourier_part_to_halves_{sink.text}", self.width, parts.real_to_halves, sink)
        table = tables.shared(tables.half_roots, count, False)
        self.add(function, ComplexAccess("row"), sink, table, inner=count)


def _without_swap(access: ComplexAccess) -> ComplexAccess:
    """The access that code depends on: in planes, numbers of the stage say where the parts are, swapped or not."""
    return PLANES if access.kind == "planes" else access


def _pairs(source: End, sink: End) -> dict[str, int]:
    """The distances of real and imaginary parts if these are rows of an array."""
    numbers: dict[str, int] = {}
    for end, direction in ((source, "in"), (sink, "out")):
        if end.access.kind == "pairs":
            numbers |= {f"{direction}_real": 0, f"{direction}_imag": end.stride // 2}
    return numbers


def plane_bytes(length: int, single: bool, width: int) -> int:
    """The bytes of a plane: for the numbers of a transform, and at least one number and one vector more."""
    return FLOAT * ((length + 15) // 16 * 16 + PADDING - 16) * (1 if single else width)


def share_vectors(length: int, width: int) -> bool:
    """Whether several rows of this length can share vectors in both passes."""
    radices = radices_of(length) or ()
    return len(radices) == 2 and all(width % radix == 0 for radix in radices)


def runs_in_row(length: int, width: int) -> bool:
    """Whether the lanes of all passes can be neighbours in one row."""
    whole = work_length(length)
    return length >= width and all(whole // radix >= width for radix in radices_of(whole) or ())
