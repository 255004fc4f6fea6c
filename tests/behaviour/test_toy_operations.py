"""Operations defined outside of Weft: one definition and, for a routine, one step make all transformations work."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.toy_operations import Squares, framed, numbers, squares, windows
from weft.inspection.profile import Profile
from weft.primitives.routine import Routine
from weft.runtime.memory import View


def reference(x: Any) -> list[np.ndarray]:
    rows = np.array(x)
    return [(rows**2).sum(-1).astype(np.float32), (rows**2)[..., ::-1]]


def view_of(x: mx.array) -> View:
    mx.eval(x)
    assert x.node.value is not None
    return x.node.value


def assert_results(found: list[mx.array], expected: list[np.ndarray]) -> None:
    for result, wanted in zip(found, expected, strict=True):
        assert np.array(result).dtype == wanted.dtype
        np.testing.assert_array_equal(np.array(result), wanted)


def test_a_routine_reads_a_slice_of_a_wider_dtype_than_it_writes() -> None:
    """The slice begins at an offset that is scaled by the operand's element size, not by that of a result."""
    x = numbers(5, 4)
    mx.eval(x)
    assert_results(squares(x[2:]), reference(np.array(x)[2:]))


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[:, 1:], lambda x: x[::-1], lambda x: x[:, None]])
def test_operands_in_another_layout_are_copied(view: Callable[[Any], Any]) -> None:
    x = numbers(5, 4)
    mx.eval(x)
    assert_results(squares(view(x)), reference(view(np.array(x)) if view(x).ndim == 2 else np.array(x)[:, None]))


@pytest.mark.parametrize("position", [0, 1])
def test_results_that_nobody_asked_for(position: int) -> None:
    x = numbers(3, 4)
    assert_results([squares(x)[position]], [reference(x)[position]])


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0), (7,)])
def test_rows_of_every_kind(shape: tuple[int, ...]) -> None:
    assert_results(squares(numbers(*shape)), reference(numbers(*shape)))


def test_a_result_that_is_read_later() -> None:
    """Its inputs are not overwritten while only another result was evaluated."""
    x = numbers(60, 8) + 0
    expected = reference(x)
    sums, turned = squares(x)
    more = turned + 1
    del x, turned
    mx.eval(more)
    assert_results([more, sums], [expected[1] + 1, expected[0]])


def runs_of(profile: Profile) -> int:
    """How often the first step of the routine ran."""
    return sum([kernel.count for kernel in profile.kernels if kernel.name == "squares 1/2"])


@pytest.mark.parametrize("wait", [False, True])
def test_results_that_are_asked_for_one_after_the_other_are_computed_once(wait: bool) -> None:
    x = numbers(6, 8) + 0
    expected = reference(x)
    sums, turned = squares(x)
    with weft.profile() as profile:
        (mx.eval if wait else mx.async_eval)(sums + 1)
        more = turned * 2
        mx.eval(more)
    assert runs_of(profile) == 1
    assert_results([sums, turned, more], [*expected, expected[1] * 2])
    gradient = mx.grad(lambda x: squares(x)[1].sum())(x)
    np.testing.assert_array_equal(np.array(gradient), 2 * np.array(x))


def test_what_is_drawn_of_results_that_are_there() -> None:
    x = numbers(3, 4)
    sums, turned = squares(x)
    mx.eval(sums)
    file = io.StringIO()
    mx.export_to_dot(file, turned)
    assert file.getvalue().startswith("digraph")


def test_inputs_of_several_results_give_their_memory_away() -> None:
    """Unless a result that was not evaluated may still need them; evaluating it computes all results."""
    expected = reference(numbers(2400, 8))
    for late in (False, True):
        x = numbers(2400, 8) + 0
        mx.eval(x)
        sums, turned = squares(x)
        more = turned + x
        if not late:
            del sums
        address = view_of(x).address
        del x, turned
        mx.eval(more)
        assert view_of(more).address == address
        if late:
            assert_results([sums], expected[:1])


