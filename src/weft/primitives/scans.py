"""Scans: every element of a row is merged with all elements before it.

The order depends on the logical shape alone. Along a last axis, vectors of 16 virtual lanes, each scanned in four
steps, follow one after the other; along other axes, one element follows the other. A scan of many elements in few rows
is done in chunks, whose totals are scanned first. Sums and products are accumulated in float64, and each result is
rounded once. A reversed scan is the scan of the reversed row, reversed. A sequential scan merges one element after the
other along any axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.errors import ArgumentTypeError
from weft.graph.extents import agree, largest, product
from weft.graph.node import Node, Shape, describe
from weft.primitives.base import Array, Elementwise, Primitive, Tangent, conjugate_of, plus
from weft.primitives.batching import batch_first
from weft.primitives.reducers import Accumulator, ChunkTotals, Reducer
from weft.primitives.reductions import accumulator_dtype, max_, min_, prod, sum_
from weft.primitives.untrusted import check_axis, check_inputs, require

__all__ = [
    "Scan",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "logcumsumexp",
    "recurrence",
    "reversed_rows",
    "sequential_cumsum",
]

ScanRule = Callable[..., Tangent]

# A scan of at least CHUNKED_SIZE elements in too few rows for many threads is done in chunks.
CHUNKED_SIZE = 1 << 18
CHUNK = 1 << 15
ROW_CHUNK = 1 << 13  # along a last axis: shorter, so that there are more chunks for the many threads of a GPU
SHORTEST_CHUNK = 256
ENOUGH_ROWS = 16
ENOUGH_LANES = 512


def reversed_rows(x: Array) -> Array:
    shape = x.node.shape
    last = len(shape) - 1
    return p.slice_(x, starts=(*[0] * last, largest(shape[last] - 1, 0)), sizes=shape, steps=(*[1] * last, -1))


class Scan(Primitive):
    """Every element of a row along ``axis``, merged by a `Reducer` with those before it, or after it if ``reverse``; an
    ``inclusive`` scan includes the element itself.

    ``operands`` is the number of arrays that together make an element. ``jvp(tangents, inputs, out, **params)`` gives
    the tangent, ``vjp(cotangent, inputs, out, **params)`` the cotangents. ``cheap`` tells whether merging again costs
    less than reading saved results. A planned scan may be cut into chunks of ``chunk`` elements; its last inputs are
    then the accumulators of what precedes each chunk.
    """

    parameters: tuple[str, ...] = ("axis", "reverse", "inclusive", "chunk")

    def __init__(
        self,
        name: str,
        reducer: Reducer,
        jvp: ScanRule,
        vjp: Callable[..., Sequence[Tangent]],
        *,
        operands: int = 1,
        accepts: Callable[[Dtype], bool] = lambda dtype: True,
        cheap: bool = True,
    ) -> None:
        self.name = name
        self.reducer = reducer
        self.tangent = jvp
        self.cotangents = vjp
        self.operands = operands
        self.accepts = accepts
        self.cheap = cheap
        self.neutral = Elementwise(f"{name}_of_nothing", self._of_nothing, (None,) * operands)
        self.totals = ChunkTotals(name, reducer)
        self.starts = ChunkStarts(name, reducer)

    def _of_nothing(self, L: Any, *inputs: Any) -> Any:
        dtype = inputs[0].dtype
        return self.reducer.of_nothing(L, dtype, dtype)

    def __call__(self, *operands: Any, **params: Any) -> Array:
        return super().__call__(*operands, chunk=None, **params)

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, self.operands)
        check_axis(params["axis"], inputs[0].ndim)
        require(params["chunk"] is None, "chunks are a matter of the plan")
        require(type(params["reverse"]) is bool and type(params["inclusive"]) is bool, "its direction is not clear")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        first = inputs[0]
        for other in inputs[1:]:
            if other.dtype is not first.dtype or not agree(other.shape, first.shape):
                described = " and ".join([describe(node.shape, node.dtype) for node in inputs])
                raise TypeError(f"{self.name}: shapes or dtypes differ: {described}")
        if not self.accepts(first.dtype):
            raise ArgumentTypeError(f"[{self.name}] does not support {first.dtype.name}.")
        return first.shape, first.dtype

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        return self.tangent(tangents, inputs, output, **_manner(params))

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        return self.cotangents(cotangent, inputs, output, **_manner(params))

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        manner = _manner(params)
        manner["axis"] += 1
        return self(*batch_first(inputs, axes), **manner), 0

    def axis(self, node: Node) -> int:
        """The axis along which a node scans."""
        return int(node.params[0])

    def backwards(self, node: Node) -> bool:
        """Whether a scan begins at the end of a row."""
        return bool(node.params[1])

    def chunk_size(self, node: Node) -> int | None:
        """How many elements a chunk of a scan has; None if rows are not cut."""
        size: int | None = node.params[3]
        return size

    def manner(self, node: Node) -> dict[str, Any]:
        """How elements are merged, for generated code; the last ``parts`` inputs are what precedes each chunk."""
        manner = {"reverse": node.params[1], "inclusive": node.params[2]}
        parts = len(self.before(node))
        return {**manner, "parts": parts} if parts else manner

    def scanned(self, node: Node) -> tuple[Node, ...]:
        """The inputs that are scanned."""
        return node.inputs[: self.operands]

    def before(self, node: Node) -> tuple[Node, ...]:
        """The inputs that hold what precedes each chunk, if there are chunks."""
        return node.inputs[self.operands :]

    def lowered(self, node: Node) -> Node | None:
        """Without scanning if the axis has extent 1; in chunks if there are a few long rows; else None."""
        axis, reverse, inclusive, _ = node.params
        if node.shape[axis] == 1:
            if inclusive:
                return node.inputs[-1]
            return Node(self.neutral, node.inputs, (), node.shape, node.dtype, None)
        size = None if self.reducer.sequential else chunk_for(node.shape, axis)
        if size is None:
            return None
        shape = (*node.shape[:axis], -(-node.shape[axis] // size), *node.shape[axis + 1 :])
        parts = [(number, part) for number, (part, _) in enumerate(self.reducer.identity(node.dtype))]
        way = reverse and self.reducer.ordered
        totals = tuple(
            [Node(self.totals, node.inputs, (axis, size, number, way), shape, part, None) for number, part in parts]
        )
        manner = (axis, reverse, False, None)
        starts = [Node(self.starts, totals, (*manner, number, node.dtype), shape, part, None) for number, part in parts]
        return Node(self, (*node.inputs, *starts), (axis, reverse, inclusive, size), node.shape, node.dtype, None)


class ChunkStarts(Scan):
    """The totals of chunks merged with those before them. The inputs are the accumulators of a scan of dtype ``of``; a
    node is the accumulator ``part`` of the result."""

    parameters = (*Scan.parameters, "part", "of")

    def __init__(self, name: str, reducer: Reducer) -> None:
        self.name = f"{name}_starts"
        lift = lambda L, *parts: parts[:-1]  # noqa: E731  # the last argument is the index
        self.reducer = Reducer(reducer.identity, lift, reducer.merge, reducer.finish, ordered=reducer.ordered)
        self.cheap = True

    def scanned(self, node: Node) -> tuple[Node, ...]:
        return node.inputs

    def before(self, node: Node) -> tuple[Node, ...]:
        return ()

    def manner(self, node: Node) -> dict[str, Any]:
        return {**super().manner(node), "part": node.params[4], "of": node.params[5]}


def chunk_for(shape: Shape, axis: int) -> int | None:
    """How many elements of each row form a chunk; None if there are enough rows for many threads."""
    inner, size = product(shape[axis + 1 :]), product(shape)
    enough = ENOUGH_ROWS if inner == 1 else ENOUGH_LANES
    if size < CHUNKED_SIZE or size // shape[axis] >= enough:
        return None
    chunk = ROW_CHUNK if inner == 1 else max(CHUNK // inner, SHORTEST_CHUNK)
    return chunk if chunk < shape[axis] else None


def _manner(params: dict[str, Any]) -> dict[str, Any]:
    return {name: params[name] for name in ("axis", "reverse", "inclusive")}


def _backwards(manner: dict[str, Any]) -> dict[str, Any]:
    """The same scan in the other direction."""
    return {**manner, "reverse": not manner["reverse"]}


def _with_and_without(scan: Scan, x: Array, out: Array, manner: dict[str, Any]) -> tuple[Array, Array]:
    """The inclusive and the exclusive result; one of them is ``out``."""
    other = scan(x, **{**manner, "inclusive": not manner["inclusive"]})
    return (out, other) if manner["inclusive"] else (other, out)


def affine() -> Reducer:
    """Merges maps ``h -> a * h + b``, given as pairs of ``a`` and ``b``, by applying one after the other."""

    def identity(dtype: Dtype) -> list[tuple[Dtype, Any]]:
        if dtype.is_complex:
            return [(dtypes.float64, value) for value in (1, 0, 0, 0)]
        return [(accumulator_dtype(dtype), value) for value in (1, 0)]

    def lift(L: Any, a: Any, b: Any, index: Any) -> Accumulator:
        if a.dtype.is_complex:
            return tuple([L.convert(part, dtypes.float64) for part in (a.real, a.imag, b.real, b.imag)])
        return L.convert(a, accumulator_dtype(a.dtype)), L.convert(b, accumulator_dtype(b.dtype))

    def merge(L: Any, first: Accumulator, then: Accumulator) -> Accumulator:
        if len(first) == 2:
            return then[0] * first[0], then[0] * first[1] + then[1]
        a, b, c, d = (L.complex(*pair) for pair in (first[:2], first[2:], then[:2], then[2:]))
        factor, rest = c * a, c * b + d
        return factor.real, factor.imag, rest.real, rest.imag

    def finish(L: Any, joined: Accumulator, dtype: Dtype) -> Any:
        if dtype.is_complex:
            return L.complex(*[L.convert(part, dtypes.float32) for part in joined[2:]])
        return L.convert(joined[1], dtype)

    return Reducer(identity, lift, merge, finish, ordered=True)


def _pulled_back(cotangent: Array, factors: Array, inclusive: bool, **manner: Any) -> Array:
    """The cotangent of ``b`` in a recurrence: a recurrence in the other direction."""
    factors, back = conjugate_of(factors), _backwards({**manner, "inclusive": False})
    if not inclusive:
        return recurrence(factors, cotangent, **back)
    return cotangent + recurrence(factors, factors * cotangent, **back)


def _recurrence_jvp(tangents: Sequence[Tangent], inputs: Sequence[Array], out: Array, **manner: Any) -> Tangent:
    a, b = inputs
    of_a, change = tangents
    if of_a is not None:
        before = recurrence(a, b, **{**manner, "inclusive": False}) if manner["inclusive"] else out
        change = plus(of_a * before, change)
    return None if change is None else recurrence(a, change, **manner)


def _recurrence_vjp(cotangent: Array, inputs: Sequence[Array], out: Array, **manner: Any) -> Sequence[Tangent]:
    a, b = inputs
    before = recurrence(a, b, **{**manner, "inclusive": False}) if manner["inclusive"] else out
    of_b = _pulled_back(cotangent, a, **manner)
    return [of_b * conjugate_of(before), of_b]


recurrence: Scan = Scan("recurrence", affine(), _recurrence_jvp, _recurrence_vjp, operands=2)
"""``h[i] = a[i] * h[i - 1] + b[i]``, starting from zero."""


cumsum: Scan = Scan(
    "cumsum",
    sum_.reducer,
    lambda tangents, inputs, out, **manner: cumsum(tangents[0], **manner),
    lambda ct, inputs, out, **manner: [cumsum(ct, **_backwards(manner))],
)


sequential_cumsum: Scan = Scan(
    "sequential_cumsum",
    Reducer(
        lambda dtype: [(dtype, 0)],
        lambda L, x, index: (x,),
        lambda L, a, b: (a[0] + b[0],),
        lambda L, a, dtype: a[0],
        sequential=True,
    ),
    cumsum.tangent,
    cumsum.cotangents,
    accepts=lambda dtype: dtype is dtypes.float32,
)
"""A `cumsum` that rounds after every element, as a plain loop over float32 numbers does."""


def _cumprod_jvp(tangents: Sequence[Tangent], inputs: Sequence[Array], out: Array, **manner: Any) -> Tangent:
    (t,), (x,) = tangents, inputs
    _, before = _with_and_without(cumprod, x, out, manner)
    return recurrence(x, t * before, **manner)


def _cumprod_vjp(ct: Array, inputs: Sequence[Array], out: Array, **manner: Any) -> Sequence[Tangent]:
    (x,) = inputs
    _, before = _with_and_without(cumprod, x, out, manner)
    return [_pulled_back(ct, x, **manner) * conjugate_of(before)]


cumprod: Scan = Scan("cumprod", prod.reducer, _cumprod_jvp, _cumprod_vjp)


def _extreme(name: str, reducer: Reducer, reaches: Callable[[Array, Array], Array]) -> Scan:
    """The scan of a minimum or maximum. Its derivative is that of the last of equal elements."""

    def moves(x: Array, out: Array, manner: dict[str, Any]) -> tuple[Array, Array]:
        """Where an element becomes the extreme one; and ones where the extreme of the elements before remains."""
        _, before = _with_and_without(scan, x, out, manner)
        here = reaches(x, before)
        return here, p.cast(p.logical_not(here), dtype=x.node.dtype)

    def jvp(tangents: Sequence[Tangent], inputs: Sequence[Array], out: Array, **manner: Any) -> Tangent:
        (t,), (x,) = tangents, inputs
        here, stays = moves(x, out, manner)
        return recurrence(stays, p.select(here, t, p.zeros_like(x)), **manner)

    def vjp(ct: Array, inputs: Sequence[Array], out: Array, **manner: Any) -> Sequence[Tangent]:
        (x,) = inputs
        here, stays = moves(x, out, manner)
        return [p.select(here, _pulled_back(ct, stays, **manner), p.zeros_like(x))]

    scan = Scan(name, reducer, jvp, vjp)
    return scan


cummax: Scan = _extreme("cummax", max_.reducer, lambda x, before: p.greater_equal(x, before))
cummin: Scan = _extreme("cummin", min_.reducer, lambda x, before: p.less_equal(x, before))


def _log_sum() -> Reducer:
    """Merges sums of exponentials, given as pairs ``m, s`` for ``s * exp(m)``, where ``m`` is the largest exponent. For
    complex numbers ``m`` is the largest real part, and ``s`` is two numbers."""

    def identity(dtype: Dtype) -> list[tuple[Dtype, Any]]:
        return [(dtypes.float64, -math.inf), (dtypes.float64, 0)] + [(dtypes.float64, 0)] * dtype.is_complex

    def lift(L: Any, x: Any, index: Any) -> Accumulator:
        if x.dtype.is_complex:
            angle = L.convert(x.imag, dtypes.float64)
            return L.convert(x.real, dtypes.float64), L.cos(angle), L.sin(angle)
        return L.convert(x, dtypes.float64), L.constant(1.0, dtypes.float64)

    def merge(L: Any, a: Accumulator, b: Accumulator) -> Accumulator:
        apart = -L.absolute(a[0] - b[0])
        share = L.exp(L.select(L.equal(a[0], b[0]), 0.0, apart))
        left = a[0] >= b[0]
        sums = [L.select(left, x + y * share, x * share + y) for x, y in zip(a[1:], b[1:], strict=True)]
        return L.maximum(a[0], b[0]), *sums

    def finish(L: Any, a: Accumulator, dtype: Dtype) -> Any:
        if not dtype.is_complex:
            return L.convert(a[0] + L.log(a[1]), dtype)
        size = L.sqrt(a[1] * a[1] + a[2] * a[2])
        return L.complex(*[L.convert(x, dtypes.float32) for x in (a[0] + L.log(size), L.arctan2(a[2], a[1]))])

    return Reducer(identity, lift, merge, finish)


def _share(part: Array, whole: Array) -> Array:
    """``exp(part - whole)``, the share of a part in a sum of exponentials; 0 if the sum is empty."""
    zero = p.zeros_like(whole)
    real = p.real(whole) if whole.node.dtype.is_complex else whole
    apart = p.select(p.equal(part, whole), zero, part - whole)
    return p.select(p.equal(real, -math.inf), zero, p.exp(apart))


def _logcumsumexp_jvp(tangents: Sequence[Tangent], inputs: Sequence[Array], out: Array, **manner: Any) -> Tangent:
    (t,), (x,) = tangents, inputs
    total, before = _with_and_without(logcumsumexp, x, out, manner)
    return recurrence(_share(before, total), _share(x, total) * t, **manner)


def _logcumsumexp_vjp(ct: Array, inputs: Sequence[Array], out: Array, **manner: Any) -> Sequence[Tangent]:
    (x,) = inputs
    total, before = _with_and_without(logcumsumexp, x, out, manner)
    return [_pulled_back(ct, _share(before, total), **manner) * conjugate_of(_share(x, total))]


logcumsumexp: Scan = Scan(
    "logcumsumexp",
    _log_sum(),
    _logcumsumexp_jvp,
    _logcumsumexp_vjp,
    accepts=lambda dtype: dtype.is_inexact,
    cheap=False,
)
