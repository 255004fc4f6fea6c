"""`weft.profile`: what ran in a block, as totals and as a timeline."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import weft
import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from tests.checks import assert_same_bits, child_environment, line_of, run_python
from tests.programs import Program, programs
from weft.runtime import recording

X = mx.random.normal((32, 8), key=mx.random.key(0))
W = mx.random.normal((8, 4), key=mx.random.key(1))
mx.eval(X, W)


def two_units(x: mx.array, w: mx.array) -> mx.array:
    hidden = mx.maximum((mx.exp(x) @ w)[::-1], 0)
    return hidden - mx.mean(hidden, axis=1, keepdims=True)


def events_of(work: Callable[[], Any]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The complete events of a timeline, in order of time, and the names of its rows."""
    file = io.StringIO()
    with weft.profile(file):
        work()
    events = json.loads(file.getvalue())["traceEvents"]
    assert {event["pid"] for event in events} == {os.getpid()}
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    complete = [event for event in events if event["ph"] == "X"]
    assert all(event["tid"] in rows and event["ts"] >= 0 and event["dur"] >= 0 for event in complete)
    return sorted(complete, key=lambda event: event["ts"]), rows


def test_totals() -> None:
    compiled = mx.compile(two_units)
    mx.eval(compiled(X, W))
    with weft.profile() as profile:
        for _ in range(5):
            mx.eval(compiled(X, W))
        mx.eval(compiled(X[:16], W))
    assert {(total.kind, total.name, total.loops): total.count for total in profile.kernels} == {
        ("kernel", "exp", "256"): 5,
        ("kernel", "exp", "128"): 1,
        ("call", "matmul", "32x4x[8]"): 5,
        ("call", "matmul", "16x4x[8]"): 1,
        ("kernel", "maximum, sum, divide, subtract", "32x[4]"): 5,
        ("kernel", "maximum, sum, divide, subtract", "16x[4]"): 1,
    }
    seconds = [total.seconds for total in profile.kernels]
    assert seconds == sorted(seconds, reverse=True)
    assert 0 < sum(seconds) < profile.seconds
    exp = next(total for total in profile.kernels if total.loops == "256")
    assert (exp.bytes_read, exp.bytes_written, exp.arithmetic) == (1024, 1024, 256)


def test_the_lines_that_asked_for_a_kernel() -> None:
    compiled, stream = mx.compile(two_units), mx.new_stream(mx.cpu)
    mx.eval(compiled(X, W), mx.exp(X))

    def asking() -> None:
        mx.eval(compiled(X, W))  # asks

    def queueing() -> None:
        with mx.stream(stream):
            mx.async_eval(mx.tanh(X))  # queues

    with weft.profile() as profile:
        asking()
        asking()
        mx.exp(X).tolist()  # reads
        queueing()
    places = {total.name: dict(total.places) for total in profile.kernels}
    here, name = __file__, "test_the_lines_that_asked_for_a_kernel"
    asks = f'{here}:{line_of(asking, "# asks")}, in "asking"'
    reads = f'{here}:{line_of(test_the_lines_that_asked_for_a_kernel, "# reads")}, in "{name}"'
    queues = f'{here}:{line_of(queueing, "# queues")}, in "queueing"'
    assert places["matmul"] == {asks: 2}
    assert places["exp"] == {asks: 2, reads: 1}
    assert places["tanh"] == {queues: 1}


def test_compilation_is_seen() -> None:
    with weft.profile() as profile:
        compiled = mx.compile(lambda x: mx.exp(x) * 1.25 - mx.sqrt(x) / mx.exp(-x) + mx.abs(x))
        mx.eval(compiled(X))
        mx.eval(compiled(X))
    counts = [(kind, count) for kind, (count, _) in profile.compilation.items()]
    assert counts == [("trace", 1), ("plan", 1), ("machine code", 1)]
    assert "compilation: trace 1x, " in str(profile)


def test_how_it_is_printed() -> None:
    profile = weft.profile()
    assert "0 steps" in str(profile)
    with profile:
        mx.eval(two_units(X, W))
        assert "3 steps of 1 run of 1 plan" in str(profile)
        for n in range(1, 20):
            mx.eval(mx.sin(mx.ones((n,)) + X[0, 0]))
    summary, *_, rest = str(profile).splitlines()
    assert "on 1 stream" in summary
    assert "others" in rest
    assert repr(profile) == str(profile)


def test_a_timeline() -> None:
    compiled = mx.compile(two_units)
    mx.eval(compiled(X, W))
    events, rows = events_of(lambda: mx.eval(compiled(X, W)))
    assert [(event["name"], event["cat"]) for event in events] == [
        ("exp", "kernel"),
        ("matmul", "call"),
        ("maximum, sum, divide, subtract", "kernel"),
    ]
    for before, after in pairwise(events):
        assert before["ts"] + before["dur"] <= after["ts"]
    assert set(rows.values()) == {f"stream {mx.default_stream(mx.cpu).index} ({threading.current_thread().name})"}
    assert events[1]["args"]["loops"] == "32x4x[8]"
    assert events[1]["args"]["bytes written"] == 512


