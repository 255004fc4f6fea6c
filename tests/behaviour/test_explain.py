"""`mx.compile(f).explain(...)`: what a call runs, without effects for the caller."""

from __future__ import annotations

import inspect
import io
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import weft
import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from tests.checks import Counted, assert_same_bits, child_environment, line_of
from tests.dot import Picture, read_dot
from tests.programs import Program, programs

X = mx.random.normal((32, 8), key=mx.random.key(0))
W = mx.random.normal((8, 4), key=mx.random.key(1))


def two_units(x: mx.array, w: mx.array) -> mx.array:
    hidden = mx.maximum((mx.exp(x) @ w)[::-1], 0)
    return hidden - mx.mean(hidden, axis=1, keepdims=True)


def drawn(explanation: Any) -> Picture:
    file = io.StringIO()
    explanation.to_dot(file)
    return read_dot(file.getvalue())


def test_what_it_says() -> None:
    explanation = mx.compile(two_units).explain(X, W)
    assert [(step.kind, step.name, step.loops) for step in explanation.steps] == [
        ("kernel", "exp", "256"),
        ("call", "matmul", "32x4x[8]"),
        ("kernel", "maximum, sum, divide, subtract", "32x[4]"),
    ]
    assert explanation.kernels == [explanation.steps[0], explanation.steps[2]]
    assert explanation.calls == [explanation.steps[1]]
    before, product, after = explanation.steps
    assert (before.bytes_read, before.bytes_written) == (1024, 1024)
    assert (product.bytes_read, product.bytes_written) == (1024 + 128, 512)
    assert (after.bytes_read, after.bytes_written) == (512, 512)
    assert product.arithmetic == 2 * 32 * 4 * 8
    assert explanation.bytes_read == 1024 + 1152 + 512
    assert explanation.bytes_written == 1024 + 512 + 512
    assert explanation.argument_bytes == 1024 + 128
    assert explanation.result_bytes == 512
    assert explanation.temporary_bytes == explanation.unshared_bytes == 1536
    assert explanation.peak_bytes == 1152 + 512 + 1536
    assert explanation.seconds == sum(step.seconds for step in explanation.steps) > 0
    assert all(step.seconds > 0 for step in explanation.steps)
    assert before.writes == ["temporary float32[32,8]"]
    assert after.writes == ["result 0 float32[32,4]"]
    assert before.text.startswith("kernel rows=0")


def test_how_it_is_printed() -> None:
    explanation = mx.compile(two_units).explain(X, W)
    title, counts, _, heads, *rows, _, memory = str(explanation).splitlines()
    assert title == "two_units(x: float32[32,8]; w: float32[8,4])"
    assert counts.endswith("2 kernels and 1 product of matrices")
    assert heads.split() == ["step", "us", "share", "read", "written", "rate", "loops", "operations"]
    assert [row.split()[0] for row in rows] == ["0", "1", "2"]
    assert "GFLOP/s" in rows[1]
    assert rows[2].endswith("maximum, sum, divide, subtract")
    assert memory == "memory: 1.15 kB of arguments and constants + 512 B of results + 1.54 kB of temporaries = 3.20 kB"


def test_equal_operations_are_merged_and_what_nothing_needs_is_gone() -> None:
    def f(x: mx.array) -> mx.array:
        mx.tan(x)
        return mx.sin(x) + mx.sin(x)

    explanation = mx.compile(f).explain(X)
    assert explanation.operations == {"sin": 2, "add": 1}
    assert explanation.planned_operations == {"sin": 1, "add": 1}
    assert explanation.graph_before.splitlines() == [
        "  %0 = x = input : float32[32,8]",
        "  %1 = sin %0 : float32[32,8]",
        "  %2 = sin %0 : float32[32,8]",
        "  %3 = add %1 %2 : float32[32,8]",
    ]
    assert explanation.graph_after.splitlines()[1:] == [
        "  %0 = input 0 strides (8, 1) : float32[32,8]",
        "  %1 = sin %0 : float32[32,8]",
        "  %2 = add %1 %1 : float32[32,8]",
    ]


def test_it_describes_the_plan_that_a_call_uses() -> None:
    counted = Counted(two_units)
    compiled = mx.compile(counted.function)
    mx.eval(compiled(X, W))
    before = weft.counters()
    compiled.explain(X, W)
    assert weft.counters() == before
    assert counted.calls == 1
    compiled.explain(X[:5], W)
    assert counted.calls == 2
    mx.eval(compiled(X[:5], W))
    assert counted.calls == 2


def test_arguments_that_are_not_evaluated() -> None:
    x = X * 2
    explanation = mx.compile(two_units).explain(x, W)
    assert "multiply" not in str(explanation)
    assert len(explanation.steps) == 3


