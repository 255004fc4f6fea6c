"""Formulas of hundreds of operations: one kernel, whose code is cut into several functions, with the bits of short
ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits, leaves
from tests.codegen.planned import plans_of
from tests.sampling import Cases
from weft.compiler.cpu import loops
from weft.compiler.cpu.schedule import CpuSchedule
from weft.compiler.kernel import Kernel
from weft.compiler.planning.plan import Plan
from weft.runtime.host import host

Program = Callable[..., Any]


def planned(function: Program, *arguments: mx.array) -> Plan:
    *_, plan = plans_of(mx.compile(function), *arguments)
    return plan


def one_kernel(function: Program, *arguments: mx.array) -> bool:
    plan = planned(function, *arguments)
    return (plan.steps.count, plan.arena) == (1, 0)


def code_of(function: Program, *arguments: mx.array) -> str:
    """The LLVM IR of the only kernel of a function."""
    made: list[str] = []
    target = host.target
    code = target.code

    def noted(kernel: Kernel, schedule: CpuSchedule) -> Any:
        found = code(kernel, schedule)  # or it is asked for again, with other code
        made.append(loops.generate(kernel, schedule, "kernel"))
        return found

    with mock.patch.object(target, "code", noted):
        planned(function, *arguments)
    (text,) = made
    return text


def numbers(*shape: int, low: float = 0.0, high: float = 1.0, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(low, high, shape)


def seawater(xp: Any, s: Any, t: Any, p: Any) -> Any:
    """The density of seawater in kg/m3 by practical salinity, temperature (Celsius) and pressure (bar): EOS-80.

    N. P. Fofonoff and R. C. Millard, Algorithms for computation of fundamental properties of seawater, Unesco
    technical papers in marine science 44, 1983.
    """

    def polynomial(x: Any, *coefficients: float) -> Any:
        result = coefficients[-1]
        for coefficient in coefficients[-2::-1]:
            result = coefficient + x * result
        return result

    root = xp.sqrt(s)
    water = polynomial(t, 999.842594, 6.793952e-2, -9.095290e-3, 1.001685e-4, -1.120083e-6, 6.536332e-9)
    a = polynomial(t, 8.24493e-1, -4.0899e-3, 7.6438e-5, -8.2467e-7, 5.3875e-9)
    b = polynomial(t, -5.72466e-3, 1.0227e-4, -1.6546e-6)
    surface = water + s * (a + root * b + s * 4.8314e-4)
    bulk = polynomial(t, 19652.21, 148.4206, -2.327105, 1.360477e-2, -5.155288e-5)
    f = polynomial(t, 54.6746, -0.603459, 1.09987e-2, -6.1670e-5)
    g = polynomial(t, 7.944e-2, 1.6483e-2, -5.3009e-4)
    first = polynomial(t, 3.239908, 1.43713e-3, 1.16092e-4, -5.77905e-7)
    first = first + s * (polynomial(t, 2.2838e-3, -1.0981e-5, -1.6078e-6) + root * 1.91075e-4)
    second = polynomial(t, 8.50935e-5, -6.12293e-6, 5.2787e-8) + s * polynomial(t, -9.9348e-7, 2.0816e-8, 9.1697e-10)
    secant = bulk + s * (f + root * g) + p * (first + p * second)
    return surface / (1 - p / secant)


def expansion(s: mx.array, t: mx.array, p: mx.array) -> list[mx.array]:
    """Density, thermal expansion and saline contraction, by derivatives."""
    (density,), (by_t,) = mx.jvp(lambda t: seawater(mx, s, t, p), [t], [mx.ones_like(t)])
    _, (by_s,) = mx.jvp(lambda s: seawater(mx, s, t, p), [s], [mx.ones_like(s)])
    return [density, -by_t / density, by_s / density]


def test_the_published_values_of_the_equation_of_state() -> None:
    s, t = mx.array([35.0, 35.0, 0.0, 35.0], dtype=mx.float64), mx.array([5.0, 25.0, 25.0, 5.0], dtype=mx.float64)
    density = mx.compile(lambda *x: seawater(mx, *x))(s, t, mx.array([0.0, 1000.0, 1000.0, 1000.0], dtype=mx.float64))
    np.testing.assert_allclose(density, [1027.67547, 1062.53817, 1037.90204, 1069.48914], atol=1e-5)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64])
def test_an_equation_of_state_on_a_grid_is_one_kernel(dtype: mx.Dtype) -> None:
    shape = (7, 11, 25)
    grid = [numbers(*shape, low=30, high=40), numbers(*shape, high=30, seed=1), numbers(25, high=500, seed=2)]
    arrays = [mx.array(x, dtype=dtype) for x in grid]
    assert one_kernel(expansion, *arrays)
    density, thermal, saline = mx.compile(expansion)(*arrays)
    exact = [np.array(x).astype(np.float64) for x in arrays]
    step = 1e-3

    def moved(by_s: float, by_t: float) -> Any:
        return seawater(np, exact[0] + by_s, exact[1] + by_t, exact[2])

    tolerance = 1e-6 if dtype is mx.float64 else 2e-3
    np.testing.assert_allclose(density, moved(0, 0), rtol=1e-6)
    np.testing.assert_allclose(thermal, (moved(0, -step) - moved(0, step)) / (2 * step) / moved(0, 0), atol=tolerance)
    np.testing.assert_allclose(saline, (moved(step, 0) - moved(-step, 0)) / (2 * step) / moved(0, 0), rtol=tolerance)


def orbit(x: Any, y: Any, steps: int = 12, h: float = 0.01) -> tuple[Any, Any]:
    """Runge-Kutta steps of the equations of predators and prey."""

    def change(x: Any, y: Any) -> tuple[Any, Any]:
        return x * (1.1 - 0.4 * y), y * (0.1 * x - 0.4)

    for _ in range(steps):
        a = change(x, y)
        b = change(x + h / 2 * a[0], y + h / 2 * a[1])
        c = change(x + h / 2 * b[0], y + h / 2 * b[1])
        d = change(x + h * c[0], y + h * c[1])
        x, y = (u + h / 6 * (p + 2 * q + 2 * r + s) for u, p, q, r, s in zip((x, y), a, b, c, d, strict=True))
    return x, y


def test_steps_in_time_are_one_kernel_of_few_functions() -> None:
    x, y = numbers(1000, low=5, high=10), numbers(1000, low=2, high=5, seed=1)
    arrays = mx.array(x), mx.array(y)
    assert one_kernel(orbit, *arrays)
    for found, want in zip(mx.compile(orbit)(*arrays), orbit(x, y), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5)
    few, many = (code_of(lambda x, y, n=n: orbit(x, y, n), *arrays) for n in (12, 48))
    assert 1 < many.count("\ndefine") <= few.count("\ndefine") + 2


def test_the_code_that_calls_the_functions_does_not_grow_with_the_calls() -> None:
    x = mx.array(numbers(1000))

    def instructions(steps: int) -> int:
        text = code_of(lambda x: orbit(x, x + 1, steps), x)
        return text[text.index("void @kernel(") :].count("\n  ") - text.count("store ptr @piece")

    assert instructions(48) == instructions(24)


def test_the_gradient_of_a_loop_has_few_functions_for_many_saved_values() -> None:
    x = mx.array(numbers(1000))

    def gradient(steps: int) -> Program:
        def wave(x: mx.array) -> mx.array:
            for _ in range(steps):
                x = mx.sin(x * 1.1)
            return x

        return lambda x: mx.vjp(wave, [x], [mx.ones(1000)])[1][0]

    few, many = (code_of(gradient(steps), x).count("\ndefine") for steps in (30, 150))
    assert 1 < many <= few + 4
    exact = gradient(30)(x.astype(mx.float64))
    np.testing.assert_allclose(mx.compile(gradient(30))(x), exact, rtol=1e-4)


FOLDS: dict[str, Program] = {
    "a mean": lambda x, y: x.mean(),
    "a mean along an axis": lambda x, y: y.reshape(20, 50).mean(axis=0),
    "rows that are normalised": lambda x, y: mx.softmax(y.reshape(20, 50), axis=-1),
    "a scan": lambda x, y: mx.cumsum(x),
    "a scatter": lambda x, y: mx.zeros(8).at[(mx.arange(1000) % 8)].add(x),
}


@pytest.mark.parametrize("name", FOLDS)
def test_what_folds_a_long_formula_is_one_more_kernel(name: str) -> None:
    fold = FOLDS[name]
    x, y = mx.array(numbers(1000)), mx.array(numbers(1000, seed=1))
    results = orbit(x, y, 4)
    mx.eval(results)
    function = mx.compile(lambda x, y: fold(*orbit(x, y, 4)))
    assert_same_bits(function(x, y), fold(*results))
    assert planned(function, x, y).steps.count == planned(fold, *results).steps.count + 1


def test_a_mean_and_its_gradient_are_few_kernels() -> None:
    def loss(x: mx.array, y: mx.array) -> mx.array:
        return (orbit(x, y, 4)[0] * x).mean()

    x, y = mx.array(numbers(1000)), mx.array(numbers(1000, seed=1))
    function = mx.value_and_grad(loss, argnums=(0, 1))
    assert planned(function, x, y).steps.count <= 3
    exact = function(x.astype(mx.float64), y.astype(mx.float64))
    for found, want in zip(leaves(mx.compile(function)(x, y)), leaves(exact), strict=True):
        np.testing.assert_allclose(found, want, rtol=2e-5)


def test_a_long_formula_may_write_over_its_argument() -> None:
    def steps(x: mx.array, y: mx.array) -> mx.array:
        return orbit(x, y)[0] * x

    x, y = mx.array(numbers(100)), mx.array(numbers(100, seed=1))
    assert planned(steps, x, y).donations


def test_formulas_may_be_thousands_of_operations_deep() -> None:
    def steps(x: mx.array) -> mx.array:
        for _ in range(3000):
            x = x * 0.999 + 0.001
        return x

    x = mx.array(numbers(40))
    assert one_kernel(steps, x)
    np.testing.assert_allclose(mx.compile(steps)(x), 1 + (np.array(x) - 1) * 0.999**3000, rtol=1e-4)


@pytest.mark.parametrize(("lanes", "most", "least"), [(2_000, 512, 4), (200_000, 4096, 40), (300, 304, 1)])
def test_few_lanes_with_much_to_do_are_units_for_several_threads(lanes: int, most: int, least: int) -> None:
    """A unit has whole strips of lanes, and enough work to be worth sharing."""
    x = mx.array(numbers(lanes).astype(np.float32))

    def function(x: mx.array) -> mx.array:
        for step in range(200):
            x = x + 0.01 * x * (1 - x) * (x - step)
        return x

    (record,) = planned(function, x).describe().records
    assert record.launch is not None
    schedule = host.target.schedule(record.launch)
    assert isinstance(schedule, CpuSchedule)
    assert schedule.block <= most
    assert schedule.units >= least


def test_loops_over_the_same_elements_are_one() -> None:
    def flat(x: mx.array, y: mx.array) -> list[mx.array]:
        waves = mx.sin(x)
        return [waves.reshape(-1) * y, (waves + 1).reshape(24, 10) / 2, mx.exp(y).reshape(4, 60)]

    x, y = mx.array(numbers(4, 6, 10)), mx.array(numbers(240, seed=1))
    one, two, three = mx.compile(flat)(x, y)
    want = np.sin(np.array(x))
    np.testing.assert_allclose(one, want.reshape(-1) * np.array(y), rtol=1e-6)
    np.testing.assert_allclose(two, (want + 1).reshape(24, 10) / 2, rtol=1e-6)
    np.testing.assert_allclose(three, np.exp(np.array(y)).reshape(4, 60), rtol=1e-6)
    assert one_kernel(lambda x, y: mx.sin(x).reshape(-1) * y, x, y)
    assert one_kernel(lambda x, y: flat(x, y)[:2], x, y)


SHAPES: list[list[tuple[int, ...]]] = [
    [()],
    [(5,), ()],
    [(1000,), (1,)],
    [(40, 25), (25,), (40, 1)],
    [(3, 7, 25), (25,), (7, 1), (3, 1, 1)],
    [(3, 300, 33), (33,), (300, 1)],
    [(2, 700), (700,), (2, 1)],
    [(9, 2, 3), (3,)],
]
DTYPES: list[list[mx.Dtype]] = [
    [mx.float32, mx.float64],
    [mx.float32, mx.float16, mx.bfloat16, mx.bool_, mx.int32],
    [mx.complex64, mx.float32],
    [mx.int8, mx.uint16, mx.int64, mx.float32, mx.bool_],
]


def formula(seed: int, shapes: Sequence[tuple[int, ...]], kinds: Sequence[mx.Dtype]) -> tuple[Program, list[mx.array]]:
    """A random formula of 130 operations with several results, and arrays for it. Its first argument is a function that
    it calls for each intermediate value."""
    rng = random.Random(seed)
    inputs = [mx.array(numbers(*rng.choice(shapes), low=-3, high=3, seed=seed + k)) for k in range(3)]
    inputs.append(mx.array(numbers(*reversed(shapes[0]), low=-3, high=3, seed=seed)).T)
    inputs = [x.astype(rng.choice(kinds)) for x in inputs]
    choices = [(rng.choice(OPERATIONS), [rng.random() for _ in range(3)], rng.choice(kinds)) for _ in range(130)]
    results = [rng.random() for _ in range(3)]

    def run(finish: Callable[[mx.array], mx.array], *values: mx.array) -> list[mx.array]:
        known = list(values)
        for operation, picks, dtype in choices:
            recent = [known[-1 - int(pick * min(len(known), 12))] for pick in picks]
            known.append(finish(operation(recent, dtype)))
        return [known[int(pick * len(known))] for pick in results] + known[-1:]

    return run, inputs


def _along(x: mx.array) -> mx.array:
    return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 0)])[..., :-1] if x.ndim else x


OPERATIONS: list[Callable[[list[mx.array], mx.Dtype], mx.array]] = [
    lambda x, dtype: x[0].astype(mx.float32) + x[1],
    lambda x, dtype: x[0] * x[1],
    lambda x, dtype: mx.where(x[2] != 0, x[0], x[1]),
    lambda x, dtype: x[0].astype(dtype),
    lambda x, dtype: mx.exp(-mx.abs(x[0].astype(mx.float32))),
    lambda x, dtype: x[0] == x[1],
    lambda x, dtype: x[0].astype(mx.float32) / (mx.abs(x[1]) + 1),
    lambda x, dtype: _along(x[0]),
    lambda x, dtype: x[0][..., ::-1] if x[0].ndim else x[0],
]


def chained(x: mx.array, y: mx.array, finish: Callable[[mx.array], mx.array]) -> list[mx.array]:
    """Operations each of which needs the result of the one before, on values of several kinds."""
    total = y
    for step in range(40):
        x = finish(x + (x * (1 - x) * (x - 0.25)).astype(x.dtype))
        above = x > y
        total = finish(mx.where(above, total + step, total - x.astype(total.dtype)))
        total = finish(total + (above & (total > 3)))
    return [x, total, above]


@pytest.mark.parametrize("lanes", [1030, 4103])
@pytest.mark.parametrize("dtypes", [(mx.float32, mx.float32), (mx.float16, mx.int32), (mx.float64, mx.uint8)])
def test_several_vectors_at_once_have_the_bits_of_one(lanes: int, dtypes: tuple[mx.Dtype, mx.Dtype]) -> None:
    x, y = (mx.array(numbers(3, lanes, high=9, seed=seed)).astype(dtype) for seed, dtype in enumerate(dtypes))
    arguments = x[:, :-3], y[:, 3:]
    mx.eval(arguments)

    def in_parts(x: mx.array) -> mx.array:
        mx.eval(x)
        return x

    found = mx.compile(lambda x, y: chained(x, y, lambda z: z))(*arguments)
    assert_same_bits(found, chained(*arguments, in_parts))


def test_bits_are_those_of_short_formulas(cases: Cases, seed: int) -> None:
    for shapes, kinds in cases.some(4, list(itertools.product(SHAPES, DTYPES))):
        run, inputs = formula(seed, shapes, kinds)
        count = itertools.count(1)

        def in_parts(x: mx.array, count: Iterator[int] = count) -> mx.array:
            if next(count) % 10 == 0:
                mx.eval(x)
            return x

        whole = mx.compile(lambda *x, run=run: run(lambda y: y, *x))
        assert_same_bits(whole(*inputs), run(in_parts, *inputs))
