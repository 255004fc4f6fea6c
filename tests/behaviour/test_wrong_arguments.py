"""Every public function with invalid arguments: it accepts them, or raises at once an error that names the function and
what is wrong.

No functions are listed here: their own examples show how they are called, and each argument of such a call is replaced
by members of `UNFIT`. A new function is tested as soon as its docstring has an example.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import leaves
from tests.examples import Example, example_of, public_functions
from tests.sampling import Cases

HUGE = 10**400


class Thing:
    """An object of a class that Weft does not know."""


UNFIT: list[Any] = [
    None, True, -1, 1.5, float("nan"), float("inf"), 1j, HUGE, -(10**30), 10**5000, "x", b"x", [], [None], [1.5], [[1]],
    (1, "x"), ((1, 2),), {}, Thing(), len, int, mx.float32, mx.array(1), mx.array([[0.5, 1.5]]), np.array([1.5, 2.5]),
    mx.array([1 + 1j] * 5), mx.zeros((0, 7)), mx.array([[[True]] * 3] * 3),
]  # fmt: skip

SAMPLED = 6
"""Each function gets this many of them in a run of the gate; the seed draws which."""

NUMBERS = [(0, np.int32(0)), (1, np.int64(1)), (2, np.int8(2)), (3, np.int64(3)), (0.5, np.float32(0.5))]

LEFT_OUT = {
    "mx.ArrayAt": "users write a.at",
    "mx.ArrayIterator": "users write iter(a)",
    "mx.FunctionExporter": "users write mx.exporter(...)",
    "mx.fast.cuda_kernel": "it is not available, whatever the arguments",
    "mx.fast.metal_kernel": "what it gives cannot run, whatever the arguments",
    "mx.fast.precompiled_cuda_kernel": "it is not available, whatever the arguments",
    "mx.Dtype": "there is one of each, and no others are made",
    "mx.Stream": "users write mx.new_stream(device)",
    "mx.StreamContext": "users write mx.stream(s)",
    "mx.ThreadLocalStream": "users write mx.new_thread_local_stream(device)",
}
"""Callables that users do not call."""

KNOWN: dict[tuple[str, str], str] = {}
"""Arguments whose errors are not clear yet."""

PYTHON_ONLY = {("mx.compile", "inputs"): "a constant is a number of Python's; the error says how to get one"}
"""Arguments that do not accept NumPy's numbers."""

FUNCTIONS = {name: one for name, one in public_functions().items() if name not in LEFT_OUT}


@pytest.fixture(autouse=True)
def _settings_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # for functions that write files
    stream, cache, memory = mx.default_stream(mx.cpu), mx.set_cache_limit(1 << 30), mx.set_memory_limit(1 << 40)
    yield
    mx.set_default_stream(stream)
    mx.set_cache_limit(cache)
    mx.set_memory_limit(memory)
    mx.set_printoptions()


def with_argument(function: Callable[..., Any], example: Example, name: str, value: Any) -> tuple[list[Any], Any]:
    """The arguments of an example, with another one for the parameter ``name``."""
    signature = inspect.signature(function)
    given = signature.bind(*example.args, **example.kwargs).arguments
    positional: list[Any] = []
    by_name: dict[str, Any] = {}
    for key, parameter in signature.parameters.items():
        found = given.get(key, parameter.default)
        if parameter.kind is parameter.VAR_POSITIONAL:
            found = () if found is parameter.empty else found
            positional += [value, *found[1:]] if key == name else found
        elif parameter.kind is parameter.VAR_KEYWORD:
            found = {} if found is parameter.empty else found
            by_name |= {**found, next(iter(found), "name"): value} if key == name else found
        elif parameter.kind is parameter.KEYWORD_ONLY:
            by_name[key] = value if key == name else found
        else:
            positional.append(value if key == name else found)
    return positional, by_name


def is_array(parameter: inspect.Parameter) -> bool:
    """Whether a number is as valid as an array, so that no later error is possible."""
    return parameter.annotation in ("Array", "mx.array") or parameter.name in ("a", "b")


