"""How a graph over several streams is cut into segments: which operations may run where and when, and that no segment
waits without a reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest

import weft.core as mx
from tests.toy_operations import squares
from weft.compiler.rewriting.segments import Segment, segments_of
from weft.graph.node import Node, reachable
from weft.runtime.devices import Stream, with_stream

CALLER, S, T, U = (mx.new_stream(mx.cpu) for _ in range(4))
STREAMS = (None, S, T, U)


def leaf() -> mx.array:
    x = mx.array([[1.0, 2.0], [3.0, 4.0]], mx.float64)
    mx.eval(x)
    return x


def plus(x: mx.array, y: mx.array, stream: Stream | None) -> mx.array:
    """The sum on a stream; None is the caller's stream, as in a compiled function."""
    return with_stream(stream, mx.add, x, y)


def cut(wanted: Sequence[mx.array]) -> list[Segment]:
    nodes = [array.node for array in wanted]
    return segments_of([node for node in reachable(nodes) if node.value is None], nodes, CALLER)


def sources(node: Node) -> Sequence[Node]:
    assert node.primitive is not None
    alias = node.primitive.alias(node)
    return [source for source in (node.inputs if alias is None else [alias]) if source.value is None]


def program(rng: np.random.Generator) -> list[mx.array]:
    """Arrays that are made from each other on random streams; some of them are the results of the program."""
    arrays = [leaf()]
    while len(arrays) < 12:
        x, y = (arrays[rng.integers(max(0, len(arrays) - 5), len(arrays))] for _ in range(2))
        stream = STREAMS[rng.integers(4)]
        kind = rng.integers(8)
        if kind == 0:
            sums, turned = with_stream(stream, squares, x)
            arrays.extend([with_stream(stream, mx.add, x, sums.astype(mx.float64)), turned])
        elif kind == 1:
            arrays.append(with_stream(stream, mx.stop_gradient, x))
        elif kind == 2:
            arrays.append(plus(x, with_stream(stream, mx.arange, 2.0, dtype=mx.float64), stream))
        else:
            arrays.append(plus(x, y, stream))
    return [array for array in arrays[1:] if rng.random() < 0.5] + arrays[-1:]


def test_a_segment_needs_its_stream_alone_and_what_is_there_before(rng: np.random.Generator) -> None:
    """A segment needs only its own stream and what was sent to it before. Nothing is computed twice, and only what
    other segments use is sent."""
    for _ in range(60):
        wanted = program(rng)
        segments = cut(wanted)
        there: dict[Node, Stream] = {}
        used: dict[Node, set[Stream]] = {}
        computed: set[Node] = set()
        for stream, nodes, _ in segments:
            stack, seen = list(nodes), set(nodes)
            while stack:
                at = stack.pop()
                assert not at.inputs or ((at.stream or CALLER) is stream and at not in computed)
                for source in sources(at):
                    if source in there:
                        used[source].add(stream)
                    elif source not in seen:
                        seen.add(source)
                        stack.append(source)
            computed |= seen
            there.update(dict.fromkeys(nodes, stream))
            used.update({node: set() for node in nodes})
        assert {array.node for array in wanted} <= there.keys()
        for stream, nodes, sends in segments:
            assert len(sends) == len(set(sends))
            assert {*sends} == {(node, other) for node in nodes for other in used[node] if other is not stream}


def shown(wanted: dict[str, mx.array]) -> list[str]:
    """For each segment the stream and the names of its nodes; after an arrow, the streams that the nodes are sent
    to."""
    names = defaultdict(lambda: "other", {array.node: name for name, array in wanted.items()})
    streams = {CALLER: "caller", S: "s", T: "t", U: "u"}
    found = []
    for stream, nodes, sends in cut(list(wanted.values())):
        sent = [f"{names[node]}>{streams[other]}" for node, other in sends]
        found.append(f"{streams[stream]}: {' '.join([*[names[node] for node in nodes], *sent])}")
    return found


