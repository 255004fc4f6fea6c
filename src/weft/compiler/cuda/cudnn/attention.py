"""Attention in half precision, and its cotangents, by cuDNN.

cuDNN rounds the weights of keys, and the cotangents of scores, to half precision before it multiplies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.compiler.cuda.cudnn.attention_graphs import Heads, Known, Mask, gradients_work, value_work
from weft.compiler.cuda.cudnn.attention_parts import parts_of
from weft.compiler.cuda.cudnn.graphs import row_major
from weft.compiler.cuda.cudnn.operations import CudnnOperation
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, wrap
from weft.primitives.attention_formulas import MASKS, given_inputs
from weft.primitives.attention_parts import in_parts
from weft.primitives.base import Array
from weft.primitives.replacing import replaces

_NAMES = ("attention", "attentions")
_value = CudnnOperation("attention", _NAMES)
_gradients = CudnnOperation("attention_gradients", _NAMES)

OPERATIONS = (_value, _gradients)

FEW_QUERIES = 8
"""With at most this many queries cuDNN is not used: it would need a plan for each number of keys, and that grows with
each token that is generated."""
_HALVES = (dtypes.float16, dtypes.bfloat16)
_MOST_FEATURES = 256
"""The most features of a query, key or value."""
_MULTIPLE = 8
"""Features, and the distances of their rows, are multiples of this, because cuDNN reads 16 bytes at once."""
MOST_UNREAD = 4
"""An operand is read in place if the array that it is a view of has at most this many times its size. Queries, keys and
values are often parts of the result of one product."""
_MOST_SCORES = 1 << 28
"""The scores of gradients are stored, so examples and heads are divided into parts with at most this many scores."""


class _Operand(NamedTuple):
    """Queries, keys or values: ``node`` is ``(B, heads, positions, features)``, or ``(B, positions, heads, features)``
    if ``turned``. They are read from the memory of ``base``, of which they may be a view, from ``offset`` elements
    on."""

    node: Node
    turned: bool
    base: Node
    read: Heads
    offset: int

    @classmethod
    def alone(cls, node: Node, turned: bool) -> _Operand:
        """An operand with memory of its own."""
        return cls(node, turned, node, _heads_of(node, turned), 0)

    @property
    def heads(self) -> Heads:
        """The layout of a result that is like this operand."""
        return _heads_of(self.node, self.turned)

    @property
    def bytes_before(self) -> int:
        return self.offset * self.node.dtype.size

    def like(self, batch: int, heads: int, positions: int, features: int) -> Heads:
        """The layout of other heads in the same order."""
        return _lying(batch, heads, positions, features, self.turned)

    def shape_of(self, batch: int, heads: int, positions: int, features: int) -> Shape:
        """The shape in memory, for axes in the same order."""
        return (batch, *((positions, heads) if self.turned else (heads, positions)), features)

    def back(self, result: Node, shape: Shape) -> Array:
        """A result in the order of this operand, with the axes and the shape of an input."""
        x = wrap(result)
        return p.reshape(p.transpose(x, axes=(0, 2, 1, 3)) if self.turned else x, shape=shape)


def _heads_of(node: Node, turned: bool) -> Heads:
    batch, first, second, features = node.shape
    return _lying(batch, *((second, first) if turned else (first, second)), features, turned)


def _lying(batch: int, heads: int, positions: int, features: int, turned: bool) -> Heads:
    """The layout of heads without gaps in memory, in one of two orders."""
    first, second = (positions, heads) if turned else (heads, positions)
    outer, far, near, last = row_major((batch, first, second, features))
    return Heads(batch, heads, positions, features, (outer, *((near, far) if turned else (far, near)), last))


class _Problem(NamedTuple):
    """Attention as cuDNN computes it: queries, keys and values in half precision, the factor of scores, what is added
    to them, and whether it is causal."""

    q: _Operand
    k: _Operand
    v: _Operand
    scale: Node
    added: Node | None
    causal: bool

    @property
    def dtype(self) -> Dtype:
        return self.q.node.dtype

    @property
    def read(self) -> tuple[Heads, Heads, Heads]:
        return self.q.read, self.k.read, self.v.read

    @property
    def apart(self) -> _Problem:
        """The same problem with memory of its own for each operand."""
        q, k, v = [_Operand.alone(x.node, x.turned) for x in (self.q, self.k, self.v)]
        return self._replace(q=q, k=k, v=v)

    @property
    def result(self) -> Heads:
        q = self.q.heads
        return self.q.like(q.batch, q.heads, q.positions, self.v.heads.features)

    @property
    def sums(self) -> Heads:
        """The layout of the logarithms of sums, one for each query."""
        batch, heads, positions, _ = self.q.heads.shape
        return Heads(batch, heads, positions, 1, row_major((batch, heads, positions, 1)))

    @property
    def mask(self) -> Mask:
        added = self.added
        return Mask(None if added is None else (added.dtype, added.shape, row_major(added.shape)), self.causal)

    @property
    def multiplications(self) -> int:
        q, k, v = self.read
        scores = q.batch * q.heads * q.positions * k.positions
        return scores * (k.features + v.features) // (2 if self.causal else 1)

    def value(self, machine: Any) -> list[Node] | None:
        """Nodes for the weighted means, and for the logarithm of the sum of exponentials of the scores of each
        query."""
        result, sums = self.result, self.sums
        work = value_work(self.dtype, *self.read, result, sums, self.mask)
        results = [(self.q.shape_of(*result.shape), self.dtype), (sums.shape, dtypes.float32)]
        inputs = [self.q.base, self.k.base, self.v.base, self.scale, *([] if self.added is None else [self.added])]
        before = [x.bytes_before for x in (self.q, self.k, self.v)]
        offsets = [[*before, *[0] * (len(inputs) + len(results) - len(before))]] if any(before) else []
        return _value.results(machine, work, inputs, results, 2 * self.multiplications, offsets)

    def gradients(self, machine: Any, known: Sequence[Node], cotangent: _Operand) -> list[Node] | None:
        """Nodes for the cotangents of queries, keys and values; ``known`` are the results of `value`."""
        parts = parts_of(self.q.heads, self.k.heads, _MOST_SCORES)
        if parts is None:
            return None
        operands = self.q, self.k, self.v
        result, sums, made = self.result, self.sums, [x.heads for x in operands]
        given = [parts.part(x) for x in (result, cotangent.read, sums)]
        read, written = [parts.part(x) for x in self.read], [parts.part(x) for x in made]
        work = gradients_work(self.dtype, read, written, Known(*given), Mask(None, self.causal))
        inputs = [*[x.base for x in operands], known[0], cotangent.base, known[1], self.scale]
        results = [(x.node.shape, self.dtype) for x in operands] + [(sums.shape, dtypes.float32)]
        size = self.dtype.size
        placed = [(x, size) for x in (*self.read, result, cotangent.read)] + [(sums, 4), None]
        placed += [(x, size) for x in made] + [(sums, 4)]
        before = [*[x.bytes_before for x in operands], 0, cotangent.bytes_before, *[0] * (len(placed) - 5)]
        offsets = [[a + b for a, b in zip(before, part, strict=True)] for part in parts.offsets(placed)]
        return _gradients.results(machine, work, inputs, results, 5 * self.multiplications, offsets)


@replaces("cuda", p.attention)
def _attention(node: Node, machine: Any) -> Sequence[Node] | None:
    q = node.inputs[0]
    if q.dtype in _HALVES and q.shape[3] <= FEW_QUERIES:
        return [
            given_inputs([wrap(x) for x in node.inputs], node.keywords).value_of_halves(_multiplied, quickly=False).node
        ]
    mask, sinks, _ = node.params
    problem = _problem(node.inputs, mask, sinks)
    found = None if problem is None else problem.value(machine) or problem.apart.value(machine)
    if problem is None or found is None:
        return in_parts(node)
    return [p.cast(problem.q.back(found[0], node.shape), dtype=node.dtype).node]


def _multiplied(a: Array, b: Array) -> Array:
    """The product of half-precision matrices, in float32."""
    half = p.matmul(a, b).node
    return wrap(Node(half.primitive, half.inputs, half.params, half.shape, dtypes.float32, None))


@replaces("cuda", p.attention_gradients)
def _attention_gradients(node: Node, machine: Any) -> Sequence[Node] | None:
    mask, sinks, *_ = node.params
    *given, output, cotangent = node.inputs
    problem = _problem(given, mask, sinks)
    if problem is None or problem.added is not None:
        return in_parts(node)  # for a query that sees no key, the logarithm of the sum does not give the weights
    known = _computed(output) or problem.value(machine) or problem.apart.value(machine)
    if known is None:
        return in_parts(node)
    given_back = _operand(_narrow(cotangent, problem.dtype))
    found = problem.gradients(machine, known, given_back) or problem.apart.gradients(
        machine, known, _Operand.alone(given_back.node, given_back.turned)
    )
    if found is None:
        return in_parts(node)
    parts = zip((problem.q, problem.k, problem.v), found, given, strict=False)
    return [operand.back(result, source.shape).node for operand, result, source in parts]


def _computed(output: Node) -> list[Node] | None:
    """The results of cuDNN if it computes the output of this attention; None if it does not."""
    found = p.before_conversion(output)
    while p.is_view(found):
        found = found.inputs[0]
    if found.primitive is not p.project or found.inputs[0].primitive is not _value:
        return None
    return _value.results_of(found.inputs[0])


def _problem(inputs: Sequence[Node], mask: str, sinks: bool) -> _Problem | None:
    """The problem for cuDNN; None if it cannot compute such attention."""
    q, k, v, scale, *more = inputs
    if sinks or q.dtype not in _HALVES:
        return None
    queries, keys, values = (_operand(x) for x in (q, k, v))
    sizes = [one.read for one in (queries, keys, values)]
    if not all(map(_is_known, sizes)) or (mask == "causal" and sizes[0].positions > sizes[1].positions):
        return None  # a query that sees no key has equal weights for all keys; in cuDNN it has none
    added = None if mask in ("none", "causal") else _added(more[: MASKS[mask]], sizes[0], sizes[1], q.dtype)
    return _Problem(queries, keys, values, scale, added, mask == "causal")


def _is_known(x: Heads) -> bool:
    return min(x.shape) > 0 and x.features <= _MOST_FEATURES and x.features % _MULTIPLE == 0


def _operand(x: Node) -> _Operand:
    """An input ``(B, M, positions, D)`` or ``(B, M, G, positions, D)`` as an operand."""
    if x.ndim == 5:
        batch, *shared, positions, features = x.shape
        shape = (batch, shared[0] * shared[1], positions, features)
        reshaped = x.primitive is p.reshape and x.inputs[0].shape == shape
        x = x.inputs[0] if reshaped else p.reshape(wrap(x), shape=shape).node
    turned = x.primitive is p.transpose and x.params[0] == (0, 2, 1, 3)
    alone = _Operand.alone(x.inputs[0] if turned else x, turned)
    return _within(x, alone) or alone


def _within(x: Node, alone: _Operand) -> _Operand | None:
    """The operand read in the memory of the array that it is a view of; None if cuDNN cannot read it there, or if that
    array is much larger."""
    base, views = x, []
    while p.is_view(base) and base.dtype is x.dtype:
        views.append(base)
        base = base.inputs[0]
    if base.dtype is not x.dtype or p.is_constant(base) or base.size > MOST_UNREAD * x.size:
        return None
    strides, offset = row_major(base.shape), 0
    for view in reversed(views):
        shown = view.primitive.shown(view, strides)
        if shown is None:
            return None
        strides, offset = shown[0], offset + shown[1]
    outer = [stride if extent > 1 else x.size for extent, stride in zip(x.shape[:3], strides, strict=False)]
    if strides[3] != 1 or min(outer) <= 0 or any(distance % _MULTIPLE for distance in (*outer, offset)):
        return None
    batch, heads, positions, features = x.shape
    read = Heads(batch, heads, positions, features, (*outer, 1))
    return alone._replace(base=base, read=read, offset=offset)


def _added(more: Sequence[Node], q: Heads, k: Heads, dtype: Dtype) -> Node:
    """What is added to scores: ``(B or 1, heads or 1, T, S)``. For a hidden key it is so low that the score makes no
    difference, but finite, because a query that sees no key has equal weights for all keys."""
    mask = wrap(more[0])
    batch, *shared, _, _ = mask.node.shape
    heads = 1 if max(shared) == 1 else q.heads
    full = (batch, *(shared if heads == 1 else (k.heads, q.heads // k.heads)), q.positions, k.positions)
    shape = (batch, heads, q.positions, k.positions)
    found = p.reshape(p.broadcast(mask, shape=full), shape=shape)
    if len(more) == 2:
        zeros = wrap(p.planned_zeros(shape, dtypes.float32))
        lowest = p.broadcast(p.reshape(wrap(more[1]), shape=(1,) * 4), shape=shape)
        found = p.select(found, zeros, lowest)
    bounded = p.bounded_score(found)
    return (p.cast(bounded, dtype=dtype) if dtype is dtypes.bfloat16 else bounded).node


def _narrow(x: Node, dtype: Dtype) -> Node:
    """The half-precision value that ``x`` was converted from; or ``x`` converted to it."""
    found = p.before_conversion(x)
    return found if found.dtype is dtype else p.cast(wrap(x), dtype=dtype).node