def test_planning_comes_before_running() -> None:
    events, rows = events_of(lambda: mx.eval(mx.compile(lambda x: mx.sinh(x) + mx.cosh(x) * 0.5)(X)))
    ends = {event["cat"]: event["ts"] + event["dur"] for event in events}
    starts = {event["cat"]: event["ts"] for event in events}
    assert ends["trace"] <= starts["plan"] <= starts["machine code"]
    assert ends["machine code"] <= ends["plan"] <= starts["kernel"]
    assert sorted(name.split()[0] for name in rows.values()) == ["Python", "stream"]


def test_streams_and_threads_have_rows_of_their_own() -> None:
    stream = mx.new_stream(mx.cpu)

    def work() -> None:
        mx.eval(mx.add(X, 1, stream=stream))
        with mx.stream(stream):
            mx.async_eval(mx.multiply(X, 2))
        mx.eval(mx.subtract(X, 3))
        thread = threading.Thread(target=on_another_thread, name="helper")
        thread.start()
        thread.join()

    def on_another_thread() -> None:
        helper.append(mx.default_stream(mx.cpu).index)
        mx.eval(mx.divide(X, 3))

    helper: list[int] = []
    main, own = threading.current_thread().name, mx.default_stream(mx.cpu).index
    events, rows = events_of(work)
    where = {
        event["name"]: (rows[event["tid"]], event["args"]["stream"]) for event in events if event["cat"] == "kernel"
    }
    assert where == {
        "add": (f"stream {stream.index} ({main})", stream.index),
        "multiply": (f"stream {stream.index} (weft stream {stream.index})", stream.index),
        "subtract": (f"stream {own} ({main})", own),
        "divide": (f"stream {helper[0]} (helper)", helper[0]),
    }


def test_it_waits_for_what_was_started_inside() -> None:
    def work() -> None:
        with mx.stream(mx.new_stream(mx.cpu)):
            x = mx.ones((200, 200))
            for _ in range(20):
                x = mx.sin(x) @ x * 1e-3
            mx.async_eval(x)

    events, _ = events_of(work)
    assert sum(event["name"].startswith("matmul") for event in events) == 20


def training_losses(steps: int) -> list[Any]:
    """A compiled training step, whose new state is written to the memory of the old one."""
    mx.random.seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = optim.Adam(learning_rate=0.05)
    loss_and_gradients = nn.value_and_grad(model, lambda x, y: nn.losses.mse_loss(model(x), y))
    state = [model.state, optimizer.state]

    def step(x: mx.array, y: mx.array) -> mx.array:
        loss, gradients = loss_and_gradients(x, y)
        optimizer.update(model, gradients)
        return loss

    step = mx.compile(step, inputs=state, outputs=state)
    losses = [step(X, mx.ones((32, 4))) for _ in range(steps)]
    mx.eval(losses, state)
    return [losses, state]


def test_the_same_bits_in_training() -> None:
    expected = training_losses(4)
    with weft.profile():
        assert_same_bits(training_losses(4), expected)


@given(programs())
def test_the_same_bits_in_any_program(program: Program) -> None:
    expected = program(*program.arrays())
    mx.eval(expected)
    compiled = mx.compile(lambda *inputs: program(*inputs))
    with weft.profile() as profile:
        assert_same_bits(program(*program.arrays()), expected)
        assert_same_bits(program(*program.arrays(), after_each=mx.eval), expected)
        assert_same_bits(compiled(*program.arrays()), expected)
    str(profile)


def test_one_at_a_time() -> None:
    def nested() -> None:
        with weft.profile():
            pass

    with weft.profile(), pytest.raises(RuntimeError, match="another profile is active") as error:
        nested()
    assert f"{__file__}:{line_of(test_one_at_a_time, 'with weft.profile(), pytest')}" in str(error.value)
    nested()


def test_one_at_a_time_among_threads() -> None:
    errors: list[BaseException] = []

    def other() -> None:
        try:
            weft.profile().__enter__()
        except RuntimeError as error:
            errors.append(error)

    with weft.profile():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(errors) == 1


def test_a_profile_is_used_once() -> None:
    profile = weft.profile()
    with profile:
        pass
    with pytest.raises(RuntimeError, match="has been used"), profile:
        pass
    with weft.profile():
        pass


