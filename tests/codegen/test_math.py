"""The functions of generated code against mpmath, extended precision and NumPy: accuracy, special values, widths."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from tests.codegen.kernels import (
    FLOAT32_BOUNDS,
    REFERENCES,
    kernel,
    method,
    samples,
    special_values,
    ulps,
    worst,
)
from weft import dtypes
from weft.compiler.codegen.math.error import INVERSE_SPLIT
from weft.compiler.codegen.math.parts import FLOAT32, FLOAT64
from weft.compiler.codegen.values import Value

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

FLOATS = (dtypes.float32, dtypes.float64)
INTEGERS = (
    *(dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64),
    *(dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64),
)
BOUND = 2.0
EXTENDED = np.finfo(np.longdouble).nmant > 60


def name_of(dtype):
    return dtype.name


def same_bits(left, right):
    unsigned = f"u{left.dtype.itemsize}"
    return bool(np.all((left.view(unsigned) == right.view(unsigned)) | (np.isnan(left) & np.isnan(right))))


def ulps_from_exact(function, got, *columns, digits=60):
    """The largest error of ``got`` relative to an mpmath function, where ``got`` is finite."""
    units = np.spacing(np.abs(got)).tolist()
    rows = zip(*(column.tolist() for column in columns), strict=True)
    with mpmath.workdps(digits):
        errors = [
            abs(mpmath.mpf(value) - function(*map(mpmath.mpf, row))) / unit
            for value, unit, row in zip(got.tolist(), units, rows, strict=True)
            if math.isfinite(value)
        ]
    return float(max(errors))


@pytest.mark.parametrize("name", REFERENCES)
class TestOneArgument:
    def test_float32(self, name, rng):
        x = samples(np.float32, rng, 20_000)
        got, exact = kernel(method(name), dtypes.float32)(x), REFERENCES[name](x.astype(np.float64))
        assert np.max(ulps(got, exact)) <= FLOAT32_BOUNDS[name], worst(x, got, exact)

    @pytest.mark.skipif(not EXTENDED, reason="long double is no longer than float64 here")
    def test_float64(self, name, rng):
        if name in ("erf", "erfinv"):
            pytest.skip("not in extended precision: mpmath judges them below")
        x = samples(np.float64, rng, 20_000)
        got, exact = kernel(method(name), dtypes.float64)(x), REFERENCES[name](x.astype(np.longdouble))
        assert np.max(ulps(got, exact)) <= BOUND, worst(x, got, exact)

    def test_special_values(self, name):
        """Infinities, NaN and signed zeros as in C99."""
        x = special_values(np.float64)
        got, expected = kernel(method(name), dtypes.float64)(x), REFERENCES[name](x)
        special = ~np.isfinite(expected) | (expected == 0)
        assert np.any(special) or name in ("erf", "sigmoid", "cosh", "arctan")
        assert np.max(ulps(got, expected)[special], initial=0) <= 1, worst(x, got, expected)

    @pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
    def test_one_lane_and_sixteen_give_the_same_bits(self, name, dtype, rng):
        x = samples(dtype.numpy.type, rng, 2_000)
        assert same_bits(kernel(method(name), dtype, width=1)(x), kernel(method(name), dtype, width=16)(x))

    def test_half_precision_is_held_as_float32(self, name):
        def of_half(lanes, x):
            y = getattr(lanes, name)(Value(lanes, x.name, dtypes.float16))
            assert y.dtype is dtypes.float32
            return y

        x = np.linspace(-1, 1, 33, dtype=np.float32)
        assert same_bits(kernel(of_half, dtypes.float32)(x), kernel(method(name), dtypes.float32)(x))


MPMATH: dict[str, Any] = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "log2": lambda x: mpmath.log(x, 2),
    "log10": mpmath.log10,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "arcsin": mpmath.asin,
    "arccos": mpmath.acos,
    "arctan": mpmath.atan,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "tanh": mpmath.tanh,
    "arcsinh": mpmath.asinh,
    "arccosh": mpmath.acosh,
    "arctanh": mpmath.atanh,
    "erf": mpmath.erf,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
}


@pytest.mark.parametrize("name", MPMATH)
@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_against_mpmath(name, dtype, rng):
    inside = {"arcsin": (-1, 1), "arccos": (-1, 1), "arctanh": (-1, 1), "log1p": (-1, 9), "arccosh": (1, 9)}
    low, high = inside.get(name, (0, 9) if name in ("log", "log2", "log10", "rsqrt") else (-9, 9))
    x = np.concatenate([rng.uniform(low, high, 300), rng.uniform(max(low, -1.5), min(high, 1.5), 200)])
    x = x.astype(dtype.numpy)
    got = kernel(method(name), dtype)(x)
    assert ulps_from_exact(MPMATH[name], got, x) <= BOUND


INVERSE_BOUNDS = {dtypes.float32: 2.0, dtypes.float64: 1.25}
# Numbers at which a formula in which the roundings of log, sqrt or 1 - x^2 add up is more than 2 ulp off.
HARD_TO_INVERT = (
    *("0x1.ffffff569305ep-1", "0x1.ffffff6ef7398p-1", "0x1.fffffec42c002p-1", "0x1.fffffeffde88ep-1"),
    *("0x1.fffffc24aaeb1p-1", "0x1.fffa3edf049e2p-1", "0x1.ffc439ad0e7aap-1", "0x1.fef0d1b5572aep-2"),
    *("0x1.0f732b131ad40p-15", "0x1.1ac324a58c958p-20", "0x1.20aeb11633cc4p-1021"),
)


def inverse_of_erf(target):
    """The inverse, by Halley's method."""
    size = abs(target)
    y = size if size < 0.5 else mpmath.sqrt(-mpmath.log(1 - size))
    step = y
    while abs(step) > y * mpmath.mpf(10) ** -12:
        excess = mpmath.erf(y) - size if size < 0.5 else 1 - size - mpmath.erfc(y)
        step = excess * mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(y * y)
        step /= 1 + y * step
        y -= step
    return mpmath.sign(target) * y


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_inverse_of_erf(dtype, rng):
    bits = 52 if dtype is dtypes.float64 else 23
    x = np.concatenate([rng.uniform(-1, 1, 100), 1 - 2.0 ** rng.uniform(-bits, 0, 150), 2.0 ** rng.uniform(-60, 0, 50)])
    x = x.astype(dtype.numpy)
    x = x[np.abs(x) < 1]
    assert ulps_from_exact(inverse_of_erf, kernel(method("erfinv"), dtype)(x), x) <= INVERSE_BOUNDS[dtype]


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_inverse_of_erf_where_it_is_hard(dtype):
    """Arguments close to 1, to 0 and to the place where one formula replaces another; the same numbers in every run."""
    info, fixed = np.finfo(dtype.numpy), np.random.default_rng(2011)
    gaps = 2.0 ** -np.arange(1, info.nmant + 2)
    near_one = np.concatenate([1 - gaps * (1 + fixed.uniform(-0.5, 0.5, gaps.size)) for _ in range(8)])
    split = INVERSE_SPLIT[FLOAT64 if dtype is dtypes.float64 else FLOAT32]
    takeover = math.sqrt(-math.expm1(-split)) + 5 * info.eps * np.arange(-40, 40)
    small = 2.0 ** -fixed.uniform(0, 1 - info.minexp, 300)
    found = [float.fromhex(text) for text in HARD_TO_INVERT]
    x = np.concatenate([1 - gaps, near_one, takeover, small, fixed.uniform(0, 1, 200), found]).astype(dtype.numpy)
    x = x[(x > 0) & (x < 1)]
    invert = kernel(method("erfinv"), dtype)
    got = invert(x)
    assert np.all(np.isfinite(got))
    assert np.array_equal(invert(-x), -got)
    assert ulps_from_exact(inverse_of_erf, got, x) <= INVERSE_BOUNDS[dtype]


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_huge_angles_and_multiples_of_a_quarter_turn(name, dtype, rng):
    largest = 127 if dtype is dtypes.float32 else 1023
    multiples = rng.integers(1, 1 << 20, 200) * (np.pi / 2)
    huge = 2.0 ** rng.uniform(15, largest, 200)
    # The float64 number that is closest to a multiple of pi / 2 (Muller, Elementary Functions, 2016).
    hard = np.array([6381956970095103.0 * 2.0**797]) if dtype is dtypes.float64 else np.array([16367173.0 * 2.0**72])
    x = (np.concatenate([multiples, huge, hard]) * rng.choice([-1, 1], 401)).astype(dtype.numpy)
    got = kernel(method(name), dtype)(x)
    assert ulps_from_exact(MPMATH[name], got, x, digits=400) <= BOUND


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_nothing_is_larger_than_one(name, dtype, rng):
    """A number beyond 1 has no arcsine, and one minus its square has no root."""
    quarters = (
        np.arange(-5000, 5000) * (np.pi / 2) * (1 + rng.normal(size=10_000) * 10.0 ** -rng.uniform(2, 16, 10_000))
    )
    x = np.concatenate([quarters, np.linspace(-1e-3, 1e-3, 10_001)]).astype(dtype.numpy)
    x = np.append(x, np.array([-1506.3937, 10.995575, -3953.69435454, -3711.79172022], dtype.numpy))
    got = np.abs(kernel(method(name), dtype)(x))
    assert np.max(got) == 1.0


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_exact_powers(dtype):
    numbers = np.arange(-100, 39, dtype=dtype.numpy)
    assert np.array_equal(kernel(method("exp2"), dtype)(numbers), 2.0**numbers)
    assert np.array_equal(kernel(method("log2"), dtype)((2.0**numbers).astype(dtype.numpy)), numbers)
    tens = np.arange(0, 23 if dtype is dtypes.float64 else 11)
    assert np.array_equal(kernel(method("log10"), dtype)((10.0**tens).astype(dtype.numpy)), tens)
    x, y = (grid.ravel().astype(dtype.numpy) for grid in np.meshgrid(np.arange(-9, 10), np.arange(0, 8)))
    assert np.array_equal(kernel(method("power"), dtype, 2)(x, y), x**y)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
