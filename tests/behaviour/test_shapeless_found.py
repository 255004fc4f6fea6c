"""`compile(shapeless=True)` is correct for every shape or says what is fixed: functions of shapes, random programs."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from tests.behaviour.test_random_programs import total
from tests.checks import Counted, assert_same_bits, leaves, line_of
from tests.programs import Program as RandomProgram
from tests.programs import programs
from tests.sampling import Cases, examples
from tests.shapeless_programs import PROGRAMS, Program
from weft import ops
from weft.errors import TraceError

Shape = tuple[int, ...]


def values(shapes: Sequence[Shape]) -> list[mx.array]:
    """A few different numbers, so that some are equal and some are zero."""
    rng = np.random.default_rng([99, *(extent for shape in shapes for extent in shape)])
    return [mx.array(rng.integers(-8, 9, size=shape).astype(np.float32) / 4) for shape in shapes]


Outcome = tuple[Any, Exception | None]


def outcome(function: Callable[..., Any], shapes: Sequence[Shape]) -> Outcome:
    """What a function returns, or raises."""
    try:
        result = function(*values(shapes))
        mx.eval([leaf for leaf in leaves(result) if isinstance(leaf, mx.array)])
    except (ValueError, IndexError, TypeError, ArithmeticError) as error:
        return None, error
    return result, None


def check(expected: Outcome, compiled: Any, shapes: Sequence[Shape], every_error: bool = True) -> bool:
    """Whether a compiled function refuses shapes for which a result is ``expected``; for all other shapes, bits must be
    equal.

    With ``every_error``, the compiled function must fail whenever the function does.
    """
    wanted, impossible = expected
    got, refused = outcome(compiled, shapes)
    if refused is not None:
        assert isinstance(refused, ValueError), f"{shapes}: {refused!r}"
        assert str(refused).startswith("[compile]"), f"{shapes}: {refused}"
        assert all(str(shape) in str(refused) for shape in shapes), f"{shapes}: {refused}"
        return impossible is None
    if impossible is None:
        assert_same_bits(got, wanted)
    else:
        assert not every_error, f"{shapes}: nothing was said of {impossible!r}"
    return False


@pytest.mark.some_rows(90)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_shape_is_right_or_refused_for_a_reason(program: Program, cases: Cases) -> None:
    """Traced with some of the shapes, and called with all. Only a run with all shapes shows that a reason is not
    outdated."""
    expected = [outcome(program.function, shapes) for shapes in program.shapes]
    possible = [number for number, (_, error) in enumerate(expected) if error is None]
    assert len(possible) > 1
    refused = 0
    for first in cases.some(1, possible):
        counted = Counted(program.function)
        compiled = mx.compile(counted.function, shapeless=True)
        assert not check(expected[first], compiled, program.shapes[first])
        refused += sum([check(*one) for one in zip(expected, repeat(compiled), program.shapes, strict=False)])
        assert counted.calls == 1
    if refused or cases.complete:
        assert bool(refused) == bool(program.refuses), f"{refused} calls are refused; the reason is {program.refuses!r}"


ABOUT_SHAPES = {
    "creation", "diagonals", "einsum", "indexing", "joining", "padding", "products", "reductions", "shaping",
}  # fmt: skip


def test_every_function_of_shapes_is_in_the_table() -> None:
    text = " ".join(program.name for program in PROGRAMS)
    functions = [one for one in vars(ops).values() if inspect.isfunction(one)]
    names = {one.__name__ for one in functions if one.__module__.rpartition(".")[2] in ABOUT_SHAPES}
    assert {name for name in names if name not in text} == set()
    assert len(names) > 60


def other_shapes(program: RandomProgram, seed: int) -> list[list[Shape]]:
    """Shapes for the inputs of a random program: every extent is replaced by another one throughout."""
    rng = np.random.default_rng(seed)
    extents = sorted({extent for x in program.inputs for extent in x.shape})
    found = []
    for _ in range(3):
        new = {n: int(rng.choice([0, 1, 1, 2, 3, 5, n, n + 1, 2 * n])) for n in extents}
        found.append([tuple(new[extent] for extent in x.shape) for x in program.inputs])
    return found


def check_random(program: RandomProgram, function: Callable[..., Any], seed: int) -> None:
    compiled = mx.compile(function, shapeless=True)
    own = [x.shape for x in program.inputs]
    expected = outcome(function, own)
    if expected[1] is None:
        assert not check(expected, compiled, own)
        for shapes in other_shapes(program, seed):
            # A step that no result depends on may fail in the function only.
            check(outcome(function, shapes), compiled, shapes, every_error=False)


@examples(40)
@given(programs(), st.integers(0, 2**32 - 1))
def test_random_programs(program: RandomProgram, seed: int) -> None:
    check_random(program, lambda *inputs: program(*inputs), seed)


@examples(14)
@given(programs(smooth=True), st.integers(0, 2**32 - 1))
def test_gradients_of_random_programs(program: RandomProgram, seed: int) -> None:
    gradient = mx.grad(total(program), argnums=list(range(len(program.inputs))))
    check_random(program, lambda *inputs: gradient(*inputs), seed)


def test_a_gradient_is_summed_in_the_same_order_where_a_shape_changes_nothing() -> None:
    def loss(x: mx.array, like: mx.array) -> mx.array:
        y = mx.broadcast_to(x.reshape(-1), (1,))[0:1]
        return mx.sin(y) + mx.sin(x) + mx.exp(y * 0.7) + mx.cos(mx.roll(y, 1)) + mx.tanh(x * 1.1) + like.sum()

    gradient = mx.grad(lambda x, like: loss(x, like).sum())
    compiled = mx.compile(gradient, shapeless=True)
    for number in np.random.default_rng(5).normal(size=20):
        x = mx.array([number], mx.float32)
        assert_same_bits(compiled(x, mx.ones(2)), gradient(x, mx.ones(2)))


def test_a_gradient_is_the_same_zero_where_a_part_is_everything() -> None:
    def loss(x: mx.array, y: mx.array) -> mx.array:
        z = mx.cos(x)
        z[0] = y[0]
        return z.sum()

    gradient = mx.grad(loss)
    compiled = mx.compile(gradient, shapeless=True)
    for extent in (1, 3, 1):
        x = mx.ones(extent)
        assert_same_bits(compiled(x, x), gradient(x, x))


def test_what_was_decided_is_named_with_its_line() -> None:
    def function(x: mx.array) -> mx.array:
        if x.shape[0] > 3:
            return x * 2
        return x

    compiled = mx.compile(function, shapeless=True)
    compiled(mx.ones(5))
    assert compiled(mx.ones(4)).tolist() == [2.0] * 4
    with pytest.raises(ValueError, match=r"It was True \(5 > 3\), and would be False \(2 > 3\)") as caught:
        compiled(mx.ones(2))
    assert f"{__file__}:{line_of(function, 'if x.shape')}" in str(caught.value)
    assert "(5,)" in str(caught.value)
    assert "(2,)" in str(caught.value)


def test_an_extent_is_an_integer() -> None:
    seen: list[Any] = []

    def function(x: mx.array) -> mx.array:
        n: Any = x.shape[0]
        seen.append(
            (isinstance(n, numbers.Integral), n.real is n, n.imag, +n is n, n == 5, n != 5, n == "5", n is None)
        )
        seen.append((complex(n), n.bit_length(), {n: "five"}[5], [0, 1, 2, 3, 4, 5][n], f"{n:03d} {n!r}", ~n == -6))
        return x

    mx.compile(function, shapeless=True)(mx.ones(5))
    assert seen[0] == (True, True, 0, True, True, False, False, False)
    assert seen[1] == (5 + 0j, 3, "five", 5, "005 5", True)


def test_a_container_of_outputs_holds_numbers() -> None:
    state: dict[str, Any] = {"total": mx.array(0.0)}

    def step(x: mx.array) -> None:
        state["total"] = state["total"] + x.sum()
        state["count"] = x.shape[0]

    compiled = mx.compile(step, inputs=state, outputs=state, shapeless=True)
    compiled(mx.ones(3))
    assert type(state["count"]) is int


def test_a_compiled_function_inside_that_was_traced_before() -> None:
    def plain(x: mx.array, n: int = 0) -> mx.array:
        return x.mean(axis=0) + x[:2].sum() * n

    inner = mx.compile(plain)
    inner(mx.ones((2, 3)))
    compiled = mx.compile(lambda x: inner(x) + inner(x[1:], x.shape[0]), shapeless=True)
    for rows in (2, 5, 1):
        x = mx.ones((rows, 3))
        assert_same_bits(compiled(x), plain(x) + plain(x[1:], rows))
    assert inner(mx.ones((2, 3))).tolist() == [1.0] * 3


def test_a_shapeless_function_inside_another() -> None:
    inner = mx.compile(lambda x: (x.mean(axis=0), x.shape[0], x[:3].sum()), shapeless=True)
    inner(mx.ones((7, 2)))
    compiled = mx.compile(lambda a, b: (inner(b), inner(a[1:])), shapeless=True)
    for rows in [(4, 2), (2, 9), (6, 6)]:
        a, b = (mx.array(np.arange(2.0 * n).reshape(n, 2), mx.float32) for n in rows)
        assert_same_bits(compiled(a, b), (inner(b), inner(a[1:])))


def test_a_decision_of_a_function_inside_is_one_of_the_outer() -> None:
    inner = mx.compile(lambda x: x * 2 if x.shape[0] > 3 else x, shapeless=True)
    compiled = mx.compile(lambda x: inner(x[1:]), shapeless=True)
    assert compiled(mx.ones(6)).tolist() == [2.0] * 5
    assert compiled(mx.ones(5)).tolist() == [2.0] * 4
    with pytest.raises(ValueError, match=r"False \(3 > 3\)"):
        compiled(mx.ones(4))


def test_transformations_of_a_shapeless_function_see_plain_shapes() -> None:
    compiled = mx.compile(lambda x: x[:3] * x.shape[0], shapeless=True)
    seen = []

    def loss(x: mx.array) -> mx.array:
        y = compiled(x)
        seen.extend([y.shape, *y.shape])
        return y.sum()

    for extent in (5, 2, 5):
        x = mx.ones(extent)
        mx.grad(loss)(x)
        mx.vmap(loss)(mx.ones((2, extent)))
    assert {type(one) for one in seen} == {tuple, int}
    assert seen[::2] == [(3,), (3,), (2,), (2,), (3,), (3,)]


def test_a_checkpoint_inside_is_computed_again_in_the_new_shape() -> None:
    def function(x: mx.array) -> mx.array:
        return mx.checkpoint(lambda a: (mx.sin(a[1:]) * a[:-1]).mean())(x * 2)

    compiled = mx.compile(function, shapeless=True)
    for extent in (4, 7, 3):
        x = mx.array(np.arange(extent), mx.float32)
        assert_same_bits(mx.grad(compiled)(x), mx.grad(function)(x))


def test_extents_of_extents() -> None:
    def smoothed(library: Any, x: Any) -> Any:
        for _ in range(60):
            x = library.pad(x[1:] + x[:-1], ((0, 1),)) * 0.5
        return x

    def grown(library: Any, x: Any) -> Any:
        for _ in range(1100):
            x = library.concatenate([x, x[:1]])
        return x

    for function, extents in ((smoothed, (3, 9, 1)), (grown, (3, 9))):
        compiled = mx.compile(partial(function, mx), shapeless=True)
        for extent in extents:
            x = np.arange(extent, dtype=np.float32)
            np.testing.assert_array_equal(compiled(mx.array(x)), function(np, x), strict=True)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norm, self.dropout = nn.LayerNorm(8), nn.Dropout(0.3)

    def __call__(self, x: mx.array) -> mx.array:
        return self.second(self.dropout(self.norm(nn.relu(self.first(x)))))


def train(compiled: bool) -> tuple[list[float], int, Any]:
    """Losses for batches of several sizes, the number of traces, and the parameters at the end."""
    mx.random.seed(3)
    model, optimizer = Network(), optim.Adam(learning_rate=1e-2)
    optimizer.init(model.trainable_parameters())
    state = [model.state, optimizer.state, mx.random.state]

    def loss(model: Network, x: mx.array, y: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(x), y, reduction="mean", label_smoothing=0.1)

    def step(x: mx.array, y: mx.array) -> mx.array:
        value, gradients = nn.value_and_grad(model, loss)(model, x, y)
        optimizer.update(model, gradients)
        return value

    counted = Counted(step)
    run = mx.compile(counted.function, inputs=state, outputs=state, shapeless=True) if compiled else counted.function
    rng = np.random.default_rng(0)
    losses = []
    for batch in (8, 5, 32, 1, 8):
        x = mx.array(rng.normal(size=(batch, 4)).astype(np.float32))
        value = run(x, mx.array(rng.integers(0, 3, size=batch)))
        mx.eval(value, state)
        losses.append(value.item())
    return losses, counted.calls, model.parameters()


def test_a_training_step_takes_every_size_of_a_batch() -> None:
    losses, calls, parameters = train(compiled=True)
    expected, _, expected_parameters = train(compiled=False)
    assert calls == 1
    assert losses == expected
    assert_same_bits(parameters, expected_parameters)


def test_losses_take_every_size_of_a_batch() -> None:
    def losses(x: mx.array, y: mx.array, labels: mx.array) -> list[mx.array]:
        classes = labels.astype(mx.int32)
        return [
            nn.losses.cross_entropy(x, classes, weights=mx.abs(y[:, 0])),
            nn.losses.cross_entropy(x, mx.softmax(y, axis=1), reduction="sum"),
            nn.losses.nll_loss(x, classes, reduction="mean"),
            nn.losses.mse_loss(x, y),
            nn.losses.l1_loss(x, y, reduction="sum"),
            nn.losses.binary_cross_entropy(x, mx.sigmoid(y)),
            nn.losses.binary_cross_entropy(mx.sigmoid(x), mx.sigmoid(y), with_logits=False),
        ]

    compiled = mx.compile(losses, shapeless=True)
    for batch in (8, 5, 1, 32):
        shapes = [(batch, 3), (batch, 3), (batch,)]
        assert not check(outcome(losses, shapes), compiled, shapes)
    assert not check(outcome(losses, [(4, 3), (4, 2), (4,)]), compiled, [(4, 3), (4, 2), (4,)])


def evaluates(make: Callable[[mx.array], mx.array]) -> Callable[[mx.array], mx.array]:
    def function(x: mx.array) -> mx.array:
        mx.eval(make(x))
        return x

    return function


VALUES_OF_EXTENTS: dict[str, Callable[[mx.array], Any]] = {
    "item": lambda x: x * mx.array(x.shape[0]).item(),
    "item of a sum": lambda x: x * mx.ones_like(x).sum().item(),
    "truth": lambda x: x if mx.arange(x.shape[0]).sum() > 2 else x + 1,
    "eval": evaluates(lambda x: mx.zeros_like(x)),
    "eval of a number": evaluates(lambda x: mx.array(x.shape[0])),
    "print": lambda x: (str(mx.ones_like(x)), x)[1],
    "NumPy": lambda x: x + mx.array(np.array(mx.arange(x.shape[0]))),
    "start of a part": lambda x: x + mx.arange(9)[x.shape[0] :].sum().item(),
}


@pytest.mark.parametrize("name", VALUES_OF_EXTENTS)
def test_an_array_made_of_extents_has_no_value_while_they_are_open(name: str) -> None:
    compiled = mx.compile(VALUES_OF_EXTENTS[name], shapeless=True)
    with pytest.raises(TraceError, match="is tracing: it stands for"):
        compiled(mx.ones(3))


def test_an_array_made_of_extents_that_left_its_trace() -> None:
    left: list[mx.array] = []

    def function(x: mx.array) -> mx.array:
        left.append(mx.arange(x.shape[0]))
        return x

    mx.compile(function, shapeless=True)(mx.ones(3))
    with pytest.raises(TraceError, match="left it by another way than the return value"):
        mx.eval(left)
    with pytest.raises(TraceError, match="cannot use this array"):
        mx.compile(lambda x: x + left[0])(mx.ones(3))
    assert (
        str(left[0])
        == "array(<int32[3] traced by compile(" + function.__qualname__ + "), without a value>, dtype=int32)"
    )


def test_an_extent_as_a_constant_of_a_function_inside_is_another_one_than_others() -> None:
    values = mx.array([1.0, 2.0])
    mx.eval(values)
    inside = mx.compile(lambda y, count: y * 2)
    compiled = mx.compile(lambda x: inside(values, x.shape[0]) + inside(values, x.shape[1]), shapeless=True)
    for shape in ((3, 3), (4, 5)):
        assert_same_bits(compiled(mx.ones(shape)), values * 4)


def test_the_value_of_an_argument_is_refused_as_with_plain_shapes() -> None:
    for count, error, message in ((1, TraceError, "take the item of"), (2, ValueError, "it has 2 elements")):
        with pytest.raises(error, match=message):
            mx.compile(lambda x: x.item(), shapeless=True)(mx.ones(count))


def test_a_replacement_of_another_array_fits_where_its_shape_does() -> None:
    compiled = mx.compile(lambda x, y: mx.nan_to_num(x, nan=y), shapeless=True)
    for count in (2, 3):
        x, y = mx.array([mx.nan] * count), mx.arange(count).astype(mx.float32)
        assert_same_bits(compiled(x, y), y)
    with pytest.raises(ValueError, match="does not fit"):
        compiled(mx.ones(1), mx.ones(3))


def test_a_step_of_zero_elements_is_named() -> None:
    compiled = mx.compile(lambda x: mx.arange(0, 6, x.shape[0]), shapeless=True)
    assert compiled(mx.ones(2)).tolist() == [0, 2, 4]
    assert compiled(mx.ones(3)).tolist() == [0, 3]
    with pytest.raises(ValueError, match="step must not be zero"):
        mx.compile(lambda x: mx.arange(0, 6, x.shape[0]), shapeless=True)(mx.ones(0))
