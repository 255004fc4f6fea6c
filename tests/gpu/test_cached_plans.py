"""Plans for cards that another process reads from disk: the code that they name, and when they cannot be used."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import weft.core as mx
from tests.gpu.fake_cudnn import FakeCudnn
from tests.gpu.fake_driver import FakeDriver
from weft.compiler.codegen import loading
from weft.compiler.cuda import head_start
from weft.compiler.cuda.cudnn import attention
from weft.compiler.cuda.target import CudaTarget
from weft.compiler.planning import cached_plans, plan_data
from weft.compiler.planning.plan import Unsealed, parts_of
from weft.compiler.program import Program
from weft.runtime.cuda import cublas
from weft.runtime.cuda.code import CudaCode
from weft.runtime.cuda.cudnn import plans
from weft.runtime.cuda.cudnn.descriptors import Library
from weft.runtime.cuda.cudnn.plans import CudnnCall
from weft.runtime.cuda.shared_libraries import CUDNN
from weft.runtime.cuda.solvers import calls
from weft.runtime.disk_cache import DiskCache
from weft.runtime.engine import engine_of
from weft.runtime.host import host
from weft.runtime.steps import OnHost


@pytest.fixture
def library(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeCudnn:
    """cuDNN without a card. There is also a cuBLASLt, and no cuSOLVER, whose calls are not cached."""
    library = FakeCudnn(driver)
    monkeypatch.setattr(calls, "missing", lambda: "it is missing")
    monkeypatch.setattr(cublas, "missing", lambda: "")
    monkeypatch.setattr(plans, "missing", lambda: "")
    monkeypatch.setattr(CUDNN, "text", lambda function, code: f"STATUS_{code}")
    monkeypatch.setattr(plans, "_library", lambda: Library(library.functions))
    monkeypatch.setattr(attention, "FEW_QUERIES", 0)
    return library


def new_target() -> CudaTarget:
    """A target as in another process: it has no code yet."""
    target = CudaTarget("sm_90")
    target.stand_in = host.target
    target.machine = engine_of(mx.Device(mx.gpu))
    return target


def program() -> tuple[list[Any], list[int]]:
    """A program with kernels, one of them a copy, products, attention, and a step that the CPU does."""
    x = mx.ones((2, 64, 32), dtype=mx.bfloat16)
    w = mx.ones((32, 32), dtype=mx.bfloat16)
    mx.eval(x, w)
    for _ in range(3):
        heads = (x @ w).reshape(2, 64, 4, 8).swapaxes(1, 2)
        mixed = mx.fast.scaled_dot_product_attention(heads, heads, heads, scale=0.5)
        x = mx.fast.layer_norm(x + mixed.swapaxes(1, 2).reshape(2, 64, 32) @ w, w[0], w[1], 1e-5)
        x = mx.softmax(mx.exp(x) * mx.cos(x), axis=-1)
    cache = mx.zeros((3, 16, 32), dtype=mx.bfloat16)
    mx.eval(cache)
    cache[:, mx.array(3)] = x[0, 0]
    results = [cache, x, mx.linalg.qr(x[0, :16, :16].astype(mx.float32))[1]]
    found = Program()
    found.add([one.node for one in results])
    assert len(found.entries) >= cached_plans.FEWEST_ENTRIES
    return found.entries, [found.position(one.node) for one in results]


def facts(parts: Unsealed) -> list[Any]:
    """The parts of a plan that are equal in all processes."""

    def of(code: Any) -> Any:
        if isinstance(code, CudaCode):
            return code.ptx, code.name, code.threads, code.shared, code.title, code.cluster, code.queue, code.copied
        return code

    steps = [(of(step.code), list(step.numbers), step.units, step.grain) for step in parts.steps]
    return [steps, *parts.values()[1:]]


def test_another_process_finds_the_plan(library: FakeCudnn) -> None:
    entries, outputs = program()
    target = new_target()
    parts = parts_of(entries, outputs, target, engine_of(mx.Device(mx.gpu)))
    kinds = {type(step.code) for step in parts.steps}
    assert kinds >= {CudaCode, cublas.ProductCall, CudnnCall, OnHost}
    content = plan_data.to_bytes(parts, target)
    assert content is not None
    other = new_target()
    found = plan_data.from_bytes(content, other)
    assert found is not None
    assert facts(found) == facts(parts)
    assert any(isinstance(step.code, CudaCode) and step.code.copied is not None for step in parts.steps)
    for step, wanted in zip(found.steps, parts.steps, strict=True):
        assert type(step.code) is type(wanted.code)
        if isinstance(step.code, CudnnCall):
            assert hash(step.code.work) == hash(wanted.code.work)
    # A plan that is made there later has the same kernel objects.
    again = parts_of(entries, outputs, other, engine_of(mx.Device(mx.gpu)))
    for step, wanted in zip(found.steps, again.steps, strict=True):
        assert isinstance(step.code, OnHost | cublas.ProductCall | CudnnCall) or step.code is wanted.code


def test_a_library_that_is_not_the_same(library: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is not used if cuDNN needs another amount of scratch memory, or if cuBLASLt is missing."""
    entries, outputs = program()
    target = new_target()
    content = plan_data.to_bytes(parts_of(entries, outputs, target, engine_of(mx.Device(mx.gpu))), target)
    assert content is not None
    monkeypatch.setattr(cublas, "missing", lambda: "gone")
    assert plan_data.from_bytes(content, new_target()) is None
    monkeypatch.setattr(cublas, "missing", lambda: "")
    assert plan_data.from_bytes(content, new_target()) is not None
    library.scratch *= 2
    engine_of(mx.Device(mx.gpu)).for_libraries().clear()  # type: ignore[attr-defined]  # the engine of a card
    assert plan_data.from_bytes(content, new_target()) is None