def test_an_error_in_the_block(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"

    def fail() -> None:
        with weft.profile(path):
            mx.eval(mx.sin(X))
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert "sin" in path.read_text()
    assert recording.recorders == ()
    with weft.profile() as profile:
        pass
    assert profile.kernels == []


@pytest.mark.parametrize("file", [3, b"timeline.json", io.BytesIO()])
def test_what_is_no_file(file: Any) -> None:
    with pytest.raises(TypeError, match=r"\[profile\] file"), weft.profile(file):
        raise AssertionError("must not be reached")
    with weft.profile():
        pass


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "timeline.json", tmp_path):
        with pytest.raises(OSError, match=str(path)), weft.profile(path):
            raise AssertionError("must not be reached")
    assert recording.recorders == ()


def test_a_given_file_stays_open(tmp_path: Path) -> None:
    with (tmp_path / "timeline.json").open("w") as file:
        with weft.profile(file):
            mx.eval(mx.sin(X))
        assert not file.closed
    assert json.loads((tmp_path / "timeline.json").read_text())["displayTimeUnit"] == "ms"


def test_nothing_is_recorded_outside() -> None:
    with weft.profile() as profile:
        pass
    mx.eval(mx.sin(X))
    assert recording.recorders == ()
    assert profile.kernels == []


def test_events_beyond_the_limit_are_counted(monkeypatch: Any) -> None:
    monkeypatch.setattr(recording, "STEP_LIMIT", 10)
    with weft.profile() as profile:
        for _ in range(25):
            mx.eval(mx.sin(X))
    assert sum(total.count for total in profile.kernels) == 10
    assert str(profile).endswith("not recorded: 15 steps beyond the first 10")


def test_explain_in_a_profile() -> None:
    with weft.profile() as profile:
        explanation = mx.compile(two_units).explain(X, W)
    assert len(explanation.steps) == 3
    assert sum(total.name == "matmul" for total in profile.kernels) == 1


def test_a_failing_evaluation(tmp_path: Path) -> None:
    with weft.profile() as profile:
        with pytest.raises(MemoryError):
            mx.eval(mx.zeros((1 << 44,)) + 1)
        mx.eval(mx.sin(X))
    assert [total.name for total in profile.kernels] == ["sin"]


def test_names() -> None:
    assert weft.profile is mx.profile
    assert "weft.core" not in run_python("import sys, weft; print(*sys.modules)").split()
    with pytest.raises(AttributeError, match="no attribute 'profiles'"):
        weft.profiles  # noqa: B018  # that is what is tested


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.skipif(sys.platform == "darwin", reason="system libraries there do not survive a fork")
def test_a_forked_child_records_nothing(tmp_path: Path) -> None:
    program = """
        import os, sys, warnings
        import weft, weft.core as mx
        warnings.simplefilter("ignore")
        with weft.profile(PATH) as profile:
            mx.eval(mx.sin(mx.array([1.0])))
            child = os.fork()
            if child == 0:
                mx.eval(mx.cos(mx.array([1.0])))
                with weft.profile() as own:
                    mx.eval(mx.tan(mx.array([1.0])))
                if [kernel.name for kernel in own.kernels] != ["tan"]:
                    os._exit(1)
            else:
                _, status = os.waitpid(child, 0)
        if child == 0:
            sys.stdout.flush()
            os._exit(0)
        print(os.waitstatus_to_exitcode(status), [kernel.name for kernel in profile.kernels])
    """
    path = tmp_path / "timeline.json"
    assert run_python(f"PATH = {str(path)!r}\n" + textwrap.dedent(program)) == "0 ['sin']\n"
    names = [event["name"] for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert "sin" in names
    assert "cos" not in names


INTERRUPTED = """
    import json, signal, sys, threading
    import weft, weft.core as mx

    def long(x):
        for _ in range(40):
            x = mx.sin(x) @ mx.ones((200, 200)) * 1e-3
        return x

    x = mx.random.normal((200, 200), key=mx.random.key(0))
    expected = long(x).tolist()
    try:
        with weft.profile(PATH) as profile:
            y = long(x)
            mx.eval(y)  # one run is recorded, however slow the machine is
            threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()
            while True:
                y = long(x)
                mx.eval(y)
    except KeyboardInterrupt:
        print("interrupted")
    events = json.load(open(PATH))["traceEvents"]
    assert sum(event["name"].startswith("matmul") for event in events) > 0
    assert y.tolist() == expected
    with weft.profile() as profile:
        mx.eval(long(x))
    print(sum(kernel.count for kernel in profile.kernels if kernel.name.startswith("matmul")))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
def test_control_c(tmp_path: Path) -> None:
    source = f"PATH = {str(tmp_path / 'timeline.json')!r}\n" + textwrap.dedent(INTERRUPTED)
    finished = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=120,
        env=child_environment(),
        check=False,
    )
    assert finished.stdout.split() == ["interrupted", "40"], finished.stderr
    assert finished.returncode != -signal.SIGINT
