"""What `compile` logs: why it traced again, and that a function is compiled again and again."""

from __future__ import annotations

import enum
import logging
import os
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from tests.checks import line_of, run_python
from tests.sampling import Cases


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The messages since the last call."""
    caplog.set_level(logging.INFO, logger="weft.compile")

    def take() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name == "weft.compile"]
        caplog.clear()
        return found

    return take


def fresh_step() -> Callable[..., mx.array]:
    def step(x: mx.array, params: Any = None, *rest: Any, scale: Any = 1, **more: Any) -> mx.array:
        return x.sum() * 2

    return step


X = mx.ones((4, 10))
Y = mx.ones((4, 10))
W = {"w": mx.ones((3,)), "deep": [mx.array(1.0), 2]}


class Mode(enum.Enum):
    fast = 1


CHANGES: dict[str, tuple[tuple[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]], list[str]]] = {
    "shape": (((X,), {}), ((mx.ones((5, 10)),), {}), ["x: float32[4,10] -> float32[5,10]"]),
    "rank": (((X,), {}), ((X[0],), {}), ["x: float32[4,10] -> float32[10]"]),
    "dtype": (((X,), {}), ((X.astype(mx.float16),), {}), ["x: float32[4,10] -> float16[4,10]"]),
    "by keyword": (((), {"x": X}), ((), {"x": X[0]}), ["x: float32[4,10] -> float32[10]"]),
    "in a tree": (((X, W), {}), ((X, {**W, "w": Y}), {}), ["params['w']: float32[3] -> float32[4,10]"]),
    "a constant in a tree": (((X, [1, [2]]), {}), ((X, [1, [3]]), {}), ["params[1][0]: 2 -> 3"]),
    "a number": (((X,), {"scale": 1}), ((X,), {"scale": 2.5}), ["scale: 1 -> 2.5"]),
    "a type": (((X,), {"scale": True}), ((X,), {"scale": False}), ["scale: True -> False"]),
    "zeros": (((X,), {"scale": 0.0}), ((X,), {"scale": -0.0}), ["scale: 0.0 -> -0.0"]),
    "text": (((X,), {"scale": "a"}), ((X,), {"scale": None}), ["scale: 'a' -> None"]),
    "an enum": (((X,), {"scale": Mode.fast}), ((X,), {"scale": mx.int8}), ["scale: <Mode.fast: 1> -> weft.core.int8"]),
    "an array for a number": (((X,), {"scale": 1}), ((X,), {"scale": mx.array(1)}), ["scale: 1 -> int32[]"]),
    "another argument": (((X,), {}), ((X, mx.array(1)), {}), ["params: not there -> int32[]"]),
    "a default": (((X,), {}), ((X,), {"scale": 1}), ["scale: not there -> 1"]),
    "fewer arguments": (((X, 1, 2, 3), {}), ((X, 1, 2), {}), ["rest[1]: 3 -> not there"]),
    "other keywords": (((X,), {"a": 1}), ((X,), {"b": 1}), ["b: not there -> 1", "a: 1 -> not there"]),
    "a key": (((X, {"a": 1}), {}), ((X, {"b": 1}), {}), ["params['b']: not there -> 1", "params['a']: 1 -> not there"]),
    "a list for a tuple": (((X, (1, 2)), {}), ((X, [1, 2]), {}), ["params: (*, *) -> [*, *]"]),
    "an empty list": (((X, []), {}), ((X, {}), {}), ["params: [] -> {}"]),
    "two things": (
        ((X,), {"scale": 1}),
        ((X[0],), {"scale": 2}),
        ["x: float32[4,10] -> float32[10]", "scale: 1 -> 2"],
    ),
    "many things": (
        ((X, [0] * 9), {}),
        ((X, [1] * 9), {}),
        [*(f"params[{position}]: 0 -> 1" for position in range(5)), "and 4 more"],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changed(name: str, messages: Callable[[], list[str]]) -> None:
    first, second, changes = CHANGES[name]
    compiled = mx.compile(fresh_step())
    compiled(*first[0], **first[1])
    (message,) = messages()
    assert message.startswith("fresh_step.<locals>.step: traced for the first time, for x: float32[4,10]")
    compiled(*second[0], **second[1])
    (message,) = messages()
    because = "; ".join(changes)
    assert message.startswith(f"fresh_step.<locals>.step: traced again (trace 2), because {because}; it took ")
    compiled(*first[0], **first[1])
    compiled(*second[0], **second[1])
    assert messages() == []


def test_the_message_says_how_long_it_took_and_where_it_was_called(messages: Callable[[], list[str]]) -> None:
    compiled = mx.compile(fresh_step())
    compiled(X)  # called here
    (message,) = messages()
    line = line_of(test_the_message_says_how_long_it_took_and_where_it_was_called, "called here")
    assert re.search(r"it took \d+\.\d ms; called from ", message)
    assert f"{os.path.basename(__file__)}:{line}" in message


def test_all_arguments_are_named_at_first(messages: Callable[[], list[str]]) -> None:
    mx.compile(fresh_step())(X, W, scale=3)
    assert (
        "for x: float32[4,10]; params['w']: float32[3]; params['deep'][0]: float32[]; params['deep'][1]: 2; "
        "scale: 3; it took" in messages()[0]
    )
    mx.compile(lambda: mx.zeros(1))()
    assert "traced for the first time, for no arguments; it took" in messages()[0]


def test_the_most_similar_earlier_trace_counts(messages: Callable[[], list[str]]) -> None:
    compiled = mx.compile(fresh_step())
    for x, scale in ((X, 1), (X[0], 2)):
        compiled(x, scale=scale)
    messages()
    compiled(X[:2], scale=1)
    assert "(trace 3), because x: float32[4,10] -> float32[2,10]; it took" in messages()[0]
    compiled(X[0], scale=3)
    assert "(trace 4), because scale: 2 -> 3; it took" in messages()[0]


def test_shapes_do_not_matter_to_shapeless_traces(messages: Callable[[], list[str]]) -> None:
    function = fresh_step()
    mx.compile(function)(X)
    compiled = mx.compile(function, shapeless=True)
    compiled(X, Y)
    assert "first time" in messages()[-1]
    compiled(X[:2], X)
    assert messages() == []
    compiled(X[:3], X[0])
    assert "because params: float32[4,10] -> float32[10]; it took" in messages()[0]


def test_state_is_named(messages: Callable[[], list[str]]) -> None:
    inputs = {"total": mx.array(0.0), "factor": 2}
    outputs: dict[str, Any] = {"last": mx.array(0.0), "calls": 0}

    def step(x: mx.array) -> mx.array:
        outputs["last"] = x
        return x * inputs["total"] * inputs["factor"]

    compiled = mx.compile(step, inputs=inputs, outputs=outputs)
    x = mx.array(1.0)
    compiled(x)
    messages()
    inputs["total"] = mx.ones(2)
    compiled(x)
    assert "because inputs['total']: float32[] -> float32[2]; it took" in messages()[0]
    inputs["factor"] = 3
    compiled(x)
    assert "because inputs['factor']: 2 -> 3; it took" in messages()[0]
    outputs["calls"] = 1
    compiled(x)
    assert "because outputs['calls']: 0 -> 1; it took" in messages()[0]
    outputs["more"] = mx.array(1.0)
    compiled(x)
    assert "because outputs['more']: not there -> an array; it took" in messages()[0]
    outputs["more"] = mx.ones(3)
    compiled(x)
    assert messages() == []


def test_attributes_of_modules_are_named(messages: Callable[[], list[str]]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    compiled = mx.compile(lambda x: model(x), inputs=model.state)
    x = mx.ones((1, 2))
    compiled(x)
    assert "_training" not in messages()[0]
    model.layers[1].eval()
    compiled(x)
    assert "because inputs['layers'][1]._training: True -> False; it took" in messages()[0]
    model.layers[0].note = fresh_step()
    compiled(x)
    assert re.search(r"because inputs\['layers'\]\[0\]\.note: not there -> <function .*>; it took", messages()[0])

    as_argument = mx.compile(lambda module, x: x * len(module))
    as_argument(nn.ReLU(), x)
    messages()
    as_argument(nn.Tanh(), x)
    assert "because type(module): ReLU -> Tanh; it took" in messages()[0]


def test_functions_without_a_signature(messages: Callable[[], list[str]]) -> None:
    class Strange:
        @property
        def __signature__(self) -> Any:
            raise RuntimeError("no")

        def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
            return args[0] + 1

    compiled = mx.compile(Strange())
    compiled(mx.array(1.0), 2, flag=3)
    assert (
        "Strange: traced for the first time, for argument 0: float32[]; argument 1: 2; flag: 3; it took"
        in (messages()[0])
    )


def test_constants_whose_repr_fails(messages: Callable[[], list[str]]) -> None:
    class Odd(enum.Enum):
        one = 1
        two = 2

        def __repr__(self) -> str:
            raise RuntimeError("no")

    misleading = enum.Enum("dict", "one two", module="builtins")  # type: ignore[misc]  # reprlib goes by these names
    compiled = mx.compile(fresh_step())
    compiled(X, Odd.one)
    compiled(X, Odd.two)
    assert re.search(r"because params: <Odd instance at \w+> -> <Odd instance at \w+>; it", messages()[1])
    compiled(X, misleading["one"])
    assert "-> a dict; it took" in messages()[0]
    compiled(X, misleading["two"])
    assert "because params: a dict (dict) -> a dict (dict); it" in messages()[0]


def test_long_constants_are_cut(messages: Callable[[], list[str]]) -> None:
    mx.compile(fresh_step())(X, "x" * 100_000)
    assert len(messages()[0]) < 500


def test_an_argument_that_is_the_state_itself(messages: Callable[[], list[str]]) -> None:
    state = [mx.array(1.0)]
    compiled = mx.compile(lambda given: given[0] + state[0], inputs=state)
    compiled([mx.array(1.0)])
    messages()
    compiled([state[0]])
    assert "(trace 2), because inputs[0]: float32[] -> the same array as given[0]; it took" in messages()[0]
    compiled(state)
    assert "(trace 3), because its arguments are put together in another way; it took" in messages()[0]


def test_a_trace_that_is_not_cached_says_so(messages: Callable[[], list[str]]) -> None:
    @mx.vmap
    def outer(x: mx.array) -> mx.array:
        return mx.compile(lambda y: y * x)(mx.array(1.0))

    outer(mx.ones(3))
    assert messages()[0].endswith(
        "It uses arrays from outside while a transformation is tracing, so the trace is not cached."
    )


def test_a_function_that_cannot_be_traced_is_not_reported(messages: Callable[[], list[str]]) -> None:
    with pytest.raises(ValueError, match="trac"):
        mx.compile(lambda x: x.item())(mx.array(1.0))
    assert messages() == []


def warnings_of(
    caplog: pytest.LogCaptureFixture, calls: Callable[[Callable[..., Any]], Any], **options: Any
) -> list[str]:
    """The warnings that are logged while a compiled function is used; `calls` is called with the function."""
    caplog.clear()
    calls(mx.compile(fresh_step(), **options))
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


AGAIN: dict[str, tuple[Callable[[Callable[..., Any], int], Any], str, str]] = {
    "shapes": (lambda f, n: f(mx.ones((n + 1, 2))), r"x: float32\[7,2\] -> float32\[8,2\]", "shapeless=True"),
    "ranks": (
        lambda f, n: f(mx.ones((1,) * n)),
        r"x: float32\[.*\] -> float32\[1,1,1,1,1,1,1\]",
        "number of dimensions",
    ),
    "numbers": (lambda f, n: f(X, scale=n / 2), r"scale: 3\.0 -> 3\.5", r"mx\.array\(scale\)"),
    "whole numbers in a tree": (lambda f, n: f(X, {"n": n}), r"params\['n'\]: 6 -> 7", r"mx\.array\(params\['n'\]\)"),
    "texts": (lambda f, n: f(X, str(n)), "params: '6' -> '7'", "Each value of params"),
    "dtypes": (
        lambda f, n: f(X.astype([mx.int8, mx.int16, mx.int32, mx.int64, mx.uint8, mx.uint16, mx.uint32, mx.uint64][n])),
        r"x: uint32\[4,10\] -> uint64\[4,10\]",
        "astype",
    ),
    "structures": (lambda f, n: f(X, [1] * n), r"params\[6\]: not there -> 1", "nested in the same way"),
}


@pytest.mark.parametrize("name", AGAIN)
def test_a_function_that_compiles_again_and_again(name: str, caplog: pytest.LogCaptureFixture) -> None:
    call, change, remedy = AGAIN[name]

    def calls(compiled: Callable[..., Any]) -> None:
        for n in range(7):
            call(compiled, n)
        assert not caplog.records
        call(compiled, 7)
        for n in range(7):
            compiled(mx.zeros((n + 2, 3), mx.int32), [n])

    (message,) = warnings_of(caplog, calls)
    assert message.startswith("fresh_step.<locals>.step compiles again and again: 8 times in its latest 8 calls, ")
    assert re.search(f"lately because {change}; called from .*{os.path.basename(__file__)}", message)
    assert re.search(remedy, message)
    assert "WEFT_LOG=compile" in message


def test_state_that_grows(caplog: pytest.LogCaptureFixture) -> None:
    state: list[mx.array] = []

    def step(x: mx.array) -> mx.array:
        state.append(x)
        return x

    compiled = mx.compile(step, outputs=state)
    for _ in range(10):
        compiled(mx.array(1.0))
    (record,) = caplog.records
    assert "lately because outputs[6]: not there -> an array; called from" in record.getMessage()
    assert "Return what is new instead of letting the state grow" in record.getMessage()


def test_an_attribute_that_keeps_changing(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(1, 1)
    compiled = mx.compile(lambda x: model(x), inputs=model.state)
    for number in range(10):
        model.counter = number
        compiled(mx.ones((1, 1)))
    (record,) = caplog.records
    assert "lately because inputs.counter: 6 -> 7; called from" in record.getMessage()
    assert "Attributes of modules are constants: keep what changes in an array." in record.getMessage()


def test_traces_inside_of_transformations_are_no_matter(caplog: pytest.LogCaptureFixture) -> None:
    weight = mx.array(2.0)
    loss = mx.compile(lambda x: (x * weight).sum())
    for _ in range(10):
        mx.grad(loss)(mx.ones(3))
        mx.vmap(loss)(mx.ones((3, 2)))
    assert not caplog.records


def ordinary_batches(compiled: Callable[..., Any]) -> None:
    for _ in range(10):
        for _ in range(20):
            compiled(mx.ones((32, 3)))
        compiled(mx.ones((7, 3)))


def many_shapes_used_often(compiled: Callable[..., Any]) -> None:
    for size in range(30):
        for _ in range(4):
            compiled(mx.ones((size,)))


def shapes_that_come_back(compiled: Callable[..., Any]) -> None:
    for _ in range(10):
        for size in range(7):
            compiled(mx.ones((size,)))


def modes(compiled: Callable[..., Any]) -> None:
    for _ in range(5):
        for training in (True, False):
            for size in (1, 2, 3):
                compiled(mx.ones((size,)), training)


@pytest.mark.parametrize("calls", [ordinary_batches, many_shapes_used_often, shapes_that_come_back, modes])
def test_ordinary_use_is_no_matter(calls: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(caplog, calls) == []


def test_all_shapes_of_a_shapeless_function_are_no_matter(caplog: pytest.LogCaptureFixture) -> None:
    def calls(compiled: Callable[..., Any]) -> None:
        for size in range(20):
            compiled(mx.ones((size,)))

    assert warnings_of(caplog, calls, shapeless=True) == []


def test_ordinary_training_is_no_matter(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.1), nn.Linear(4, 1))
    optimizer = optim.Adam(learning_rate=optim.cosine_decay(1e-2, 10))
    loss_and_gradients = nn.value_and_grad(model, lambda x: model(x).square().mean())
    state = [model.state, optimizer.state, mx.random.state]

    def train(x: mx.array) -> mx.array:
        loss, gradients = loss_and_gradients(x)
        optimizer.update(model, gradients)
        return loss

    step = mx.compile(train, inputs=state, outputs=state)
    evaluate = mx.compile(lambda x: model(x).square().mean(), inputs=model.state)
    for _ in range(5):
        model.train()
        for size in (8, 8, 8, 3):
            mx.eval(step(mx.ones((size, 2))), state)
        model.eval()
        mx.eval(evaluate(mx.ones((8, 2))))
    assert not caplog.records


def test_a_growing_number_of_calls_between_traces(caplog: pytest.LogCaptureFixture) -> None:
    def calls(compiled: Callable[..., Any]) -> None:
        for n in range(50):
            for _ in range(3):
                compiled(X, scale=n)

    assert warnings_of(caplog, calls) == []


PROGRAM = """
    import sys
    sys.stderr = sys.stdout
    import weft.core as mx

    def step(x):
        return x * 2

    compiled = mx.compile(step)
    compiled(mx.ones((4, 10)))
    compiled(mx.ones((5, 10)))
    print("done")
