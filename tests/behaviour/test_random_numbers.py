"""Random numbers: those of MLX for the same key, their distributions, and keys that are wrong."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import weft.core as mx
from tests.sampling import Cases
from weft.dtypes import Dtype

FLOATING = ("float32", "float16", "bfloat16")
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (3,), (8,), (33,), (5, 7), (2, 0, 3))
LOGITS = np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)

Draw = Callable[[Any, Any], Any]
"""A call in a namespace, which is that of MLX or our own, with a key."""


def same_bits() -> dict[str, Draw]:
    """Draws that are made of additions, multiplications and comparisons only."""
    draws: dict[str, Any] = {
        "split": lambda m, key: m.random.split(key),
        "split in 5": lambda m, key: m.random.split(key, 5),
        "uniform, arrays": lambda m, key: m.random.uniform(m.array([0, 1]), m.array([1, 2]), (5, 2), key=key),
        "uniform, an array": lambda m, key: m.random.uniform(m.array([[0], [1]]), 2, (2, 5), key=key),
        "bernoulli": lambda m, key: m.random.bernoulli(shape=(3, 0, 5), key=key),
        "bernoulli, an array": lambda m, key: m.random.bernoulli(m.array([0.1, 0.9]), (30, 2), key=key),
        "bernoulli, halves": lambda m, key: m.random.bernoulli(m.array([0.1, 0.9], m.float16), (30, 2), key=key),
        "randint, arrays": lambda m, key: m.random.randint(m.array([0, 10]), m.array([5, 20]), (50, 2), key=key),
        "permutation of rows": lambda m, key: m.random.permutation(m.arange(12).reshape(3, 4), key=key),
        "permutation of columns": lambda m, key: m.random.permutation(m.arange(12).reshape(3, 4), -1, key),
    }
    for shape, dtype in itertools.product(SHAPES, FLOATING):
        draws[f"uniform {shape} {dtype}"] = lambda m, key, shape=shape, dtype=dtype: m.random.uniform(
            shape=shape, dtype=getattr(m, dtype), key=key
        )
        draws[f"uniform from -0.3 {shape} {dtype}"] = lambda m, key, shape=shape, dtype=dtype: m.random.uniform(
            -0.3, 0.7, shape, getattr(m, dtype), key
        )
    for low, high, dtype in (
        (0, 10, "int32"),
        (-5, 5, "int8"),
        (-7, 100, "int64"),
        (0, 2**31 - 1, "int32"),
        (0, 3_000_000_000, "uint32"),
        (0, 2**40, "int64"),
        (0, 2, "bool_"),
        (0, 256, "uint8"),
        (5, 2, "int32"),
        (-3.7, 3.7, "int32"),
        (-100, 100, "int16"),
        (3, 60_000, "uint16"),
        (5, 2**40, "uint64"),
    ):
        draws[f"randint {low} {high} {dtype}"] = lambda m, key, low=low, high=high, dtype=dtype: m.random.randint(
            low, high, (101,), getattr(m, dtype), key
        )
    for count in (0, 1, 5, 100):
        draws[f"permutation {count}"] = lambda m, key, count=count: m.random.permutation(count, key=key)
    return draws


def same_indices() -> dict[str, Draw]:
    """Draws that round logarithms or exponentials, and then take an index: the same but for rare ties."""
    draws: dict[str, Any] = {
        "one row": lambda m, key: m.random.categorical(m.array([0.1, 2.0, -1.0]), num_samples=100, key=key),
        "one row, a shape": lambda m, key: m.random.categorical(m.array([[0.1, 2.0, -1.0]]), shape=(9, 1), key=key),
        "one row, once": lambda m, key: m.random.categorical(m.array([0.1, 2.0, -1.0]), key=key),
        "integers": lambda m, key: m.random.categorical(m.array([1, 2, 3]), num_samples=100, key=key),
        "a shape": lambda m, key: m.random.categorical(m.array(LOGITS), 1, shape=(2, 5, 3), key=key),
    }
    for axis in (-1, 0, 1, 2):
        draws[f"axis {axis}"] = lambda m, key, axis=axis: m.random.categorical(m.array(LOGITS), axis, key=key)
        draws[f"axis {axis}, many"] = lambda m, key, axis=axis: m.random.categorical(
            m.array(LOGITS), axis, num_samples=7, key=key
        )
    return draws


def nearly_same() -> dict[str, Draw]:
    """Draws that end in a logarithm or the like, with the relative error that roundings of it may make."""
    draws: dict[str, Any] = {
        "normal, scaled": lambda m, key: m.random.normal((101,), loc=1.5, scale=2.5, key=key),
        "normal, arrays": lambda m, key: m.random.normal(
            (3, 9), loc=m.array([[1.0], [2.0], [3.0]]), scale=m.array([[1.0], [2.0], [0.3]]), key=key
        ),
        "normal, complex": lambda m, key: m.random.normal((101,), m.complex64, loc=1 + 2j, scale=3, key=key),
        "laplace, scaled": lambda m, key: m.random.laplace((101,), loc=2.0, scale=3.0, key=key),
        "truncated normal": lambda m, key: m.random.truncated_normal(-1, 2, (101,), key=key),
        "truncated normal, arrays": lambda m, key: m.random.truncated_normal(m.array([0, 1.0]), 2, (30, 2), key=key),
        "truncated normal, crossed": lambda m, key: m.random.truncated_normal(2, 1, (3,), key=key),
    }
    for shape, dtype, name in itertools.product(SHAPES, FLOATING, ("normal", "gumbel", "laplace")):
        draws[f"{name} {shape} {dtype}"] = lambda m, key, shape=shape, dtype=dtype, name=name: getattr(m.random, name)(
            shape, getattr(m, dtype), key=key
        )
    return draws


def numpy_of(values: Any) -> np.ndarray:
    """The values in NumPy, of which halves of the other kind are widened."""
    return np.array(values.astype(values.dtype) if values.dtype.size > 2 else values.tolist())


def both(mlx: Any, draw: Draw, seed: int = 42) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs = draw(mx, mx.random.key(seed)), draw(mlx, mlx.random.key(seed))
    assert str(ours.dtype).split(".")[-1] == str(theirs.dtype).split(".")[-1]
    assert ours.shape == theirs.shape
    return numpy_of(ours), numpy_of(theirs)


@pytest.mark.parametrize("name", same_bits())
def test_the_same_bits_as_mlx(mlx: Any, name: str) -> None:
    for seed in (42, 2**40 + 3):
        ours, theirs = both(mlx, same_bits()[name], seed)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", same_indices())
def test_the_same_indices_as_mlx(mlx: Any, name: str) -> None:
    ours, theirs = both(mlx, same_indices()[name])
    assert (ours != theirs).mean() <= 0.02


@pytest.mark.parametrize("name", nearly_same())
def test_nearly_the_same_as_mlx(mlx: Any, name: str) -> None:
    ours, theirs = both(mlx, nearly_same()[name])
    tolerance = 1e-2 if "bfloat16" in name else 2e-3 if "float16" in name else 4e-6
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_the_global_generator_gives_the_same_bits_as_mlx(mlx: Any, cases: Cases) -> None:
    """A seed, and several draws after it."""
    draws = {name: draw for name, draw in same_bits().items() if not name.startswith("split")}
    for name in cases.some(15, list(draws)):
        found = []
        for m in (mx, mlx):
            m.random.seed(7)
            found.append([numpy_of(draws[name](m, None)) for _ in range(2)])
        np.testing.assert_array_equal(found[0], found[1], err_msg=name)


def test_every_function_is_compared_with_mlx() -> None:
    """But for `multivariate_normal`, which rounds as the decomposition of a matrix does."""
    compared = set()

    class Names:
        def __getattr__(self, name: str) -> Any:
            if name == "random":
                return Random()
            return getattr(mx, name)

    class Random:
        def __getattr__(self, name: str) -> Any:
            compared.add(name)
            return getattr(mx.random, name)

    for draw in (*same_bits().values(), *same_indices().values(), *nearly_same().values()):
        draw(Names(), mx.random.key(1))
    functions = {name for name in mx.random.__all__ if callable(getattr(mx.random, name))}
    assert functions - compared == {"key", "seed"} | ({"multivariate_normal"} & functions)


def test_the_global_generator_is_that_of_mlx(mlx: Any) -> None:
    draws = []
    for m in (mx, mlx):
        m.random.seed(2**40 + 5)
        draws.append([m.random.uniform(shape=(3,)).tolist() for _ in range(4)] + [next(iter(m.random.state)).tolist()])
    assert draws[0] == draws[1]


# The same without MLX: numbers that it gave


def test_numbers() -> None:
    key = mx.random.key(42)
    assert mx.random.key(2**32 + 7).tolist() == [1, 7]
    assert mx.random.split(key).tolist() == [[2465931498, 3679230171], [255383827, 267815257]]
    assert mx.random.split(key, 3).tolist() == [
        [3134548294, 3733159049],
        [3746501087, 894150801],
        [801545058, 2363201431],
    ]
    assert mx.random.uniform(shape=(3,), key=key).tolist() == [
        0.5741444230079651,
        0.10015823692083359,
        0.05946118012070656,
    ]
    assert mx.random.randint(0, 10, (5,), key=key).tolist() == [7, 8, 1, 2, 1]
    assert mx.random.permutation(5, key=key).tolist() == [4, 2, 3, 0, 1]
    assert mx.random.bernoulli(0.3, (5,), key=key).tolist() == [False, False, True, True, True]
    assert mx.random.categorical(mx.array([[0.1, 2.0, -1.0], [3.0, 1.0, 2.0]]), key=key).tolist() == [1, 0]
    assert repr(mx.random.normal((3,), key=key)) == "array([0.186936, -1.28065, -1.55931], dtype=float32)"
    mx.random.seed(5)
    assert repr(mx.random.uniform(shape=(3,))) == "array([0.178238, 0.995462, 0.0947758], dtype=float32)"
    assert mx.random.state[0].tolist() == [3594430910, 534832770]


def test_double_precision_has_53_bits() -> None:
    numbers = np.array(mx.random.uniform(shape=(10_000,), dtype=mx.float64, key=mx.random.key(1)))
    assert numbers.dtype == np.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.02
    scaled = numbers * 2.0**53
    assert (scaled == np.floor(scaled)).all()
    assert (scaled % 2 == 1).mean() == pytest.approx(0.5, abs=0.05)


# The global generator


def test_the_state_is_one_key_in_a_list() -> None:
    state = mx.random.state
    mx.random.seed(3)
    assert mx.random.state is state
    assert len(state) == 1
    assert state[0].tolist() == [0, 3]
    first = mx.random.uniform(shape=(2,)).tolist()
    assert state[0].tolist() != [0, 3]
    state[0] = mx.random.key(3)
    assert mx.random.uniform(shape=(2,)).tolist() == first


def test_a_key_leaves_the_state_alone() -> None:
    mx.random.seed(3)
    mx.random.normal((2,), key=mx.random.key(9)).tolist()
    assert mx.random.state[0].tolist() == [0, 3]


def test_the_state_does_not_remember_every_draw() -> None:
    mx.random.seed(0)
    for _ in range(50):
        mx.eval(mx.random.uniform(shape=(2,)))
    depth, node = 0, mx.random.state[0].node
    while node.inputs:
        depth, node = depth + 1, node.inputs[0]
    assert depth <= 4


# Distributions


@pytest.mark.parametrize(
    ("draw", "mean", "deviation"),
    [
        (lambda shape: mx.random.gumbel(shape), 0.5772, np.pi / 6**0.5),
        (lambda shape: mx.random.laplace(shape, loc=1.0, scale=2.0), 1, 8**0.5),
        (lambda shape: mx.random.normal(shape, mx.float16, loc=1, scale=2), 1, 2),
        (lambda shape: mx.random.uniform(2, 4, shape), 3, 1 / 3**0.5),
    ],
)
def test_moments(draw: Callable[[tuple[int, ...]], mx.array], mean: float, deviation: float) -> None:
    mx.random.seed(1)
    numbers = np.array(draw((100_000,)), np.float64)
    assert numbers.mean() == pytest.approx(mean, abs=0.03)
    assert numbers.std() == pytest.approx(deviation, rel=0.02)


def test_truncated_normal_stays_inside() -> None:
    numbers = np.array(mx.random.truncated_normal(-0.5, 1.5, (10_000,), key=mx.random.key(0)))
    assert numbers.min() >= -0.5
    assert numbers.max() <= 1.5
    assert numbers.mean() == pytest.approx(0.3553, abs=0.02)


@pytest.mark.parametrize("num_samples", [None, 20_000])
def test_categorical_follows_the_logits(num_samples: int | None) -> None:
    probabilities = np.array([0.1, 0.0, 0.6, 0.3])
    with np.errstate(divide="ignore"):
        logits = mx.array(np.log(probabilities))
    shape = None if num_samples else (20_000, 4)
    if shape is not None:
        logits = mx.broadcast_to(logits, shape)
    indices = mx.random.categorical(logits, num_samples=num_samples, key=mx.random.key(0))
    found = np.bincount(np.array(indices), minlength=4) / 20_000
    np.testing.assert_allclose(found, probabilities, atol=0.02)
    assert found[1] == 0


# What is refused


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (lambda: mx.random.key(-1), ValueError, ["-1"]),
        (lambda: mx.random.key(2**64), ValueError, ["2**64"]),
        (lambda: mx.random.key(cast(Any, 1.5)), TypeError, ["1.5", "int"]),
        (lambda: mx.random.seed(-1), ValueError, ["-1"]),
        (lambda: mx.random.split(None), TypeError, ["key"]),
        (lambda: mx.random.split(mx.random.key(1), -1), ValueError, ["-1"]),
        (lambda: mx.random.uniform(key=mx.array([1, 2])), ValueError, ["uint32[2]", "int32[2]"]),
        (lambda: mx.random.normal((2,), key=mx.random.split(mx.random.key(1), 3)), ValueError, ["uint32[3,2]", "vmap"]),
        (lambda: mx.random.uniform(key=3), TypeError, ["uniform", "3"]),
        (lambda: mx.random.uniform(dtype=mx.int32), ValueError, ["uniform", "int32"]),
        (lambda: mx.random.normal(dtype=mx.int32), ValueError, ["normal", "int32"]),
        (lambda: mx.random.gumbel(dtype=mx.complex64), ValueError, ["gumbel", "complex64"]),
        (lambda: mx.random.uniform(dtype=cast(Any, "float32")), TypeError, ["mx.float32"]),
        (lambda: mx.random.uniform(shape=(-1,)), ValueError, ["-1"]),
        (lambda: mx.random.uniform(mx.array([0, 1]), 2), ValueError, ["(2,)", "()"]),
        (lambda: mx.random.uniform(mx.array([0, 1]), 2, (3,)), ValueError, ["(2,)", "(3,)"]),
        (lambda: mx.random.bernoulli(2), ValueError, ["bernoulli", "int32"]),
        (lambda: mx.random.bernoulli(mx.array([0.1, 0.2]), (3,)), ValueError, ["(2,)", "(3,)"]),
        (lambda: mx.random.randint(0, 10, dtype=mx.float32), ValueError, ["float32"]),
        (lambda: mx.random.randint(-5, 5, dtype=mx.uint8), ValueError, ["low=-5", "uint8"]),
        (lambda: mx.random.randint(0, 257, dtype=mx.uint8), ValueError, ["high=257", "uint8"]),
        (lambda: mx.random.categorical(mx.zeros((2, 3)), 2), IndexError, ["2"]),
        (lambda: mx.random.categorical(mx.zeros((2, 3)), shape=(3,)), ValueError, ["(2,)", "(3,)"]),
        (lambda: mx.random.categorical(mx.zeros((2, 3)), shape=(2,), num_samples=3), ValueError, ["not both"]),
        (lambda: mx.random.categorical(mx.zeros((2, 0))), ValueError, ["(2, 0)", "categories"]),
        (lambda: mx.random.permutation(2.5), TypeError, ["2.5"]),
        (lambda: mx.random.permutation(mx.array(3)), IndexError, ["permutation"]),
    ],
)
def test_refused(call: Callable[[], Any], error: type[Exception], parts: list[str]) -> None:
    with pytest.raises(error) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


def test_halves_of_the_other_kind_never_reach_the_bound() -> None:
    for dtype in (mx.float16, mx.bfloat16):
        numbers = mx.random.uniform(shape=(100_000,), dtype=dtype, key=mx.random.key(0))
        assert float(numbers.max()) < 1


def test_every_process_starts_elsewhere() -> None:
    before = mx.random.state[0].tolist()
    importlib.reload(importlib.import_module("weft.core.random"))
    assert mx.random.state[0].tolist() != before


def test_dtypes() -> None:
    dtypes: list[tuple[mx.array, Dtype]] = [
        (mx.random.normal((2,), None), mx.float32),
        (mx.random.normal((2,), mx.float64), mx.float64),
        (mx.random.randint(0, 3, (2,), None), mx.int32),
        (mx.random.permutation(3), mx.uint32),
        (mx.random.categorical(mx.zeros(3)), mx.uint32),
    ]
    for array, dtype in dtypes:
        assert array.dtype is dtype
