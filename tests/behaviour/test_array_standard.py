"""The Python array API standard, version 2024.12: its names and parameters, and the values of its functions.

`inventory/array-api-2024.12.tsv` holds its names and signatures.
"""

from __future__ import annotations

import ast
import inspect
import math
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.devices import needs_no_gpu
from weft.errors import TraceError

MISSING = {"complex128": "MLX has no complex numbers of double precision."}
"""Names of the standard that Weft does not have, with the reason."""


def inventory() -> dict[str, str]:
    lines = (Path(__file__).parents[1] / "inventory" / "array-api-2024.12.tsv").read_text().splitlines()[1:]
    names = [line.split("\t") for line in lines]
    return dict(names)


NAMES = inventory()


def exists(name: str) -> bool:
    try:
        operator.attrgetter(name)(mx)
    except AttributeError:
        return False
    return True


def test_every_name_exists_or_is_known_to_be_missing() -> None:
    assert {name for name in NAMES if not exists(name)} == set(MISSING)


def differences_of(name: str) -> Iterator[str]:
    """Arguments of the standard that a function does not take, or interprets differently."""
    function = ast.parse(f"def f{NAMES[name]}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    ours = list(inspect.signature(operator.attrgetter(name)(mx)).parameters.values())
    by_name = {one.name: one for one in ours}
    args = function.args
    by_position = len(args.posonlyargs) + (len(args.args) if not name.startswith("array.") else 0)
    places = [one for one in ours if one.kind is not one.KEYWORD_ONLY]
    if len(places) < by_position and not any(one.kind is one.VAR_POSITIONAL for one in ours):
        yield f"{len(places)} arguments by position, not {by_position}"
    defaults = [*[None] * (len(args.args) - len(args.defaults)), *args.defaults][-len(args.args) :] if args.args else []
    for arg, default in (*zip(args.args, defaults, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)):
        got = by_name.get(arg.arg)
        if arg.arg == "self":
            continue
        if got is None:
            yield f"{arg.arg} is missing"
        elif default is not None and not _same_default(got.default, ast.literal_eval(default)):
            yield f"{arg.arg} is {got.default!r} by default, not {ast.literal_eval(default)!r}"


def _same_default(got: Any, want: Any) -> bool:
    """Whether defaults agree; None means, in the standard and here, that the default depends on other arguments."""
    return got == want or want is None or got is None


def test_parameters() -> None:
    called = [name for name, parameters in NAMES.items() if parameters and name not in MISSING]
    differences = {name: "; ".join(differences_of(name)) for name in called}
    assert {name: text for name, text in differences.items() if text} == {}


def test_namespace() -> None:
    a = mx.array([1.0])
    info = mx.__array_namespace_info__()
    assert mx.__array_api_version__ == "2024.12"
    assert a.__array_namespace__() is a.__array_namespace__(api_version="2024.12") is mx
    with pytest.raises(ValueError, match="2030"):
        a.__array_namespace__(api_version="2030.12")
    assert info.default_device() == a.device == mx.default_device()
    assert info.default_device() in info.devices()
    assert set(info.default_dtypes()) == {"real floating", "complex floating", "integral", "indexing"}
    assert info.default_dtypes()["indexing"] is mx.argmax(a).dtype
    assert info.dtypes()["bool"] is mx.bool is mx.bool_
    assert set(info.dtypes(kind=("real floating", "bool"))) == {"float32", "float64", "bool"}
    assert info.capabilities()["data-dependent shapes"] is True


@needs_no_gpu
def test_devices() -> None:
    a = mx.zeros((2,), device=mx.cpu)
    assert a.device == mx.Device(mx.cpu, 0)
    assert a.to_device(a.device).tolist() == [0, 0]
    assert mx.asarray([1], device=a.device).device == a.device
    with pytest.raises(ValueError, match="gpu"):
        a.to_device(mx.gpu)
    with pytest.raises(ValueError, match="gpu"):
        mx.zeros((2,), device=mx.gpu)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 1.5, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, 5e-324, 1e308]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["copysign", "hypot", "nextafter", "signbit"])
def test_special_values(name: str, dtype: str) -> None:
    """The bits are NumPy's, except the last bit of `hypot` and the signs of NaN."""
    with np.errstate(all="ignore"):
        numbers = np.array(SPECIAL).astype(dtype)
        arguments = (numbers,) if name == "signbit" else tuple(np.meshgrid(numbers, numbers))
        want = getattr(np, name)(*arguments)
    got = np.array(getattr(mx, name)(*[mx.array(x, dtype=getattr(mx, dtype)) for x in arguments]))
    np.testing.assert_allclose(got, want, rtol=2 * float(np.finfo(dtype).eps) if name == "hypot" else 0)
    if name != "signbit":
        # For two equal zeros, NumPy's `nextafter` returns the first one in float16, and that of C always the second
        # one.
        compared = ~np.isnan(want) & ~((arguments[0] == arguments[1]) & (name == "nextafter"))
        np.testing.assert_array_equal(np.signbit(got)[compared], np.signbit(want)[compared])