def test_what_no_stream_waits_for_is_a_segment_of_its_own() -> None:
    """T needs only ``a``, so it need not wait for ``b``; and ``d`` of the same stream need not wait for T."""
    x = leaf()
    a, b = plus(x, x, S), plus(x, x, S)
    c = plus(a, a, T)
    d, e = plus(b, b, S), plus(c, b, S)
    wanted = {"a": a, "b": b, "c": c, "d": d, "e": e}
    assert shown(wanted) == ["s: a a>t", "s: b d", "t: c c>s", "s: e"]


def test_who_waits_for_more_comes_later() -> None:
    x = leaf()
    a, b = plus(x, x, S), plus(x, x, T)
    c, d = plus(a, b, U), plus(a, a, U)
    wanted = {"a": a, "b": b, "c": c, "d": d, "e": plus(c, d, U)}
    assert shown(wanted) == ["s: a a>u", "t: b b>u", "u: d", "u: c e"]


def test_who_is_awaited_by_more_comes_earlier() -> None:
    x = leaf()
    a, b = plus(x, x, S), plus(x, x, S)
    wanted = {"a": a, "b": b, "c": plus(b, b, T), "d": plus(a, b, S)}
    assert shown(wanted) == ["s: b b>t", "s: a d", "t: c"]


def test_what_was_awaited_before_is_not_awaited_again() -> None:
    """``e`` and ``f`` wait for T. It makes no difference that ``c``, earlier on their stream, waited for U."""
    x = leaf()
    a, b = plus(x, x, U), plus(x, x, S)
    c, d = plus(a, a, S), plus(b, b, T)
    wanted = {"a": a, "b": b, "c": c, "d": d, "e": plus(c, d, S), "f": plus(d, d, S)}
    assert shown(wanted) == ["u: a a>s", "s: b b>t", "t: d d>s", "s: c", "s: e f"]


def test_who_waits_for_what_comes_later_does_not_wait_now() -> None:
    """T waits for ``a`` and ``b``. It makes no difference that U, when T is done, waits for a value that is made from
    ``a``."""
    x = leaf()
    a, b = plus(x, x, S), plus(x, x, S)
    c = plus(a, b, T)
    d = plus(a, c, S)
    wanted = {"a": a, "b": b, "c": c, "d": d, "e": plus(d, d, U)}
    assert shown(wanted) == ["s: a b a>t b>t", "t: c c>s", "s: d d>u", "u: e"]


def test_results_of_custom_functions_are_other_names() -> None:
    """They depend on the arrays that they name, and neither on other arguments nor on each other."""

    y = leaf()

    @mx.custom_function
    def function(x: mx.array) -> tuple[mx.array, mx.array]:
        return plus(y, y, T), plus(x, y, T)

    @function.vjp
    def function_vjp(primals: object, cotangents: object, outputs: object) -> None:
        """Defined so that the function has a vjp of its own."""

    a = plus(y, y, S)
    without, with_a = with_stream(T, function, a)
    found = shown({"a": a, "b": without, "c": with_a})
    assert [segment.replace("other>t", "").replace("other", "").split() for segment in found] == [
        ["s:", "a", "a>t"],
        ["t:", "b"],
        ["t:", "c"],
    ]


def test_arrays_with_values_and_those_made_of_nothing_are_in_no_segment() -> None:
    x, ones = leaf(), mx.arange(2.0, dtype=mx.float64, stream=S)
    assert shown({"y": plus(x, ones, T)}) == ["t: y"]
    assert shown({"x": plus(x, x, None), "y": plus(x, ones, T)}) == ["caller: x", "t: y"]


@pytest.mark.parametrize("later", [S, T])
def test_results_of_one_operation_are_together(later: Stream) -> None:
    """Also if only one of them is needed by another stream."""
    sums, turned = with_stream(S, squares, leaf())
    next_one = plus(turned, turned, later)
    found = [nodes for _, nodes, _ in cut([sums, turned, next_one])]
    (together,) = [nodes for nodes in found if sums.node in nodes]
    assert turned.node in together