def test_a_library_that_was_missing_is_a_part_of_the_key(monkeypatch: pytest.MonkeyPatch, library: FakeCudnn) -> None:
    before = new_target().cache_key
    monkeypatch.setattr(CUDNN, "_found", (None, "it is missing"))
    assert new_target().cache_key != before


class Processes:
    """Processes of one program, one after the other, on one card. For the latest one, ``rehearsed`` are its problems
    for cuBLASLt, and ``loaded`` the kernels that it has loaded."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = DiskCache(str(tmp_path))
        monkeypatch.setattr(loading, "disk_of_plans", lambda: self.disk)
        monkeypatch.setattr(head_start, "_name_of_program", lambda: "module program")
        self.rehearsed: list[cublas.MatmulProblem] = []

        def queued(call: cublas.ProductCall, addresses: object, queue: object) -> list[Any]:
            self.rehearsed.append(call.problem)
            return []

        monkeypatch.setattr(cublas.ProductCall, "queued", queued)
        self.engine: Any = engine_of(mx.Device(mx.gpu))
        self.loaded: list[CudaCode] = []
        monkeypatch.setattr(self.engine, "load", self.loaded.append)

    def new(self) -> CudaTarget:
        """The target of the next process, after its threads have made ready what the last process needed."""
        self.engine.for_libraries().clear()
        self.loaded.clear()
        self.rehearsed.clear()
        target = new_target()
        for begin in (target.card_will_be_used, target.card_is_used):
            begin()
            while any(thread.name.startswith("weft head start") for thread in threading.enumerate()):
                pass
        return target


@pytest.fixture
def processes(library: FakeCudnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(tmp_path, monkeypatch)


def test_what_a_program_needed_is_made_ready(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process of a program prepares the plan, its kernels and the libraries before it needs the plan."""
    entries, outputs = program()
    target = processes.new()
    parts = parts_of(entries, outputs, target, processes.engine)
    cached_plans.keep(entries, outputs, target, parts)
    works = {step.code.work for step in parts.steps if isinstance(step.code, CudnnCall)}
    problems = {step.code.problem for step in parts.steps if isinstance(step.code, cublas.ProductCall)}
    kernels = {step.code.ptx for step in parts.steps if isinstance(step.code, CudaCode)}
    target = processes.new()
    assert set(processes.engine.for_libraries()[CUDNN]._found) == works != set()
    assert set(processes.rehearsed) == problems != set()
    assert {code.ptx for code in processes.loaded} == kernels != set()
    monkeypatch.setattr(plan_data, "from_bytes", lambda *given: pytest.fail("the plan is ready"))
    ready = cached_plans.found(entries, outputs, target)
    assert ready is not None
    assert facts(ready) == facts(parts)


def test_a_plan_that_is_ready_is_given_once(processes: Processes) -> None:
    """The caller may change a plan; so a second one is read from disk."""
    entries, outputs = program()
    target = processes.new()
    cached_plans.keep(entries, outputs, target, parts_of(entries, outputs, target, processes.engine))
    target = processes.new()
    one, two = [cached_plans.found(entries, outputs, target) for _ in range(2)]
    assert one is not None
    assert two is not None
    assert one is not two
    assert facts(one) == facts(two)


def test_what_cannot_be_captured_does_no_harm(
    processes: Processes, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, outputs = program()
    target = processes.new()
    cached_plans.keep(entries, outputs, target, parts_of(entries, outputs, target, processes.engine))
    monkeypatch.setattr(driver, "captured", lambda actions, stream: 0)
    target = processes.new()
    assert processes.rehearsed
    assert cached_plans.found(entries, outputs, target) is not None