def test_nextafter_of_bfloat16() -> None:
    one = mx.array(1.0, dtype=mx.bfloat16)
    assert (mx.nextafter(one, one * 2) - one).item() == mx.finfo(mx.bfloat16).eps
    assert mx.nextafter(one * mx.inf, one).item() == mx.finfo(mx.bfloat16).max


@pytest.mark.parametrize("values", [[[3, 1, 3], [2, 2, 2]], [], [1.5, np.nan, 1.5, np.nan], [True, True], [2j, 1j, 2j]])
def test_sets(values: Any) -> None:
    numbers = np.array(values)
    a = mx.array(numbers)
    want = np.unique_all(numbers)
    got = mx.unique_all(a)
    for name in want._fields:
        np.testing.assert_array_equal(np.array(getattr(got, name)), getattr(want, name), name)
    assert mx.unique_counts(a).counts.tolist() == got.counts.tolist()
    assert mx.unique_inverse(a).inverse_indices.tolist() == got.inverse_indices.tolist()
    np.testing.assert_array_equal(np.array(mx.unique_values(a)), want.values)


@pytest.mark.parametrize("shape", [(4, 3), (7,), (0, 2), (2, 3, 4)])
def test_nonzero(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    numbers = rng.integers(-1, 2, shape)
    got = mx.nonzero(mx.array(numbers))
    for found, want in zip(got, np.nonzero(numbers), strict=True):
        np.testing.assert_array_equal(np.array(found), want)
    with pytest.raises(ValueError, match="0-d"):
        mx.nonzero(mx.array(1))


@pytest.mark.parametrize("function", [mx.unique_values, mx.unique_all, mx.nonzero])
def test_shapes_that_depend_on_values_cannot_be_traced(function: Any) -> None:
    a = mx.array([[1, 2], [1, 1]])
    for transformed in (mx.compile(function), mx.vmap(function)):
        with pytest.raises(TraceError):
            transformed(a)


def test_results_of_decompositions_have_names() -> None:
    a = mx.array([[2.0, 1.0], [1.0, 3.0]])
    assert mx.linalg.eigh(a)._fields == ("eigenvalues", "eigenvectors")
    assert mx.linalg.qr(a)._fields == ("Q", "R")
    assert mx.linalg.svd(a)._fields == ("U", "S", "Vh")
    assert mx.linalg.slogdet(a)._fields == ("sign", "logabsdet")
    assert mx.compile(mx.linalg.svd)(a).S.tolist() == mx.linalg.svd(a).S.tolist()
    with pytest.raises(ValueError, match="mode must be one of"):
        mx.linalg.qr(a, mode="full")


@pytest.mark.parametrize(
    ("shape", "repeats", "axis"),
    [
        ((4,), [1, 0, 3, 2], None),
        ((2, 3), [2, 0, 1], 1),
        ((2, 3), [0, 0], -2),
        ((2, 3), [1, 2, 3, 0, 0, 1], None),
        ((3,), [2], 0),
        ((0, 2), [], 0),
        ((0,), [3], 0),
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_repeats_of_each_element(shape: tuple[int, ...], repeats: list[int], axis: int | None, dtype: str) -> None:
    a = mx.arange(math.prod(shape)).reshape(shape)
    want = np.repeat(np.array(a), np.array(repeats, int), axis)
    got = mx.repeat(a, mx.array(repeats, getattr(mx, dtype)), axis=axis)
    np.testing.assert_array_equal(np.array(got), want)


def test_transformed_repeats_of_each_element() -> None:
    a, repeats = mx.array([1.0, 2.0, 3.0]), mx.array([2, 0, 1])
    assert mx.grad(lambda x: mx.repeat(x, repeats).square().sum())(a).tolist() == [4, 0, 6]
    assert mx.vmap(lambda x: mx.repeat(x, repeats))(mx.stack([a, -a])).tolist() == [[1, 1, 3], [-1, -1, -3]]
    assert mx.compile(lambda x: mx.repeat(x, repeats))(a).tolist() == [1, 1, 3]
    with pytest.raises(TraceError, match=r"mx\.take"):
        mx.compile(lambda r: mx.repeat(a, r))(repeats)


@pytest.mark.parametrize(
    ("repeats", "error"),
    [
        ([1, 2], r"of shape \(3,\)"),
        ([1, -2, 1], "negative; got -2"),
        ([[1], [2], [3]], r"\(3, 1\)"),
        ([1.0] * 3, "float32"),
    ],
)
def test_wrong_repeats_of_each_element(repeats: list[Any], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        mx.repeat(mx.arange(3), mx.array(repeats))
