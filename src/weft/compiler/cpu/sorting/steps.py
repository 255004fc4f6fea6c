"""Sorting, partitioning and selecting as steps of a plan."""

from __future__ import annotations

from functools import cache
from math import prod

import weft.primitives as p
from weft.compiler.codegen import loading
from weft.compiler.codegen.keys import WordForm
from weft.compiler.cpu import squares
from weft.compiler.cpu.code import WIDTH
from weft.compiler.cpu.sorting import blocks, chunks, network, selecting, words
from weft.compiler.cpu.sorting.vectors import is_fast
from weft.primitives.routine import Operand, RoutineCall, RoutineStep
from weft.primitives.sort_cuts import BUCKETS, PARTED_BLOCK, SAMPLE, PartedCut, SortCut, parted_blocks, word_bytes

_WORK_PER_GRAIN = 1 << 15
_LANE_EXTENT = 48
_BLOCK_WORD = 4
"""Bytes. Smaller words have so few digits that, without vectors, sorting by digits is faster than by buckets."""


def _location(operand: Operand) -> list[int]:
    return [operand.slot, operand.offset]


@p.sort.routine.on("cpu")
def _sort(call: RoutineCall) -> RoutineStep | list[RoutineStep]:
    return _sorted(call, indices=False)


@p.argsort.routine.on("cpu")
def _argsort(call: RoutineCall) -> RoutineStep | list[RoutineStep]:
    return _sorted(call, indices=True)


@p.partition.routine.on("cpu")
def _partition(call: RoutineCall) -> RoutineStep | list[RoutineStep]:
    return _parted(call, indices=False)


@p.argpartition.routine.on("cpu")
def _argpartition(call: RoutineCall) -> RoutineStep | list[RoutineStep]:
    return _parted(call, indices=True)


def _parted(call: RoutineCall, indices: bool) -> RoutineStep | list[RoutineStep]:
    (x,), (slot, offset) = call.operands, call.scratch
    rows, extent = prod(x.shape[:-1]), x.shape[-1]
    cut = PartedCut(rows, extent, x.dtype.size)
    if cut.is_sorted:
        return _sorted(call._replace(params={"start": 0, "count": extent}), indices)
    selected = Operand((rows, 1), x.dtype, (1, 1), slot, offset)
    window = {"start": call.params["kth"], "count": 1}
    found = _sorted(RoutineCall(window, (x,), (selected,), (slot, offset + cut.selection)), indices=False)
    steps = found if isinstance(found, list) else [found]
    form = WordForm(x.dtype, indices)
    addresses = selecting.parted(form) if cut.is_counted else selecting.parted_whole(form)
    return [*steps, *_grouped(call, addresses, cut.counts, [*_location(selected), call.params["kth"]])]


@p.marked_first.routine.on("cpu")
def _marked_first(call: RoutineCall) -> list[RoutineStep]:
    return _grouped(call, selecting.marked(), 0, [])


def _grouped(call: RoutineCall, addresses: list[int], counts: int, selected: list[int]) -> list[RoutineStep]:
    """The steps that write elements in groups.

    Their counts begin at byte ``counts`` of the scratch memory. ``selected`` are the numbers that say which elements
    the rows are parted at: slot and offset of these, and their index in the sorted row.
    """
    (x,), (out,), (slot, offset) = call.operands, call.results, call.scratch
    rows, extent = prod(x.shape[:-1]), x.shape[-1]
    blocks = parted_blocks(extent)
    numbers = [*_location(x), *_location(out), slot, offset + counts, extent, blocks, *selected]
    grain = _grain(min(extent, PARTED_BLOCK))
    return [RoutineStep(address, numbers, rows * blocks, grain, rows * extent) for address in addresses]


def _sorted(call: RoutineCall, indices: bool) -> RoutineStep | list[RoutineStep]:
    (x,), (out,) = call.operands, call.results
    form = WordForm(x.dtype, indices)
    cut = SortCut(prod(x.shape[:-1]), x.shape[-1], word_bytes(x.dtype, indices))
    start = call.params["start"]
    window = (start, start + call.params["count"])
    locations = [*_location(x), *_location(out)]
    if cut.by_network and not _few_vectors(form, cut):
        return _by_network(form, cut, window, locations)
    if cut.by_blocks and (form.size >= _BLOCK_WORD or is_fast(form.size)):
        return _by_blocks(form, cut, window, [*locations, *call.scratch])
    return _by_chunks(form, cut, window, [*locations, *call.scratch])


def _few_vectors(form: WordForm, cut: SortCut) -> bool:
    """Whether a row is sorted faster in vectors of its own than in a lane."""
    return is_fast(form.size) and cut.extent > _LANE_EXTENT


def _grain(work: int) -> int:
    return max(1, _WORK_PER_GRAIN // max(work, 1))


def _by_network(form: WordForm, cut: SortCut, window: tuple[int, int], locations: list[int]) -> RoutineStep:
    stages = max(cut.extent - 1, 0).bit_length()
    unrolled = network.is_unrolled(form, cut.extent)
    size = max(1 << stages, 4) if unrolled else network.LONGEST
    numbers = [*locations, cut.rows, cut.extent, *window, 1 << max(stages - 1, 0), stages]
    units = -(-cut.rows // WIDTH)
    work = WIDTH * cut.extent
    return RoutineStep(_network(form, size, unrolled), numbers, units, _grain(work), work * units)


@cache
def _network(form: WordForm, size: int, unrolled: bool) -> int:
    name = f"sort_{form.name}_{size}"
    provided = squares.provided(form.key.size, form.result.size)
    return loading.load(name, lambda: network.generate(form, size, unrolled, name), (name,), provided)[name]


def _by_chunks(form: WordForm, cut: SortCut, window: tuple[int, int], locations: list[int]) -> RoutineStep:
    chunk = -(-cut.rows // cut.chunks)
    numbers = [*locations, cut.rows, cut.extent, *window, chunk, cut.buffer]
    work = cut.extent * form.key.size
    return RoutineStep(_chunks(form), numbers, -(-cut.rows // chunk), _grain(work * chunk), work * cut.rows)


@cache
def _chunks(form: WordForm) -> int:
    name = f"sort_rows_{form.name}"
    return loading.load(name, lambda: chunks.generate(form, name), (name,), words.provided(form))[name]


def _by_blocks(form: WordForm, cut: SortCut, window: tuple[int, int], locations: list[int]) -> list[RoutineStep]:
    numbers = [*locations, cut.rows, cut.extent, *window, cut.blocks, cut.block, cut.buffer, cut.row_scratch]
    numbers.append(cut.joined_buckets)
    units_and_work = {
        "look": (cut.blocks, cut.extent),
        "split": (1, SAMPLE),
        "spread": (cut.blocks, cut.extent),
        "bounds": (1, cut.blocks * BUCKETS),
        "finish": (BUCKETS, cut.extent),
        "mend": (1, cut.blocks),
    }
    steps = []
    for name, address in _blocks(form).items():
        units, work = units_and_work[name.partition("_")[0]]
        steps.append(RoutineStep(address, numbers, cut.rows * units, 1, cut.rows * work))
    return steps


@cache
def _blocks(form: WordForm) -> dict[str, int]:
    names = tuple(blocks.step_names(form))
    return loading.load(
        f"sort_blocks_{form.name}", lambda: blocks.generate(form), names, words.provided(form), title=names[-1]
    )
