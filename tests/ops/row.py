"""A row of the operation table, and how numbers for it are drawn and compared."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.core as mx

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
BOOLEAN = ("bool_",)
COMPLEX = ("complex64",)
REAL = FLOATS + INTEGERS + BOOLEAN
NUMBERS = FLOATS + INTEGERS + COMPLEX
EVERY = REAL + COMPLEX
KINDS = [
    ("float32", "float64"),
    ("float16", "bfloat16"),
    ("int8", "int16", "int32", "int64"),
    ("uint8", "uint16", "uint32", "uint64"),
    ("bool_",),
    ("complex64",),
]
"""Kinds of dtypes with similar code: the gate tests one dtype of each of some kinds."""

CHECKS = frozenset(
    {
        "value",
        "mlx",
        "layout",
        "special",
        "jvp",
        "vjp",
        "second order",
        "vmap",
        "compile",
        "shapeless",
        "export",
    }
)


@dataclass(frozen=True)
class Domain:
    """The numbers that an argument takes: from ``low`` to ``high``, except those closer to zero than ``gap``.

    If ``apart``, they differ from each other and from whole numbers by more than a step of central differences.
    ``shape`` replaces the row's shape, ``dtype`` its dtype.
    """

    low: float = -2.0
    high: float = 2.0
    gap: float = 0.0
    apart: bool = False
    shape: tuple[int, ...] | None = None
    dtype: str | None = None

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Numbers that ``dtype`` represents exactly, in NumPy's dtype of the same name."""
        shape = shape if self.shape is None else self.shape
        target = numpy_dtype(self.dtype or dtype)
        if target == np.bool_:
            return rng.random(shape) < 0.5
        if target.kind in "iu":
            return self._whole(rng, shape, target)
        values = self._real(rng, shape)
        if target.kind == "c":
            values = values + 1j * self._real(rng, shape)
        return values.astype(target)

    def _whole(self, rng: np.random.Generator, shape: tuple[int, ...], target: np.dtype) -> np.ndarray:
        low = max(int(np.floor(self.low)), np.iinfo(target).min)
        numbers = np.arange(low, int(np.ceil(self.high)) + 1)
        return rng.choice(numbers[abs(numbers) >= self.gap], shape).astype(target)

    def _real(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        size = int(np.prod(shape))
        if self.apart:
            step = (self.high - self.low) / max(size, 1)
            values = self.low + step * (rng.permutation(size) + rng.uniform(0.3, 0.7, size))
            fraction = values - np.floor(values)
            return (np.floor(values) + 0.2 + 0.6 * fraction).reshape(shape)
        values = rng.uniform(self.low, self.high, shape)
        return np.where(abs(values) < self.gap, np.copysign(self.gap, values), values)


ANY = Domain()
NONZERO = Domain(gap=0.5)
POSITIVE = Domain(0.1, 3.0)
UNIT = Domain(-0.9, 0.9)
APART = Domain(-3.0, 3.0, apart=True)


def whole(high: int, shape: tuple[int, ...] | None = None, low: int = 0, dtype: str = "int32") -> Domain:
    """Whole numbers from ``low`` to ``high``, independent of the dtype of the other arguments."""
    return Domain(low, high, shape=shape, dtype=dtype)


@dataclass(frozen=True)
class Row:
    """An operation, and all that the checks have to know about it.

    ``function(mx, *arrays)`` calls it in a namespace: Weft's, or MLX's. ``oracle(*arrays)`` computes the same with
    NumPy, from float64 (complex128) for floating (complex) dtypes and from the dtype itself for others. ``ulp`` says
    how many units in the last place results may be off in the dtype: of each element where ``elementwise``, else of
    the largest; ``ulp_half`` replaces it for float16 and bfloat16. ``zero_sign`` tells whether the sign of a zero is
    part of the result. ``mlx_dtypes`` are those in which MLX has the operation (None: all). ``grows`` tells for each
    axis of each argument by how many elements it may grow, together with the others, when one shapeless trace serves
    several shapes (None: all grow by one, except axes of one element). ``without`` gives, for each of `CHECKS` that is
    left out, the reason; ``fails`` for each that must fail.
    """

    name: str
    function: Callable[..., Any]
    oracle: Callable[..., Any]
    domains: Sequence[Domain] = (ANY,)
    dtypes: Sequence[str] = FLOATS
    shape: tuple[int, ...] = (2, 3, 4)
    variant: str = ""
    elementwise: bool = False
    ulp: float = 2.0
    ulp_half: float | None = None
    zero_sign: bool = True
    mlx_dtypes: Sequence[str] | None = None
    grows: Sequence[tuple[int, ...]] | None = None
    without: Mapping[str, str] = field(default_factory=dict)
    fails: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = {*self.without, *self.fails} - CHECKS
        assert not unknown, f"{self.id}: no such checks: {unknown}"

    @property
    def id(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name

    def sample(self, seed: int, dtype: str, shape: tuple[int, ...] | None = None) -> list[np.ndarray]:
        """Arguments for a call."""
        rng = self.random(seed, dtype)
        return [domain.sample(rng, self.shape if shape is None else shape, dtype) for domain in self.domains]

    def grown(self, times: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Arguments of other shapes, some of whose axes are longer by ``times`` their step."""
        shapes = [self.shape if domain.shape is None else domain.shape for domain in self.domains]
        steps = self.grows or [tuple(int(extent > 1) for extent in shape) for shape in shapes]
        return [
            replace(domain, shape=tuple(extent + times * step for extent, step in zip(shape, one, strict=True))).sample(
                rng, self.shape, self.dtypes[0]
            )
            for domain, shape, one in zip(self.domains, shapes, steps, strict=True)
        ]

    def random(self, seed: int, salt: str) -> np.random.Generator:
        """A generator that depends on the row, so that rows can run in any order and alone."""
        return np.random.default_rng([seed, zlib.crc32(f"{self.id} {salt}".encode())])

    def expected(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of the oracle, in double precision for inexact dtypes."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return flat(self.oracle(*[widened(x) for x in arguments]))

    def on_cpu_and_gpu(self, arguments: Sequence[np.ndarray]) -> list[tuple[mx.array, mx.array]]:
        """The results on the CPU, each paired with the result on the GPU, after a check that shape and dtype are the
        same."""
        results = []
        for device in (mx.cpu, mx.gpu):
            with mx.stream(device):
                results.append(flat(self.function(mx, *[to_array(x) for x in arguments])))
                mx.eval(results[-1])
        found = list(zip(*results, strict=True))
        for here, there in found:
            assert (here.dtype, here.shape) == (there.dtype, there.shape)
        return found

    def tolerance(self, dtype: str) -> float:
        half = dtype in ("float16", "bfloat16")
        return self.ulp_half if half and self.ulp_half is not None else self.ulp


def checked(check: str, rows: Iterable[Row]) -> list[Any]:
    """The rows that a check runs over, as parameters of a test. A row that must fail and succeeds is an error."""
    parameters = []
    for row in rows:
        reason = row.fails.get(check)
        marks = () if reason is None else pytest.mark.xfail(reason=reason, strict=True)
        if check not in row.without:
            parameters.append(pytest.param(row, id=row.id, marks=marks))
    return parameters


def numpy_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name.removesuffix("_"))


def widened(x: np.ndarray) -> np.ndarray:
    """Floating and complex numbers in double precision."""
    if x.dtype.kind == "c":
        return x.astype(np.complex128)
    return x.astype(np.float64) if is_floating(x) else x


def is_floating(x: np.ndarray) -> bool:
    return x.dtype.kind == "f" or x.dtype == ml_dtypes.bfloat16


def is_inexact(x: np.ndarray) -> bool:
    return is_floating(x) or x.dtype.kind == "c"


def flat(result: Any) -> list[Any]:
    """The arrays of a result that may be one array or a sequence."""
    return list(result) if isinstance(result, list | tuple) else [result]


def evaluated(tree: Any) -> Any:
    """The arrays of a tree, evaluated together, so that code for their common parts is generated once."""
    mx.eval(tree)
    return tree


def to_array(x: np.ndarray, namespace: Any = mx) -> Any:
    """The same numbers as an array of the same dtype in Weft or MLX."""
    name = "bool_" if x.dtype == np.bool_ else x.dtype.name
    dtype = getattr(namespace, name)
    if x.dtype == ml_dtypes.bfloat16:
        return namespace.array(x.astype(np.float32)).astype(dtype)
    return namespace.array(x, dtype=dtype)


def to_numpy(x: Any, namespace: Any = mx) -> np.ndarray:
    """The numbers of an array of Weft or MLX; bfloat16 in NumPy's extension dtype."""
    if x.dtype == namespace.bfloat16:
        return np.array(x.astype(namespace.float32)).astype(ml_dtypes.bfloat16)
    return np.array(x)


def spacing(want: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The unit in the last place of numbers in ``dtype``, in double precision."""
    limits = ml_dtypes.finfo(dtype)
    size = np.maximum(np.abs(want), float(limits.smallest_normal))
    with np.errstate(over="ignore", invalid="ignore"):
        exponent = np.floor(np.log2(np.where(np.isfinite(size), size, 1.0)))
        return float(limits.eps) * np.exp2(exponent)


def assert_near(got: np.ndarray, want: np.ndarray, ulp: float, elementwise: bool) -> None:
    """Raise unless shapes are the same, and numbers are equal or, for inexact dtypes, within ``ulp`` units in the last
    place."""
    want = np.asarray(want)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    if not is_inexact(got):
        np.testing.assert_array_equal(got, want)
        return
    want = widened(want)
    if got.dtype.kind == "c":
        assert_near(got.real, want.real, 4 * ulp, False)
        assert_near(got.imag, want.imag, 4 * ulp, False)
        return
    rounded = want.astype(got.dtype).astype(np.float64)
    exact = got.astype(np.float64)
    scale = np.abs(want.astype(np.float64))
    if not elementwise:
        scale = np.full(scale.shape, np.nanmax(np.where(np.isfinite(scale), scale, 0), initial=1.0))
    allowed = ulp * spacing(scale, got.dtype)
    with np.errstate(invalid="ignore"):
        near = (np.abs(exact - want) <= allowed) | (exact == rounded) | (np.isnan(exact) & np.isnan(rounded))
    if not near.all():
        first = tuple(np.argwhere(~near)[0])
        raise AssertionError(
            f"{(~near).sum()} of {near.size} elements are off; at {first}: got {exact[first]!r}, "
            f"expected {want[first]!r}, allowed {allowed[first]:.3g}"
        )


def bits(x: np.ndarray) -> bytes:
    """The bytes of an array, with the same bytes for every NaN: IEEE 754 does not determine their signs and
    payloads."""
    if is_inexact(x):
        x = np.where(np.isnan(x), np.array(np.nan).astype(x.dtype), x)
    return x.tobytes()