class TestTwoArguments:
    def test_power(self, dtype, rng):
        limit = np.log(float(np.finfo(dtype.numpy).max))
        bases = np.concatenate([np.exp(rng.uniform(-limit, limit, 300)), 1 + rng.normal(0, 1e-3, 300)])
        exponents = rng.uniform(-limit, limit, 600) / np.log(bases)
        x, y = bases.astype(dtype.numpy), exponents.astype(dtype.numpy)
        got = kernel(method("power"), dtype, 2)(x, y)
        normal = (got > np.finfo(dtype.numpy).tiny) & np.isfinite(got)
        assert normal.sum() > 500
        assert ulps_from_exact(mpmath.power, got[normal], x[normal], y[normal]) <= 1.0

    def test_special_powers(self, dtype):
        odd = 2.0 ** np.finfo(dtype.numpy).nmant + 1
        values = np.concatenate(
            [special_values(dtype.numpy.type), np.array([3, -3, odd, -odd, 2.5, -2.5], dtype.numpy)]
        )
        x, y = (grid.ravel() for grid in np.meshgrid(values, values))
        with np.errstate(all="ignore"):
            expected = np.power(x, y)
        got = kernel(method("power"), dtype, 2)(x, y)
        assert np.max(ulps(got, expected)) <= BOUND, worst(list(zip(x, y, strict=True)), got, expected)

    @pytest.mark.parametrize("name", ["arctan2", "logaddexp", "remainder", "floor_divide"])
    def test_special_values(self, dtype, name):
        expected_of: dict[str, Any] = {
            "arctan2": np.arctan2,
            "logaddexp": lambda x, y: np.logaddexp(x.astype(np.longdouble), y.astype(np.longdouble)),
            "remainder": np.remainder,
            "floor_divide": lambda x, y: np.floor(x / y),
        }
        values = special_values(dtype.numpy.type)
        x, y = (grid.ravel() for grid in np.meshgrid(values, values))
        with np.errstate(all="ignore"):
            expected = expected_of[name](x, y)
        got = kernel(method(name), dtype, 2)(x, y)
        bound = BOUND if name in ("arctan2", "logaddexp") else 0
        if name == "logaddexp":
            # A negative argument cancels some of the logarithm: these have a test of their own.
            cancels = (np.maximum(x, y) < 0) & (np.maximum(x, y) > -1)
            got, expected = got[~cancels], expected[~cancels]
        assert np.max(ulps(got, expected)) <= bound, worst(list(zip(x, y, strict=True)), got, expected)

    def test_arctan2(self, dtype, rng):
        y, x = ((rng.normal(0, 1, 500) * 10.0 ** rng.uniform(-3, 3, 500)).astype(dtype.numpy) for _ in range(2))
        assert ulps_from_exact(mpmath.atan2, kernel(method("arctan2"), dtype, 2)(y, x), y, x) <= BOUND

    def test_logaddexp(self, dtype, rng):
        x, y = (rng.uniform(0, 50, 500).astype(dtype.numpy) for _ in range(2))

        def exact(a, b):
            return mpmath.log(mpmath.exp(a) + mpmath.exp(b))

        assert ulps_from_exact(exact, kernel(method("logaddexp"), dtype, 2)(x, y), x, y) <= BOUND

    def test_logaddexp_with_cancellation(self, dtype, rng):
        """The error is small relative to the larger argument."""
        x, y = (rng.uniform(-1, 0, 2000).astype(dtype.numpy) for _ in range(2))
        got = kernel(method("logaddexp"), dtype, 2)(x, y)
        unit = np.finfo(dtype.numpy).eps
        exact = np.log(np.exp(x.astype(np.longdouble)) + np.exp(y.astype(np.longdouble)))
        assert np.max(np.abs(got - exact)) <= (BOUND if EXTENDED or dtype is dtypes.float32 else 4) * unit

    def test_remainder_has_no_rounding_error(self, dtype, rng):
        limit = np.log(float(np.finfo(dtype.numpy).max)) / 1.01
        x = np.concatenate([rng.normal(0, 100, 5000), np.exp(rng.uniform(-limit, limit, 5000))]).astype(dtype.numpy)
        y = np.concatenate([rng.normal(0, 3, 5000), -np.exp(rng.uniform(-limit, limit, 5000))]).astype(dtype.numpy)
        got = kernel(method("remainder"), dtype, 2)(x, y)
        assert np.array_equal(got, np.remainder(x, y))
        assert same_bits(got, kernel(method("remainder"), dtype, 2, width=1)(x, y))


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
class TestIntegers:
    def operands(self, dtype, rng):
        low, high = dtype.lowest, dtype.highest
        values = rng.integers(low, high, 3000, dtype=dtype.numpy, endpoint=True)
        small = rng.integers(max(low, -9), 9, 3000).astype(dtype.numpy)
        edges = np.array([low, high, 0, 1, 2, high if low == 0 else -1], dtype.numpy)
        pairs = [(values, small), (values, values[::-1]), (small, values), tuple(np.meshgrid(edges, edges))]
        return tuple(np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))

    def test_divisions_never_trap(self, dtype, rng):
        """Rounding down; by zero the quotient is 0 and the remainder the dividend; the one overflow wraps."""
        x, y = self.operands(dtype, rng)
        size = 1 << (8 * dtype.size)
        quotients = [0 if b == 0 else a // b for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        wrapped = [q - size if q > dtype.highest else q for q in quotients]
        remainders = [a if b == 0 else a % b for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        assert kernel(method("floor_divide"), dtype, 2)(x, y).tolist() == wrapped
        assert kernel(method("remainder"), dtype, 2)(x, y).tolist() == remainders
        assert kernel(method("floor_divide"), dtype, 2, width=1)(x, y).tolist() == wrapped

    def test_power(self, dtype, rng):
        """Powers of integers wrap around; a negative exponent gives 0."""
        x, y = self.operands(dtype, rng)
        modulus = 1 << (8 * dtype.size)
        powers = [0 if b < 0 else pow(a, b, modulus) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        wrapped = [p - modulus if p > dtype.highest else p for p in powers]
        assert kernel(method("power"), dtype, 2)(x, y).tolist() == wrapped


def complex_samples(rng, count):
    plain = rng.normal(0, 1, count) + 1j * rng.normal(0, 1, count)
    circle = np.exp(1j * rng.uniform(-np.pi, np.pi, count)) * (1 + rng.normal(0, 1e-5, count))
    return np.concatenate([plain, 20 * plain, plain * 10.0 ** rng.uniform(-6, 6, count), circle]).astype(np.complex64)


def complex_ulps(got, exact):
    return max(float(np.max(ulps(got.real, exact.real))), float(np.max(ulps(got.imag, exact.imag))))


COMPLEX = (
    *("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sqrt"),
    *("arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh"),
)


@pytest.mark.parametrize("name", COMPLEX)
class TestComplex:
    @pytest.mark.skipif(not EXTENDED, reason="long double is no longer than float64 here")
    def test_both_parts_are_precise(self, name, rng):
        z = complex_samples(rng, 1000)
        exact = getattr(np, name)(z.astype(np.clongdouble))
        got = kernel(method(name), dtypes.complex64)(z)
        inside = (np.abs(exact.real) < 3e38) & (np.abs(exact.imag) < 3e38)
        assert inside.sum() > 3000
        assert complex_ulps(got[inside], exact[inside]) <= 1.0

    def test_branch_cuts_and_signed_zeros(self, name):
        values = np.array([0, -0.0, 0.5, -0.5, 1, -1, 2, -2], np.float32)
        z = np.empty(64, np.complex64)
        z.real, z.imag = (grid.ravel() for grid in np.meshgrid(values, values))
        with np.errstate(all="ignore"):
            expected = np.array([getattr(np, name)(np.complex128(number)) for number in z])
        got = kernel(method(name), dtypes.complex64)(z)
        for part in ("real", "imag"):
            left, right = getattr(got, part), getattr(expected, part).astype(np.float32)
            np.testing.assert_allclose(left, right, rtol=3e-7)
            assert np.array_equal(np.signbit(left), np.signbit(right))


def test_complex_functions_from_others(rng):
    z = complex_samples(rng, 500)
    wide = z.astype(np.complex128)
    expected = {
        "log2": np.log(wide) / np.log(2),
        "log10": np.log10(wide),
        "log1p": np.log1p(wide),
        "rsqrt": 1 / np.sqrt(wide),
        "reciprocal": 1 / wide,
        "sign": wide / np.abs(wide),
        "square": wide * wide,
    }
    for name, exact in expected.items():
        got = kernel(method(name), dtypes.complex64)(z)
        np.testing.assert_allclose(got, exact, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(kernel(method("absolute"), dtypes.complex64)(z)[: z.size], np.abs(wide), rtol=1e-7)


def test_complex_functions_of_two_arguments(rng):
    z, w = complex_samples(rng, 500), complex_samples(rng, 500)[::-1]
    wide, other = z.astype(np.complex128), w.astype(np.complex128)
    np.testing.assert_allclose(kernel(method("complex_divide"), dtypes.complex64, 2)(z, w), wide / other, rtol=1e-6)
    small = (np.abs(z) < 3) & (np.abs(w) < 3)
    z, w, wide, other = z[small], w[small], wide[small], other[small]
    np.testing.assert_allclose(kernel(method("power"), dtypes.complex64, 2)(z, w), wide**other, rtol=1e-6)
    got = kernel(method("logaddexp"), dtypes.complex64, 2)(z, w)
    np.testing.assert_allclose(np.exp(got.astype(np.complex128)), np.exp(wide) + np.exp(other), rtol=3e-6, atol=1e-6)


def test_complex_division_by_zero_and_infinity():
    z = np.array([1 + 1j, 0j, 1 + 1j], np.complex64)
    w = np.array([0j, 0j, complex(np.inf, 1)], np.complex64)
    inf, nan = np.inf, np.nan
    expected = np.array([complex(inf, inf), complex(nan, nan), 0j])
    np.testing.assert_array_equal(kernel(method("complex_divide"), dtypes.complex64, 2)(z, w), expected)


def test_zero_to_the_power_zero():
    zero = np.zeros(1, np.complex64)
    assert kernel(method("power"), dtypes.complex64, 2)(zero, zero).tolist() == [1]
