"""Memory of arrays without references is reused: outputs are written where inputs were."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.compiler.running import evaluate, run

pytestmark = pytest.mark.usefixtures("donated_from_one_byte")
SIZE = 1 << 12


def address(x: mx.array) -> int:
    """The address of the elements."""
    mx.eval(x)
    return int(np.array(x, copy=False).__array_interface__["data"][0])


def values(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


IN_PLACE: dict[str, Callable[[mx.array], mx.array]] = {
    "elementwise": lambda x: mx.exp(x) * x + 1,
    "rows": lambda x: mx.softmax(x, axis=-1),
    "another type of the same size": lambda x: (x > 0).astype(mx.int32),
    "broadcast operands": lambda x: x * mx.arange(64.0) - 2,
    "one operation": lambda x: -x,
    "one operation with a number": lambda x: x + 1,
    "one operation on the same array twice": lambda x: x * x,
}
NOT_IN_PLACE: dict[str, Callable[[mx.array], mx.array]] = {
    "transposed": lambda x: x.T + 0,
    "reversed": lambda x: x[::-1] * 2,
    "elements that others need": lambda x: x + x[0],
    "what the result shows": lambda x: x.reshape(-1),
    "a sum of rows": lambda x: x - x.sum(axis=0),
    "a product": lambda x: x @ x.T,
    "a larger type": lambda x: x.astype(mx.float64),
    "gathered": lambda x: x[mx.array([2, 1, 0])[:, None], mx.arange(64)],
}


@pytest.mark.parametrize("name", [*IN_PLACE, *NOT_IN_PLACE])
def test_results_are_the_same_with_and_without(name: str) -> None:
    function = (IN_PLACE | NOT_IN_PLACE)[name]
    x = values(64, 64)
    expected = function(x)
    y = values(64, 64)
    mx.eval(x, y, expected)
    y = function(y)
    mx.eval(y)
    np.testing.assert_array_equal(np.array(y), np.array(expected))
    np.testing.assert_array_equal(np.array(x), np.array(values(64, 64)))


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_array_that_nobody_else_holds_gives_its_memory_to_the_result(name: str) -> None:
    x = values(64, 64)
    before = address(x)
    x = IN_PLACE[name](x)
    assert address(x) == before


def evaluated(x: mx.array) -> mx.array:
    mx.eval(x)
    return x


HOLDERS: dict[str, Callable[[mx.array], Any]] = {
    "another name": lambda x: x,
    "a list": lambda x: [x],
    "a view": lambda x: x[1:],
    "an evaluated view": lambda x: evaluated(x.reshape(-1)),
    "a lazy expression": lambda x: x * 5,
    "NumPy": lambda x: np.array(x, copy=False),
    "a copy of the handle": lambda x: mx.stop_gradient(x),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_an_array_that_somebody_holds_is_left_alone(name: str) -> None:
    x = values(64, 64)
    mx.eval(x)
    holder = HOLDERS[name](x)
    wanted = np.array(holder[0] if isinstance(holder, list) else HOLDERS[name](values(64, 64)))
    x = x + 1
    mx.eval(x)
    np.testing.assert_array_equal(np.array(holder[0] if isinstance(holder, list) else holder), wanted)


def test_several_outputs_take_several_inputs() -> None:
    x, y = values(SIZE), values(SIZE, seed=1)
    wanted = [np.array(x) + np.array(y), np.array(x) - np.array(y)]
    mx.eval(x, y)
    x, y = x + y, x - y
    mx.eval(x, y)
    for found, right in zip((x, y), wanted, strict=True):
        np.testing.assert_array_equal(np.array(found), right)


TWO: dict[str, Callable[[mx.array, mx.array], tuple[mx.array, mx.array]]] = {
    "the second still needs what the first replaces": lambda x, y: (x + 1, y * 2),
    "the other way round": lambda x, y: (y * 2, x + 1),
    "both need both": lambda x, y: (x * y + 1, x - y),
    "a later pass over the row": lambda x, y: (
        mx.softmax(x),
        mx.vjp(lambda x: mx.softmax(x), [x], [y])[1][0],
    ),
    "a result of an earlier pass": lambda x, y: (x - x.max(), (y - y.mean()) * x),
    "rows": lambda x, y: (mx.softmax(x, axis=-1) * y, mx.logsumexp(y, axis=-1, keepdims=True) + x),
    "columns": lambda x, y: (x - x.sum(axis=0) + y, y / (1 + y.max(axis=0) - x)),
}


@pytest.mark.parametrize("which", ["neither", "first", "second"])
@pytest.mark.parametrize("name", TWO)
def test_two_results_of_two_arrays_that_end(name: str, which: str) -> None:
    for shape in ((4, 6), (64, 64), (3, 5000)):
        x, y = values(*shape), values(*shape, seed=1)
        wanted = [np.array(result) for result in TWO[name](x, y)]
        x, y = values(*shape), values(*shape, seed=1)
        held = {"neither": None, "first": x, "second": y}[which]
        mx.eval(x, y)
        x, y = TWO[name](x, y)
        mx.eval(x, y)
        for found, right in zip((x, y), wanted, strict=True):
            np.testing.assert_array_equal(np.array(found), right)
        del held


def test_what_a_gradient_still_needs_is_left_alone() -> None:
    def f(x: mx.array) -> mx.array:
        y = mx.exp(x)
        mx.eval(y)
        z = y * y
        mx.eval(z)
        return (z * y).sum()

    x = values(100)
    np.testing.assert_allclose(np.array(mx.grad(f)(x)), 3 * np.exp(3 * np.array(x).astype(np.float64)), rtol=1e-5)


def test_what_a_gradient_needs_and_no_name_holds_is_left_alone() -> None:
    held = [evaluated(values(100, seed=1))]
    wanted = np.array(held[0])

    def f(x: mx.array) -> mx.array:
        return evaluated(x * held.pop()).sum()

    np.testing.assert_array_equal(np.array(mx.grad(f)(evaluated(values(100)))), wanted)


def test_a_loop_holds_one_buffer() -> None:
    x = values(1 << 16)
    mx.eval(x)
    gc.collect()
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    for _ in range(5):
        x = x * 0.5 + 1
        mx.eval(x)
    assert mx.get_peak_memory() == held


def training(layers: int = 2) -> tuple[nn.Module, optim.Optimizer, Callable[[mx.array], mx.array], list[Any]]:
    mx.random.seed(3)
    model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(layers)])
    optimizer = optim.Adam(1e-2)
    optimizer.init(model.trainable_parameters())
    loss_and_gradients = nn.value_and_grad(model, lambda x: model(x).square().mean())

    def step(x: mx.array) -> mx.array:
        loss, gradients = loss_and_gradients(x)
        optimizer.update(model, gradients)
        return loss

    state = [model.state, optimizer.state]
    mx.eval(state)
    return model, optimizer, step, state


@pytest.mark.parametrize("rows", [8, 512], ids=["at once", "by the worker"])
def test_a_compiled_training_step_updates_parameters_in_place(rows: int) -> None:
    model, _, step, state = training()
    compiled = mx.compile(step, inputs=state, outputs=state)
    x = values(rows, 32)
    addresses = [[address(layer.weight) for layer in model.layers]]
    with mx.stream(mx.new_stream(mx.cpu)):
        for _ in range(5):
            mx.eval(compiled(x), state)
            addresses.append([address(layer.weight) for layer in model.layers])
    assert addresses[1:] == addresses[:-1]


def test_a_compiled_training_step_trains_as_without() -> None:
    model, _, step, state = training()
    x = values(8, 32)
    compiled = mx.compile(step, inputs=state, outputs=state)
    losses = [compiled(x).item() for _ in range(6)]
    found = [np.array(layer.weight) for layer in model.layers]
    model, _, step, _ = training()
    assert losses == [step(x).item() for _ in range(6)]
    for weight, layer in zip(found, model.layers, strict=True):
        np.testing.assert_array_equal(weight, np.array(layer.weight))


def test_a_parameter_that_somebody_holds_keeps_its_value() -> None:
    model, optimizer, step, state = training()
    compiled = mx.compile(step, inputs=state, outputs=state)
    x = values(8, 32)
    compiled(x)
    compiled(x)
    held = [model.layers[0].weight, optimizer.state["step"]]
    shown = np.array(model.layers[1].weight, copy=False)
    before = [np.array(array) for array in held], shown.copy()
    compiled(x)
    compiled(x)
    for array, value in zip(held, before[0], strict=True):
        np.testing.assert_array_equal(np.array(array), value)
    np.testing.assert_array_equal(shown, before[1])
    assert not np.array_equal(np.array(model.layers[0].weight), before[0][0])


def test_what_is_updated_gives_its_memory_to_the_result() -> None:
    """Not to another result of the same size; and the result does not take memory of an argument that is read
    earlier."""
    state = [mx.zeros((64, 32)), mx.zeros((64, 32)), mx.array([0])]
    mx.eval(state)

    def step(table: mx.array) -> mx.array:
        keys, numbers, place = state
        row = table[place] * 2
        state[0], state[1] = (mx.slice_update(old, row, place, axes=(0,)) for old in (keys, numbers))
        state[2] = place + 1
        return mx.softmax(row @ state[0].T) @ state[1]

    compiled, table = mx.compile(step, inputs=state, outputs=state), values(64, 32)
    addresses = []
    for _ in range(5):
        mx.eval(compiled(table), state)
        addresses.append([address(x) for x in state[:2]])
    assert addresses[1:] == addresses[:-1]
    for x in state[:2]:
        np.testing.assert_array_equal(np.array(x)[:5], 2 * np.array(table)[:5])


def test_what_the_function_leaves_alone_stays() -> None:
    state = {"w": values(SIZE), "frozen": values(SIZE, seed=1)}
    frozen = np.array(state["frozen"])

    def step(x: mx.array) -> mx.array:
        state["w"] = state["w"] + x * state["frozen"]
        return state["w"].sum()

    compiled = mx.compile(step, inputs=state, outputs=state)
    w = np.array(state["w"])
    for _ in range(4):
        compiled(mx.array(2.0))
        w = w + np.float32(2) * frozen
    np.testing.assert_array_equal(np.array(state["w"]), w)
    np.testing.assert_array_equal(np.array(state["frozen"]), frozen)


def test_a_state_that_changes_between_calls() -> None:
    state: dict[str, Any] = {"w": mx.array(1.0)}

    def step(x: mx.array) -> mx.array:
        state["w"] = state["w"] + x
        return state["w"] * len(state)

    compiled = mx.compile(step, inputs=state, outputs=state)
    x = mx.array(1.0)
    assert [compiled(x).item() for _ in range(3)] == [2.0, 3.0, 4.0]
    state["more"] = mx.array(0.0)
    assert compiled(x).item() == 10.0
    del state["more"]
    state["w"] = mx.array([1.0, 2.0])
    assert compiled(x).tolist() == [2.0, 3.0]
    state["w"] = mx.array(7)
    assert compiled(x).item() == 8.0
    state["w"] = "seven"
    with pytest.raises((TypeError, ValueError)):
        compiled(x)
    state["w"] = mx.array(1.0)
    assert compiled(x).item() == 2.0


def test_modes_of_a_module_are_seen() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
    state = [model.state, mx.random.state]
    compiled = mx.compile(lambda x: model(x), inputs=state, outputs=state)
    x = values(4, 16)
    for _ in range(3):
        assert (compiled(x) == 0).any().item()
    model.eval()
    for _ in range(3):
        assert not (compiled(x) == 0).any().item()
    model.train()
    assert (compiled(x) == 0).any().item()


def test_an_interrupt_loses_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, step, state = training()
    compiled = mx.compile(step, inputs=state, outputs=state)
    x = values(8, 32)
    for _ in range(3):
        compiled(x)
    plain_execute = run.execute
    interrupts = 0

    def interrupted(*arguments: Any) -> None:
        plain_execute(*arguments)
        raise KeyboardInterrupt

    def too_early(*arguments: Any) -> None:
        raise KeyboardInterrupt

    for execute in (interrupted, too_early):
        monkeypatch.setattr(run, "execute", execute)
        try:
            compiled(x)
        except KeyboardInterrupt:
            interrupts += 1
        monkeypatch.setattr(run, "execute", plain_execute)
        mx.eval(state)
    assert interrupts == 2
    found = [np.array(layer.weight) for layer in model.layers]
    model, _, step, _ = training()
    for _ in range(5):
        mx.eval(step(x))
    for weight, layer in zip(found, model.layers, strict=True):
        np.testing.assert_array_equal(weight, np.array(layer.weight))


def test_smaller_elements_in_a_block_of_the_same_size_are_left_alone() -> None:
    """24 booleans take as large a block as 24 halves, but the third half would overwrite the fifth boolean before it is
    read."""
    flags = np.arange(24) % 5 < 2
    for dtype in (mx.float16, mx.int16, mx.float32):
        found = mx.where(mx.array(flags), mx.zeros((), dtype), mx.ones((), dtype))
        np.testing.assert_array_equal(np.array(found), ~flags)


def test_the_same_array_twice_in_one_evaluation() -> None:
    x = mx.array([1.0, 2.0, 3.0, 4.0])
    mx.eval(x)
    y = x * 2
    mx.eval(y, {"again": [y]})
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0]
    z = x * 3
    mx.compile(lambda a, b: a + b)(z, z)
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_later_pass_reads_what_a_held_intermediate_was_made_of() -> None:
    x = mx.array([0.0, 1.0, 2.0, 3.0]) * 3 - 1
    assert x.var().item() == 11.25
    assert x.tolist() == [-1.0, 2.0, 5.0, 8.0]


def test_threads_that_share_what_is_evaluated() -> None:
    for _ in range(20):
        shared = mx.array(np.ones((500, 1000), np.float32)) * 2
        results = [shared + 1, shared + 2]
        del shared
        threads = [threading.Thread(target=mx.eval, args=(result,)) for result in [*results, results[0]]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [np.unique(np.array(result)).tolist() for result in results] == [[3.0], [4.0]]


def test_what_another_thread_evaluates_meanwhile_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with a value drops its inputs, so that these then have fewer references."""
    x = mx.arange(64, dtype=mx.float32) * 1
    mx.eval(x)
    y = x * 2
    plain_plan_of = evaluate.plan_of

    def plan_of(*arguments: Any) -> Any:
        monkeypatch.setattr(evaluate, "plan_of", plain_plan_of)
        thread = threading.Thread(target=mx.eval, args=(y,))
        thread.start()
        thread.join()
        return plain_plan_of(*arguments)

    monkeypatch.setattr(evaluate, "plan_of", plan_of)
    mx.eval(y)
    assert (x.tolist(), y.tolist()) == (list(range(64)), list(range(0, 128, 2)))