def outcome(function: Callable[..., Any], example: Example, parameter: inspect.Parameter, value: Any) -> Any:
    """The computed result of the call, or of a call of the result if the example has one."""
    args, kwargs = with_argument(function, example, parameter.name, value)
    result = function(*args, **kwargs)
    if example.then and callable(result):
        more, by_name = example.then[0]
        result = result(*more, **by_name)
    if not is_array(parameter):
        mx.eval([leaf for leaf in leaves(result) if isinstance(leaf, mx.array)])
    return result


def complaint(name: str, parameter: inspect.Parameter, value: Any, error: Exception) -> str:
    """What is wrong with an error, or "" if it is clear."""
    if any(frame.filename == "<example>" for frame in traceback.extract_tb(error.__traceback__)):
        return ""  # a function of the example raised it
    short = name.rpartition(".")[2]
    said = re.match(r"\[([\w.]+)(\(.*?\))?\] .", str(error))
    is_named = said and said[1].rpartition(".")[2] == short
    is_flag = isinstance(parameter.default, bool) and "truth value" in str(error)
    if isinstance(error, (TypeError, ValueError, IndexError)) and (is_named or is_flag):
        return ""
    if isinstance(error, FileNotFoundError) or "required positional argument" in str(error):
        return ""  # Python's own error, for a file or a function of the example
    shown = type(value).__name__ if isinstance(value, int) else repr(value)
    return f"{parameter.name}={shown}: {type(error).__name__}: {str(error)[:200]}"


def complaints(name: str, parameter: inspect.Parameter, example: Example, values: Iterable[Any]) -> list[str]:
    found = []
    for value in values:
        if callable(value) and re.search("Callable|Function|Schedule", str(parameter.annotation)):
            continue
        try:
            outcome(FUNCTIONS[name], example, parameter, value)
        except Exception as error:
            found.append(complaint(name, parameter, value, error))
    return [one for one in found if one]


@pytest.mark.some_checks
@pytest.mark.parametrize("name", FUNCTIONS)
def test_unfit_arguments_are_taken_or_refused_in_the_name_of_the_function(name: str, cases: Cases) -> None:
    function = FUNCTIONS[name]
    example = example_of(function)
    assert example is not None, f"the docstring of {name} needs an example that calls it"
    for parameter in inspect.signature(function).parameters.values():
        values = [UNFIT[number] for number in cases.some(SAMPLED, range(len(UNFIT)))]
        found = complaints(name, parameter, example, values)
        if (name, parameter.name) in KNOWN:
            assert found or not cases.complete, f"{name}({parameter.name}) is clear now: remove it from KNOWN"
        else:
            assert not found, "\n".join([f"{name} with", *found])


def same(left: Any, right: Any) -> bool:
    """Whether arrays are equal apart from their dtypes: an array made of a NumPy number has that number's dtype."""
    pairs = list(zip(leaves(left), leaves(right), strict=True))
    arrays = [(np.array(a), np.array(b)) for a, b in pairs if isinstance(a, mx.array)]
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in arrays)


@pytest.mark.some_rows(40)
@pytest.mark.some_checks
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_of_numpy_are_as_good_as_those_of_python(name: str, cases: Cases) -> None:
    function = FUNCTIONS[name]
    example = example_of(function)
    assert example is not None
    for parameter in inspect.signature(function).parameters.values():
        if (name, parameter.name) in PYTHON_ONLY or is_array(parameter):
            continue
        booleans = [(True, np.True_)] if isinstance(parameter.default, bool) else []
        for plain, number in [*cases.some(3, NUMBERS), *booleans]:
            mx.random.seed(0)
            try:
                expected = outcome(function, example, parameter, plain)
            except (TypeError, ValueError, IndexError):
                continue
            mx.random.seed(0)
            result = outcome(function, example, parameter, number)
            assert same(result, expected), f"{parameter.name}={number!r}: {result} is not {expected}"


X = mx.array([1.0, 2.0])

UNTYPED: Any = mx  # expressions that mypy would refuse