def around(x: mx.array) -> tuple[mx.array, mx.array]:
    """Fused kernels before and after the routine, and both results used twice."""
    sums, turned = squares(x[1:] + 1)
    return sums * 2, turned[..., ::-1] - sums[..., None].astype(mx.float64) + turned


def test_it_is_one_graph_with_what_is_around_it() -> None:
    x = numbers(6, 8)
    plain, compiled = around(x), mx.compile(around)(x)
    sums, turned = reference(np.array(x)[1:] + 1)
    assert_results(list(plain), [sums * 2, turned[:, ::-1] - sums[:, None] + turned])
    assert_results(list(compiled), [np.array(y) for y in plain])


def test_compiled_for_every_shape() -> None:
    f = mx.compile(around, shapeless=True)
    for rows, n in [(6, 8), (3, 5), (2, 1)]:
        x = numbers(rows, n)
        assert_results(list(f(x)), [np.array(y) for y in around(x)])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_mapped(axis: int) -> None:
    x = numbers(3, 4, 2)
    found = mx.vmap(lambda part: squares(part)[0], in_axes=axis)(x)
    assert_results([found], [np.stack([reference(part)[0] for part in np.moveaxis(np.array(x), axis, 0)])])


def loss(x: mx.array) -> mx.array:
    sums, turned = squares(x)
    return (sums * mx.arange(3.0)).sum().astype(mx.float64) + (turned * mx.arange(4, dtype=mx.float64)).sum()


def expected_gradient(x: mx.array) -> np.ndarray:
    return 2 * np.array(x) * (np.arange(3.0)[:, None] + np.arange(4.0)[::-1])


@pytest.mark.parametrize("wrap", [lambda f: f, mx.compile, mx.checkpoint])
def test_gradients(wrap: Callable[[Any], Any]) -> None:
    x = numbers(3, 4)
    np.testing.assert_array_equal(np.array(mx.grad(wrap(loss))(x)), expected_gradient(x))
    np.testing.assert_array_equal(np.array(mx.compile(mx.grad(loss))(x)), expected_gradient(x))


@pytest.mark.parametrize("position", [0, 1])
def test_gradient_of_one_result(position: int) -> None:
    x = numbers(3, 4)
    gradient = mx.grad(lambda x: squares(x)[position].sum())(x)
    np.testing.assert_array_equal(np.array(gradient), 2 * np.array(x))


def test_tangents_and_second_derivatives() -> None:
    x, t = numbers(3, 4), mx.ones((3, 4), dtype=mx.float64)
    _, (change,) = mx.jvp(loss, [x], [t])
    assert change.item() == expected_gradient(x).sum()
    second = mx.grad(lambda x: mx.grad(loss)(x).sum())(x)
    np.testing.assert_array_equal(np.array(second), expected_gradient(mx.ones((3, 4), dtype=mx.float64)))


def test_mapped_gradients() -> None:
    x = numbers(2, 3, 4)
    found = mx.vmap(mx.grad(loss))(x)
    np.testing.assert_array_equal(np.array(found), np.stack([expected_gradient(part) for part in x]))


def test_results_cross_streams() -> None:
    """One result is used on another stream, the other one is not."""
    first, second = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    x = numbers(6, 8)
    with mx.stream(first):
        sums, turned = squares(x)
    a = mx.sum(sums, stream=second)
    b = mx.add(turned, 1, stream=first)
    mx.eval(a, b)
    expected_sums, expected_turned = reference(x)
    assert_results([a, b], [expected_sums.sum(), expected_turned + 1])


