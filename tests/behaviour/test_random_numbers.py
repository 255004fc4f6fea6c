"""Random numbers: the same as MLX's for the same key, their distributions, and invalid keys."""

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
LONG_ROW = 3 * np.random.default_rng(1).normal(size=(20_011,)).astype(np.float32)

Draw = Callable[[Any, Any], Any]
"""A call in a namespace (MLX's or Weft's) with a key."""


# Functions that MLX takes from the C library: arguments, and the results of glibc (before version 2.41 for log1p).
# These are not the correctly rounded numbers, so other libraries may return others.
LOG = ([0.267578125, 0.4462890625, 0.475830078125], [-1.3183436393737793, -0.806788444519043, -0.7426944971084595])
LOG1P = ([-0.02685546875, -0.065673828125, -0.081298828125], [-0.027222666889, -0.067929685115, -0.0847943723201])


def from_bits() -> dict[str, Draw]:
    """Draws that use only additions, multiplications and comparisons."""
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


def from_functions() -> dict[str, Draw]:
    """Draws that use logarithms and other functions of uniform numbers."""
    draws: dict[str, Any] = {
        "normal, scaled": lambda m, key: m.random.normal((101,), loc=1.5, scale=2.5, key=key),
        "normal, moved": lambda m, key: m.random.normal((101,), m.bfloat16, loc=1.5, key=key),
        "normal, arrays": lambda m, key: m.random.normal(
            (3, 9), loc=m.array([[1.0], [2.0], [3.0]]), scale=m.array([[1.0], [2.0], [0.3]]), key=key
        ),
        "normal, complex": lambda m, key: m.random.normal((101,), m.complex64, loc=1 + 2j, scale=3, key=key),
        "normal, complex arrays": lambda m, key: m.random.normal((9,), m.complex64, m.array(2j), m.array(0.3), key),
        "normal, many": lambda m, key: m.random.normal((100_003,), key=key),
        "gumbel, many": lambda m, key: m.random.gumbel((317, 101), key=key),
        "laplace, scaled": lambda m, key: m.random.laplace((101,), loc=2.0, scale=3.0, key=key),
        "laplace, many": lambda m, key: m.random.laplace((100_003,), key=key),
        "truncated normal, many": lambda m, key: m.random.truncated_normal(-0.7, 3.1, (100_003,), key=key),
        "truncated normal, everywhere": lambda m, key: m.random.truncated_normal(-np.inf, np.inf, (101,), key=key),
        "truncated normal, far out": lambda m, key: m.random.truncated_normal(3.5, 9.0, (101,), key=key),
        "truncated normal, crossed": lambda m, key: m.random.truncated_normal(2, 1, (3,), key=key),
        "truncated normal, no shape": lambda m, key: m.random.truncated_normal(m.array([-1.0, 0.1]), 2, key=key),
        "categorical, many": lambda m, key: m.random.categorical(
            m.array(LOGITS).reshape(5, 12), -1, (3000, 5), key=key
        ),
        "one row": lambda m, key: m.random.categorical(m.array([0.1, 2.0, -1.0]), num_samples=100, key=key),
        "one row, a shape": lambda m, key: m.random.categorical(m.array([[0.1, 2.0, -1.0]]), shape=(9, 1), key=key),
        "one row, once": lambda m, key: m.random.categorical(m.array([0.1, 2.0, -1.0]), key=key),
        "integers": lambda m, key: m.random.categorical(m.array([1, 2, 3]), num_samples=100, key=key),
        "a shape": lambda m, key: m.random.categorical(m.array(LOGITS), 1, shape=(2, 5, 3), key=key),
        "no covariances": lambda m, key: m.random.multivariate_normal(m.ones(3), m.eye(3), (4, 2), key=key),
    }
    for axis in (-1, 0, 1, 2):
        draws[f"axis {axis}"] = lambda m, key, axis=axis: m.random.categorical(m.array(LOGITS), axis, key=key)
        draws[f"axis {axis}, many"] = lambda m, key, axis=axis: m.random.categorical(
            m.array(LOGITS), axis, num_samples=7, key=key
        )
    for row in ((-np.inf, 0, -np.inf), (-np.inf, -np.inf), (0, np.inf, 0, np.inf), (0, np.nan, 1), (0, -200, 60)):
        draws[f"one row of {row}"] = lambda m, key, row=row: m.random.categorical(m.array(row), num_samples=30, key=key)
    for dtype in FLOATING:
        draws[f"one long row {dtype}"] = lambda m, key, dtype=dtype: m.random.categorical(
            m.array(LONG_ROW).astype(getattr(m, dtype)), num_samples=100, key=key
        )
        draws[f"truncated normal {dtype}"] = lambda m, key, dtype=dtype: m.random.truncated_normal(
            m.array([0, 1.0]), 2, (30, 2), getattr(m, dtype), key
        )
    for shape, dtype, name in itertools.product(SHAPES, FLOATING, ("normal", "gumbel", "laplace")):
        draws[f"{name} {shape} {dtype}"] = lambda m, key, shape=shape, dtype=dtype, name=name: getattr(m.random, name)(
            shape, getattr(m, dtype), key=key
        )
    return draws