TOO_LARGE: dict[str, tuple[Callable[[], Any], str]] = {
    "a sum": (lambda: X + HUGE, r"\[add\] b: the integer 1000.* beyond all floating numbers; use mx\.inf"),
    "a difference": (lambda: -HUGE - X, r"\[subtract\] a: the integer -1000"),
    "a power": (lambda: X**HUGE, r"\[power\] b: the integer 1000"),
    "a comparison": (lambda: X < HUGE, r"\[less\] b: the integer 1000"),
    "too long to print": (lambda: X * 10**5000, r"\[multiply\] b: the integer <16610 bits>"),
    "an array of floats": (lambda: mx.array(HUGE, mx.float32), r"\[array\] val: the integer 1000"),
    "a list": (lambda: mx.array([1, HUGE]), r"\[array\] an element: the integer 1000"),
    "beside an array": (lambda: mx.array([X[0], HUGE]), r"\[array\] an element: the integer 1000"),
    "many": (lambda: mx.full((2,), HUGE, mx.float16), r"\[full\] vals: the integer 1000"),
    "nan as an int": (lambda: mx.array(mx.nan, mx.int32), r"\[array\] val: nan does not fit int32"),
    "nan around ints": (lambda: mx.pad(mx.arange(2), 1, constant_values=mx.nan), r"\[pad\] constant_values: nan"),
    "infinity among ints": (lambda: mx.arange(2).at[0].add(mx.inf), r"\[at.add\] value: inf does not fit int32"),
    "a range": (lambda: mx.arange(HUGE, HUGE + 3), r"\[arange\] start: the integer"),
    "a range beyond int64": (lambda: mx.arange(2**64, 2**64 + 3), r"\[arange\] .* 64 bits"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_numbers_that_do_not_fit(name: str) -> None:
    call, message = TOO_LARGE[name]
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_types_that_have_no_place() -> None:
    with pytest.raises(TypeError, match=r"^\[add\] b: NumPy data of dtype dtype\('O'\) has no equivalent"):
        mx.add(X, np.array([None]))
    with pytest.raises(TypeError, match=r"^\[addmm\] alpha must be an int or a float; got 1j"):
        UNTYPED.addmm(X, X, mx.eye(2), 1j)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n: mx.sum(X, axis=n), r"\[sum\] An axis must be an int; got a value of type array"),
        (lambda n: mx.zeros(n), r"\[zeros\] A shape must be an int or a sequence of ints; got a value of type array"),
        (lambda n: mx.zeros((2,), n), r"\[zeros\] dtype must be one of .*; got a value of type array"),
        (lambda n: mx.add(X, X, stream=n), r"\[add\] stream must be a stream .*; got a value of type array"),
        (lambda n: mx.add(X, [n]), r"\[add\] b must be an array, .*; got a value of type list"),
    ],
)
def test_an_array_that_is_traced_is_not_printed_to_refuse_it(call: Callable[[mx.array], Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}"):
        mx.compile(call)(mx.array(1))


@pytest.mark.parametrize("far", [2**31 - 1, 2**31, 2**32, 2**40])
def test_diagonals_far_away_are_beyond_the_matrix(far: int) -> None:
    ones = mx.ones((2, 3))
    for k in (far, -far):
        assert mx.eye(2, 3, k).tolist() == [[0.0] * 3] * 2
        assert mx.diagonal(ones, k).tolist() == []
        inside = [[float(k > 0)] * 3] * 2
        assert mx.tri(2, 3, k).tolist() == mx.tril(ones, k).tolist() == inside
        assert mx.triu(ones, k).tolist() == [[float(k < 0)] * 3] * 2


def test_ints_rounded_to_more_digits_than_they_have() -> None:
    assert mx.round(mx.array([123, -7]), -(10**15)).tolist() == [0, 0]


def test_a_checked_function_is_called_by_its_name() -> None:
    """Checks called by public functions find the name of the public function."""
    for call, name in (
        (lambda: UNTYPED.array(X).sum(stream=3), "sum"),
        (lambda: X.reshape(2, 1, stream=3), "reshape"),
        (lambda: UNTYPED.Device(3), "Device"),
        (lambda: mx.compile(lambda x: UNTYPED.exp(x, stream=3))(X), "exp"),
    ):
        with pytest.raises(TypeError, match=rf"^\[{name}\] "):
            call()
