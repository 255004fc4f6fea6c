"""Random numbers: keys, the global state, distributions, and that transformations leave the numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits, run_python

KEY = mx.random.key(7)

DRAWS: dict[str, Callable[[mx.array | None], mx.array]] = {
    "uniform": lambda key: mx.random.uniform(shape=(50,), key=key),
    "normal": lambda key: mx.random.normal((50,), key=key),
    "bernoulli": lambda key: mx.random.bernoulli(0.5, (50,), key=key),
    "randint": lambda key: mx.random.randint(0, 1000, (50,), key=key),
    "categorical": lambda key: mx.random.categorical(mx.zeros((50, 20)), key=key),
}


def test_a_key_is_two_numbers() -> None:
    key = mx.random.key(5)
    assert key.shape == (2,)
    assert key.dtype == mx.uint32
    assert key.tolist() == mx.random.key(5).tolist()
    assert key.tolist() != mx.random.key(6).tolist()


def test_split() -> None:
    pair = mx.random.split(KEY)
    assert pair.shape == (2, 2)
    many = mx.random.split(KEY, 100)
    assert many.shape == (100, 2)
    assert len({tuple(key) for key in many.tolist()} | {tuple(KEY.tolist())}) == 101


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_key_gives_the_same_numbers(name: str) -> None:
    draw = DRAWS[name]
    assert draw(KEY).tolist() == draw(KEY).tolist()
    assert draw(KEY).tolist() != draw(mx.random.key(8)).tolist()


@pytest.mark.parametrize("name", DRAWS)
def test_the_seed_decides_the_sequence(name: str) -> None:
    draw = DRAWS[name]
    mx.random.seed(3)
    first = [draw(None).tolist() for _ in range(3)]
    mx.random.seed(3)
    assert [draw(None).tolist() for _ in range(3)] == first
    assert len({tuple(row) for row in first}) == 3
    mx.random.seed(4)
    assert draw(None).tolist() != first[0]


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_are_drawn_when_asked_for_not_when_evaluated(name: str) -> None:
    """The order of evaluation does not matter."""
    draw = DRAWS[name]
    mx.random.seed(3)
    first, second = draw(None), draw(None)
    in_order = first.tolist(), second.tolist()
    mx.random.seed(3)
    first, second = draw(None), draw(None)
    backwards = second.tolist(), first.tolist()
    assert backwards == in_order[::-1]


@pytest.mark.parametrize("name", DRAWS)
def test_transformations_leave_the_numbers_alone(name: str) -> None:
    draw = DRAWS[name]
    expected = draw(KEY)
    assert_same_bits(mx.compile(draw)(KEY), expected)
    assert_same_bits(mx.compile(lambda: draw(KEY))(), expected)
    keys = mx.random.split(KEY, 3)
    looped = mx.stack([draw(key) for key in keys])
    assert_same_bits(mx.vmap(draw)(keys), looped)
    assert_same_bits(mx.compile(mx.vmap(draw))(keys), looped)


def test_a_call_that_raises_leaves_the_generator_as_it_was() -> None:
    mx.random.seed(7)
    expected = [mx.random.uniform(shape=(3,)).tolist() for _ in range(4)]
    mx.random.seed(7)
    for numbers in expected:
        with pytest.raises(ValueError, match="uniform"):
            mx.random.uniform(mx.zeros(4), shape=(3,))
        with pytest.raises(TypeError, match="stream"):
            mx.random.uniform(shape=(3,), stream=1)  # type: ignore[arg-type]  # wrong on purpose
        assert mx.random.uniform(shape=(3,)).tolist() == numbers


def test_another_process_draws_the_same() -> None:
    program = """
        import weft.core as mx
        mx.random.seed(42)
        print([f(shape=(4,)).tolist() for f in (mx.random.uniform, mx.random.normal)])
    """
    assert run_python(program) == run_python(program)


def test_uniform_stays_in_its_range() -> None:
    numbers = np.array(mx.random.uniform(-2, 3, (100_000,), key=KEY))
    assert numbers.dtype == np.float32
    assert numbers.min() >= -2
    assert numbers.max() < 3
    assert numbers.mean() == pytest.approx(0.5, abs=0.02)
    assert numbers.var() == pytest.approx(25 / 12, rel=0.02)
    counts, _ = np.histogram(numbers, bins=20, range=(-2, 3))
    assert np.abs(counts - 5000).max() < 6 * math.sqrt(5000)


def test_bounds_may_be_arrays() -> None:
    low, high = mx.array([0.0, 10.0]), mx.array([1.0, 20.0])
    numbers = np.array(mx.random.uniform(low, high, (1000, 2), key=KEY))
    assert numbers.min(axis=0)[1] >= 10
    assert numbers.max(axis=0)[0] < 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_uniform_never_reaches_the_upper_bound(dtype: str) -> None:
    numbers = mx.random.uniform(shape=(200_000,), dtype=getattr(mx, dtype), key=KEY)
    assert numbers.dtype == getattr(mx, dtype)
    assert numbers.astype(mx.float32).max().item() < 1
    assert numbers.astype(mx.float32).min().item() >= 0


def test_normal_has_the_moments_of_a_normal_distribution() -> None:
    numbers = np.array(mx.random.normal((200_000,), key=KEY), dtype=np.float64)
    assert np.isfinite(numbers).all()
    assert numbers.mean() == pytest.approx(0, abs=0.01)
    assert numbers.var() == pytest.approx(1, abs=0.02)
    assert (numbers**3).mean() == pytest.approx(0, abs=0.05)
    assert (numbers**4).mean() == pytest.approx(3, abs=0.1)
    assert (np.abs(numbers) > 3).mean() == pytest.approx(0.0027, abs=0.0006)


def test_normal_with_location_and_scale() -> None:
    numbers = np.array(mx.random.normal((50_000,), loc=5.0, scale=0.1, key=KEY))
    assert numbers.mean() == pytest.approx(5, abs=0.01)
    assert numbers.std() == pytest.approx(0.1, rel=0.02)


def test_bernoulli() -> None:
    draws = mx.random.bernoulli(0.3, (100_000,), key=KEY)
    assert draws.dtype == mx.bool_
    assert draws.astype(mx.float32).mean().item() == pytest.approx(0.3, abs=0.01)
    assert mx.random.bernoulli(mx.array([0.0, 1.0]), (1000, 2), key=KEY).tolist() == [[False, True]] * 1000
    assert mx.random.bernoulli(mx.array([0.5, 0.5]), key=KEY).shape == (2,)


def test_randint() -> None:
    draws = mx.random.randint(-3, 4, (70_000,), key=KEY)
    assert draws.dtype == mx.int32
    values, counts = np.unique(np.array(draws), return_counts=True)
    assert values.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert np.abs(counts - 10_000).max() < 600
    assert mx.random.randint(0, 10, (5,), dtype=mx.uint8, key=KEY).dtype == mx.uint8


def test_categorical() -> None:
    logits = mx.log(mx.array([0.1, 0.2, 0.7]))
    draws = np.array(mx.random.categorical(logits, num_samples=100_000, key=KEY))
    assert np.bincount(draws, minlength=3) / 100_000 == pytest.approx([0.1, 0.2, 0.7], abs=0.01)


@pytest.mark.parametrize(
    ("options", "shape"),
    [({}, (2, 3)), ({"axis": 0}, (3, 5)), ({"axis": 1}, (2, 5)), ({"num_samples": 7}, (2, 3, 7))],
)
def test_shapes_of_categorical(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    assert mx.random.categorical(mx.zeros((2, 3, 5)), key=KEY, **options).shape == shape


def test_categorical_never_draws_what_is_impossible() -> None:
    logits = mx.array([[0.0, -math.inf, 0.0], [-math.inf, -math.inf, 0.0]])
    draws = np.array(mx.random.categorical(logits, num_samples=2000, key=KEY))
    assert set(draws[0].tolist()) == {0, 2}
    assert set(draws[1].tolist()) == {2}


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (7, 11)])
def test_every_shape(shape: tuple[int, ...]) -> None:
    for name in ("uniform", "normal"):
        assert getattr(mx.random, name)(shape=shape, key=KEY).shape == shape


def test_neighbouring_keys_are_not_correlated() -> None:
    rows = np.array(mx.stack([mx.random.normal((5000,), key=mx.random.key(k)) for k in range(8)]))
    correlation = np.corrcoef(rows) - np.eye(8)
    assert np.abs(correlation).max() < 0.07


def test_gradients_go_through_location_and_scale() -> None:
    def loss(loc: mx.array, scale: mx.array) -> mx.array:
        return (loc + scale * mx.random.normal((100,), key=KEY)).sum()

    by_loc, by_scale = mx.grad(loss, argnums=(0, 1))(mx.array(0.0), mx.array(1.0))
    assert by_loc.item() == 100.0
    assert by_scale.item() == pytest.approx(mx.random.normal((100,), key=KEY).sum().item(), rel=1e-4)


def test_a_key_of_the_wrong_shape() -> None:
    with pytest.raises(ValueError, match="key"):
        mx.random.uniform(key=mx.zeros((3,), dtype=mx.uint32))
