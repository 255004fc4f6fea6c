"""Random small programs: a grammar of operations, each written once for Weft and once for NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

import weft.core as mx

Shape = tuple[int, ...]
Choose = Callable[[Callable[..., Any], Sequence[Shape]], tuple[Any, ...] | None]


@dataclass(frozen=True)
class Operation:
    """One row of the grammar.

    `choose` draws the parameters for operands of the given shapes, or returns None if the operation is impossible for
    them; `weft` and `numpy` compute it. A smooth operation is continuous and does not make values much larger, so that
    NumPy's result stays close to Weft's through a whole program.
    """

    name: str
    operands: int
    choose: Choose
    weft: Callable[..., mx.array]
    numpy: Callable[..., Any]
    smooth: bool = True


def nothing(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    return ()


def broadcastable(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    try:
        return () if np.prod(np.broadcast_shapes(*shapes)) <= 20_000 else None
    except ValueError:
        return None


def an_axis(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    """One axis, counted from either end, of an array that is not empty (so that a maximum exists)."""
    dimensions = len(shapes[0])
    if not dimensions or 0 in shapes[0]:
        return None
    return (draw(st.integers(-dimensions, dimensions - 1)),)


def a_scan(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    """An axis, whether the scan is reversed, and whether it is inclusive."""
    axis = an_axis(draw, shapes)
    return None if axis is None else (*axis, draw(st.booleans()), draw(st.booleans()))


def axes_and_keepdims(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    if 0 in shapes[0]:
        return None
    axes = draw(st.sets(st.sampled_from(range(len(shapes[0])))) if shapes[0] else st.just(set()))
    return (tuple(sorted(axes)) or None, draw(st.booleans()))


def a_permutation(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    return (tuple(draw(st.permutations(range(len(shapes[0]))))),)


def another_shape(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    size = int(np.prod(shapes[0]))
    choices = [(size,), (1, size), (size, 1)]
    choices += [(k, size // k) for k in (2, 3, 5) if size and size % k == 0]
    return (draw(st.sampled_from(choices)),)


def slices(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    return (tuple(draw(st.slices(size)) if size else slice(None) for size in shapes[0]),)


def an_index(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    if not shapes[0] or not shapes[0][0]:
        return None
    size = shapes[0][0]
    return (draw(st.integers(-size, size - 1)),)


def indices(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    if not shapes[0] or not shapes[0][0]:
        return None
    size = shapes[0][0]
    return (tuple(draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=5))),)


def same_dimensions(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    left, right = shapes
    if len(left) != len(right):
        return None
    axes = [a for a in range(len(left)) if left[:a] + left[a + 1 :] == right[:a] + right[a + 1 :]]
    return (draw(st.sampled_from(axes)),) if axes else None


def multiplicable(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    left, right = shapes
    fits = len(left) == len(right) == 2 and left[1] == right[0] > 0
    return () if fits and left[0] * right[1] <= 20_000 else None


def a_number(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    return (draw(st.floats(-2, 2, width=32)),)


def widths(draw: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, ...] | None:
    if not shapes[0]:
        return None
    return (tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in shapes[0]),)


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's result without its warnings about NaN and infinities."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return call


def unary(name: str, numpy: Callable[..., Any], *, smooth: bool = True) -> Operation:
    return Operation(name, 1, nothing, getattr(mx, name), numpy, smooth)


def binary(name: str, numpy: Callable[..., Any], *, smooth: bool = True) -> Operation:
    return Operation(name, 2, broadcastable, getattr(mx, name), numpy, smooth)


def reduction(name: str, numpy: Callable[..., Any], *, smooth: bool = True) -> Operation:
    return Operation(
        name,
        1,
        axes_and_keepdims,
        lambda x, axes, keep: getattr(mx, name)(x, axis=axes, keepdims=keep),
        lambda x, axes, keep: numpy(x, axis=axes, keepdims=keep),
        smooth,
    )


def scan(name: str, join: np.ufunc, start: float, *, smooth: bool = True) -> Operation:
    def in_numpy(x: np.ndarray, axis: int, reverse: bool, inclusive: bool) -> np.ndarray:
        x = np.moveaxis(x, axis, 0)[:: -1 if reverse else 1]
        result = join.accumulate(x, axis=0)
        if not inclusive:
            result = np.concatenate([np.full_like(x[:1], start), result[:-1]])
        return np.moveaxis(result[:: -1 if reverse else 1], 0, axis)

    return Operation(
        name,
        1,
        a_scan,
        lambda x, axis, reverse, inclusive: getattr(mx, name)(x, axis=axis, reverse=reverse, inclusive=inclusive),
        quiet(in_numpy),
        smooth,
    )


def both(name: str, operands: int, choose: Choose, formula: Callable[..., Any], *, smooth: bool = True) -> Operation:
    """An operation with the same formula for both; `formula` gets the namespace to use, `mx` or `np`."""
    return Operation(name, operands, choose, partial(formula, mx), quiet(partial(formula, np)), smooth)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    weights = np.exp(x - x.max(axis=axis, keepdims=True))
    return weights / weights.sum(axis=axis, keepdims=True)


def assigned(namespace: Any, x: Any, value: Any, index: int) -> Any:
    x = x + 0
    x[index] = value.sum() * 0.01
    return x


def clipped(namespace: Any, x: Any) -> Any:
    """Limited to -9 to 9; indices from `argmax` are unsigned."""
    return namespace.clip(x, 0 if x.dtype == namespace.uint32 else -9, 9)


@quiet
def log_sum_exp(x: np.ndarray, axis: Any, keepdims: Any) -> np.ndarray:
    return np.log(np.exp(x).sum(axis=axis, keepdims=keepdims))


OPERATIONS = [
    unary("sin", np.sin),
    unary("cos", np.cos),
    unary("tanh", np.tanh),
    unary("abs", np.abs),
    unary("negative", np.negative),
    unary("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    unary("exp", quiet(np.exp), smooth=False),
    unary("log", quiet(np.log), smooth=False),
    unary("sqrt", quiet(np.sqrt), smooth=False),
    unary("rsqrt", quiet(lambda x: 1 / np.sqrt(x)), smooth=False),
    unary("floor", np.floor, smooth=False),
    unary("round", np.round, smooth=False),
    unary("sign", np.sign, smooth=False),
    unary("square", quiet(np.square), smooth=False),
    binary("maximum", np.maximum),
    binary("minimum", np.minimum),
    binary("subtract", quiet(np.subtract), smooth=False),
    binary("multiply", quiet(np.multiply), smooth=False),
    binary("divide", quiet(np.divide), smooth=False),
    binary("add", quiet(np.add), smooth=False),
    both("half the sum", 2, broadcastable, lambda m, x, y: (x + y) * 0.5),
    both("bounded product", 2, broadcastable, lambda m, x, y: m.sin(x) * m.cos(y)),
    both("scaled", 1, a_number, lambda m, x, k: x * k),
    both("shifted", 1, a_number, lambda m, x, k: k - x),
    both("comparison", 2, broadcastable, lambda m, x, y: (x > y) * 1.0, smooth=False),
    both("where", 2, broadcastable, lambda m, x, y: m.where(x > 0, x, m.tanh(y)), smooth=False),
    both("to integer", 1, nothing, lambda m, x: clipped(m, x).astype(m.int32) * 3, smooth=False),
    both("to half", 1, nothing, lambda m, x: clipped(m, x).astype(m.float16) + 1, smooth=False),
    reduction("mean", quiet(np.mean)),
    reduction("max", np.max),
    reduction("min", np.min),
    reduction("sum", quiet(np.sum), smooth=False),
    reduction("var", quiet(np.var), smooth=False),
    scan("cumsum", np.add, 0.0, smooth=False),
    scan("cumprod", np.multiply, 1.0, smooth=False),
    Operation("logsumexp", 1, axes_and_keepdims, mx.logsumexp, log_sum_exp, smooth=False),
    Operation("softmax", 1, an_axis, mx.softmax, softmax),
    both("argmax", 1, an_axis, lambda m, x, axis: m.argmax(x, axis=axis), smooth=False),
    both("centre", 1, an_axis, lambda m, x, axis: x - x.mean(axis=axis, keepdims=True)),
    both("matmul", 2, multiplicable, lambda m, x, y: m.matmul(m.sin(x), y) * 0.1),
    both("transpose", 1, a_permutation, lambda m, x, axes: m.transpose(x, axes)),
    both("reshape", 1, another_shape, lambda m, x, shape: m.reshape(x, shape)),
    both("expand", 1, nothing, lambda m, x: m.expand_dims(x, 0)),
    both("slice", 1, slices, lambda m, x, index: x[index]),
    both("index", 1, an_index, lambda m, x, index: x[index]),
    both("gather", 1, indices, lambda m, x, index: x[m.array(index)]),
    both("assign", 2, lambda draw, shapes: an_index(draw, shapes[:1]), assigned),
    both("concatenate", 2, same_dimensions, lambda m, x, y, axis: m.concatenate([x, y], axis=axis)),
    both("pad", 1, widths, lambda m, x, widths: m.pad(x, widths)),
    both("broadcast", 1, nothing, lambda m, x: m.broadcast_to(x, (2, *x.shape))),
]


@dataclass(frozen=True)
class Statement:
    operation: Operation
    operands: tuple[int, ...]
    parameters: tuple[Any, ...]

    def __repr__(self) -> str:
        names = [f"v{k}" for k in self.operands] + [repr(p) for p in self.parameters]
        return f"{self.operation.name}({', '.join(names)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What hypothesis prints of a failing program."""
        printer.text(repr(self))