def test_what_is_said_of_it() -> None:
    x = numbers(6, 8)
    mx.eval(x)
    found = mx.compile(lambda x: squares(x[2:])).explain(x)
    first, last = found.calls
    assert [(call.name, call.loops, call.arithmetic) for call in (first, last)] == [
        ("squares 1/2", "4x[8]", 32),
        ("squares 2/2", "4x[8]", 32),
    ]
    assert [call.text.splitlines()[0] for call in (first, last)] == [
        "call squares 1/2 (4,)",
        "call squares 2/2 (4,)",
    ]
    assert [(call.bytes_read, call.bytes_written) for call in (first, last)] == [(4 * 8 * 8, 0), (0, 4 * 4 + 4 * 8 * 8)]
    assert first.writes == []
    assert last.writes == ["result 0 float32[4]", "result 1 float64[4,8]"]
    assert "2 routines" in str(found)
    assert "product" not in str(found)
    with weft.profile() as profile:
        mx.eval(*squares(x))
    assert "squares" in str(profile)


def test_both_results_of_one_call_are_one_call() -> None:
    x = numbers(6, 8)
    mx.eval(x)
    found = mx.compile(lambda x: squares(x) + squares(x)).explain(x)
    assert [step.name for step in found.steps] == ["squares 1/2", "squares 2/2"]
    assert (found.operations, found.planned_operations) == ({"squares": 2}, {"squares": 1})


def test_a_device_without_the_routine() -> None:
    class Nowhere(Squares):
        name = "nowhere"
        routine = Routine()

    with pytest.raises(NotImplementedError, match=r"\[nowhere\].*float64\[2,3\] on cpu"):
        Nowhere()(numbers(2, 3))
    with pytest.raises(NotImplementedError, match=r"\[nowhere\].*float64\[2,3\] on cpu"):
        mx.compile(lambda x: Nowhere()(x))(numbers(2, 3))


@pytest.mark.parametrize("wrap", [lambda f: f, mx.compile, lambda f: mx.compile(f, shapeless=True)])
@pytest.mark.parametrize("before", [lambda x: x, lambda x: x * 2])
def test_a_view(wrap: Callable[[Any], Any], before: Callable[[Any], Any]) -> None:
    x = numbers(2, 6)
    expected = np.lib.stride_tricks.sliding_window_view(np.array(before(x)), 3, axis=1)
    np.testing.assert_array_equal(np.array(wrap(lambda x: windows(before(x), width=3))(x)), expected)
    shifted = wrap(lambda x: windows(before(x), width=3)[:, 1:] + 1)(x)
    np.testing.assert_array_equal(np.array(shifted), expected[:, 1:] + 1)
    mapped = mx.vmap(wrap(lambda x: windows(before(x), width=3)), in_axes=1)(x[..., None].transpose(0, 2, 1))
    np.testing.assert_array_equal(np.array(mapped)[0], expected)


def test_a_view_takes_no_memory_and_its_gradient() -> None:
    x = numbers(2, 6)
    mx.eval(x)
    before = mx.get_active_memory()
    shown = windows(x, width=3)
    mx.eval(shown)
    assert mx.get_active_memory() == before
    gradient = mx.grad(lambda x: windows(x, width=3).sum())(x)
    np.testing.assert_array_equal(np.array(gradient), np.tile([1.0, 2, 3, 3, 2, 1], (2, 1)))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_an_update(rows: int) -> None:
    x, first, last = numbers(rows, 4), numbers(1, 4) * 10, numbers(1, 4) * 100
    expected = np.array(x + 1)
    expected[0] = np.array(first)
    expected[-1] = np.array(last)
    for f in (framed, mx.compile(framed)):
        np.testing.assert_array_equal(np.array(f(x + 1, first, last)), expected)


def test_an_update_of_what_is_computed_later() -> None:
    """The copy of ``shared`` waits for the kernel of ``later``; what replaces its rows waits for the copy."""

    def f(x: mx.array, first: mx.array, last: mx.array) -> tuple[mx.array, mx.array]:
        shared = x + 1
        updated = framed(shared, first, last)
        later = shared * 2
        return updated, later

    x, first, last = numbers(3, 4), numbers(1, 4) * 10, numbers(1, 4) * 100
    updated, later = mx.compile(f)(x, first, last)
    np.testing.assert_array_equal(np.array(updated), np.array(mx.concatenate([first, x[1:2] + 1, last])))
    np.testing.assert_array_equal(np.array(later), np.array(x + 1) * 2)
