"""Products with panels that several of them share."""

from __future__ import annotations

from weft.compiler.codegen.lanes import HALVES
from weft.primitives.products import leading
from weft.primitives.routine import RoutineCall, RoutineStep

from .described import Product
from .matmul import are_worth_calls, of_blocks, step_of
from .shared_panels import matmul_in_panels
from .step import Sources


def _product_of(call: RoutineCall, whole: bool, in_memory: bool) -> Product:
    (a, panels), (out,) = call.operands, call.results
    left = leading(a.shape, a.strides)
    assert left is not None
    extents = (*a.shape, out.shape[1])
    rows, inner, columns = extents
    places = [(operand.slot, operand.offset) for operand in (a, panels, out)]
    sources = Sources(a.dtype, panels.dtype, out.dtype if out.dtype in HALVES else None)
    storage = left, (0, columns)
    product = Product(
        panels.dtype, sources, places, (rows, columns, inner), storage, [], call.attached, whole, in_memory
    )
    return product._replace(panels=call.params["block"])


def _attaches(call: RoutineCall, whole: bool, in_memory: bool) -> bool:
    product = _product_of(call, whole, in_memory)
    tiled = of_blocks(product)
    return tiled is not None and are_worth_calls(product, tiled, whole)


@matmul_in_panels.routine.on("cpu", attaches=_attaches)
def _step(call: RoutineCall) -> RoutineStep:
    attached = call.attached
    product = _product_of(call, attached is not None and attached.whole, attached is None or attached.in_memory)
    tiled = of_blocks(product)
    assert tiled is not None
    return step_of(product, tiled)
