"""The steps of sums of products."""

from __future__ import annotations

from functools import partial

from weft.compiler.cpu.products import tiles as product_tiles
from weft.compiler.cpu.products.packed import blocks
from weft.compiler.cpu.products.packed import sums as product_sums
from weft.primitives.routine import RoutineCall, RoutineStep

from .described import Product, Tiled
from .matmul import are_worth_calls, step_of, tile_of
from .step import Sources
from .tiles import Way


def _product_of(call: RoutineCall, whole: bool, in_memory: bool) -> Product:
    """A product that has as many terms as the panels of all products have room for, so that a tile of it fits the
    memory for packed operands; these are packed, wherever they are."""
    (out,), continues = call.results, bool(call.params["continues"])
    operands = call.operands[continues:]
    terms = sum([product_sums.room_of(b.shape[0]) for b in operands[1::2]])
    extents = out.shape[0], out.shape[1], terms
    places = [(x.slot, x.offset) for x in (*operands[:2], out)]
    sources, storage = Sources(out.dtype, out.dtype), ((0, terms), (0, out.shape[1]))
    return Product(out.dtype, sources, places, extents, storage, [], call.attached, whole, in_memory)


def _tiled(call: RoutineCall, product: Product) -> Tiled | None:
    rows, columns, _ = product.extents
    block = product_tiles.filled(product_tiles.block_of(product.dtype), rows, columns)
    found = tile_of(product, block, product_tiles.PACKED)
    if found is None:
        return None
    (high, wide, span), behind = found
    extents = rows, columns, call.operands[-1].shape[0]
    ways = Way.ALONG, Way.ALONG

    def numbers(length: int) -> list[int]:
        further, table = product_sums.further_numbers(call, length)
        head = blocks.step_numbers(
            product.places, extents, product.strides, (high, wide), ways, [], behind, span, factors=further
        )
        return [*head, *table] if length else head

    # The table of products comes after the numbers whose count is asked for here.
    return partial(product_sums.address, block), numbers(len(numbers(0))), (high, wide * span)


def _attaches(call: RoutineCall, whole: bool, in_memory: bool) -> bool:
    product = _product_of(call, whole, in_memory)
    tiled = _tiled(call, product)
    return tiled is not None and are_worth_calls(product, tiled, whole)


@product_sums.sum_of_products.routine.on("cpu", attaches=_attaches)
def _step(call: RoutineCall) -> RoutineStep:
    attached = call.attached
    product = _product_of(call, attached is not None and attached.whole, attached is None or attached.in_memory)
    tiled = _tiled(call, product)
    assert tiled is not None
    return step_of(product, tiled)