@dataclass(frozen=True)
class Program:
    """Inputs v0, v1, ...; every statement adds a value; the last few are the result."""

    inputs: tuple[np.ndarray, ...]
    statements: tuple[Statement, ...]

    def __call__(self, *inputs: mx.array, after_each: Callable[[mx.array], Any] | None = None) -> list[mx.array]:
        values = list(inputs)
        for statement in self.statements:
            operands = [values[k] for k in statement.operands]
            values.append(statement.operation.weft(*operands, *statement.parameters))
            if after_each is not None:
                after_each(values[-1])
        return values[len(inputs) :][-3:]

    def arrays(self) -> list[mx.array]:
        return [mx.array(x) for x in self.inputs]

    def in_numpy(self) -> list[np.ndarray]:
        """The program computed by NumPy in float64."""
        values: list[np.ndarray] = [x.astype(np.float64) for x in self.inputs]
        for statement in self.statements:
            operands = [values[k] for k in statement.operands]
            values.append(np.asarray(statement.operation.numpy(*operands, *statement.parameters)))
        return values[len(self.inputs) :][-3:]


SMALL = (0, 1, 1, 2, 3, 5, 17)
LARGE = (1, 3, 64, 129, 1000)


@st.composite
def programs(draw: Callable[..., Any], *, smooth: bool = False, large: bool = False) -> Program:
    """A program of a few statements over one to three float32 inputs."""
    sizes = st.sampled_from(LARGE if large else SMALL[1:] if smooth else SMALL)
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes: list[Shape] = []
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(sizes, max_size=2 if large else 3)))
        shapes.append(shape if np.prod(shape) <= 200_000 else shape[:1])
    inputs = tuple(generator.normal(size=shape).astype(np.float32) for shape in shapes)
    allowed = [operation for operation in OPERATIONS if operation.smooth or not smooth]
    statements: list[Statement] = []
    for _ in range(draw(st.integers(1, 8))):
        statement = draw_statement(draw, allowed, shapes)
        if statement is not None:
            statements.append(statement)
            shapes.append(result_shape(statement, shapes))
    return Program(inputs, tuple(statements))


def draw_statement(draw: Callable[..., Any], allowed: list[Operation], shapes: list[Shape]) -> Statement | None:
    operation = draw(st.sampled_from(allowed))
    operands = tuple(draw(st.integers(0, len(shapes) - 1)) for _ in range(operation.operands))
    parameters = operation.choose(draw, [shapes[k] for k in operands])
    return None if parameters is None else Statement(operation, operands, parameters)


def result_shape(statement: Statement, shapes: list[Shape]) -> Shape:
    """Computed with NumPy on ones, so that drawing a program does not use the code that is tested."""
    operands = [np.ones(shapes[k]) for k in statement.operands]
    return np.shape(statement.operation.numpy(*operands, *statement.parameters))