@pytest.mark.parametrize("work_at_once", [1 << 18, 0], ids=["at once", "by the worker"])
def test_a_thread_that_reads_the_state_of_a_compiled_step(work_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.default_stream(mx.cpu), "work_at_once", work_at_once)
    state = {"w": mx.zeros((50_000,))}

    def step(x: mx.array) -> mx.array:
        state["w"] = state["w"] + x
        return state["w"][0]

    compiled = mx.compile(step, inputs=state, outputs=state)
    one = mx.array(1.0)
    compiled(one)
    faults: list[Any] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            held = state["w"]
            first = np.array(held)
            second = np.array(held)
            if first.min() != first.max() or not np.array_equal(first, second):
                faults.append((first, second))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(300):
            compiled(one)
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not faults
    assert state["w"][0].item() == 301.0


@pytest.mark.parametrize("line", range(12))
def test_an_interrupt_while_the_state_is_written(line: int) -> None:
    state = {name: mx.full((64,), float(number)) for number, name in enumerate("abcd")}
    mx.eval(state)

    def step(x: mx.array) -> mx.array:
        for name in state:
            state[name] = state[name] + x
        return x * 2

    compiled = mx.compile(step, inputs=state, outputs=state)
    one = mx.array(1.0)
    mx.eval(one)
    for _ in range(3):
        compiled(one)
    lines = itertools.count()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith("containers.py"):
            return trace if frame.f_code.co_name == "__call__" else None
        if event == "line" and next(lines) == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        compiled(one)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    found = [np.array(state[name]).tolist() for name in "abcd"]
    assert found == [np.array(state[name]).tolist() for name in "abcd"]
    steps = {values[0] - number for number, values in enumerate(found)}
    assert steps in ({3.0}, {4.0})


def test_the_size_of_memory_that_was_taken_over() -> None:
    x = mx.ones((1, 9)) + 0
    mx.eval(x)
    x = (x @ mx.ones((9, 16))) + 1
    mx.eval(x)
    x = mx.exp(x)
    assert np.array(x).nbytes == x.nbytes == 64
    assert x.__array_interface__["data"] is not None
