"""Random programs have the same bits in every way of running them, and are close to NumPy's results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.checks import assert_same_bits, run_python
from tests.programs import Program, programs
from tests.sampling import examples
from weft.compiler.planning import plan
from weft.compiler.running import evaluate
from weft.runtime import executor


@pytest.fixture(autouse=True, scope="module")
def _donated_from_one_byte() -> Iterator[None]:
    """Donation for arrays of any size, because those of these programs are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "DONATED_BYTES", 0)
        patch.setattr(plan, "DONATED_BYTES_IN_ALL", 0)
        evaluate.forget_plans()
        yield
    evaluate.forget_plans()


def check_every_way_of_running(program: Program) -> None:
    expected = program(*program.arrays())
    mx.eval(expected)
    assert_same_bits(program(*program.arrays(), after_each=mx.eval), expected)
    compiled = mx.compile(program.__call__)
    assert_same_bits(compiled(*program.arrays()), expected)
    assert_same_bits(compiled(*program.arrays()), expected)
    assert_same_bits(mx.compile(lambda *inputs: program(*inputs))(*program.arrays()), expected)


@examples(40)
@given(programs())
def test_the_same_bits_eager_step_by_step_and_compiled(program: Program) -> None:
    check_every_way_of_running(program)


@pytest.mark.slow
@examples(2000)
@given(programs())
def test_the_same_bits_eager_step_by_step_and_compiled_at_length(program: Program) -> None:
    check_every_way_of_running(program)


def check_close_to_numpy(program: Program) -> None:
    for got, wanted in zip(program(*program.arrays()), program.in_numpy(), strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(np.array(got), wanted, rtol=1e-4, atol=1e-4)


@examples(40)
@given(programs(smooth=True))
def test_close_to_numpy(program: Program) -> None:
    check_close_to_numpy(program)


@pytest.mark.slow
@examples(2000)
@given(programs(smooth=True))
def test_close_to_numpy_at_length(program: Program) -> None:
    check_close_to_numpy(program)


def total(program: Program) -> Callable[..., mx.array]:
    def loss(*inputs: mx.array) -> mx.array:
        return sum((mx.sin(value).sum() for value in program(*inputs)), start=mx.array(0.0))

    return loss


@examples(20)
@given(programs(smooth=True))
def test_gradients_have_the_same_bits_eager_and_compiled(program: Program) -> None:
    for position, argument in enumerate(program.inputs):
        gradient = mx.grad(total(program), argnums=position)
        expected = gradient(*program.arrays())
        assert expected.shape == argument.shape
        assert_same_bits(mx.compile(gradient)(*program.arrays()), expected)
        assert_same_bits(mx.compile(mx.grad(mx.compile(total(program)), position))(*program.arrays()), expected)


@examples(20)
@given(programs(smooth=True), st.integers(2, 4))
def test_vmap_equals_a_loop(program: Program, count: int) -> None:
    batches = [mx.stack([x * (1 + 0.1 * k) for k in range(count)]) for x in program.arrays()]
    mapped = mx.vmap(lambda *inputs: program(*inputs))(*batches)
    looped = [program(*(batch[k] for batch in batches)) for k in range(count)]
    for position, got in enumerate(mapped):
        wanted = np.stack([np.array(results[position]) for results in looped])
        np.testing.assert_allclose(np.array(got), wanted, rtol=1e-4, atol=1e-4)


@pytest.fixture
def set_thread_count() -> Iterator[Callable[[int], Any]]:
    """A function that sets the number of threads; the former number is restored afterwards."""
    before = executor.thread_count()
    yield executor.set_thread_count
    executor.set_thread_count(before)


@examples(20)
@given(program=programs(large=True))
def test_the_same_bits_with_one_thread_and_with_two(program: Program, set_thread_count: Callable[[int], Any]) -> None:
    results = []
    for count in (1, 2, 3):
        set_thread_count(count)
        results.append(program(*program.arrays()))
        mx.eval(results[-1])
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


LARGE_REDUCTIONS = """
    import hashlib
    import numpy as np
    import weft.core as mx

    generator = np.random.default_rng(0)
    for shape in [(1_000_003,), (1000, 1003), (3, 300_001), (300_001, 3), (70, 70, 70)]:
        x = mx.array(generator.normal(size=shape).astype(np.float32))
        last = mx.softmax(x, axis=-1)
        results = [x.sum(), x.sum(axis=0), x.mean(axis=-1), mx.logsumexp(x), x.var(axis=0), x.max(axis=0), last]
        results.append(mx.grad(lambda a: mx.square(a - a.mean()).sum())(x))
        results.append(mx.random.normal(shape, key=mx.random.key(1)))
        print([hashlib.sha256(np.array(result).tobytes()).hexdigest()[:16] for result in results])
"""


def test_large_reductions_do_not_depend_on_the_number_of_threads() -> None:
    outputs = {run_python(LARGE_REDUCTIONS, WEFT_NUM_THREADS=str(count)) for count in (1, 3)}
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == 5


LAYOUTS: dict[str, Callable[[mx.array], mx.array]] = {
    "transposed": lambda x: x.T.reshape(x.shape[::-1]).T,
    "shifted": lambda x: mx.concatenate([x[:1], x])[1:],
    "strided": lambda x: mx.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: x[::-1][::-1],
    "column-major": lambda x: (x.T + 0).T,
}

LAYOUT_WORK: dict[str, Callable[[mx.array], Any]] = {
    "sum": lambda x: [x.sum(), x.sum(axis=0), x.sum(axis=1)],
    "softmax": lambda x: mx.softmax(x, axis=-1),
    "elementwise": lambda x: mx.exp(x) * mx.sin(x) + x,
    "variance": lambda x: x.var(axis=1) + x.var(),
}


@pytest.mark.parametrize("work", LAYOUT_WORK)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_depend_on_the_values_not_on_where_they_lie(layout: str, work: str) -> None:
    """The order of a reduction depends on the shape alone, not on strides or alignment."""
    x = mx.array(np.random.default_rng(1).normal(size=(67, 131)).astype(np.float32))
    elsewhere = LAYOUTS[layout](x)
    mx.eval(elsewhere)
    assert_same_bits(elsewhere, x)
    assert_same_bits(LAYOUT_WORK[work](elsewhere), LAYOUT_WORK[work](x))


def test_the_same_bits_in_another_process() -> None:
    program = """
        import numpy as np
        import weft.core as mx
        x = mx.array(np.linspace(-3, 3, 1000, dtype=np.float32).reshape(10, 100))
        y = mx.softmax(mx.tanh(x) @ x.T, axis=-1).sum(axis=0) + mx.exp(x).sum()
        print(np.array(y).tobytes().hex())
    """
    assert run_python(program) == run_python(program)
