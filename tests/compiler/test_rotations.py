"""Elementwise functions of rotated arrays are computed in boxes, from slices, and no rotated array is in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of
from weft.compiler.rewriting.rotations import MOST_MADE, SHORTEST_ROW

GRID = (200, 210)


def numbers(random: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return random.normal(size=shape).astype(np.float32)


def laplacian(x: Any, roll: Callable[..., Any]) -> Any:
    return roll(x, 1, 0) + roll(x, -1, 0) + roll(x, 1, 1) + roll(x, -1, 1) - 4 * x


def steps(u: Any, v: Any, roll: Callable[..., Any]) -> list[Any]:
    """Two fields on a periodic grid; the second one is read before it is made and after."""
    for _ in range(3):
        r = u * v * v
        u, v = u + laplacian(u, roll) * r, v + laplacian(v, roll) - r
        v = v + roll(u, (3, -2), (0, 1)) * roll(v, 5, 1)
    return [u, v]


def test_a_stencil_is_one_kernel_for_each_kind_of_box(rng: np.random.Generator) -> None:
    x = mx.array(numbers(rng, *GRID))
    (plan,) = plans_of(lambda: laplacian(x, mx.roll))
    assert (plan.steps.count, plan.arena) == (9, 0)
    (plan,) = plans_of(lambda: mx.roll(x, (7, 9), (0, 1)) * 2)
    assert (plan.steps.count, plan.arena) == (4, 0)
    line = mx.reshape(x, -1)
    mx.eval(line)
    (plan,) = plans_of(lambda: mx.roll(line, 1) - mx.roll(line, -1))
    assert (plan.steps.count, plan.arena) == (3, 0)


def test_steps_have_the_bits_of_numpy(rng: np.random.Generator) -> None:
    u, v = numbers(rng, *GRID) / 8, numbers(rng, *GRID) / 8
    found = mx.compile(lambda u, v: steps(u, v, mx.roll))(mx.array(u), mx.array(v))
    for one, wanted in zip(found, steps(u, v, np.roll), strict=True):
        assert_same_bits(one, mx.array(wanted))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)], ids=str)
def test_empty_arrays_may_be_rotated(shape: tuple[int, ...]) -> None:
    x = mx.zeros(shape) + 1
    for axis in range(len(shape)):
        end, begin = reversed(mx.split(x, [1], axis=axis))
        results = [mx.roll(x, 1, axis) * 2, mx.concatenate([end, begin], axis=axis) * 3]
        mx.eval(results)
        assert [result.shape for result in results] == [shape, shape]


@pytest.mark.parametrize("shape", [(90_000,), GRID, (40, 50, 60), (500, SHORTEST_ROW), (20_000, 3)], ids=str)
def test_random_stencils_have_the_bits_of_numpy(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """Rotations of rotations, by nothing and by more than the extent; results that other steps read as a whole or in
    parts; inputs that are not used afterwards, whose memory a result may take."""
    for _ in range(4):
        moves = [(int(rng.integers(-70_000, 70_000)), int(rng.integers(len(shape)))) for _ in range(6)]
        moves += [(int(shift), axis) for axis in range(len(shape)) for shift in rng.integers(-1, 2, 1)]

        def program(x: Any, y: Any, roll: Callable[..., Any], moves: Any = tuple(moves)) -> list[Any]:
            results = []
            for number, (shift, axis) in enumerate(moves):
                z = roll(x, shift, axis)
                if number % 3 == 1:
                    z = roll(z, *moves[number - 1])
                x, y = x + z * y, y - roll(y, shift, axis)
                if number % 4 == 2:
                    results += [z[..., 1:], roll(y, 1, -1) - x.max()]
            return [*results, x, y]

        x, y = numbers(rng, *shape) / 8, numbers(rng, *shape) / 8
        compiled = mx.compile(lambda x, y, program=program: program(x, y, mx.roll))
        held = mx.array(x)
        found = compiled(held * 1, mx.array(y))
        eager = program(held, mx.array(y), mx.roll)
        for one, other, wanted in zip(found, eager, program(x, y, np.roll), strict=True):
            assert_same_bits(one, mx.array(wanted))
            assert_same_bits(other, mx.array(wanted))


def test_one_template_serves_other_extents_and_distances(rng: np.random.Generator) -> None:
    for rows, columns, shift in ((200, 210, 1), (300, 140, 1), (211, 399, 5), (300, 140, 140), (300, 140, -3)):
        x = numbers(rng, rows, columns)
        found = mx.roll(mx.array(x), shift, 1) * 2 + mx.roll(mx.array(x), 1, 0)
        assert_same_bits(found, mx.array(np.roll(x, shift, 1) * 2 + np.roll(x, 1, 0)))


def test_long_formulas_read_copies(rng: np.random.Generator) -> None:
    x = mx.array(numbers(rng, *GRID))

    def formula(count: int) -> mx.array:
        y = mx.roll(x, 1, 0)
        for number in range(count):
            y = y * x + number
        return y

    (short,), (long,) = plans_of(lambda: formula(4)), plans_of(lambda: formula(MOST_MADE))
    assert (short.steps.count, short.arena) == (2, 0)
    assert long.arena > 0


def test_derivatives_and_maps(rng: np.random.Generator) -> None:
    x, w = (mx.array(numbers(rng, *GRID)) for _ in range(2))
    gradient = mx.grad(lambda x: mx.sum(laplacian(x, mx.roll) * w))(x)
    assert_same_bits(mx.abs(gradient - laplacian(w, mx.roll)) < 1e-4, mx.ones(GRID, mx.bool_))
    stack = mx.stack([x, w])
    mapped = mx.vmap(lambda x: laplacian(x, mx.roll))(stack)
    assert_same_bits(mapped, mx.stack([laplacian(x, mx.roll), laplacian(w, mx.roll)]))
