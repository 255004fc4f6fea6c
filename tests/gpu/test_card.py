"""Tests that need a card: the driver's functions, copies there and back, errors of the card."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.card import require_card
from weft.runtime.cuda.code import CudaCode
from weft.runtime.cuda.driver import CudaError
from weft.runtime.cuda.engine import CudaEngine
from weft.runtime.engine import engine_of
from weft.runtime.memory import Buffer
from weft.runtime.steps import Step, Table

require_card()
pytestmark = pytest.mark.gpu

DOUBLED = """
.version 7.0
.target sm_50
.address_size 64

.visible .entry doubled(.param .u64 numbers, .param .u64 slots)
{
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<12>;
    .reg .f32 %f<3>;
    ld.param.u64 %rd1, [numbers];
    ld.param.u64 %rd2, [slots];
    ld.global.u64 %rd3, [%rd1];
    ld.global.u64 %rd4, [%rd2];
    ld.global.u64 %rd5, [%rd2+8];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    cvt.s64.s32 %rd6, %r4;
    mov.u32 %r1, %nctaid.x;
    mul.wide.s32 %rd7, %r1, %r2;
again:
    setp.ge.s64 %p1, %rd6, %rd3;
    @%p1 bra done;
    shl.b64 %rd8, %rd6, 2;
    add.s64 %rd9, %rd4, %rd8;
    add.s64 %rd10, %rd5, %rd8;
    ld.global.f32 %f1, [%rd9];
    add.f32 %f2, %f1, %f1;
    st.global.f32 [%rd10], %f2;
    add.s64 %rd6, %rd6, %rd7;
    bra again;
done:
    ret;
}
"""


@pytest.fixture
def engine() -> CudaEngine:
    return cast(CudaEngine, engine_of(mx.Device(mx.gpu)))


@pytest.mark.parametrize("count", [1, 3])
def test_a_kernel_by_hand(engine: CudaEngine, count: int) -> None:
    """The kernel doubles numbers ``count`` times; several steps are a graph."""
    code = CudaCode(DOUBLED, "doubled", threads=256)
    steps = engine.seal([Step(code, [100_000], 100_000 // 256 + 1, 1)] * count)
    given, made = Buffer(engine, 400_000), Buffer(engine, 400_000)
    x = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    for factor in (1, 5):
        engine.copy_in(memoryview((x * factor).data), given, 0)
        assert engine.run(steps, Table(steps, [given.address, made.address])) == count
        found = np.empty_like(x)
        engine.copy_out(made, 0, memoryview(found.data))
        assert np.array_equal(found, x * np.float32(2 * factor))


def test_what_it_is(engine: CudaEngine) -> None:
    facts = mx.device_info(mx.gpu)
    assert str(facts["architecture"]).startswith("sm_")
    assert int(facts["memory_size"]) > 1 << 30
    assert mx.device_count(mx.gpu) >= 1
    assert mx.cuda.is_available()


def test_bad_code_is_named(engine: CudaEngine) -> None:
    code = CudaCode(DOUBLED.replace("add.f32", "add.f33"), "doubled", threads=32)
    with pytest.raises(CudaError, match=r"(?s)CUDA_ERROR_INVALID_PTX.*doubled.*line"):
        engine.seal([Step(code, [1], 1, 1)])


def test_too_much_memory_is_an_error_and_no_end() -> None:
    facts = mx.device_info(mx.gpu)
    with mx.stream(mx.gpu):
        with pytest.raises(MemoryError, match="bytes"):
            mx.eval(mx.zeros((int(facts["memory_size"]) + (1 << 30),), dtype=mx.uint8))
        assert mx.ones((3,)).sum().item() == 3


@pytest.mark.skipif(mx.device_count(mx.gpu) < 2, reason="there is one GPU")
def test_several_cards() -> None:
    """Each card computes its part; one reads what is on the other."""
    first, second = mx.Device(mx.gpu, 0), mx.Device(mx.gpu, 1)
    x = mx.array(np.random.default_rng(0).normal(size=(1 << 20,)).astype(np.float32))
    wanted = mx.sin(mx.exp(x, stream=mx.cpu), stream=mx.cpu)
    for _ in range(3):
        there = mx.exp(x, stream=second)
        mx.eval(there, mx.cos(x, stream=first))
        assert_same_bits(mx.sin(there, stream=first), wanted)
    compiled = mx.compile(lambda x: mx.sin(mx.exp(x)))
    for device in (first, second, mx.cpu, second):
        with mx.stream(device):
            assert_same_bits(compiled(x), wanted)


def test_large_arrays_go_there_and_back() -> None:
    x = mx.array(np.random.default_rng(0).normal(size=(1 << 22,)).astype(np.float32))
    assert_same_bits(mx.negative(x, stream=mx.gpu), mx.negative(x, stream=mx.cpu))


def step(x: mx.array, w: mx.array) -> tuple[mx.array, mx.array]:
    """A step with kernels, eigenvalues, which the CPU computes, and a result in the memory of an input."""
    hidden = mx.softmax(mx.tanh(x + w + mx.abs(mx.linalg.eigvals(x + w))), axis=-1)
    return x * 0.5 + mx.mean(hidden, axis=0), mx.sort(hidden[0])


def test_threads_share_a_card() -> None:
    """Each thread has its own numbers, and gets the same results as on the CPU."""

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        x, w = (mx.array(rng.normal(size=(24, 24)).astype(np.float32)) for _ in range(2))
        compiled = mx.compile(step)
        with mx.stream(mx.cpu):
            wanted = step(step(x, w)[0], w)
            mx.eval(wanted)
        with mx.stream(mx.gpu if seed % 2 else mx.new_stream(mx.gpu)):
            for _ in range(30):
                assert_same_bits(compiled(compiled(x, w)[0], w), wanted)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_a_thousand_steps_keep_no_memory() -> None:
    with mx.stream(mx.gpu):
        compiled = mx.compile(lambda x: (mx.exp(-x) * x, mx.sum(x)))
        x = mx.ones((1000,)) + 0
        used = []
        for _ in range(1000):
            x, _ = compiled(x)
            used.append(engine_of(mx.Device(mx.gpu)).memory.active)
        assert used[-1] == used[10]
        assert np.isfinite(x.sum().item())


def test_work_crosses_devices_and_streams() -> None:
    side = mx.new_stream(mx.gpu)
    x = mx.array(np.linspace(0, 1, 1000, dtype=np.float32))

    def chain(streams: list[mx.Stream]) -> mx.array:
        y = x
        for number in range(40):
            y = mx.sin(y * 1.01, stream=streams[number % len(streams)])
        return y

    wanted = chain([mx.default_stream(mx.cpu)])
    crossing = chain([mx.default_stream(mx.gpu), mx.default_stream(mx.cpu), side])
    mx.async_eval(crossing)
    assert_same_bits(crossing, wanted)


IN_A_PROCESS = {
    "the default device": "assert mx.default_device() == mx.gpu, mx.default_device()",
    "nothing is loaded before": """