FROM_BITS = from_bits()
DRAWS = FROM_BITS | from_functions()

DEVIATIONS: dict[str, tuple[Draw, str]] = {
    "multivariate_normal": (
        lambda m, key: m.random.multivariate_normal(
            m.zeros(2), m.array([[2.0, 0.5], [0.5, 1.0]]), (101,), dtype=m.float32, key=key
        ),
        "Unless cov is diagonal, LAPACK decides how its root is rounded, and MLX has another LAPACK.",
    ),
    "laplace of float64": (
        lambda m, key: m.random.laplace((101,), m.float64, 0.3, 1.7, key),
        "MLX rounds loc and scale to float32 there.",
    ),
}
"""Draws whose last bits differ from MLX's, with the reason. Draws that depend on another C library differ as well."""


def numpy_of(values: Any) -> np.ndarray:
    """The values in NumPy; bfloat16 is widened to float32."""
    return np.array(values.astype(values.dtype) if values.dtype.size > 2 else values.tolist())


def both(mlx: Any, draw: Draw, seed: int = 42) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs = draw(mx, mx.random.key(seed)), draw(mlx, mlx.random.key(seed))
    assert str(ours.dtype).split(".")[-1] == str(theirs.dtype).split(".")[-1]
    assert ours.shape == theirs.shape
    return numpy_of(ours), numpy_of(theirs)


def has_our_library(mlx: Any, name: str) -> bool:
    """Whether MLX uses a C library whose logarithms have Weft's formulas."""
    function, (x, y) = (mlx.log1p, LOG1P) if "laplace" in name else (mlx.log, LOG)
    return name in FROM_BITS or bool((np.array(function(mlx.array(x))) == np.array(y, np.float32)).all())


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_bits_as_mlx(mlx: Any, name: str) -> None:
    for seed in (42, 2**40 + 3):
        ours, theirs = both(mlx, DRAWS[name], seed)
        if has_our_library(mlx, name):
            np.testing.assert_array_equal(ours, theirs)
            assert ours.tobytes() == theirs.tobytes()
        elif ours.dtype == np.uint32:
            assert (ours != theirs).mean() <= 0.02
        else:
            tolerance = 1e-2 if "bfloat16" in name else 2e-3 if "float16" in name else 4e-6
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", DEVIATIONS)
def test_deviations_from_mlx_are_small(mlx: Any, name: str) -> None:
    ours, theirs = both(mlx, DEVIATIONS[name][0])
    np.testing.assert_allclose(ours, theirs, rtol=4e-6, atol=4e-6)
    assert (ours != theirs).any(), "it need not stand here any longer"


def test_the_global_generator_gives_the_same_bits_as_mlx(mlx: Any, cases: Cases) -> None:
    """A seed, and several draws after it."""
    names = [name for name in DRAWS if not name.startswith("split") and has_our_library(mlx, name)]
    for name in cases.some(15, names):
        found = []
        for m in (mx, mlx):
            m.random.seed(7)
            found.append([numpy_of(DRAWS[name](m, None)) for _ in range(2)])
        np.testing.assert_array_equal(found[0], found[1], err_msg=name)


def test_every_function_is_compared_with_mlx() -> None:
    """`multivariate_normal` with diagonal matrices."""
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

    for draw in DRAWS.values():
        draw(Names(), mx.random.key(1))
    functions = {name for name in mx.random.__all__ if callable(getattr(mx.random, name))}
    assert functions - compared == {"key", "seed"}


def test_the_global_generator_is_that_of_mlx(mlx: Any) -> None:
    draws = []
    for m in (mx, mlx):
        m.random.seed(2**40 + 5)
        draws.append([m.random.uniform(shape=(3,)).tolist() for _ in range(4)] + [next(iter(m.random.state)).tolist()])
    assert draws[0] == draws[1]


def test_numbers() -> None:
    """Numbers that MLX has returned: this test does not need MLX."""
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


def test_derivatives_by_location_scale_and_bounds(seed: int) -> None:
    """Against central differences; the functions inside of random numbers have derivatives of their own."""
    arguments = [mx.array(x) for x in (-0.7, 1.2)]
    key = mx.random.key(seed)
    for draw in (
        lambda a, b: mx.random.normal((50,), loc=a, scale=b, key=key),
        lambda a, b: mx.random.truncated_normal(a, b, (50,), key=key),
        lambda a, b: mx.random.uniform(a, b, (50,), key=key),
    ):
        for argument in (0, 1):
            tangents = [mx.array(float(argument == n)) for n in (0, 1)]
            _, (slope,) = mx.jvp(draw, arguments, tangents)
            above, below = (
                np.array(draw(*[x + step * t for x, t in zip(arguments, tangents, strict=True)]), np.float64)
                for step in (0.01, -0.01)
            )
            np.testing.assert_allclose(np.array(slope), (above - below) / 0.02, rtol=2e-2, atol=2e-3)
            total = mx.grad(lambda *x, draw=draw: draw(*x).sum(), argnums=argument)(*arguments)
            np.testing.assert_allclose(total.item(), np.array(slope).sum(), rtol=1e-5)


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