"""


def test_the_environment_variable_shows_messages(cases: Cases) -> None:
    for topics in cases.some(1, ["compile", " compile ,", "compile,compile"]):
        first, second, done = run_python(PROGRAM, WEFT_LOG=topics).splitlines()
        assert first.startswith("[weft.compile] step: traced for the first time, for x: float32[4,10]; it took ")
        assert second.startswith("[weft.compile] step: traced again (trace 2), because x: float32[4,10] -> float32[5,")
        assert done == "done"


def test_without_the_environment_variable_nothing_is_shown(cases: Cases) -> None:
    for topics in cases.some(1, ["", " ", ",,"]):
        assert run_python(PROGRAM, WEFT_LOG=topics) == "done\n"


def test_unknown_topics_give_a_warning(cases: Cases) -> None:
    for topics in cases.some(2, ["compiler", "COMPILE", "\udc80\x1b[2J", "x" * 100_000, "%s%n", "a,b,c,d,e,f,g"]):
        warning, *rest = run_python(PROGRAM, WEFT_LOG=topics).splitlines()
        assert warning.startswith("WEFT_LOG names no topic of Weft: '")
        assert warning.endswith("It takes a list of topics, separated by commas, of: compile.")
        assert warning.isprintable()
        assert len(warning) < 300
        assert rest == ["done"]


def test_known_topics_beside_unknown_ones_are_shown() -> None:
    lines = run_python(PROGRAM, WEFT_LOG="other,compile").splitlines()
    assert "WEFT_LOG names no topic of Weft: 'other'." in lines[0]
    assert [line.partition(":")[0] for line in lines[1:]] == ["[weft.compile] step", "[weft.compile] step", "done"]


def test_python_shows_the_warning_by_default() -> None:
    program = """
        import sys
        sys.stderr = sys.stdout
        import weft.core as mx

        def step(x, n):
            return x * n

        compiled = mx.compile(step)
        for n in range(20):
            compiled(mx.array(1.0), n)
    """
    (line,) = run_python(program).splitlines()
    assert line.startswith("step compiles again and again: 8 times in its latest 8 calls, lately because n: 6 -> 7; ")


def test_logging_may_be_configured_without_the_variable() -> None:
    program = """
        import logging, sys
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(name)s")
        logging.getLogger("weft.compile").setLevel(logging.INFO)
        import weft.core as mx
        mx.compile(lambda x: x)(mx.array(1.0))
    """
    assert run_python(program) == "INFO weft.compile\n"


def test_a_trace_without_messages_takes_no_lock_of_logging() -> None:
    """An interrupt in `logging.getLogger` can leave that lock held."""
    results: list[mx.array] = []
    thread = threading.Thread(target=lambda: results.append(mx.compile(lambda x: x + 1)(mx.array(1))))
    mx.compile(lambda x: x + 2)(mx.array(1))
    with logging._lock:  # type: ignore[attr-defined]
        thread.start()
        thread.join(timeout=20)
        assert len(results) == 1
