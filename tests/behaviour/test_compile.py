"""`compile`: what it returns, when it traces again, and what it caches."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import Counted, assert_close, assert_same_bits, structure
from weft.runtime import recording


def gelu(x: mx.array) -> mx.array:
    return x * (1 + mx.erf(x / 2**0.5)) / 2


def layer_norm(x: mx.array) -> mx.array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred * mx.rsqrt(centred.square().mean(axis=-1, keepdims=True) + 1e-5)


def attention(x: mx.array) -> mx.array:
    scores = x @ x.swapaxes(-1, -2) / x.shape[-1] ** 0.5
    return mx.softmax(scores, axis=-1) @ x


FUNCTIONS: dict[str, Callable[[mx.array], Any]] = {
    "gelu": gelu,
    "layer norm": layer_norm,
    "attention": attention,
    "softmax": lambda x: mx.softmax(x * 3, axis=-1),
    "cross entropy": lambda x: (mx.logsumexp(x, axis=-1) - x[..., 0]).mean(),
    "all reductions": lambda x: [x.sum(), x.mean(axis=0), x.var(axis=-1), x.prod(axis=0), mx.argmax(x, axis=-1)],
    "shared work": lambda x: {"a": mx.exp(x) + 1, "b": mx.exp(x) * 2, "c": (mx.exp(x).sum(), mx.exp(x))},
    "contraction is not allowed": lambda x: x * 1.1 + x * x - 0.3 * x,
    "views": lambda x: (x[:, ::-1].T.reshape(-1) * 2)[1:],
    "dtypes": lambda x: (x.astype(mx.float16) * 3).astype(mx.float32) + (x * 10).astype(mx.int32),
    "divisions": lambda x: x / 3 + 1 / (x + 10) + mx.sqrt(mx.abs(x)) + x**3 + mx.power(mx.abs(x), 0.3),
    "scatter": lambda x: x.at[mx.array([0, 0, 1])].add(1.5) * x,
    "gradient": mx.grad(lambda x: mx.tanh(layer_norm(x) @ x.T).sum()),
    "random": lambda x: x + mx.random.normal(x.shape, key=mx.random.key(3)),
}


@pytest.mark.parametrize("shape", [(2, 1), (3, 5), (17, 33), (64, 1000)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_bits_as_without(name: str, shape: tuple[int, int]) -> None:
    function = FUNCTIONS[name]
    x = mx.array(np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32))
    expected = function(x)
    compiled = mx.compile(function)
    assert_same_bits(compiled(x), expected)
    assert_same_bits(compiled(x), expected)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (1, 1, 1), (2, 3, 4, 5)])
def test_unusual_shapes(shape: tuple[int, ...]) -> None:
    x = mx.random.uniform(shape=shape, key=mx.random.key(0))
    assert_same_bits(mx.compile(gelu)(x), gelu(x))
    assert_same_bits(mx.compile(lambda a: gelu(a).sum())(x), gelu(x).sum())


def test_what_goes_in_may_be_views() -> None:
    whole = mx.arange(60, dtype=mx.float32).reshape(5, 12)
    compiled = mx.compile(lambda x, y: (x * y).sum(axis=0) + x)
    for x, y in [(whole[:, ::2], whole[:, 1::2]), (whole[::-1, :6], mx.broadcast_to(whole[0, :6], (5, 6)))]:
        assert_same_bits(compiled(x, y), (x * y).sum(axis=0) + x)


def test_a_decorator() -> None:
    @mx.compile
    def plain(x: mx.array) -> mx.array:
        return x + 1

    @partial(mx.compile, shapeless=True)
    def shapeless(x: mx.array) -> mx.array:
        return x + 1

    assert plain(mx.array(1)).item() == 2
    assert shapeless(mx.array(1)).item() == 2


def test_results_have_the_structure_of_the_function() -> None:
    def f(x: mx.array) -> Any:
        return {"list": [x, x + 1], "tuple": (x * 2,), "nothing": None, "number": 3, "text": "a"}

    result = mx.compile(f)(mx.array(1.0))
    assert structure(result) == structure(f(mx.array(1.0)))
    assert_same_bits(result, f(mx.array(1.0)))


def test_inputs_constants_and_repeats_as_results() -> None:
    constant = mx.array([1.0, 2.0])
    compiled = mx.compile(lambda x: (x, constant, x + 1, x, mx.zeros((2,))))
    x = mx.array([5.0, 6.0])
    assert [r.tolist() for r in compiled(x)] == [[5.0, 6.0], [1.0, 2.0], [6.0, 7.0], [5.0, 6.0], [0.0, 0.0]]
    assert compiled(x + 1)[0].tolist() == [6.0, 7.0]


def test_no_arguments() -> None:
    assert mx.compile(lambda: mx.ones((2,)) * 3)().tolist() == [3.0, 3.0]


def test_arguments_in_trees_and_by_keyword() -> None:
    @mx.compile
    def f(parameters: dict[str, Any], *, scale: mx.array, power: int = 1) -> mx.array:
        return (parameters["w"][0] * parameters["w"][1] * scale) ** power

    parameters = {"w": [mx.array(2.0), mx.array(3.0)]}
    assert f(parameters, scale=mx.array(10.0)).item() == 60.0
    assert f(parameters, scale=mx.array(10.0), power=2).item() == 3600.0


def test_results_do_not_change_afterwards() -> None:
    """Reuse of memory changes neither returned arrays nor arguments."""
    compiled = mx.compile(lambda x: x * 2)
    x = mx.array([1.0, 2.0])
    first = compiled(x)
    second = compiled(first)
    third = compiled(second)
    mx.eval(third)
    x += 1
    first[0] = 100
    assert (x.tolist(), first.tolist(), second.tolist(), third.tolist()) == ([2, 3], [100, 4], [4, 8], [8, 16])


def test_later_calls_do_not_trace() -> None:
    counted = Counted(lambda x, y: mx.exp(x) + y)
    compiled = mx.compile(counted.function)
    for k in range(5):
        assert compiled(mx.array([0.0]), mx.array([float(k)])).tolist() == [1.0 + k]
    assert counted.calls == 1


def test_the_same_function_compiled_twice_is_traced_once() -> None:
    counted = Counted(lambda x, y: x + y)
    x, y = mx.array([1.0]), mx.array([2.0])
    for _ in range(4):
        assert mx.compile(counted.function)(x, y).tolist() == [3.0]
    assert counted.calls == 1


def describe(x: Any, k: Any = None) -> mx.array:
    arrays = [x, k]
    while any(isinstance(a, list | tuple | dict) for a in arrays):
        arrays = [
            b
            for a in arrays
            for b in (a.values() if isinstance(a, dict) else a if isinstance(a, list | tuple) else [a])
        ]
    total = sum((a.astype(mx.float32).sum() for a in arrays if isinstance(a, mx.array)), start=mx.array(0.0))
    return total + (k if isinstance(k, int | float) else 0)


FIRST = (mx.array([1.0, 2.0]), 3)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param((mx.array([1.0, 2.0, 3.0]), 3), 9.0, id="another size"),
        pytest.param((mx.array([[1.0, 2.0]]), 3), 6.0, id="another number of dimensions"),
        pytest.param((mx.array([1, 2]), 3), 6.0, id="another dtype"),
        pytest.param((mx.array([1.0, 2.0]), 4), 7.0, id="another constant"),
        pytest.param((mx.array([1.0, 2.0]),), 3.0, id="fewer arguments"),
        pytest.param((mx.array([1.0, 2.0]), mx.array(3.0)), 6.0, id="an array for a constant"),
        pytest.param(([mx.array([1.0, 2.0])], 3), 6.0, id="another structure"),
        pytest.param(([mx.array([1.0]), mx.array([2.0])], 3), 6.0, id="another number of inputs"),
        pytest.param(({"a": mx.array([1.0, 2.0])}, 3), 6.0, id="a dict"),
    ],
)
def test_what_traces_again(args: tuple[Any, ...], expected: float) -> None:
    counted = Counted(describe)
    compiled = mx.compile(counted.function)
    assert compiled(*FIRST).item() == 6.0
    assert compiled(*args).item() == expected
    assert counted.calls == 2
    assert compiled(*FIRST).item() == 6.0
    assert compiled(*args).item() == expected
    assert counted.calls == 2


def test_another_key_of_a_dict_traces_again() -> None:
    compiled = mx.compile(lambda d: d["a"] if "a" in d else -d["b"])
    assert compiled({"a": mx.array(1.0)}).item() == 1.0
    assert compiled({"b": mx.array(1.0)}).item() == -1.0


def test_lists_and_tuples_are_told_apart() -> None:
    compiled = mx.compile(lambda pair: pair[0] if isinstance(pair, list) else pair[1])
    x, y = mx.array(1.0), mx.array(2.0)
    assert compiled([x, y]).item() == 1.0
    assert compiled((x, y)).item() == 2.0


def test_nested_structures_with_equal_leaves_are_told_apart() -> None:
    compiled = mx.compile(lambda tree: len(tree) * tree[0][0])
    x = mx.array(1.0)
    assert compiled([[x, x], [x]]).item() == 2.0
    assert compiled([[x], [x], [x]]).item() == 3.0


@pytest.mark.parametrize(
    ("constants", "function"),
    [
        ((True, 1, 1.0), lambda x, k: x * 2 if k is True else x * k),
        ((1, 1.0, True), lambda x, k: x + k),
        ((0.0, -0.0, 0), lambda x, k: 1 / (x * 0 + k)),
        (("a", "b", None), lambda x, k: x if k == "a" else x * 3 if k is None else -x),
        ((float("inf"), float("-inf"), float("nan")), lambda x, k: mx.minimum(x.astype(mx.float32), k)),
    ],
)
def test_constants_that_look_alike(constants: tuple[Any, ...], function: Callable[..., mx.array]) -> None:
    compiled = mx.compile(function)
    x = mx.array([1, 2])
    for _ in range(2):
        for constant in constants:
            assert_same_bits(compiled(x, constant), function(x, constant))


def test_captured_arrays_are_constants() -> None:
    state = [mx.array(1.0)]
    compiled = mx.compile(lambda x: x + state[0])
    assert compiled(mx.array(2.0)).item() == 3.0
    state[0] = mx.array(50.0)
    assert compiled(mx.array(2.0)).item() == 3.0


def test_equal_arrays_of_no_arguments_are_one() -> None:
    """So are arrays computed from them."""

    def made(x: mx.array) -> mx.array:
        return mx.sort(x * mx.exp(mx.arange(5.0)), axis=-1)

    compiled = mx.compile(lambda x, y: made(x) + made(x) * y)
    x, y = mx.ones((3, 5)), mx.full((3, 5), 2.0)
    with recording.recorded() as recorder:
        mx.eval(compiled(x, y))
    assert str(recorder.runs[-1].plan).count("call sort") == 1
    assert_same_bits(compiled(x, y), made(x) * 3)


def test_methods_of_two_objects_are_two_functions() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __call__(self, x: mx.array) -> mx.array:
            return x * self.factor

        def apply(self, x: mx.array) -> mx.array:
            return x * self.factor

    two, three = Scale(2.0), Scale(3.0)
    x = mx.array(1.0)
    assert [mx.compile(s.apply)(x).item() for s in (two, three, two)] == [2.0, 3.0, 2.0]
    assert [mx.compile(s)(x).item() for s in (two, three)] == [2.0, 3.0]
    assert mx.compile(partial(two.apply))(x).item() == 2.0


def test_a_new_function_never_finds_the_cache_of_a_dead_one() -> None:
    """Functions that are created and deleted often get the same address."""
    x = mx.array(1.0)
    for k in range(50):
        assert mx.compile(lambda a, k=k: a + k)(x).item() == 1.0 + k


def test_what_is_cached_goes_with_the_function() -> None:
    class Token:
        pass

    def compile_and_forget() -> list[weakref.ref[Any]]:
        token, constant = Token(), mx.ones((1000,))

        def f(x: mx.array) -> mx.array:
            return x + constant if token else x

        mx.eval(mx.compile(f)(mx.ones((1000,))))
        return [weakref.ref(token), weakref.ref(f)]

    references = compile_and_forget()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_lambda_compiled_in_a_loop_leaks_nothing() -> None:
    x = mx.ones((1 << 14,))
    mx.eval(x)

    def one_round() -> None:
        constant = mx.random.normal((1 << 14,))
        mx.eval(mx.compile(lambda a: a * constant + 1)(x))

    for _ in range(5):
        one_round()
    gc.collect()
    memory, objects = mx.get_active_memory(), len(gc.get_objects())
    for _ in range(100):
        one_round()
    gc.collect()
    assert mx.get_active_memory() <= memory
    assert len(gc.get_objects()) - objects < 100


def test_what_the_function_raises_comes_through() -> None:
    attempts = []

    @mx.compile
    def f(x: mx.array) -> mx.array:
        attempts.append(1)
        if len(attempts) == 1:
            raise LookupError("not today")
        return x + 1

    with pytest.raises(LookupError, match="not today"):
        f(mx.array(1.0))
    assert f(mx.array(1.0)).item() == 2.0
    assert len(attempts) == 2


def test_arguments_that_are_neither_arrays_nor_constants() -> None:
    with pytest.raises(ValueError, match="object"):
        mx.compile(lambda x, y: x)(mx.array(1.0), object())


def test_nested_compiled_functions_become_one() -> None:
    inner, outer = Counted(lambda x: mx.sin(x) + 1), Counted(lambda x: compiled_inner(x) * compiled_inner(x * 2))
    compiled_inner = mx.compile(inner.function)
    compiled = mx.compile(outer.function)
    x = mx.array([0.5, 1.0])
    expected = outer.function(x)
    inner.calls = outer.calls = 0
    for _ in range(3):
        assert_same_bits(compiled(x), expected)
    assert outer.calls == 1
    assert inner.calls <= 1


def test_gradient_of_compiled_and_compiled_gradient() -> None:
    def loss(x: mx.array) -> mx.array:
        return layer_norm(gelu(x)).square().mean() + x.sum()

    x = mx.random.normal((5, 7), key=mx.random.key(2))
    expected = mx.grad(loss)(x)
    assert_same_bits(mx.grad(mx.compile(loss))(x), expected)
    assert_same_bits(mx.compile(mx.grad(loss))(x), expected)
    assert_same_bits(mx.compile(mx.grad(mx.compile(loss)))(x), expected)


def test_a_compiled_function_that_recurses_over_its_own_arguments() -> None:
    @mx.compile
    def power(x: mx.array, n: int) -> mx.array:
        return x if n == 1 else x * power(x, n - 1)

    assert power(mx.array(2.0), 5).item() == 32.0
    assert power(mx.array(3.0), 4).item() == 81.0


def test_without_a_state_random_numbers_are_constants() -> None:
    compiled = mx.compile(lambda: mx.random.uniform(shape=(3,)))
    assert compiled().tolist() == compiled().tolist()
    assert mx.random.uniform(shape=(3,)).tolist() != mx.random.uniform(shape=(3,)).tolist()


def test_many_shapes_stay_cached() -> None:
    counted = Counted(lambda x: (x * 2).sum())
    compiled = mx.compile(counted.function)
    for _ in range(2):
        assert_close([compiled(mx.ones((n,))) for n in range(20)], [2.0 * n for n in range(20)])
    assert counted.calls == 20


def test_numbers_that_are_broadcast_and_computed_with_take_no_memory() -> None:
    def scaled(x: mx.array) -> mx.array:
        return (x * (mx.full((1000, 1000), 0.1, mx.float16).astype(mx.float32) * 3 + 1)).sum(axis=0)

    x = mx.random.normal((1000, 1000))
    expected = scaled(x)
    mx.eval(expected)
    before = mx.get_active_memory()
    compiled = mx.compile(scaled)
    result = compiled(x)
    mx.eval(result)
    assert mx.get_active_memory() - before < x.nbytes // 2
    assert_same_bits(result, expected)
