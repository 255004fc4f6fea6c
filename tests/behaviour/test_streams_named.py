"""``stream=`` of every public function: all nodes that the function makes are on that stream.

The functions are found in the namespaces and called as in the examples of their docstrings; `FURTHER` has calls that
use other paths through them. Only nodes that compute nothing have no stream: numbers in the program, and values that
existed before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import weft
import weft.core as mx
from tests.checks import leaves
from tests.examples import Example, example_of
from weft.graph.node import Node, next_serial, reachable

NO_OPERATIONS = {"load", "precompiled_cuda_kernel", "set_default_stream", "synchronize", "to_device"}
"""Functions that take a stream and make no nodes."""

NAMESPACES: dict[str, Any] = {
    "": mx,
    "fast.": mx.fast,
    "fft.": mx.fft,
    "linalg.": mx.linalg,
    "random.": mx.random,
    "array.": mx.array,
}


def takes_stream(value: Any) -> bool:
    return inspect.isroutine(value) and "stream" in inspect.signature(value).parameters


def functions() -> dict[str, Callable[..., Any]]:
    """The functions by name. A function with several names, or with a method that wraps it, is listed once."""
    found: dict[Any, tuple[str, Any]] = {}
    for prefix, namespace in NAMESPACES.items():
        for name in dir(namespace):
            # A module may import a name when it is asked for.
            value = (getattr if inspect.ismodule(namespace) else inspect.getattr_static)(namespace, name)
            if not name.startswith("_") and takes_stream(value) and name not in NO_OPERATIONS:
                found.setdefault(inspect.unwrap(value), (prefix + value.__name__, value))
    return dict(found.values())


X = mx.array([[1.0, 2.0], [3.0, 4.5]])
INTS = mx.array([[1, 2], [3, 4]])
BYTES = mx.array([1, 2], mx.uint8)
BOOLS = mx.array([True, False])
COMPLEX = mx.array([1 + 2j, 3j])
V = mx.array([1.0, 2.0])


def call(*args: Any, **kwargs: Any) -> Example:
    return Example(args, kwargs)


FURTHER: dict[str, list[Example]] = {
    "add": [call(X, V), call(X, 1), call(INTS, 0.5), call(V, BOOLS)],
    "all": [call(X, keepdims=True)],
    "allclose": [call(X, V, equal_nan=True), call(COMPLEX, V)],
    "arange": [call(5), call(1.0, 2.0, 0.25), call(3, dtype=mx.int8)],
    "argmax": [call(X, keepdims=True)],
    "array.reshape": [call(X, 4), call(X, (4, 1))],
    "array.transpose": [call(X), call(X, 1, 0)],
    "array_equal": [call(X, V), call(X, X, equal_nan=True), call(INTS, X)],
    "bartlett": [call(1), call(4)],
    "diag": [call(X, 1), call(V, -1)],
    "diff": [call(V, 2), call(BOOLS)],
    "divmod": [call(V, 2), call(BOOLS, True), call(X, V)],
    "equal": [call(BYTES, -1), call(INTS, X)],
    "floor_divide": [call(BOOLS, True)],
    "full": [call((2, 2), V), call((2, 2), V, mx.int32), call((3,), 1)],
    "greater": [call(BYTES, -1)],
    "greater_equal": [call(BYTES, 256)],
    "hanning": [call(1)],
    "imag": [call(COMPLEX), call(X)],
    "isclose": [call(X, V, equal_nan=True)],
    "isfinite": [call(COMPLEX), call(INTS), call(X)],
    "isinf": [call(COMPLEX), call(INTS)],
    "isnan": [call(COMPLEX), call(INTS)],
    "isneginf": [call(INTS)],
    "isposinf": [call(INTS)],
    "less": [call(BYTES, 256)],
    "less_equal": [call(BYTES, -1)],
    "linspace": [call(0, 1, 5), call(0, 1, 5, False)],
    "logsumexp": [call(X, axis=1, keepdims=True), call(INTS), call(mx.zeros((0, 2)), axis=0), call(COMPLEX)],
    "mean": [call(V.astype(mx.float16)), call(X, keepdims=True)],
    "nan_to_num": [call(X, V)],
    "not_equal": [call(BYTES, -1)],
    "pad": [*[call(X, 1, mode) for mode in ("edge", "reflect", "symmetric")], call(X, ((0, 1), (2, 0)), "constant", 1)],
    "power": [call(BOOLS, True), call(V, 2), call(INTS, 0.5)],
    "put_along_axis": [call(X, mx.array([0, 3]), V)],
    "random.categorical": [call(X), call(V, num_samples=3), call(X, num_samples=2)],
    "random.normal": [call((2,), mx.complex64), call((2,), loc=V, scale=V), call((2,), mx.float64, 1.0, 2.0)],
    "random.permutation": [call(4), call(X, axis=1)],
    "random.randint": [call(0, INTS, (2, 2))],
    "random.truncated_normal": [call(-1.0, V, (2,))],
    "random.uniform": [call(0.0, V, (2,)), call(shape=(2,), dtype=mx.float64), call(-1, 1, (2,), mx.float16)],
    "remainder": [call(BOOLS, True)],
    "round": [call(X, 1), call(INTS, -1), call(V, -1)],
    "softmax": [call(X, axis=(0, 1)), call(INTS), call(V.astype(mx.float16), precise=True)],
    "std": [call(COMPLEX), call(X, axis=1, keepdims=True, ddof=1)],
    "subtract": [call(BOOLS, True)],
    "sum": [call(BOOLS), call(X, keepdims=True)],
    "take": [call(X, 1), call(X, mx.array([0, 1])), call(X, mx.array([[0, 1]]), axis=1)],
    "take_along_axis": [call(X, INTS, axis=None)],
    "tri": [call(3, 4, 1)],
    "tril": [call(X, -1), call(mx.stack([X, X]))],
    "triu": [call(X, 1)],
    "var": [call(COMPLEX), call(INTS)],
    "vecdot": [call(COMPLEX, V), call(INTS, V)],
    "where": [call(X, V, 1)],
}  # fmt: skip


FUNCTIONS = functions()


def examples(name: str) -> Iterator[Example]:
    first = None if name.startswith("array.") else example_of(FUNCTIONS[name])
    if first is not None:
        yield Example(first.args, {key: value for key, value in first.kwargs.items() if key != "stream"})
    yield from FURTHER.get(name, [])


def replaced(tree: Any, arrays: Iterator[mx.array]) -> Any:
    """``tree`` with other arrays in place of its own."""
    if isinstance(tree, dict):
        return {key: replaced(value, arrays) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([replaced(value, arrays) for value in tree])
    return next(arrays) if isinstance(tree, mx.array) else tree


class Call:
    """One call of a public function on a stream, as a function of the arrays in its arguments."""

    def __init__(self, name: str, example: Example) -> None:
        self.name = name
        self.function = FUNCTIONS[name]
        self.arguments = [list(example.args), example.kwargs]
        self.arrays = [mx.array(leaf) for leaf in leaves(self.arguments) if isinstance(leaf, mx.array)]
        mx.eval(self.arrays)
        self.stream = mx.new_stream(mx.cpu)
        self.traced: list[Node] = []

    def __call__(self, *arrays: mx.array) -> list[mx.array]:
        """The arrays of the result; the nodes made for them are recorded."""
        before = next_serial()
        args, kwargs = replaced(self.arguments, iter(arrays))
        found = self.function(*args, **kwargs, stream=self.stream)
        results = [leaf for leaf in leaves(found) if isinstance(leaf, mx.array)]
        self.traced = reachable([result.node for result in results], before)
        return results


def elsewhere(nodes: Sequence[Node], stream: mx.Stream) -> list[str]:
    """The operations of nodes that are not on a stream."""
    return [
        f"{node!r} on {node.stream}"
        for node in nodes
        if node.stream != stream and not is_given(node) and not (node.stream is None and is_number(node))
    ]


def is_given(node: Node) -> bool:
    """Whether a node is a value that existed before, or the name that `grad` gives an argument."""
    return node.primitive is None or node.primitive.name == "identity"


def is_number(node: Node) -> bool:
    return node.primitive is not None and node.primitive.name == "constant"


def is_filled_in(node: Node) -> bool:
    """Whether a node is a repeated number, with which a transformation replaces what does not depend on its
    arguments."""
    while node.primitive is not None and node.primitive.name in ("expand_dims", "broadcast"):
        (node,) = node.inputs
    return is_number(node)


def made_elsewhere(made: Call, results: Sequence[mx.array], before: int) -> list[str]:
    """Nodes of a function that are not on its stream: from its call, or from a transformation that made ``results``."""
    nodes = [node for node in reachable([result.node for result in results], before) if not is_filled_in(node)]
    return elsewhere([*made.traced, *nodes], made.stream)


CALLS = [
    pytest.param(name, number, id=f"{name}-{number}") for name in FUNCTIONS for number in range(len([*examples(name)]))
]


def call_of(name: str, number: int) -> Call:
    mx.random.seed(0)
    return Call(name, [*examples(name)][number])


def test_every_function_has_an_example() -> None:
    assert len(FUNCTIONS) > 150
    assert [name for name in FUNCTIONS if not [*examples(name)]] == []
    assert set(FURTHER) <= set(FUNCTIONS)


@pytest.mark.some_checks
@pytest.mark.parametrize(("name", "number"), CALLS)
def test_all_nodes_are_on_the_stream(name: str, number: int) -> None:
    made = call_of(name, number)
    made(*made.arrays)
    assert elsewhere(made.traced, made.stream) == []


def as_float(array: mx.array) -> mx.array:
    return array if mx.issubdtype(array.dtype, mx.inexact) else array.astype(mx.float32)


@pytest.mark.some_checks
@pytest.mark.parametrize(("name", "number"), CALLS)
def test_the_derivative_is_on_the_stream_as_well(name: str, number: int) -> None:
    made = call_of(name, number)

    def loss(arrays: list[mx.array]) -> mx.array:
        total = mx.array(0.0)
        for result in made(*arrays):
            if mx.issubdtype(result.dtype, mx.inexact):
                total = mx.add(
                    total, mx.sum(mx.real(result, stream=made.stream), stream=made.stream), stream=made.stream
                )
        return total

    floats = [as_float(array) for array in made.arrays]
    try:
        loss(floats)
    except (TypeError, ValueError):  # indices, for example, are no floats
        floats = made.arrays
    if not all(mx.issubdtype(array.dtype, mx.inexact) for array in floats) or not floats:
        pytest.skip("not a function of floating numbers")
    mx.eval(floats)
    before = next_serial()
    gradients = mx.grad(loss)(floats)
    assert made_elsewhere(made, gradients, before) == []


SHAPED_BY_VALUES = {"nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"}
"""Functions whose shapes depend on values, which traced arrays do not have."""
TRACED = [one for one in CALLS if one.values[0] not in SHAPED_BY_VALUES]


@pytest.mark.some_checks
@pytest.mark.parametrize(("name", "number"), TRACED)
def test_the_mapped_function_is_on_the_stream(name: str, number: int) -> None:
    made = call_of(name, number)
    if not made.arrays:
        pytest.skip("not a function of arrays")
    stacked = [mx.stack([array, array]) for array in made.arrays]
    mx.eval(stacked)
    before = next_serial()
    results = mx.vmap(made)(*stacked)
    assert made_elsewhere(made, results, before) == []


@pytest.mark.some_checks
@pytest.mark.parametrize(("name", "number"), TRACED)
def test_the_steps_of_a_compiled_function_are_on_the_stream(name: str, number: int) -> None:
    made = call_of(name, number)
    explained = mx.compile(made).explain(*made.arrays)
    assert elsewhere(made.traced, made.stream) == []
    if any(not is_given(node) and not is_number(node) for node in made.traced):
        assert {step.stream for step in explained.steps} <= {made.stream}


def test_logsumexp_is_one_plan() -> None:
    stream = mx.new_stream(mx.cpu)
    with weft.profile() as seen:
        mx.eval(mx.logsumexp(mx.array([[1.0, 2.0], [3.0, 4.0]]), axis=1, stream=stream))
    assert ": 1 step of 1 run of 1 plan " in str(seen)
    assert str(seen).splitlines()[0].endswith(" on 1 stream")


class Interrupting:
    """An argument that raises KeyboardInterrupt when its numbers are read."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        (lambda stream: mx.logsumexp(X, axis=7, stream=stream), IndexError),
        (lambda stream: mx.add(X, mx.zeros(3), stream), ValueError),
        (lambda stream: mx.where(Interrupting(), X, X, stream=stream), KeyboardInterrupt),
        (lambda stream: mx.exp(Interrupting(), stream=stream), KeyboardInterrupt),
        (lambda stream: mx.equal(Interrupting(), X, stream), KeyboardInterrupt),
    ],
)
def test_the_current_stream_is_as_before_after_an_error(
    fails: Callable[[mx.Stream], Any], error: type[BaseException]
) -> None:
    with mx.stream(mx.new_stream(mx.cpu)):
        before = mx.default_stream(mx.cpu)
        with pytest.raises(error):
            fails(mx.new_stream(mx.cpu))
        assert mx.default_stream(mx.cpu) == before


def test_streams_given_by_position_and_by_what_stands_for_one() -> None:
    inner, outer = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    own = mx.new_thread_local_stream(mx.cpu)
    with mx.stream(outer):
        assert mx.add(X, INTS, inner).node.stream == inner
        assert mx.linspace(0, 1, 3, True, mx.float32, inner).node.stream == inner
        assert mx.random.uniform(0, 1, (2,), mx.float32, None, inner).node.stream == inner
        assert mx.softmax(X, stream=mx.cpu).node.stream == outer
        assert mx.softmax(X, stream=None).node.stream == outer
        assert mx.softmax(X, stream=own).node.stream == mx.exp(X, stream=own).node.stream not in (inner, outer)