import sys
assert "weft.runtime.cuda.driver" not in sys.modules
assert "libcuda" not in open("/proc/self/maps").read()
mx.eval(mx.ones((2,), stream=mx.cpu) + 1)
""",
    "a child of a fork is told": """
import os, sys
mx.eval(mx.ones((2,)) + 1)
if os.fork() == 0:
    try:
        mx.eval(mx.ones((2,)) + 2)
    except RuntimeError as error:
        mx.set_default_device(mx.cpu)
        os._exit(0 if "forked" in str(error) and mx.ones((2,)).sum().item() == 2 else 1)
    os._exit(2)
assert os.wait()[1] == 0
""",
    "an error of the card": """
from weft.runtime.engine import engine_of
from weft.runtime.steps import Step, Table
from weft.runtime.cuda.code import CudaCode
from tests.gpu.test_card import DOUBLED
engine = engine_of(mx.Device(mx.gpu))
steps = engine.seal([Step(CudaCode(DOUBLED, "doubled", 32, title="doubles"), [1000], 1, 1)])
x = mx.ones((1000,)) * 3
mx.eval(x)
engine.run(steps, Table(steps, [64, 128]))
try:
    x.tolist()
except RuntimeError as error:
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error), error
    assert "doubles" in str(error), error
else:
    raise AssertionError
assert mx.ones((2,), stream=mx.cpu).sum(stream=mx.cpu).item() == 2
""",
}


@pytest.mark.parametrize("name", IN_A_PROCESS)
def test_in_a_process_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_DEVICE", raising=False)
    code = f"import weft.core as mx\n{IN_A_PROCESS[name]}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# What NVIDIA's assembler gets wrong unless it is helped: see `weft.compiler.codegen.ptx_remedies`.
INTEGERS: dict[str, tuple[mx.Dtype, Callable[[mx.array], mx.array]]] = {
    "maximum of negated ones": (mx.int32, lambda x: mx.max(-x, axis=1)),
    "minimum of negated ones": (mx.int32, lambda x: mx.min(-x, axis=1)),
    "sign of the smallest": (mx.int64, lambda x: mx.sign(mx.abs(x))),
    "16 bits": (mx.int16, lambda x: mx.right_shift(mx.abs(x), 1)),
    "a divisor that is at least 1": (mx.int8, lambda x: mx.floor_divide(x * x, mx.maximum(x - x, 1))),
    "masks": (mx.uint32, lambda x: mx.argmax(mx.bitwise_and(mx.right_shift(x, 1), x * 5 + 3), axis=1)),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str, rng: np.random.Generator) -> None:
    dtype, function = INTEGERS[name]
    smallest = {mx.int16: -(2**15), mx.int64: -(2**63)}.get(dtype, 0)
    x = mx.array(np.append(rng.integers(-9, 9, size=(200, 3)), [[smallest, 0, 1]], axis=0)).astype(dtype)
    with mx.stream(mx.cpu):
        wanted = function(x)
        mx.eval(wanted)
    with mx.stream(mx.gpu):
        assert_same_bits(function(x), wanted)
