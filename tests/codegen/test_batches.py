"""The code of a plan is made in one batch, on several threads, and is the same as on one thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import llvmlite.binding as llvm
import pytest

import weft.core as mx
from weft.compiler.codegen import batches, jit, llvm_threads, loading, nvptx
from weft.compiler.cuda.target import CudaTarget
from weft.compiler.planning import making_steps
from weft.compiler.planning.plan import parts_of
from weft.compiler.program import Program
from weft.compiler.running import evaluate
from weft.runtime.disk_cache import DiskCache
from weft.runtime.engine import engine_of
from weft.runtime.host import host

TEXT = """
define void @NAME(ptr %p) {
  %a = load <16 x double>, ptr %p
  %b = fmul <16 x double> %a, %a
  %c = fadd <16 x double> %b, ADDED
  store <16 x double> %c, ptr %p
  ret void
}
"""


def text(number: int) -> str:
    added = ", ".join([f"double {number}.0"] * 16)
    return TEXT.replace("NAME", f"f{number}").replace("ADDED", f"<{added}>")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that make code."""
    found: list[str] = []
    made = batches.outcome_of

    def watched(work: batches.Work, make: Callable[[str], Any]) -> Any:
        found.append(threading.current_thread().name)
        return made(work, make)

    monkeypatch.setattr(batches, "outcome_of", watched)
    return found


def several_kernels(x: mx.array, salt: float) -> list[mx.array]:
    y = mx.softmax(mx.sinh(x) * mx.cosh(x) - salt, axis=-1)
    return [mx.sum(mx.arctan(y) / mx.exp(x), axis=0), mx.cumsum(mx.expm1(y @ y.T) - mx.tan(x[:, :4]), axis=1)]


@pytest.mark.parametrize("processors", [1, 4])
def test_kernels_of_a_plan_are_made_together(
    names: list[str], monkeypatch: pytest.MonkeyPatch, processors: int
) -> None:
    monkeypatch.setattr(batches, "available_processors", lambda: processors)
    monkeypatch.setattr(loading, "_sources", [])  # nothing is cached on disk
    x = mx.arange(24.0).reshape(4, 6) / 30
    wanted = [mx.array(part) for part in several_kernels(x, 0.5)]
    mx.eval(wanted)
    before = len(names)
    monkeypatch.setattr(host.target, "_codes", {})
    evaluate.forget_plans()
    found = mx.compile(lambda x: several_kernels(x, 0.5))(x)
    mx.eval(found)
    assert [part.tolist() for part in found] == [part.tolist() for part in wanted]
    assert len(names) - before > 2
    assert all(name.startswith("weft LLVM") for name in names[before:]) == (processors > 1)


def test_code_that_several_steps_ask_for_is_written_to_disk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[bytes] = []
    monkeypatch.setattr(DiskCache, "put", lambda self, key, payload: put.append(key))
    monkeypatch.setattr(DiskCache, "get", lambda self, key: None)
    module = loading._Module("asked for by several steps", lambda: text(77), ("f77",), "f77", quickly=False)
    with batches.opened() as batch:
        with pytest.raises(batches.Deferred):
            loading._found_or_made(module, lasting=True)
        batch.make()
        assert loading._found_or_made(module, lasting=True) is loading._found_or_made(module, lasting=True)
    assert put == [module.key]


def test_all_kernels_of_a_call_are_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sort on a GPU is a call with several kernels."""
    monkeypatch.setattr(loading, "_sources", [])  # nothing is cached on disk
    x = mx.ones((100_000,))
    mx.eval(x)
    sizes, make = [], batches.Batch.make

    def watched(batch: batches.Batch) -> None:
        sizes.append(len(batch.waiting))
        make(batch)

    monkeypatch.setattr(batches.Batch, "make", watched)
    program = Program()
    program.add([mx.sort(x).node])
    parts = parts_of(program.entries, [len(program.entries) - 1], CudaTarget("sm_90"), engine_of(mx.Device(mx.cpu)))
    kernels = {step.code for step in parts.steps}
    assert len(kernels) > 2
    assert sizes == [len(kernels), 0]


def test_few_steps_of_an_unrolled_loop_are_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """When many steps wait for the same code, it is made before all others were tried."""
    monkeypatch.setattr(loading, "_sources", [])  # nothing is cached on disk
    monkeypatch.setattr(host.target, "_codes", {})
    monkeypatch.setattr(making_steps, "MOST_REPEATED", 8)
    count, steps_of = 0, making_steps.StepMaker._steps_of

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return steps_of(*arguments)

    monkeypatch.setattr(making_steps.StepMaker, "_steps_of", counted)

    def loop(x: mx.array) -> mx.array:
        for _ in range(60):
            x = mx.sinh(x) - mx.sum(mx.cosh(x) * 0.125)
        return x

    mx.eval(mx.compile(lambda x: loop(x))(mx.zeros((5,))))
    made, count = count, 0
    evaluate.forget_plans()
    mx.eval(mx.compile(lambda x: loop(x))(mx.zeros((5,))))
    assert 30 < count < made < 1.5 * count


def test_the_same_code_on_several_threads() -> None:
    jit.host()
    nvptx.begin()
    texts = [text(number) for number in range(24)]
    functions = [(f"f{number}",) for number in range(24)]
    alone = [jit.make(*one) for one in zip(texts, functions, strict=True)]
    ptx = [nvptx.ptx(one, "sm_90") for one in texts]
    found: list[Any] = [None] * len(texts)

    def work(first: int) -> None:
        for number in range(first, len(texts), 4):
            found[number] = jit.make_apart(texts[number], functions[number]), nvptx.ptx_apart(texts[number], "sm_90")

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == list(zip(alone, ptx, strict=True))


def test_others_have_the_lock_still() -> None:
    """A thread inside of `apart` does not take LLVM's lock; all others wait for the thread that holds it."""
    assert llvm_threads.possible()
    lock, entered = llvm.ffi.lib._lock, threading.Event()

    def other(passes: bool) -> None:
        if passes:
            with llvm_threads.apart(), lock:
                entered.set()
        else:
            with lock:
                entered.set()

    for passes in (True, False):
        entered.clear()
        with lock:
            thread = threading.Thread(target=other, args=(passes,))
            thread.start()
            assert entered.wait(10 if passes else 0.1) == passes
        thread.join()
        assert entered.is_set()


def test_nobody_passes_where_somebody_is_told_of_the_lock() -> None:
    def told() -> None:
        pass

    llvm.ffi.register_lock_callback(told, told)
    try:
        assert not llvm_threads.possible()
    finally:
        llvm.ffi.unregister_lock_callback(told, told)
    assert llvm_threads.possible()


def test_a_fault_in_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised, and no batch stays open."""
    monkeypatch.setattr(batches, "available_processors", lambda: 4)
    with batches.opened() as batch:
        for number, source in enumerate([text(0), "no module", text(2)]):
            with pytest.raises(batches.Deferred):
                loading.load(f"a fault {number} {os.urandom(8).hex()}", partial(str, source), (f"f{number}",))
        with pytest.raises(jit.CodeGenerationError):
            batch.make()
    assert batches.current() is None
    assert mx.exp(mx.array(0.0)).item() == 1


def test_what_is_asked_for_twice_is_written_once() -> None:
    count = 0
    source = f"once {os.urandom(8).hex()}"

    def generate() -> str:
        nonlocal count
        count += 1
        return text(1)

    with batches.opened() as batch:
        for _ in range(2):
            with pytest.raises(batches.Deferred):
                loading.load(source, generate, ("f1",))
        batch.make()
        assert loading.load(source, generate, ("f1",))["f1"]
    assert count == 1