def test_constants_keywords_and_captured_arrays() -> None:
    captured = mx.random.normal((8, 8))

    def f(x: mx.array, *, scale: float, parts: dict[str, mx.array]) -> mx.array:
        return (x @ captured) * scale + parts["bias"]

    explanation = mx.compile(f).explain(X, scale=2.0, parts={"bias": X[0]})
    assert explanation.argument_bytes == 1024 + 256 + 32
    labels = drawn(explanation).labels()
    assert {"x\nfloat32[32,8]", "parts['bias']\nfloat32[8]", "constant\nfloat32[8,8]", "2.0"} <= set(labels)


def training_step() -> tuple[Any, Any, Any]:
    model = nn.Linear(8, 4)
    optimizer = optim.Adam(learning_rate=0.1)
    loss_and_gradients = nn.value_and_grad(model, lambda x, y: nn.losses.mse_loss(model(x), y))
    state = [model.state, optimizer.state]

    def step(x: mx.array, y: mx.array) -> mx.array:
        loss, gradients = loss_and_gradients(x, y)
        optimizer.update(model, gradients)
        return loss

    return mx.compile(step, inputs=state, outputs=state), model, state


def test_state_is_left_alone() -> None:
    step, model, state = training_step()
    weight = np.array(model.weight)
    explanation = step.explain(X, mx.ones((32, 4)))
    assert np.array_equal(model.weight, weight)
    assert "v" not in state[1]
    assert "inputs[0]['weight']\nfloat32[4,8]" in drawn(explanation).labels()
    loss = step(X, mx.ones((32, 4)))
    mx.eval(loss, state)
    assert not np.array_equal(model.weight, weight)
    after = [np.array(model.weight), np.array(state[1]["weight"]["v"])]
    explanation = step.explain(X, mx.ones((32, 4)))
    assert np.array_equal(model.weight, after[0])
    assert np.array_equal(state[1]["weight"]["v"], after[1])
    assert explanation.in_place_bytes > 0
    assert "where the state is that they replace" in str(explanation)


def test_training_goes_on_as_without_it() -> None:
    mx.random.seed(0)
    plain, _, plain_state = training_step()
    mx.random.seed(0)
    explained, _, state = training_step()
    for _ in range(3):
        mx.eval(plain(X, mx.ones((32, 4))), plain_state)
        explained.explain(X, mx.ones((32, 4)))
        mx.eval(explained(X, mx.ones((32, 4))), state)
    assert_same_bits(state, plain_state)


def test_random_state_is_left_alone() -> None:
    f = mx.compile(lambda: mx.random.uniform(shape=(3,)), inputs=mx.random.state, outputs=mx.random.state)
    before = [np.array(key) for key in mx.random.state]
    f.explain()
    assert all(np.array_equal(key, old) for key, old in zip(mx.random.state, before, strict=True))


def test_shapeless() -> None:
    counted = Counted(lambda x: x / mx.sum(mx.abs(x), axis=-1, keepdims=True))
    f = mx.compile(counted.function, shapeless=True)
    assert [f.explain(mx.ones((n, 3))).kernels[0].loops for n in (4, 5)] == ["4x[3]", "5x[3]"]
    assert counted.calls == 1


def test_several_streams() -> None:
    left, right = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)

    def f(x: mx.array) -> tuple[mx.array, mx.array]:
        y = mx.exp(x, stream=left)
        with mx.stream(right):
            z = y * 2 + x
        return mx.add(y, z), z

    explanation = mx.compile(f).explain(X)
    assert [(step.name, step.stream) for step in explanation.steps] == [
        ("exp", left),
        ("multiply, add", right),
        ("add", mx.default_stream(mx.cpu)),
    ]
    assert explanation.argument_bytes == 1024
    assert "It runs on 3 streams" in str(explanation)
    picture = drawn(explanation)
    assert sorted(picture.operations()) == ["2.0", "add", "add", "exp", "multiply"]
    assert len(picture.boxes) == 6
    assert (picture.box("exp"), picture.box("multiply")) in picture.arrows


def test_the_callers_stream() -> None:
    stream = mx.new_stream(mx.cpu)
    with mx.stream(stream):
        explanation = mx.compile(two_units).explain(X, W)
    assert {step.stream for step in explanation.steps} == {stream}
    assert "streams" not in str(explanation)


def test_nothing_to_compute() -> None:
    explanation = mx.compile(lambda x: (x, x.T, 3)).explain(X)
    assert explanation.steps == []
    assert "Nothing is computed" in str(explanation)
    assert drawn(explanation).operations() == ["transpose"]
    assert str(mx.compile(lambda: None).explain()).startswith("test_nothing_to_compute.<locals>.<lambda>(no arguments)")


def test_no_elements() -> None:
    explanation = mx.compile(lambda x: mx.sin(x) @ x.T).explain(mx.zeros((0, 3)))
    assert explanation.steps == []


