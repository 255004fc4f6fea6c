"""`disable_compile`, `enable_compile` and `WEFT_DISABLE_COMPILE`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import weft.core as mx
from tests.checks import Counted, run_python
from weft.runtime.switches import switch


@pytest.fixture
def compile_disabled() -> Iterator[None]:
    mx.disable_compile()
    try:
        yield
    finally:
        mx.enable_compile()


@pytest.mark.usefixtures("compile_disabled")
def test_printing_works_inside_when_disabled(capsys: pytest.CaptureFixture[str]) -> None:
    @mx.compile
    def f(x: mx.array) -> mx.array:
        print(x * 2)
        return x + x.item()

    assert f(mx.array(2.0)).item() == 4.0
    assert f(mx.array(3.0)).item() == 6.0
    assert capsys.readouterr().out == "array(4, dtype=float32)\narray(6, dtype=float32)\n"


@pytest.mark.usefixtures("compile_disabled")
def test_every_call_runs_the_function_when_disabled() -> None:
    counted = Counted(lambda x: x + 1)
    compiled = mx.compile(counted.function)
    for _ in range(3):
        assert compiled(mx.array(1.0)).item() == 2.0
    assert counted.calls == 3


@pytest.mark.usefixtures("compile_disabled")
def test_state_is_still_updated_when_disabled() -> None:
    state = [mx.array(1.0)]

    def step(x: mx.array) -> mx.array:
        state[0] = state[0] + x
        return state[0] * 2

    compiled = mx.compile(step, inputs=state, outputs=state)
    assert [compiled(mx.array(1.0)).item() for _ in range(2)] == [4.0, 6.0]
    assert state[0].item() == 3.0


def test_disabling_reaches_functions_that_were_compiled_before() -> None:
    counted = Counted(lambda x: x + 1)
    compiled = mx.compile(counted.function)
    compiled(mx.array(1.0))
    mx.disable_compile()
    try:
        compiled(mx.array(1.0))
        compiled(mx.array(1.0))
        assert counted.calls == 3
    finally:
        mx.enable_compile()
    assert compiled(mx.array(1.0)).item() == 2.0
    assert counted.calls == 3


PROGRAM = """
    import weft.core as mx

    @mx.compile
    def f(x):
        print(x)
        return x + 1

    f(mx.array(1.0))
    f(mx.array(2.0))
    print(mx.grad(mx.compile(lambda x: x * x.item()))(mx.array(3.0)))
"""


def test_the_environment_variable_disables() -> None:
    out = run_python(PROGRAM, WEFT_DISABLE_COMPILE="1")
    assert out.splitlines() == [f"array({n}, dtype=float32)" for n in (1, 2, 3)]


@pytest.mark.parametrize("value", ["", "False"])
def test_without_the_environment_variable_tracing_cannot_print(value: str) -> None:
    program = """
        import weft.core as mx
        try:
            mx.compile(lambda x: print(x))(mx.array(1.0))
        except ValueError:
            print("refused")
    """
    assert run_python(program, WEFT_DISABLE_COMPILE=value) == "refused\n"


def test_a_switch_has_to_be_on_or_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DISABLE_COMPILE", "never")
    with pytest.raises(ValueError, match=r"^WEFT_DISABLE_COMPILE is 'never'; it must be one of 1, true, yes, on, 0, "):
        switch("WEFT_DISABLE_COMPILE")