def test_a_large_graph_is_cut_in_print_and_not_in_the_picture() -> None:
    def f(x: mx.array) -> mx.array:
        for step in range(1000):
            x = mx.sqrt(x) * 1.01
            x = x - mx.mean(x) if step % 25 == 0 else x
        return x

    explanation = mx.compile(f).explain(X)
    assert len(explanation.steps) > 30
    lines = str(explanation).splitlines()
    assert len(lines) < 35
    assert any(line.startswith(f"... and {len(explanation.steps) - 24} shorter steps") for line in lines)
    assert drawn(explanation).operations().count("sqrt") == 1000


def test_every_computed_box_is_in_the_frame_of_its_kernel() -> None:
    picture = drawn(mx.compile(two_units).explain(X, W))
    assert picture.frames == [
        "kernel 0: exp, 256",
        "call 1: matmul, 32x4x[8]",
        "kernel 2: maximum, sum, divide, subtract, 32x[4]",
    ]
    frames = {box.label.split("\n")[0]: box.frame for box in picture.boxes.values()}
    assert frames["x"] is None
    assert frames["exp"] == picture.frames[0]
    assert frames["matmul"] == picture.frames[1]
    assert {frames[name] for name in ("maximum", "sum", "divide", "subtract")} == {picture.frames[2]}
    assert picture.boxes[picture.box("subtract")].is_result


def test_a_picture_in_a_file(tmp_path: Path) -> None:
    mx.compile(two_units).explain(X, W).to_dot(tmp_path / "graph.dot")
    assert "matmul" in read_dot((tmp_path / "graph.dot").read_text()).operations()
    with pytest.raises(TypeError, match=r"\[explain.to_dot\] file is a path"):
        mx.compile(two_units).explain(X, W).to_dot(3)


def test_while_compile_is_disabled() -> None:
    """It still describes the compiled call."""
    mx.disable_compile()
    try:
        assert len(mx.compile(two_units).explain(X, W).steps) == 3
    finally:
        mx.enable_compile()


def test_several_threads() -> None:
    compiled = mx.compile(two_units)
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append([step.name for step in compiled.explain(X, W).steps]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == [["exp", "matmul", "maximum, sum, divide, subtract"]] * 4


def test_inside_a_trace() -> None:
    inner = mx.compile(two_units)

    def outer(x: mx.array) -> mx.array:
        inner.explain(x, W)
        return x

    with pytest.raises(ValueError, match="cannot be explained while a function is traced") as error:
        mx.compile(outer)(X)
    assert f"{__file__}:{line_of(outer, 'inner.explain')}" in str(error.value)
    with pytest.raises(ValueError, match="cannot be explained"):
        mx.grad(lambda x: outer(x).sum())(X)


def test_wrong_arguments_are_those_of_a_call() -> None:
    with pytest.raises(ValueError, match=r"\[compile\] .*neither an array nor a constant"):
        mx.compile(two_units).explain(np.ones((32, 8)), W)
    with pytest.raises(ValueError, match="matmul"):
        mx.compile(two_units).explain(X, mx.ones((7, 7)))


@given(programs())
def test_any_program(program: Program) -> None:
    """Explaining works, changes no bit of the results, and draws each planned node once."""
    expected = program(*program.arrays())
    mx.eval(expected)
    compiled = mx.compile(lambda *inputs: program(*inputs))
    explanation = compiled.explain(*program.arrays())
    str(explanation)
    picture = drawn(explanation)
    assert len(picture.frames) == len(explanation.steps)
    assert_same_bits(compiled(*program.arrays()), expected)


LONG = """
    import signal
    import threading
    import time
    import weft.core as mx

    def f(x):
        for _ in range(30):
            x = mx.sin(x) @ x * 1e-3
        return x

    compiled = mx.compile(f)
    x = mx.ones((300, 300))
    threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT)).start()
    try:
        while True:
            compiled.explain(x)
    except KeyboardInterrupt:
        print("interrupted")
    print(len(compiled.explain(x).calls), compiled(x).shape)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
def test_control_c() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LONG)],
        capture_output=True,
        text=True,
        timeout=120,
        env=child_environment(),
        check=False,
    )
    assert finished.stdout.splitlines() == ["interrupted", "30 (300, 300)"], finished.stderr


def test_a_compiled_method_knows_its_instance() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        @mx.compile
        def forward(self, x: mx.array, scale: float = 1) -> mx.array:
            """Forward."""
            return mx.tanh(self.linear(x) * scale)

    model, other, x = Model(), Model(), mx.ones((2, 4))
    explanation = model.forward.explain(x, scale=2)
    assert "forward(" in str(explanation)
    assert "x: float32[2,4]" in str(explanation)
    assert model.forward(x).shape == (2, 3)
    assert model.forward == model.forward
    assert model.forward != other.forward
    assert {model.forward: 1}[model.forward] == 1
    assert model.forward.__doc__ == "Forward."
    assert model.forward.__name__ == "forward"
    assert "forward" in repr(model.forward)
    assert [*inspect.signature(model.forward).parameters] == ["x", "scale"]
    assert mx.grad(lambda x: model.forward(x).sum())(x).shape == (2, 4)
